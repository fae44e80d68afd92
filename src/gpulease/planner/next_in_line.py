"""Who is served next, whatever fits: the order that a look ahead assumes. PURE.

Forced requests, those that devices are held for, an order of the administrator's own; then by priority, fair share and
the order of the policy, as a plan does it. Not here: that overdue requests go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice

from gpulease.model.values import Waiting
from gpulease.planner.fairness import Standing
from gpulease.planner.line import Line, Tier
from gpulease.planner.search import Order

PASSED_OVER = 4  # times as many are looked at as are wanted


def next_in_line(
    line: Line, standing: Standing, first: Iterable[str], able: Callable[[Waiting], bool], most: int, order: Order
) -> list[Waiting]:
    """The first `most` of those who are able to start; `first` are ids that go before the others."""
    forced = sorted(line.forced, key=lambda id: (line.forced[id].since, id))
    special = (line[id] for id in chain(forced, first) if id in line)
    tiers = (_by_share(line, line.tiers[priority], standing, order) for priority in sorted(line.tiers))
    everybody = islice(chain(special, chain.from_iterable(tiers)), PASSED_OVER * most)
    found: dict[str, Waiting] = {}
    for waiting in everybody:
        if len(found) == most:
            break
        if able(waiting):
            found[waiting.id] = waiting
    return list(found.values())


def _by_share(line: Line, tier: Tier, standing: Standing, order: Order) -> Iterator[Waiting]:
    """Of the user who had the least each time, a grant being charged; of equal users, by the order."""
    charged: dict[str, float] = {}
    entries = [
        merge(*(search.keys() for queues in families.values() for search in order(party, queues)))
        for party, families in tier.parties.items()
    ]
    heads = [(standing.of(party.user), next(entries[at]), at) for at, party in enumerate(tier.parties)]
    heapify(heads)
    while heads:
        _, key, at = heappop(heads)
        waiting = line[key[-1]]
        yield waiting
        user = waiting.user
        charged[user] = charged.get(user, 0.0) + waiting.request.gpus * standing.policy.minimum_charge
        following = next(entries[at], None)
        if following is not None:
            heappush(heads, (standing.of(user) + charged[user], following, at))
