"""PURE: which of Slurm's jobs a verb is about, by the `select` of its message."""

from __future__ import annotations

from gpulease.errors import NotFound, NotPermitted
from gpulease.model.job_selection import EVERYBODY, MISSING, id_order, ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gpulease.protocol.messages import JobRow

    Selection = dict[str, Any]

FORGOTTEN = (
    "Slurm forgets ended jobs after some minutes (MinJobAge). "
    "`gpulease ls --all --engine slurm` shows those that are known."
)


def chosen(rows: list[JobRow], select: Selection, uid: int, looks: bool) -> list[JobRow]:
    """Those that are meant; one's own, but for ids, and for verbs that only look.

    An id, or a label, that is not there is an error; that none of them is in a state, or that there is no job, is none.
    """
    by_id = "ids" in select or "tasks" in select
    found = [row for row in rows if _is_named(str(row["id"]), select)] if by_id else list(rows)
    if by_id:
        _refuse_unknown(select, found)
    tests = list(_filters(select, uid, own=not looks and not by_id))
    found = [row for row in found if all(test(row) for test in tests)]
    if not found and (by_id or select.get("last") or "label" in select):
        raise NotFound(f"{MISSING}.", FORGOTTEN if by_id else "See `gpulease ls --all --engine slurm`.")
    if "state" in select:
        found = [row for row in found if row["state"] in select["state"].split(",")]
    if select.get("last"):
        found = found[-1:]
    if not looks and uid and any(row["uid"] != uid for row in found):
        other = next(row for row in found if row["uid"] != uid)
        raise NotPermitted(f"Job {other['id']} belongs to {other['user']}.", "Ask its owner, or root.")
    return found


def _filters(select: Selection, uid: int, own: bool) -> Iterable[Callable[[JobRow], bool]]:
    if "label" in select:
        yield lambda row: row["label"] == select["label"]
    user = select.get("user")
    if user is not None and user != EVERYBODY:
        yield lambda row: row["user"] == user
    elif select.get("mine") or (user is None and (own or select.get("last") or select.get("all"))):
        yield lambda row: row["uid"] == uid


def _is_named(id: str, select: Selection) -> bool:
    array, task = id_order(id)
    if any(first <= array <= last for first, last in select.get("ids", ())):
        return True
    return any(array == wanted and first <= task <= last for wanted, first, last in select.get("tasks", ()))


def _refuse_unknown(select: Selection, found: list[JobRow]) -> None:
    """An id that was named alone and is not there."""
    arrays = {id_order(row["id"])[0] for row in found}
    there = {str(row["id"]) for row in found}
    absent = [str(first) for first, last in select.get("ids", ()) if first == last and first not in arrays]
    tasks = select.get("tasks", ())
    absent += [f"{array}_{first}" for array, first, last in tasks if first == last and f"{array}_{first}" not in there]
    if absent and not found:
        raise NotFound(f"{MISSING}: {', '.join(absent[:5])}.", FORGOTTEN)


def named(ids: Iterable[str]) -> list[str]:
    """As few words as Slurm's commands need: `12_[0-4,7]`, `15`."""
    tasks: dict[str, list[int]] = {}
    for id in ids:
        array, _, task = id.partition("_")
        tasks.setdefault(array, [])
        if task:
            tasks[array].append(int(task))
    return [f"{array}_[{ranges(found)}]" if found else array for array, found in tasks.items()]
