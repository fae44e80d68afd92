"""The broker's core under every order of events: what it promised holds, whatever happens in between."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.core_machine import CoreMachine

# What fails is found again by its seed or its blob; a smaller example of a hundred steps takes minutes to find.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, *((Phase.shrink,) if os.environ.get("SHRINK") else ()))
LONG = bool(os.environ.get("GPULEASE_LONG"))
STEPS = 100
EXAMPLES = 2000 if LONG else 25  # 200,000 rules in the long run


def test_the_core_keeps_its_promises_in_every_order_of_events() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=PHASES,
        ),
    )
