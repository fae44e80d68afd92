"""All known jobs: the jobs that Slurm reports, and the user's own that Slurm has forgotten."""

from __future__ import annotations

import os
import time

from gpulease.errors import SlurmUnavailable
from gpulease.model.job_selection import id_order
from gpulease.slurm import commands, fields, rows
from gpulease.slurm.options import NICE, USUAL
from gpulease.slurm.records import NotedEnd, Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpulease.protocol.messages import JobRow

SQUEUE = ["squeue", "--states=all", "--json"]
SINFO = ["sinfo", "--json"]
OPEN = ("waiting", "held", "running", "paused")
SACCT = "JobID,State,ExitCode,Start,End,NodeList,User,AllocTRES,Submit,UID,WorkDir,JobName"
FORGOTTEN = "Slurm has forgotten how it ended"
NO_ACCOUNTING = "Slurm's accounting is off, or does not answer: only your own jobs are known."
KEPT = 90 * 86400.0  # seconds that `ls --all` looks back, as long as records are kept


class SlurmJobs:
    """What Slurm told at one moment."""

    def __init__(self, records: Records) -> None:
        self.time = time.time()
        self._records = records
        listing = _asked(SQUEUE, records)
        self.version = fields.version(listing)
        self.raw: list[tuple[str, dict[str, Any]]] = [
            (id, raw) for raw in listing.get("jobs", ()) for id in rows.ids_of(raw)
        ]
        self.raw.sort(key=lambda pair: id_order(pair[0]))

    def jobs(self) -> list[JobRow]:
        """Batch jobs, in the order of their ids; what `srun` and `salloc` run is no job but a lease."""
        kept = self._records.by_token()
        found = [row for id, raw in self.raw if (row := self._row(id, raw, kept)) is not None]
        found += self._recorded(kept, {id for id, _ in self.raw})
        found.sort(key=lambda row: id_order(row["id"]))
        self._remember(found)
        return found

    def _row(self, id: str, raw: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> JobRow | None:
        """None of what is no job, was removed by `rm` or `clean` while Slurm still knew it, or was never taken."""
        token = rows.comment_of(raw).get("token", "")
        record = record_of(raw, id, token, kept)
        if not raw.get("batch_flag", True) or (record and id in record.get("forgotten", ())):
            return None
        if record is None:
            return None if token and rows.was_refused(raw) else rows.job_row(raw, id, {}, self.time)
        run = fields.whole(raw.get("restart_cnt")) or 0
        return self._as_noted(rows.job_row(raw, id, _task(record, id), self.time), token, run)

    def _as_noted(self, row: JobRow, token: str, run: int | None = None) -> JobRow:
        """With its tries, which Slurm does not count."""
        if row["retry"]:
            tries = max(row["tries"], self._records.tries_of(str(row["id"]), token))
            row = {**row, "tries": tries, "runs": tries}
        return self._as_ended(row, token, run)

    def _as_ended(self, row: JobRow, token: str, run: int | None) -> JobRow:
        """A controller that was killed may take for lost, or for running, what has ended; the job's own note knows.

        Of a job that Slurm ended, Slurm knows why, and whether it starts again.
        """
        end = self._records.end_of(str(row["id"]), token) if row["state"] in ("running", "killed", "lost") else None
        if end is None or end.killed or not end.is_of(run):
            return row
        return {
            **row,
            "state": "failed" if end.code else "complete",
            "exit_code": end.code,
            "started": end.began,
            "ended": end.ended,
            "why": None,
            "ending": None,
        }

    def jobs_since(self, moment: float) -> tuple[list[JobRow], bool]:
        """Those of everybody; and whether they are all, for without accounting others' are forgotten soon."""
        accounted = accounting(["--allusers", since(moment)])
        return self._with(accounted or {}), accounted is not None

    def jobs_and_forgotten(self, select: Mapping[str, Any], all: bool) -> list[JobRow]:
        """Also what only the accounting knows: jobs of these ids, or with `all` one's own."""
        found = self.jobs()
        if all:
            return self._with(accounting([f"--uid={os.geteuid()}", since(self.time - KEPT)]) or {}, found)
        known = {str(row["id"]) for row in found}
        arrays = {id.partition("_")[0] for id in known}
        missing = [str(first) for first, last in select.get("ids", ()) if first == last and str(first) not in arrays]
        for array, first, last in select.get("tasks", ()):
            missing += [f"{array}_{first}"] if first == last and f"{array}_{first}" not in known else []
        return self._with(accounting([f"--jobs={','.join(missing)}"]) or {}, found) if missing else found

    def _with(self, accounted: Mapping[str, Mapping[str, Any]], found: list[JobRow] | None = None) -> list[JobRow]:
        found = self.jobs() if found is None else found
        known = {str(row["id"]) for row in found} | self._removed()
        for id, listing in accounted.items():
            refused = listing.get("job_state") == "FAILED" and not listing.get(
                "nodes"
            )  # by sbatch: it was never queued
            if id not in known and id.replace("_", "").isdecimal() and not refused:
                found.append(rows.job_row({**listing, "job_id": id_order(id)[0]}, id, {}, self.time))
        found.sort(key=lambda row: id_order(row["id"]))
        return found

    def _removed(self) -> set[str]:
        """By `rm` or `clean`, as far as a record is kept."""
        return {id for record in self._records.by_token().values() for id in record.get("forgotten", ())}

    def _recorded(self, kept: Mapping[str, Mapping[str, Any]], known: set[str]) -> list[JobRow]:
        """One's own that Slurm tells nothing of any more."""
        missing = {
            id: (record, token)
            for token, record in kept.items()
            if record["id"]
            for id in ids_in(record)
            if id not in known and id not in record.get("forgotten", ())
        }  # of two with the same id, the newer
        ends = {id: self._records.end_of(id, token) for id, (_, token) in missing.items()}
        unknown = [id for id, end in ends.items() if end is None or end.killed]
        accounted = (accounting([f"--jobs={','.join(unknown)}"]) or {}) if unknown else {}
        found = [
            forgotten_row(id, record, ends[id], accounted.get(id), self.time) for id, (record, _) in missing.items()
        ]
        return [self._as_noted(row, missing[str(row["id"])][1]) for row in found]

    def _remember(self, found: list[JobRow]) -> None:
        own = [row["state"] for row in found if row["uid"] == os.geteuid()]
        self._records.saw({state: own.count(state) for state in dict.fromkeys(own) if state in OPEN}, self.time)


def _asked(words: list[str], records: Records) -> dict[str, Any]:
    try:
        return commands.document(words)
    except SlurmUnavailable as trouble:
        raise with_last(trouble, records) from None


def with_last(trouble: SlurmUnavailable, records: Records) -> SlurmUnavailable:
    """The error, with what was known of one's own jobs and since when."""
    if trouble.fields.get("absent"):
        return trouble
    when, counts = records.last_seen() or (None, {})
    listing = [trouble.what]
    if when is not None:
        from gpulease.model.quantities import span_text

        what = ", ".join(f"{number} {state}" for state, number in counts.items()) or "none that was not over"
        listing.append(f"{span_text(max(0.0, time.time() - when))} ago you had these jobs: {what}.")
    added = records.added_since(when or 0.0)
    if added:
        listing.append(f"You have added {added} {'job' if added == 1 else 'jobs'}{'' if when is None else ' since'}.")
    return SlurmUnavailable(" ".join(listing), trouble.next_step)


def nodes(records: Records) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _asked(SINFO, records).get("nodes", [])
    return sorted({str(node.get("name")): node for node in found}.values(), key=lambda node: str(node.get("name")))


def ids_in(record: Mapping[str, Any]) -> list[str]:
    count = len(record["commands"])
    return [f"{record['id']}_{number}" for number in range(count)] if count > 1 else [record["id"]]


def record_of(
    raw: Mapping[str, Any], id: str, token: str, kept: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """PURE: what was kept of the job, if it is the one: anybody may give the token of another's job to his own."""
    record = kept.get(token)
    if record is None or (fields.whole(raw.get("user_id")) or 0) != record.get("uid", os.geteuid()):
        return None
    return record if record["id"] in (None, id.partition("_")[0]) else None


def _task(record: Mapping[str, Any], id: str) -> dict[str, Any]:
    """What was kept of one task."""
    number = int(id.partition("_")[2] or 0)
    options, each = record["options"], record.get("each") or ()
    texts = {**options, **(each[number] if number < len(each) else {})}
    found = {name: texts.get(name) for name in ("name", "label", "note", "retry")}
    log = texts.get("log")
    if log is not None:
        found["log"] = f"{log}{id}.log" if log.endswith("/") else log
    return {**found, "command": record["commands"][number] if number < len(record["commands"]) else None}


def forgotten_row(
    id: str,
    record: Mapping[str, Any],
    end: NotedEnd | None,
    accounted: Mapping[str, Any] | None,
    now: float,
) -> JobRow:
    """A row of what was kept of a job, in the shape of one that Slurm knows."""
    request, options = record["request"], record["options"]
    listing: dict[str, Any] = {
        "job_id": int(id.partition("_")[0]),
        "job_state": "UNKNOWN",
        "user_id": os.geteuid(),
        "current_working_directory": options["cwd"],
        "submit_time": record["added"],
        "tres_per_node": f"gres:gpu:{request.get('gpus', 1)}",
        "nice": (request.get("priority", USUAL) - USUAL) * NICE,
        "standard_output": record["log"],
    }
    if end is not None:
        state = "CANCELLED" if end.killed else "FAILED" if end.code else "COMPLETED"
        listing |= {"job_state": state, "exit_code": end.code << 8, "start_time": end.began, "end_time": end.ended}
    listing |= accounted or {}
    row = rows.job_row(listing, id, _task(record, id), now)
    from gpulease.system.identity import user_name

    row["user"] = user_name(os.geteuid())
    if end is None and not accounted:
        row["why"] = FORGOTTEN
    return row


def since(moment: float) -> str:
    return f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(moment))}"


