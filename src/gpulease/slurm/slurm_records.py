"""What is kept of the jobs that were added, in the user's own folder: Slurm forgets an ended job after minutes.

A record is written before sbatch is called and named after a token that the job carries, so a crash in between loses
nothing. How a job ended is written there by its own script. Not for: what Slurm knows itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

KEPT = 90 * 86400.0  # seconds
LAST = "last-seen"


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
        from gpulease.wire import to_text

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
        """All records; each has its `id`, or None when it never got one."""
        if self._found is None:
            self._found = dict(self._read_all())
        return self._found

    def _read_all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        from time import time

        from gpulease.wire import from_text

        for name in self._names():
            path = os.path.join(self.folder, name)
            id, token = name.removesuffix(".json").rpartition(".")[::2]
            try:
                if time() - os.stat(path).st_mtime > KEPT:
                    _remove(path)
                    continue
                with open(path, errors="surrogateescape") as file:
                    record = from_text(file.read())
            except (OSError, ValueError):
                continue  # it was removed, or the disk was full when it was written
            if isinstance(record, dict):
                yield token, {**record, "id": id or None}

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if name.endswith(".json")]
        except OSError:
            return []

    def end_of(self, id: str) -> tuple[int, float, float, int] | None:
        """Exit code, start, end and tries, as the job's own script wrote them."""
        try:
            with open(os.path.join(self.ends, id)) as file:
                code, began, ended, tries = file.read(200).split()
                return int(code), float(began), float(ended), int(tries)
        except (OSError, ValueError):
            return None

    def forget(self, token: str, ids: list[str]) -> None:
        """These tasks are shown no more; the record goes with the last of them."""
        record = self.by_token().get(token)
        if record is None:
            return
        gone = sorted({*record.get("forgotten", ()), *ids})
        name = f"{record['id']}.{token}.json" if record["id"] else f"{token}.json"
        for id in ids:
            _remove(os.path.join(self.ends, id))
            _remove(os.path.join(self.ends, f"{id}.began"))
        self._put(name, {**record, "forgotten": gone})

    def saw(self, counts: dict[str, int], now: float) -> None:
        """What Slurm last told of one's own jobs, for the time when it does not answer."""
        try:
            self.prepare()
            self._put(LAST, {"time": now, "counts": counts})
        except OSError:
            pass  # nothing depends on it

    def last_seen(self) -> tuple[float, dict[str, int]] | None:
        from gpulease.wire import from_text

        try:
            with open(os.path.join(self.folder, LAST)) as file:
                told = from_text(file.read())
                return float(told["time"]), dict(told["counts"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
