"""The broker's core under every order of events: what it promised holds, whatever happens in between."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.core_machine import CoreMachine
from support.run_machine import RunMachine

from gpulease.broker.core import runs
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Run
from gpulease.model.lifecycle import PHASES, RUN

# What fails is found again by its seed or its blob; a smaller example of a hundred steps takes minutes to find.
PHASES_OF_TEST = (Phase.explicit, Phase.reuse, Phase.generate, *((Phase.shrink,) if os.environ.get("SHRINK") else ()))
LONG = bool(os.environ.get("GPULEASE_LONG"))
STEPS = 100
EXAMPLES = 2000 if LONG else 25  # 200,000 rules in the long run


def test_the_core_keeps_its_promises_in_every_order_of_events() -> None:
    run(CoreMachine, EXAMPLES)


def test_every_run_ends_in_every_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """And most of the table is gone through."""
    advance, taken = runs.advance, set()

    def noting(turn: Turn, id: int, event: str, said: Any = None) -> bool:
        taken.add((turn.state.jobs.runs.get(id, Run()).phase, event))
        return advance(turn, id, event, said)

    monkeypatch.setattr(runs, "advance", noting)
    run(RunMachine, EXAMPLES)
    assert {phase for phase, _ in taken} >= PHASES.keys()
    assert len(taken & RUN.keys()) >= len(RUN) * 0.75, sorted(RUN.keys() - taken)


def run(machine: type[CoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=PHASES_OF_TEST,
        ),
    )
