"""The config file: parameters in TOML, as an administrator writes them. Read by the edge; the core gets texts.

A wrong file is refused whole, with its line: half of what an administrator wrote is not what they meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gpulease.errors import ConfigError, GpuleaseError
from gpulease.planner import settings
from gpulease.planner.limits import read_limits
from gpulease.system.config_file import USER_KEYS, line_of, read_text, read_toml, wrong_line
from gpulease.system.places import config_path
from gpulease.system.service import LAUNCHER_KEYS


class Config(NamedTuple):
    """Where the file is, or would be; and its parameters, as `gpulease set` takes them."""

    path: str | None = None
    texts: Mapping[str, str] = MappingProxyType({})
    named: bool = False  # by GPULEASE_CONFIG: then it must be there
    system: bool = False

    def read(self) -> Config:
        """What the file says now."""
        if self.path is None:
            return self
        text = read_text(self.path, self.named)
        texts = {} if text is None else texts_of(text, self.path)
        if self.system and "policy.order" in texts and os.stat(self.path).st_uid != 0:
            step = f"Run `chown root {self.path}` as root."
            raise ConfigError(f"{self.path} has policy.order, which is code, and does not belong to root.", step)
        return self._replace(texts=texts)


def config_of(kind: str, environ: Mapping[str, str]) -> Config:
    """Where the config of a broker of this kind belongs; not read yet."""
    return Config(config_path(kind, environ), named=bool(environ.get("GPULEASE_CONFIG")), system=kind == "system")


# -------------------------------------------------------------------- what it says


def texts_of(text: str, path: str) -> dict[str, str]:
    """The parameters in a config file by their names, each known to be right."""
    texts: dict[str, str] = {}
    for keys, value in _by_name(read_toml(text, path)):
        key = ".".join(keys)
        try:
            name = settings.find(key, (*LAUNCHER_KEYS, *USER_KEYS))
            if name in texts:
                raise ConfigError(f"{name} is there twice.")
            tables = name == "limits" and isinstance(value, dict)
            texts[name] = " ".join(_limits(key, value)) if tables else _written(name, value)
            settings.parse(name, texts[name])
        except _At as at:
            raise wrong_line(path, line_of(text, at.keys), at.trouble.what, at.trouble.next_step) from None
        except GpuleaseError as trouble:
            raise wrong_line(path, line_of(text, keys), trouble.what, trouble.next_step) from None
    return texts


def _by_name(found: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """`neighbours.gpuget` is a key of the table `neighbours` to TOML."""
    for key, value in found.items():
        if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in settings.PARAMETERS):
            yield from (((key, inner), one) for inner, one in value.items())
        elif key not in (*LAUNCHER_KEYS, *USER_KEYS):
            yield (key,), value


class _At(Exception):
    """What is wrong at a key within tables."""

    def __init__(self, keys: tuple[str, ...], trouble: GpuleaseError) -> None:
        self.keys, self.trouble = keys, trouble


def _limits(key: str, scopes: dict[str, Any]) -> Iterator[str]:
    """`[limits.user."*"]` with `gpus = 4` as `user:*:gpus=4`."""
    for scope, names in scopes.items():
        for name, amounts in _table((key, scope), names).items():
            amounts = _table((key, scope, name), amounts)
            for amount, value in amounts.items():
                try:
                    read_limits(_limit(scope, name, {amount: value}))
                except GpuleaseError as trouble:
                    raise _At((key, scope, name, amount), trouble) from None
            if amounts:
                yield _limit(scope, name, amounts)


def _limit(scope: str, name: str, amounts: dict[str, Any]) -> str:
    values = {amount: _written(amount, value) for amount, value in amounts.items()}
    parts = [scope, name, *(f"{amount}={value}" for amount, value in values.items())]
    colons = ":" in scope + name or any(":" in value and "=" in value for value in values.values())  # not of 01:30:00
    if colons or any(part.split() != [part] for part in parts):
        raise ConfigError(f"The limits of {scope} {name} have a space or a colon in them.", "Leave it out.")
    return ":".join(parts)


def _table(keys: tuple[str, ...], value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _At(keys, ConfigError(f"{keys[-1]} is not a table.", 'Write [limits.user."*"] or [limits.group.NAME].'))


def _written(name: str, value: object) -> str:
    """A value of TOML as one would type it behind `gpulease set NAME`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        return f"{value:.12g}" if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return " ".join(value)
    known = settings.PARAMETERS.get(name)
    raise ConfigError(f"{name} is {_kind(value)}.", f"Give {known.bounds}." if known else "Give a number or text.")


def _kind(value: object) -> str:
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a date or a time"
