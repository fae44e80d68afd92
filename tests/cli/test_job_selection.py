"""Every verb that is about jobs takes `--user` and `--mine`."""

from __future__ import annotations

import os

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here

from gpulease.api import add
from gpulease.cli.argument_parser import make_parser
from gpulease.cli.main import VERBS, main
from gpulease.errors import NotFound, UsageError

# verb -> what it needs beside the choice of jobs
ABOUT_JOBS = {
    **dict.fromkeys(("kill", "rm", "pause", "resume", "start", "retry", "wait", "log", "ls", "show", "debug"), ()),
    "move": (),
    "clean": ("--all",),
    "edit": ("--priority", "3"),
}
NOT_A_CHOICE = {"add"}  # whose --label is that of the new job


def options(verb: str) -> set[str]:
    return {option for action in make_parser(verb)._actions for option in action.option_strings}


def test_no_verb_is_left_out() -> None:
    choosing = {verb for verb in VERBS if "--label" in options(verb) and verb not in NOT_A_CHOICE}
    assert choosing | {"move"} == set(ABOUT_JOBS)
    assert all({"--user", "--mine"} <= options(verb) for verb in ABOUT_JOBS)


def test_every_verb_takes_a_user_and_ones_own(
    queue: QueueSite,
    inside: None,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb, more in ABOUT_JOBS.items():
        assert main([verb, "last", *more, "--user", "no-such-user"]) == 1, verb
        assert "There is no user 'no-such-user'." in capsys.readouterr().err, verb
        empty = main([verb, "last", *more, "--mine"])
        seen = capsys.readouterr()
        assert "No such job" in seen.err or (empty, seen.out) == (0, "nothing to do\n"), verb
        assert main([verb, "last", *more, "--mine", "--user", "root"]) == 2, verb
        assert "--user and --mine were both given" in capsys.readouterr().err, verb


def test_only_all_is_told_that_it_is_roots_own(
    queue: QueueSite,
    inside: None,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["kill", "last"], ["wait", "last"], ["explain", "last"]):
        assert main(words) == 1
        reply = capsys.readouterr().err
        assert "No such job" in reply
        assert "`all`" not in reply
    main(["kill", "all"])
    assert ("`all` means root's own jobs" in capsys.readouterr().err) == (os.getuid() == 0)


def test_every_function_takes_them_too(queue: QueueSite, inside: None) -> None:  # noqa: F811
    import gpulease

    for name in ("kill", "rm", "pause", "resume", "start", "retry", "wait", "ls", "show", "clean", "move", "edit"):
        more = {"priority": 3} if name == "edit" else {}
        act = getattr(add if name == "edit" else gpulease, name)
        with pytest.raises(NotFound):
            act("last", user="no-such-user", **more)
        with pytest.raises(UsageError):
            act("last", user="root", mine=True, **more)


def test_mine_alone_is_all_of_ones_own(queue: QueueSite) -> None:
    queue.submit_all([["true"]] * 3, hold=True)
    assert queue.run("kill", "--mine").stdout == "killed 1-3\n"
    assert queue.run("rm", "2-3", "--mine").stdout == "removed 2-3\n"
