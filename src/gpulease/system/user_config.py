"""What a user's commands obey of the config files: `engine` and `hosts`. The user's file counts before the machine's.

Not for what a broker obeys: that is `broker.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulease.system.config_file import USER_KEYS, line_of, read_text, read_toml, wrong_line
from gpulease.system.places import config_path

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
            raise wrong_line(path, line_of(text, (name,)), f"{name} is not right.", FORMS[name])
        return value
    return None


def _fits(name: str, value: object) -> bool:
    if name == "engine":
        return isinstance(value, str)
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
