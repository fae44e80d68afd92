"""Shortages and kills at random, beside 500 jobs and 2,000 leases: everything is done in the end, once, and by one."""

from __future__ import annotations

import os
import random

import pytest
from support.campaign import Campaign
from support.other_users import needs_root

FIRST = 61100


def through(seed: int, uid: int, rounds: int, jobs: int, leases: int, longest: float) -> None:
    print(f"GPULEASE_SEED={seed}")
    campaign = Campaign(seed, uid)
    try:
        dice, kinds = campaign.dice, list(campaign.shortages())
        order = [kind for _ in range(rounds) for kind in dice.sample(kinds, len(kinds))]
        for kind in order:
            beside = dice.sample([other for other in kinds if other != kind], dice.choice((0, 0, 1)))
            campaign.round([kind, *beside], jobs // len(order), longest)
        campaign.finish(leases)
        campaign.judge()
    except BaseException:
        print(campaign.story())
        raise
    finally:
        campaign.site.close()


@needs_root
def test_30_jobs_and_100_leases_through_one_shortage_of_each_kind() -> None:
    through(int(os.environ.get("GPULEASE_SEED") or 1), FIRST, rounds=1, jobs=30, leases=100, longest=0.2)


@needs_root
@pytest.mark.long("queue")
@pytest.mark.timeout(900)
def test_500_jobs_and_2000_leases_through_shortages_and_kills() -> None:
    seed = int(os.environ.get("GPULEASE_SEED") or random.SystemRandom().getrandbits(32))
    through(seed, FIRST + 1, rounds=10, jobs=500, leases=2000, longest=0.5)
