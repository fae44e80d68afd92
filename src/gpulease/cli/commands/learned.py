"""`gpulease learned`: what is known of one's own earlier runs, how true estimates were, and forgetting it."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.protocol.messages import ShapeRow, Starts

EXAMPLES = """\
Without --for, gpulease expects a request to run as long as your earlier runs of
the same command (whatever the values of its options) with the same request.
Half of these runs were shorter than HALF, nine of ten shorter than 90%. Older
runs count less, and are forgotten after some months.

examples:
  gpulease learned
  gpulease learned --json
  gpulease learned --hosts         of all hosts
  gpulease learned --clear         forget all your runs
"""


HEADINGS = ("RUNS", "HALF", "90%", "MEMORY", "REQUEST", "COMMAND")
COMMAND = 24  # columns that the last one has at least
NOTHING = "nothing is known of your runs yet"


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--clear", action="store_true", help="forget what was learned from your runs")
    add_hosts(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import forget_learned, learned

    if arguments.hosts is not None:
        from gpulease.cli.all_hosts import learned as learned_by_hosts

        return learned_by_hosts(arguments)
    if arguments.clear:
        forgotten = forget_learned()
        if arguments.json:
            return print_json({"forgotten": forgotten})
        print("nothing was known of your runs" if not forgotten else "deleted what was learned from your runs")
        return 0
    reply = learned()
    if arguments.json:
        return print_json(reply, 2)
    from gpulease.render.terminal import Terminal, plain_table

    rows = shape_rows(reply["shapes"])
    print("\n".join(plain_table([HEADINGS, *rows], Terminal(), least=COMMAND)) if rows else NOTHING)
    print(f"\n{accuracy(reply['starts'])}")
    return 0


def shape_rows(shapes: list[ShapeRow]) -> list[tuple[str, ...]]:
    from gpulease.model.quantities import format_bytes
    from gpulease.render.times import span

    rows: list[tuple[str, ...]] = []
    for row in shapes:
        memory = "" if row["memory"] is None else format_bytes(row["memory"])
        times = (span(row["seconds_50"]), span(row["seconds_90"]))
        rows.append((f"{row['runs']:.0f}", *times, memory, row["request"], row["command"]))
    return rows


def accuracy(starts: Starts) -> str:
    """How the last starts compared with what was said of them."""
    if not starts["compared"]:
        return "There are no forecasts of starts to check yet."
    likely, latest = round(100 * starts["by_likely"]), round(100 * starts["by_latest"])
    late, number = starts.get("late", 0), round(starts["compared"])
    still = f", {late} of which still wait{'s' * (late == 1)}" if late else ""
    return (
        f"Of the last {number} starts that were forecast{still}: {likely}% came by the likely time (half should), "
        f"{latest}% by the second (nine of ten should)."
    )
