"""The rows "you typed | you type | or type nothing new" of a page in docs/how-to, to be run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
HEAD = "| you typed | you type |"

# Runs what stands in one column, row after row in one process, and prints what became visible to CUDA in each.
RUN_ROWS = """
import json, logging, os, sys
def raises(kind, function):
    try:
        function()
    except kind:
        return True
    raise AssertionError("nothing was raised")
def fn(device_no):
    return "mine"
for row in json.loads(sys.argv[1]):
    try:
        code = compile(row, row, "eval")
    except SyntaxError:
        exec(compile(row, row, "exec"))
    else:
        assert eval(code) is not False, row
    print(len([name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]))
"""


class Row(NamedTuple):
    typed: str  # the code of each cell, without what is said about it
    type: str
    nothing_new: str


def tables(page: str) -> list[list[Row]]:
    """Each table of the page with such rows; rows of which there was no such call before are left out."""
    text = (HOW_TO / page).read_text()
    found = []
    for part in text.split(HEAD)[1:]:
        lines = part.partition("\n\n")[0].splitlines()[2:]
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        assert all(len(row) == 3 for row in cells), page
        found.append([Row(_code(row[0]), _code(row[1]), row[2]) for row in cells if row[0].startswith("`")])
    assert found, page
    return found


def _code(cell: str) -> str:
    code = re.match(r"`([^`]+)`", cell)
    assert code, cell
    return code.group(1)
