"""What is kept of the jobs that were added, in the user's own folder: Slurm forgets an ended job after minutes.

A record is written before sbatch is called and named after a token that the job carries, so a crash in between loses
nothing. How a job ended is written there by its own script. Not for: what Slurm knows itself.
"""

from __future__ import annotations

import os

from gpulease.slurm.fields import are_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

LARGEST = 1e12  # of a number
TEXTS = ("name", "label", "note", "log")


def is_record(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    commands, each = found.get("commands"), found.get("each", [])
    options: Any = found.get("options")
    return (
        isinstance(commands, list)
        and bool(commands)
        and all(are_words(words) for words in commands)
        and isinstance(each, list)
        and len(each) in (0, len(commands))
        and all(_has_texts(texts) for texts in each)
        and _has_texts(options)
        and isinstance(options.get("cwd"), str)
        and _is_number(options.get("retry") or 0)
        and isinstance(found.get("log"), str)
        and _is_number(found.get("added"))
        and _is_number(found.get("uid", 0))
        and _is_request(found.get("request"))
        and _are_texts(found.get("forgotten", []))
    )


def _has_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), (str, type(None))) for name in TEXTS)


def _is_request(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(name, 0)) for name in ("gpus", "priority"))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST


# -------------------------------------------------------------------- the folder

KEPT = 90 * 86400.0  # seconds
LAST, SITE = "last-seen", "site"
LONGEST_NOTE = 1 << 20  # bytes


def folder(environ: Mapping[str, str]) -> str:
    """The same on all nodes, where homes are shared; apart for each cluster that SLURM_CONF names."""
    asked = environ.get("GPULEASE_DIR")
    base = environ.get("XDG_STATE_HOME") or ""
    if asked:
        base = os.path.abspath(asked)
    elif not os.path.isabs(base):
        home = os.path.abspath(environ.get("HOME") or os.path.expanduser("~"))
        base = os.path.join(home, ".local", "state")
    conf = environ.get("SLURM_CONF")
    return os.path.join(base, *([] if asked else ["gpulease"]), f"slurm{_short(conf) if conf else ''}")


def _short(text: str) -> str:
    return f"-{int.from_bytes(os.fsencode(text)) % 4294967291:08x}"


class NotedEnd:
    """How a run of a job ended: `run` as Slurm counts runs, and whether Slurm had told it to end."""

    def __init__(self, code: int, began: float, ended: float, run: int, killed: bool) -> None:
        self.code, self.began, self.ended, self.run, self.killed = code, began, ended, run, killed

    def is_of(self, run: int | None) -> bool:
        return run is None or run == self.run


