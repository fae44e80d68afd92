"""Limits as text: what is accepted can be planned with, what is refused says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.broker.config import texts_of
from gpulease.errors import ConfigError, UsageError
from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import Limit, Line, Policy, limits_of, plan
from gpulease.planner.limits import NAMED_AMOUNTS as AMOUNTS
from gpulease.planner.limits import read_limits
from gpulease.planner.policy import UNLIMITED

G = 1 << 30


def test_a_text_has_several_with_several_amounts() -> None:
    text = "user:*:gpus=4:jobs=1000:longest-lease=7d:priorities=5-9 group:students:gpus=8 user:ada:gpus=none"
    assert read_limits(text) == (
        Limit("user", "*", gpus=4, jobs=1000, longest_lease=7 * 86400.0, priorities=(5, 9)),
        Limit("group", "students", gpus=8),
        Limit("user", "ada", gpus=UNLIMITED),
    )
    assert read_limits("none") == ()
    assert read_limits("user:*:time-limit=01:30:00:gpus=4") == (Limit("user", "*", gpus=4, time_limit=5400.0),)
    written = texts_of('[limits.user."*"]\ntime-limit = "01:30:00"\ngpus = 4\n', "config.toml")
    assert read_limits(written["limits"]) == (Limit("user", "*", gpus=4, time_limit=5400.0),)
    assert read_limits("user:*:priorities=-3-5")[0].priorities == (-3, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("priority:*:gpus=1", "has no number"),
        ("priority:1e3:gpus=1", "has no number"),
        ("user:*", "is not a limit"),
        ("users:*:gpus=1", "is not a limit"),
        ("user:*:gpu=1", "Did you mean gpus?"),
        ("user:*:gpus=-1", "0 to 1000000"),
        ("user:*:priorities=9-5", "a range"),
        ("user:*:priorities=", "a range"),
        ("user:*:longest-lease=0", "a time"),
        ("group:lab:jobs=1", "Write user:@lab:jobs=1"),
        ("user:a:gpus=1 user:a:shares=1", "twice"),
    ],
)
def test_a_wrong_one_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(UsageError) as trouble:
        read_limits(text)
    assert said in str(trouble.value)


def test_tables_of_the_config_file_say_the_same() -> None:
    text = (
        '[limits.user."*"]\ngpus = 4\nlongest-lease = "7d"\npriorities = "5-9"\n\n[limits.group.students]\ngpus = 8\n'
    )
    assert texts_of(text, "/c") == {"limits": "user:*:gpus=4:longest-lease=7d:priorities=5-9 group:students:gpus=8"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[limits.user."*"]\ngpus = 4\njob = 3\n', 3),
        ("grace = 1\n[limits.group.lab]\njobs = 4\n", 3),
        ('[limits.user."a b"]\ngpus = 4\n', 2),
        ("[limits]\nuser = 4\n", 2),
        ("[limits.priority.x]\ngpus = 4\n", 2),
        ("[limits.user.ada]\ngpus = [1]\n", 2),
    ],
)
def test_a_wrong_limit_in_a_table_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as trouble:
        texts_of(text, "/c")
    assert trouble.value.what.startswith(f"/c, line {line}: ")


words = st.sampled_from(["user", "group", "priority", "*", "@lab", "lab", "ada", "5", "-3", "x", "", "٣", "1_0"])
amounts = st.builds(
    "{}={}".format, st.sampled_from([*AMOUNTS, "x"]), st.sampled_from(["0", "2", "1G", "3d", "4-9", "none"])
)
entries = st.builds(lambda *parts: ":".join(parts), words, words, amounts, amounts) | st.text(max_size=20)


@given(st.lists(entries, max_size=4).map(" ".join))
def test_whatever_text_is_accepted_can_be_planned_with(text: str) -> None:
    """A limit of priority `*` was once kept, and nothing could be planned from then on."""
    try:
        limits = read_limits(text)
    except UsageError:
        return
    policy = Policy(limits=limits)
    line = Line(policy)
    for number, request in enumerate((Request(), Request(memory=5 * G), Request(2, priority=7))):
        line.add(Waiting(f"r{number}", request, "ada", 1, 0.0, ("lab", "staff")))
    devices = [Device(at, f"u{at}", "A100", memory_total=40 * G, memory_used=0, processes=()) for at in range(3)]
    held = Lease("L", "run", ("u0",), Owner(1, "ada", "h", "b", groups=("lab",)), 0.0, memory=G)
    decided = plan(devices, [held], line, policy, 10.0)
    for waiting in line:
        if waiting.id not in {grant.id for grant in decided.grants}:
            assert decided.reason(waiting.id).sentence
    limits_of(limits, "ada", ("lab",))
