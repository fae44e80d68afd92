"""Each row of the pages for safe-gpu's and gpuselect's users is true: both columns run, and give as many GPUs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest
from support.compat_machines import CompatMachines, compat_machines
from support.page_tables import RUN_ROWS, tables
from support.recorded import Call
from support.site import Site

A6000 = tuple(f"gpu.{number}.name=NVIDIA RTX A6000" for number in (1, 2, 3))
CALL = Call("pages", gpus=6, profile="rtx4090", machine=A6000)
COMMAND = re.compile(r"\bCMD\b")
NAME = re.compile(r"GPU-[-0-9a-f]+|\d+")  # of a device


@pytest.fixture(scope="module")
def machines() -> Iterator[CompatMachines]:
    with compat_machines() as made:
        made.site(CALL).set(*A6000)
        yield made


def numbers(site: Site, environ: dict[str, str], rows: list[str]) -> list[str]:
    process = site.popen([sys.executable, "-c", RUN_ROWS, json.dumps(rows)], env=environ)
    printed, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return printed.split()


@pytest.mark.parametrize("page", ["from-safe-gpu.md", "from-gpuselect.md"])
def test_python_rows(page: str, machines: CompatMachines) -> None:
    site = machines.site(CALL)
    environ = machines.environ(site, sys.executable)
    rows = tables(page)[0]
    typed = numbers(site, environ, [row.typed for row in rows])
    # An own lease hides its variable again when it is given back; safe-gpu's stays as it was set.
    given_back = [place for place, row in enumerate(rows) if "release" in row.type]
    new = numbers(site, environ, [row.type for row in rows])
    kept = [place for place in range(len(rows)) if place not in given_back and place - 1 not in given_back]
    assert [typed[place] for place in kept] == [new[place] for place in kept]
    assert all(row.nothing_new.startswith("the same") for row in rows)


def test_shell_rows(machines: CompatMachines) -> None:
    for row in tables("from-gpuselect.md")[1]:
        lines = [COMMAND.sub("sh -c 'echo $CUDA_VISIBLE_DEVICES'", cell) for cell in (row.typed, row.type)]
        both = [machines.make(CALL._replace(command=line), sys.executable) for line in lines]
        assert [printed.code for printed, _ in both] == [0, 0], both
        typed, new = (NAME.sub("N", "".join(printed.stdout.splitlines()[-1:])) for printed, _ in both)
        assert typed == new, row
        assert row.nothing_new.startswith("the same")