class Records:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = folder(environ)
        self.ends, self.logs = os.path.join(self.folder, "ends"), os.path.join(self.folder, "logs")
        self._found: dict[str, dict[str, Any]] | None = None

    def prepare(self) -> None:
        if not os.path.isdir(self.ends):
            for path in (self.folder, self.ends, self.logs):
                os.makedirs(path, 0o700, exist_ok=True)

    def write(self, token: str, record: dict[str, Any]) -> None:
        self.prepare()
        self._put(f"{token}.json", record)

    def _put(self, name: str, record: dict[str, Any]) -> None:
        from gpulease.protocol.wire import to_text

        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", opener=_private, errors="surrogateescape") as file:
            file.write(to_text(record))
        os.replace(path + ".new", path)
        self._found = None

    def submitted(self, token: str, id: str) -> None:
        """From now on it is found by its id too."""
        os.rename(os.path.join(self.folder, f"{token}.json"), os.path.join(self.folder, f"{id}.{token}.json"))
        self._found = None

    def drop(self, token: str) -> None:
        """Of what was not queued, or is to be forgotten."""
        for name in self._names():
            if name.endswith(f"{token}.json"):
                _remove(os.path.join(self.folder, name))
        self._found = None

    def by_token(self) -> dict[str, dict[str, Any]]:
        """All records, the newest last; each has its `id`, or None when it never got one."""
        if self._found is None:
            self._found = dict(sorted(self._read_all(), key=lambda pair: float(pair[1]["added"])))
        return self._found

    def _read_all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        from time import time

        from gpulease.protocol.wire import from_text

        for name in self._names():
            path = os.path.join(self.folder, name)
            id, _, token = name.removesuffix(".json").rpartition(".")
            try:
                if time() - os.stat(path).st_mtime > KEPT:
                    self._expire(time() - KEPT)
                    continue
                with open(path, errors="surrogateescape") as file:
                    record = from_text(file.read())
            except (OSError, ValueError):
                continue  # it was removed, or the disk was full when it was written
            if is_record(record) and (id.isdecimal() or not id):
                yield token, {**record, "id": id or None}

    def _expire(self, before: float) -> None:
        """Records, and the notes of how jobs began and ended, that were written before that moment."""
        names = [os.path.join(self.folder, name) for name in self._names()]
        for path in (*names, *(os.path.join(self.ends, name) for name in _listed(self.ends))):
            try:
                if os.stat(path).st_mtime < before:
                    os.unlink(path)
            except OSError:
                pass

    def _names(self) -> list[str]:
        return [name for name in _listed(self.folder) if name.endswith(".json")]

    def _note(self, id: str, token: str) -> str:
        return os.path.join(self.ends, f"{id}.{token}")

    def end_of(self, id: str, token: str) -> NotedEnd | None:
        """As the job's own script wrote it."""
        try:
            with open(self._note(id, token)) as file:
                code, began, ended, _, whose, run, *more = file.read(200).split()
                if whose != token:
                    return None
                return NotedEnd(int(code), float(int(began)), float(int(ended)), int(run), more[:1] == ["killed"])
        except (OSError, ValueError):
            return None

    def tries_of(self, id: str, token: str) -> int:
        """How often its command was begun: a line for each, and one for each time that Slurm ended it."""
        try:
            with open(f"{self._note(id, token)}.began", "rb") as file:
                content = file.read(LONGEST_NOTE)
                return content.count(b"\n") - content.count(b" ended\n")
        except OSError:
            return 0

    def remove_log(self, id: str) -> None:
        """The one that was made for it here, if any: it has the job's id for a name. What the user named stays."""
        _remove(os.path.join(self.logs, f"{id}.log"))

    def forget(self, token: str, ids: list[str]) -> None:
        """These tasks are shown no more; the record goes with the last of them."""
        record = self.by_token().get(token)
        if record is None:
            return
        gone = sorted({*record.get("forgotten", ()), *ids})
        for id in ids:
            _remove(self._note(id, token))
            _remove(f"{self._note(id, token)}.began")
        self._change(token, {**record, "forgotten": gone})

    def rename(self, token: str, numbers: list[int], name: str | None) -> None:
        """These tasks, for the time when Slurm has forgotten them."""
        record = self.by_token()[token]
        each = [dict(texts) for texts in record.get("each") or [{} for _ in record["commands"]]]
        for number in numbers:
            each[number]["name"] = name
        self._change(token, {**record, "each": each})

    def _change(self, token: str, record: dict[str, Any]) -> None:
        self._put(f"{record['id']}.{token}.json" if record["id"] else f"{token}.json", record)

    def saw(self, counts: dict[str, int], now: float) -> None:
        """What Slurm last told of one's own jobs, for the time when it does not answer."""
        try:
            self.prepare()
            self._put(LAST, {"time": now, "counts": counts})
        except OSError:
            pass  # nothing depends on it

    def keep_site(self, values: dict[str, str], now: float) -> None:
        try:
            self.prepare()
            self._put(SITE, {"time": now, "values": values})
        except OSError:
            pass  # it is asked for again

    def kept_site(self) -> tuple[float, dict[str, str]] | None:
        """When Slurm was last asked what its site has chosen, and what it said."""
        from gpulease.protocol.wire import from_text

        try:
            with open(os.path.join(self.folder, SITE)) as file:
                content = from_text(file.read())
                return float(content["time"]), {str(name): str(value) for name, value in content["values"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    def added_since(self, moment: float) -> int:
        """How many jobs Slurm has taken since."""
        kept = self.by_token().values()
        return sum(len(record["commands"]) for record in kept if record["id"] and record["added"] > moment)

    def last_seen(self) -> tuple[float, dict[str, int]] | None:
        from gpulease.protocol.wire import from_text

        try:
            with open(os.path.join(self.folder, LAST)) as file:
                content = from_text(file.read())
                counts = {state: number for state, number in content["counts"].items() if type(number) is int}
                return float(content["time"]), counts
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