def accounting(which: list[str]) -> dict[str, dict[str, Any]] | None:
    """By id, what sacct knows of these jobs; None where there is no accounting, or it does not answer."""
    try:
        ran = commands.run(["sacct", "-n", "-P", "-X", f"--format={SACCT}", *which])
    except SlurmUnavailable:
        return None
    return read_accounting(ran.output) if not ran.code else None


def read_accounting(text: str) -> dict[str, dict[str, Any]]:
    """PURE: lines as `12_3|CANCELLED by 1000|0:15|2026-11-18T00:31:10|2026-11-18T00:35:10|node1|ada|…`."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        parts = line.split("|", SACCT.count(","))
        if len(parts) < 6 or not parts[1]:
            continue
        code, _, caught = parts[2].partition(":")
        status = (int(code) << 8 if code.isdecimal() else 0) | (int(caught) if caught.isdecimal() else 0)
        times = {"start_time": moment_of(parts[3]), "end_time": moment_of(parts[4])}
        listing = {
            "job_state": parts[1].split()[0],
            "exit_code": status,
            "nodes": parts[5].replace("None assigned", ""),
            **times,
        }
        if len(parts) >= 9:
            listing |= {"user_name": parts[6], "tres_req_str": parts[7], "submit_time": moment_of(parts[8])}
        if len(parts) >= 12:
            uid = int(parts[9]) if parts[9].isdecimal() else None
            listing |= {"user_id": uid, "current_working_directory": parts[10], "name": parts[11]}
        found[parts[0]] = {name: value for name, value in listing.items() if value is not None}
    return found


def moment_of(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
