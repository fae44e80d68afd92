"""The text of a config file, and what a user's commands obey of it: `engine` and `hosts`.

Not for what a broker obeys: that is `broker.config`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

from gpulease.errors import ConfigError
from gpulease.system.places import config_path

LARGEST = 256 << 10  # bytes
USER_KEYS = ("engine", "hosts")  # of a user's commands: no broker obeys them


def read_text(path: str, required: bool) -> str | None:
    try:
        with open(path, "rb") as file:
            _refuse_untrusted(path, os.fstat(file.fileno()))
            raw = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise ConfigError(f"The config file {path} is not there.", "Make it, or unset GPULEASE_CONFIG.") from None
        return None
    except OSError as trouble:
        step = f"The user who runs the broker must be able to read it: `chmod a+r {path}`."
        raise ConfigError(f"The config file {path} cannot be read: {trouble.strerror}.", step) from None
    if len(raw) > LARGEST:
        raise ConfigError(f"The config file {path} has more than {LARGEST >> 10} KiB.")
    try:
        return raw.decode()
    except UnicodeDecodeError as trouble:
        raise wrong_line(path, raw.count(b"\n", 0, trouble.start) + 1, "It is not text in UTF-8.") from None


def _refuse_untrusted(path: str, seen: os.stat_result) -> None:
    """The user who writes the file decides what the broker runs at a job's end."""
    of_others = 0o022 if seen.st_uid == 0 else 0o002  # many users have a group of their own
    if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & of_others:
        step = f"Run `chown root {path}; chmod go-w {path}` as root."
        raise ConfigError(f"The config file {path} may be written by another user.", step)


def read_toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as trouble:
        what, _, place = str(trouble).rpartition(" (at ")
        word = place.removeprefix("line ").partition(",")[0]
        line = int(word) if word.isdecimal() else text.count("\n") + 1
        raise wrong_line(path, line, f"It is not TOML: {what or place}.") from None
    except RecursionError:
        raise ConfigError(f"The config file {path} nests too deeply.") from None


def wrong_line(path: str, line: int, what: str, next_step: str = "Correct that line.") -> ConfigError:
    return ConfigError(f"{path}, line {line}: {what}", next_step)


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """Where a key stands: the end of the shortest beginning of the file that has it. tomllib does not tell."""
    lines = text.split("\n")
    for number in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("\n".join(lines[:number]))
            for key in keys:
                found = found[key]
        except (tomllib.TOMLDecodeError, KeyError):
            continue
        return number
    return len(lines)


# -------------------------------------------------------------------- what a user's commands obey

FORMS = {"engine": 'Write it as engine = "slurm".', "hosts": 'Write it as hosts = ["gpu1", "gpu2"].'}


def setting(name: str, environ: Mapping[str, str]) -> Any:
    """Its value, checked for its form; None where no file has it."""
    assert name in USER_KEYS
    for path in dict.fromkeys((config_path("own", environ), config_path("system", environ))):
        text = None if path is None else read_text(path, False)
        if path is None or text is None or name not in text:
            continue
        value = read_toml(text, path).get(name)
        if value is None:
            continue
        if not _fits(name, value):
            raise wrong_line(path, line_of(text, (name,)), f"Invalid value for {name}.", FORMS[name])
        return value
    return None


def _fits(name: str, value: object) -> bool:
    if name == "engine":
        return isinstance(value, str)
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
