"""A job is a number, and `J12` among leases and in the line: written and read in one place."""

from __future__ import annotations

import re
from pathlib import Path

import gpulease
from gpulease.model.job_selection import job_number, job_text, line_id

SOURCE = Path(gpulease.__file__).parent
ELSEWHERE = re.compile(r"""["']J\{|\bid(?:"\])?\[1:\]\)|removeprefix\("J"\)""")
# The home itself; the numbers of leases and jobs alike, to count on from; shims, which run without gpulease.
APART = ("model/job_selection.py", "broker/core/recovery.py", "compat/shims/")


def test_a_job_is_found_again_by_its_id_in_the_line() -> None:
    assert [job_number(line_id(id)) for id in (1, 12, 10**9)] == [1, 12, 10**9]
    assert [job_number(id) for id in ("L12", "J", "", "J12_3", "J-1", "J١")] == [0] * 6
    assert [job_text(line_id(id)) for id in (12, "12_3")] == ["12", "12_3"]


def test_nobody_else_spells_it() -> None:
    files = {str(file.relative_to(SOURCE)): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    assert [name for name, text in files.items() if ELSEWHERE.search(text) and not name.startswith(APART)] == []
