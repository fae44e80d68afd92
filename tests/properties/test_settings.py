"""Whatever text a parameter is given, it is refused, or can be planned with; what is stored may be anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import UsageError
from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import Line, Policy, Spent, charged, plan, settings

G = 1 << 30
NUMBERS = [
    "0",
    "1",
    "1e-300",
    "1e300",
    "1e999",
    "nan",
    "inf",
    "-1",
    "5",
    "7d",
    "1G",
    "100%",
    "on",
    "none",
    "",
    "user:*:gpus=1",
]
texts = st.sampled_from(NUMBERS) | st.text(max_size=12)


def _decide(policy: Policy) -> None:
    """A plan with shares, holds, usage and every kind of request; it must come to an end, and give its reasons."""
    line = Line(policy)
    requests = (Request(), Request(2, duration=5.0), Request(memory=5 * G, max_leases=1), Request(3, priority=9))
    for number, request in enumerate(requests):
        line.add(Waiting(f"r{number}", request, ("ada", "ben")[number % 2], 1, number * 1e5, ("lab",)))
    devices = [Device(at, f"u{at}", "A100", memory_total=40 * G, memory_used=0, processes=()) for at in range(3)]
    held = Lease("L", "run", ("u0",), Owner(1, "ada", "h", "b"), 5.0, memory=G, duration=3.0)
    usage = charged({"ben": Spent(1e3, 0.0)}, held, 0.5, 1e7, policy)
    decided = plan(devices, [held], line, policy, 1e7, usage=usage, records=usage)
    for waiting in line:
        if waiting.id not in {grant.id for grant in decided.grants}:
            assert decided.reason(waiting.id).sentence
            decided.explain(waiting.id)


@given(st.sampled_from(list(settings.PARAMETERS)), texts)
def test_a_text_is_refused_as_wrong_usage_or_it_can_be_planned_with(name: str, text: str) -> None:
    try:
        settings.parse(name, text)
    except UsageError:
        return
    _, policy = settings.apply({name: text}, lambda _: None)
    _decide(policy)


@given(st.dictionaries(st.sampled_from([*settings.PARAMETERS, "paused", "gone"]), texts))
def test_whatever_is_stored_there_are_settings_and_a_plan(stored: dict[str, str]) -> None:
    _decide(settings.apply(stored, lambda _: None)[1])
