"""What a bench is asked, and the figures that it prints: for people, or with --json as one document for a tool.

A bench is short with `--quick`: it then shows that it works, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

TIMES = "×"


class Size(NamedTuple):
    """How much is measured: an option of the bench."""

    usual: int | float | str
    quick: int | float | str
    what: str


class Figure(NamedTuple):
    """The median over the rounds, and the range in which eight of ten rounds lie."""

    what: str
    value: float
    low: float
    high: float
    rounds: int
    unit: str
    better: str  # "lower" or "higher"
    target: float | None

    @property
    def reached(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    @property
    def bound(self) -> str:
        """What is to be reached; nothing, where there is no target."""
        if self.target is None:
            return ""
        return f"at {'most' if self.better == 'lower' else 'least'} {self.target:g}"

    def __str__(self) -> str:
        text = f"figure: {self.what}: {shown(self.value)} {self.unit}"
        if self.rounds > 1:
            text += f", {shown(self.low)} to {shown(self.high)} in {self.rounds} rounds"
        if self.bound:
            text += f"; target: {self.bound}, {'reached' if self.reached else 'NOT reached'}"
        return text


class Report:
    """Prints each figure as it is found, and keeps it."""

    def __init__(self, quick: bool = False) -> None:
        self.quick = quick
        self.figures: list[Figure] = []
        self.left_out: list[str] = []
        self.tables: dict[str, object] = {}  # what a bench has to say beyond its figures

    def value(
        self, what: str, values: Sequence[float], unit: str, target: float | None = None, better: str = "lower"
    ) -> None:
        low, high = percentile(values, 10), percentile(values, 90)
        figure = Figure(what, median(values), low, high, len(values), unit, better, target)
        self.figures.append(figure)
        print(figure, flush=True)

    def ratio(
        self,
        what: str,
        timings: Mapping[str, Sequence[float]],
        ours: str,
        theirs: Sequence[str],
        target: float | None = None,
    ) -> None:
        """Ours by the sum of theirs, round by round: what was measured together is compared."""
        sums = [sum(times) for times in zip(*(timings[name] for name in theirs), strict=True)]
        self.value(what, [mine / other for mine, other in zip(timings[ours], sums, strict=True)], TIMES, target)

    def leave_out(self, peer: str) -> None:
        """One that is not installed, or too slow for a short run."""
        self.left_out.append(peer)
        print(f"left out: {peer}")

    def document(self, path: str, about: str) -> dict[str, Any]:
        return {
            "bench": Path(path).name,
            "about": about.partition("\n")[0],
            "quick": self.quick,
            "figures": [figure._asdict() for figure in self.figures],
            "left_out": self.left_out,
            "tables": self.tables,
        }


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]


def shown(value: float) -> str:
    """With three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bench(
    about: str,
    main: Callable[..., None],
    configure: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    **sizes: Size,
) -> None:
    """Run `main` with a report, and with what the options say; each size is an option."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show in seconds that it works; the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document; all else goes to stderr")
    for name, size in sizes.items():
        note = f"{size.what} (default: {size.usual!r}, with --quick {size.quick!r})"
        parser.add_argument(f"--{name}", type=type(size.usual), help=note, metavar=name.upper())
    configure(parser)
    options = vars(parser.parse_args())
    report, as_json = Report(options.pop("quick")), options.pop("json")
    for name, size in sizes.items():
        if options[name] is None:
            options[name] = size.quick if report.quick else size.usual
    if as_json:
        _print_as_document(about, report, lambda: main(report, **options))
    else:
        main(report, **options)


def _print_as_document(about: str, report: Report, run: Callable[[], None]) -> None:
    """What the bench and its children print meanwhile goes to stderr."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    run()
    sys.stdout.flush()
    with open(output, "w", encoding="utf-8") as file:
        json.dump(report.document(sys.argv[0], about), file, indent=2, ensure_ascii=False)
        file.write("\n")
