"""What a client says about a job, checked as from a stranger: a wrong value here must not trouble a broker later."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from gpulease.broker.core.jobs import default_log
from gpulease.broker.core.limits import allowance, check_request, refused
from gpulease.broker.core.turn import Turn
from gpulease.errors import NotPermitted, UsageError
from gpulease.model.device_selection import resolve
from gpulease.model.job import Job
from gpulease.model.peer import Peer
from gpulease.model.quantities import matching
from gpulease.model.values import Request, Waiting
from gpulease.planner import Line, plan
from gpulease.planner.reasons import NEVER, Reason
from gpulease.protocol.messages import Message, read_request

ENVIRONMENT_BYTES = 512 << 10
LONGEST = 10 * 365 * 86400.0  # seconds of a time limit
LONGEST_WORD = (128 << 10) - 1  # the kernel starts no program with a longer one
OWN = {"name", "label", "note", "log"}  # what each job of a batch may have of its own


def request_of(turn: Turn, user: Peer | Job, fields: Message, hold: bool) -> Request:
    request = resolve(read_request(fields, 0), list(turn.state.devices.values()))
    if not request.gpus and not turn.state.slots:
        raise NotPermitted("Jobs without a GPU are not run here: cpu-jobs is 0.", "Ask whoever runs the broker.")
    groups = turn.world.groups_of(user.uid)
    check_request(allowance(turn.state, user.user, groups), request)
    probe = Waiting("probe", request._replace(not_before=None), user.user, user.uid, 0.0, groups, "job")
    reason = None if hold else impossible(turn, probe)
    if reason is not None:
        raise refused(reason, "Ask for less, or queue it all the same with `hold`.")
    return request


def impossible(turn: Turn, probe: Waiting) -> Reason | None:
    """Why a request can never be granted here; None when it can."""
    if turn.state.sample is None:
        return None
    key = (probe, turn.state.policy)
    if key not in turn.possible:
        turn.possible[key] = _impossible(turn, probe)
    return turn.possible[key]


def _impossible(turn: Turn, probe: Waiting) -> Reason | None:
    line = Line(turn.state.policy)
    line.add(probe)
    decided = plan(turn.state.devices.values(), (), line, turn.state.policy, turn.now)
    if decided.grants:
        return None
    reason = decided.reason(probe.id)
    return reason if reason.code in NEVER else None


def environment_of(turn: Turn, uid: int, options: Message) -> tuple[str, dict[str, str], list[str]]:
    """Its key in the store, itself, and the names of what is left out of it: secrets, unless their user named them."""
    environ, kept = options.get("environment"), options.get("env_kept") or []
    if not isinstance(kept, list):
        raise UsageError("The variables to keep are not right.", "Give a list of names.")
    if not isinstance(environ, dict) or not all(isinstance(v, str) for pair in environ.items() for v in pair):
        raise UsageError("The environment of the job is not right.")
    left_out = [name for name in matching(environ, turn.state.settings.env_exclude) if name not in kept]
    environ = {name: value for name, value in environ.items() if name not in left_out}
    text = "\0".join(f"{name}={value}" for name, value in sorted(environ.items()))
    if len(text) > ENVIRONMENT_BYTES:
        raise UsageError(
            f"The environment has more than {ENVIRONMENT_BYTES >> 10} KiB.", "Queue it from a smaller one."
        )
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{uid}.{digest}", environ, left_out


def log_of(turn: Turn, peer: Peer, options: Message, count: int) -> Callable[[int], str]:
    """Where the output of each job of a batch goes, by its id."""
    asked = text(options, "log")
    if asked is None:
        return lambda id: default_log(turn, peer.uid, id)
    return _log_at(options, asked, count == 1)


def _log_at(options: Message, asked: str, alone: bool) -> Callable[[int], str]:
    """A client says by a slash at its end that a path is a folder: the broker looks at nobody's disk."""
    path = os.path.join(text(options, "cwd") or "/", asked)
    if asked.endswith("/"):
        return lambda id: os.path.join(path, f"{id}.log")
    return lambda id: path if alone else f"{path}.{id}"


def own_texts(options: Message, each: list[dict[str, str]], first: int) -> list[Message]:
    """The name, label, note and log that a job of a batch has of its own."""
    logs = Counter(texts.get("log") for texts in each)
    return [_own(options, texts, id, logs[texts.get("log")] == 1) for id, texts in enumerate(each, first)]


def _own(options: Message, texts: dict[str, str], id: int, alone: bool) -> Message:
    strange = sorted(set(texts) - OWN)
    if strange or texts.get("log") == "":
        raise UsageError(f"A command cannot have such a {(strange or ['log'])[0][:40]!r} of its own.")
    found: Message = {name: text(texts, name) for name in texts}
    if "log" in found:
        found["log"] = _log_at(options, found["log"], alone)(id)
    return found


def text(options: Message, name: str, most: int = 4096) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise UsageError(f"The {_said(name)} is not right.", f"Give text of at most {most} letters.")
    if name == "label" and not is_text(value):
        raise UsageError("The label has bytes in it that are no text.", "Give it in UTF-8.")
    return value


def is_text(value: str) -> bool:
    """Whether it can be asked for: bytes that are no text are kept as they are in paths and commands only."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def path(options: Message, name: str) -> str:
    value = text(options, name)
    if not value or not os.path.isabs(value):
        raise UsageError(f"The {_said(name)} is not right.", "Give a full path.")
    return value


def number(options: Message, name: str, least: int, most: int) -> int:
    value = options.get(name) or 0
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"The {_said(name)} is {str(value)[:40]!r}.", f"Give {least} to {most}.")
    return value


def seconds(options: Message, name: str) -> float | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST:
        raise UsageError(f"The {_said(name)} is {str(value)[:40]!r}.", "Give a time above 0, as 4h.")
    return float(value)


def _said(name: str) -> str:
    return {"cwd": "folder", "retry": "number of retries"}.get(name, name.replace("_", " "))


def command(words: object) -> tuple[str, ...]:
    good = isinstance(words, list) and 0 < len(words) <= 10_000 and all(isinstance(word, str) for word in words)
    if not good:
        raise UsageError("The command is not right.", "Give its words as a list of text.")
    return without_zero(words)  # type: ignore[arg-type]  # `good` says that it is a list of text


def without_zero(words: list[str]) -> tuple[str, ...]:
    if not words or not words[0]:
        raise UsageError("A command is empty.", "Leave it out.")
    if max(map(len, words)) > LONGEST_WORD:
        raise UsageError(f"A command has a word of more than {LONGEST_WORD >> 10} KiB.", "Put it into a file.")
    if "\0" in "".join(words):
        raise UsageError("A command has a zero byte in it.", "Leave it out; no program can get it.")
    return tuple(words)
