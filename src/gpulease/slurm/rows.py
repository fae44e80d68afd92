"""PURE: Slurm's record of a job as rows of `messages`: one for each task of an array, and why it waits."""

from __future__ import annotations

from gpulease.slurm import fields
from gpulease.slurm.options import MARK, NICE, USUAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpulease.model.request import RequestRow
    from gpulease.protocol.messages import JobRow, LeaseRow, LineRow

    Raw = Mapping[str, Any]

    Record = Mapping[str, Any]

# https://slurm.schedmd.com/job_reason_codes.html has all of them; here those that people meet.
SENTENCES = {
    "None": "Slurm has not yet considered it.",
    "Resources": "It is the next of its kind, and waits for GPUs or nodes to become free.",
    "Priority": "Jobs with a higher priority are ahead of it.",
    "Dependency": "It comes after jobs that have not ended yet.",
    "DependencyNeverSatisfied": "A job that it comes after did not end well, so it never starts.",
    "JobHeldUser": "It is held by its user; `gpulease resume` releases it.",
    "JobHeldAdmin": "It is held by an administrator of Slurm. Only they can release it.",
    "BeginTime": "It is not to start before a certain time.",
    "JobArrayTaskLimit": "As many jobs of its array as may run at a time are running.",
    "PartitionDown": "Its partition is down.",
    "PartitionInactive": "Its partition is inactive, and starts no jobs.",
    "PartitionNodeLimit": "It asks for more nodes than its partition allows.",
    "PartitionTimeLimit": "Its time limit is above the one of its partition.",
    "ReqNodeNotAvail": "A node that it needs is down, drained or reserved.",
    "NodeDown": "A node that it needs is down.",
    "BadConstraints": "No node can ever serve it: what it asks for is not there.",
    "Licenses": "It waits for a licence.",
    "Reservation": "It waits for its reservation to begin.",
    "InvalidAccount": "Its account is not valid.",
    "InvalidQOS": "Its quality of service (QOS) is not valid.",
    "JobLaunchFailure": "It could not be started; see Slurm's log of its node.",
    "NonZeroExitCode": "It ended with an error.",
    "Prolog": "Slurm prepares its node.",
    "Cleaning": "Its last run is still being cleaned up.",
    "FrontEndDown": "No front end of Slurm is up.",
    "NodeFail": "Its node failed.",
    "TimeLimit": "It reached its time limit.",
    "launch failed requeued held": "It could not be started, and Slurm holds it; `gpulease resume` tries again.",
}
HELD = ("JobHeldUser", "JobHeldAdmin")
WHOSE = {"Assoc": "account", "QOS": "quality of service (QOS)"}
WHAT = {
    "GrpGRES": "GPUs",
    "GrpTRES": "resources",
    "GrpCpu": "processors",
    "GrpJobs": "jobs",
    "MaxGRES": "GPUs of one job",
    "MaxTRES": "resources of one job",
    "MaxJobs": "jobs",
    "MaxSubmit": "jobs in the queue",
    "MaxWall": "time of one job",
}


def sentence(reason: str, dependency: str = "") -> str:
    """Of Slurm's word; of one that is not known, the word itself."""
    if reason == "Dependency" and dependency:
        return f"It comes after jobs that have not ended yet: {after_text(dependency)}."
    found = SENTENCES.get(reason) or SENTENCES.get(reason.split(",")[0]) or _limit(reason)
    return found or f"Slurm's reason is {reason or 'not known'}."


def _limit(reason: str) -> str | None:
    """The names of limits have a system: QOSMaxGRESPerUser, AssocGrpGRES, QOSGrpCpuLimit."""
    for start, whose in WHOSE.items():
        rest = reason.removeprefix(start)
        if rest != reason:
            what = next((words for name, words in WHAT.items() if rest.startswith(name)), None)
            user = " of one user" if rest.endswith("PerUser") else ""
            of = f" on {what}{user}" if what else ""
            return f"A limit{of} of its {whose} is reached ({reason})."
    return None


def after_text(dependency: str) -> str:
    """`afterok:12(unfulfilled),afterok:13_*(unfulfilled)` as `12, 13_*`."""
    parts = dependency.replace("?", ",").split(",")
    return ", ".join(part.rpartition(":")[2].partition("(")[0] for part in parts if part)


# -------------------------------------------------------------------- rows

NO_OUTPUT = 53  # the "signal" by which Slurm says that it could not open a job's files
LONGEST_SHORT = 24  # characters of a reason in a table
TEXTS = ("name", "label", "note", "kind", "job_name")  # of a comment
MAX_RETRIES = 1_000_000
YEAR = 360 * 86400.0  # what has no time limit counts as a year for Slurm: a start after it is no forecast
STATES = {
    "PENDING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_HOLD": "held",
    "RUNNING": "running",
    "CONFIGURING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "SUSPENDED": "paused",
    "STOPPED": "paused",
    "COMPLETED": "complete",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "CANCELLED": "killed",
    "TIMEOUT": "killed",
    "DEADLINE": "killed",
    "PREEMPTED": "killed",
    "REVOKED": "killed",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
    "LAUNCH_FAILED": "lost",
}
WHY = {
    "TIMEOUT": "time limit",
    "DEADLINE": "its deadline has passed",
    "PREEMPTED": "preempted by Slurm",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not start",
    "OUT_OF_MEMORY": "out of host memory",
    "LAUNCH_FAILED": "it could not be started",
}


def ids_of(raw: Raw) -> list[str]:
    """As people write them: `12`, or `12_0`, `12_1`, … of an array, whose waiting tasks are one record."""
    array, task = fields.whole(raw.get("array_job_id")), fields.whole(raw.get("array_task_id"))
    if not array:
        return [str(fields.whole(raw.get("job_id")))]
    waiting = fields.text(raw.get("array_task_string"))
    if waiting:
        return [f"{array}_{one}" for one in fields.numbers(waiting)]
    return [f"{array}_{task}"]


def state_of(raw: Raw) -> str:
    """`["FAILED", "COMPLETING"]` has ended. `["CANCELLED", "COMPLETING"]` may still run: it was only signalled."""
    states = fields.states(raw.get("job_state"))
    state = next((STATES[name] for name in states if name in STATES), "lost")
    if state == "killed" and "COMPLETING" in states:
        return "running"
    return "held" if state == "waiting" and reason_of(raw) in HELD else state


def reason_of(raw: Raw) -> str:
    reason = raw.get("state_reason")
    return reason if isinstance(reason, str) and reason else "None"


def short(reason: str) -> str:
    """Without the names of nodes that may follow it."""
    return "not considered yet" if reason == "None" else reason.split(",")[0][:LONGEST_SHORT]


def comment_of(raw: Raw) -> dict[str, Any]:
    """What gpulease wrote there: token, label, note, command, kind."""
    comment = raw.get("comment")
    if isinstance(comment, dict):  # 23.02 and later have several
        comment = comment.get("job")
    text = fields.text(comment)
    if not text.startswith(MARK):
        return {"note": text} if text else {}
    from gpulease.protocol.wire import from_text

    try:
        found = from_text(text[len(MARK) :])
    except ValueError:
        return {}
    return found if is_comment(found) else {}


def is_comment(found: Any) -> bool:
    """Whether gpulease may have written it: anybody writes comments, and one that is not as ours is none of ours."""
    if not isinstance(found, dict) or not isinstance(found.get("token"), str):
        return False
    retry, command = found.get("retry", 0), found.get("command")
    return (
        all(isinstance(found.get(name), (str, type(None))) for name in TEXTS)
        and (command is None or fields.are_words(command))
        and type(retry) is int
        and 0 <= retry <= MAX_RETRIES
    )


def carries(raw: Raw, token: str, uid: int) -> bool:
    """Whether it is this user's job of this token: a token is no secret, and another user's job may have the same."""
    return (fields.whole(raw.get("user_id")) or 0) == uid and comment_of(raw).get("token") == token


def was_refused(raw: Raw) -> bool:
    """Slurm keeps a job that it refused to `sbatch` as a failed one for some minutes."""
    states = fields.states(raw.get("job_state"))
    return "FAILED" in states and reason_of(raw) == "BadConstraints" and not fields.text(raw.get("nodes"))


def gpus_of(raw: Raw) -> int:
    """On all its nodes."""
    for name, times in (("tres_per_job", 1), ("tres_per_node", fields.whole(raw.get("node_count")) or 1)):
        found = _count(fields.text(raw.get(name)))
        if found:
            return found * times
    tres = fields.text(raw.get("tres_req_str"))
    return next((int(part[9:]) for part in tres.split(",") if part.startswith("gres/gpu=")), 0)


def _count(gres: str) -> int:
    """`gres:gpu:a100:2` or `gres/gpu:2`: 2; `gres:gpu`: 1."""
    for part in gres.split(","):
        words = part.replace("gres/", "gres:").split(":")
        if words[:2] == ["gres", "gpu"] or words[:1] == ["gpu"]:
            return int(words[-1]) if words[-1].isdecimal() else 1
    return 0


def devices_of(raw: Raw) -> list[str]:
    """`node1:0`, `node1:2`: which GPUs of which nodes it has."""
    nodes = fields.hosts(fields.text(raw.get("nodes")))
    details = raw.get("gres_detail") or []
    found: list[str] = []
    for node, detail in zip(nodes, details, strict=False):
        found += [f"{node}:{index}" for index in indices(detail)]
    return found


def indices(detail: str) -> list[str]:
    """`gpu:a100:3(IDX:0-1,3)`: 0, 1, 3."""
    found: list[str] = []
    for part in detail.split("gpu:")[1:]:
        inner = part.partition("(IDX:")[2].partition(")")[0]
        found += [one for one in fields.numbers(inner) if one.isdecimal()]
    return found


def expected_start(raw: Raw, now: float) -> float | None:
    start = fields.moment(raw.get("start_time"))
    if start is None or state_of(raw) != "waiting" or not now <= start < now + YEAR:
        return None
    return start


def priority_of(raw: Raw) -> int:
    return USUAL + (fields.whole(raw.get("nice")) or 0) // NICE


def job_row(raw: Raw, id: str, record: Record, now: float) -> JobRow:
    """`record`: what was kept of this task when it was added; may be empty."""
    state, reason, comment = state_of(raw), reason_of(raw), comment_of(raw)
    code, caught = fields.ended_with(raw.get("exit_code"))
    over = state in ("complete", "failed", "killed", "lost")
    waits = state in ("waiting", "held")
    began = not waits and not (over and raw.get("nodes") == "")  # what is killed while it waits had no node
    runs = int(began) + (fields.whole(raw.get("restart_cnt")) or 0)
    limit = fields.number(raw.get("time_limit"))
    why = why_ended(fields.states(raw.get("job_state")), reason) if over else None
    log = record.get("log") or log_of(raw, id)
    if state == "failed" and (caught == NO_OUTPUT or reason == "JobLaunchFailure"):
        state, why = "invalid", not_launched(fields.text(raw.get("nodes")), log if caught == NO_OUTPUT else "")
        code = caught = None
    return {
        "id": id,
        "command": record.get("command") or comment.get("command") or [fields.text(raw.get("name")) or "(hidden)"],
        "uid": fields.whole(raw.get("user_id")) or 0,
        "user": fields.text(raw.get("user_name")) or str(fields.whole(raw.get("user_id"))),
        "cwd": fields.text(raw.get("current_working_directory")),
        "request": request_row(raw),
        "added": fields.moment(raw.get("submit_time")) or now,
        "state": state,
        "name": name_of(raw, record, comment),
        "label": record.get("label") or comment.get("label"),
        "note": record.get("note") or comment.get("note"),
        "log": log,
        "retry": record.get("retry") or comment.get("retry", 0),
        "time_limit": None if limit is None or limit * 60 >= YEAR else limit * 60,
        "after": after_ids(fields.text(raw.get("dependency"))),
        "after_any": "afterany" in fields.text(raw.get("dependency")),
        "at_most": fields.whole(raw.get("array_max_tasks")) or None,
        "tries": runs,
        "runs": runs,
        "started": fields.moment(raw.get("start_time")) if began else None,
        "ended": fields.moment(raw.get("end_time")) if over else None,
        "exit_code": (128 + caught if caught else code) if over and state != "killed" else None,
        "signal": caught if over else None,
        "why": why,
        "out_of_memory": False,
        "devices": devices_of(raw) if not over else [],
        "peak_memory": None,
        "packed": None,
        "pid": None,
        "why_waiting": sentence(reason, fields.text(raw.get("dependency"))) if waits else None,
        "why_short": short(reason) if waits else None,
        "expected_start": expected_start(raw, now),
        "ending": "by Slurm" if "COMPLETING" in fields.states(raw.get("job_state")) and not over else None,
        "removing": False,
    }


def name_of(raw: Raw, record: Record, comment: Mapping[str, Any]) -> str | None:
    """What Slurm says, if it is not what the job was submitted with: then somebody has changed it."""
    states = fields.text(raw.get("name"))
    sent = comment.get("job_name") or comment.get("name") or states
    if (states and states != sent) or (not record and "token" not in comment):
        return states
    return record.get("name") or comment.get("name")


def not_launched(node: str, log: str) -> str:
    """Why its command was not even begun, in words that go behind `invalid`."""
    where = f"on the node {node}" if node else "on its node"
    if not log:
        return f"Slurm could not start it {where}; see Slurm's log there"
    folder = log.rpartition("/")[0] or "/"
    return f"its output file could not be opened {where}: is the folder {folder} there, and may you write in it?"


def why_ended(states: list[str], reason: str) -> str | None:
    if reason == "DependencyNeverSatisfied":
        return "a job that it comes after did not end well"
    return next((WHY[name] for name in states if name in WHY), None)


def request_row(raw: Raw) -> RequestRow:
    begin = fields.moment(raw.get("eligible_time"))
    return {
        "gpus": gpus_of(raw),
        "memory": None,
        "models": models_of(raw),
        "devices": [],
        "exclude": [],
        "min_memory": None,
        "max_leases": None,
        "priority": priority_of(raw),
        "not_before": begin if reason_of(raw) == "BeginTime" else None,
        "duration": None,
        "pack": None,
        "beside_outside": False,
        "mig": False,
        "relative": False,
    }


def models_of(raw: Raw) -> list[str]:
    """`gres:gpu:a100:2`: a100."""
    text = fields.text(raw.get("tres_per_node")) or fields.text(raw.get("tres_per_job"))
    words = text.replace("gres/", "gres:").split(",")[0].split(":")
    return [words[2]] if words[:2] == ["gres", "gpu"] and len(words) > 2 and not words[2].isdecimal() else []


def after_ids(dependency: str) -> list[Any]:
    """`afterok:12(unfulfilled),afterok:13_*`: 12, 13."""
    parts = dependency.replace("?", ",").split(",")
    names = [part.rpartition(":")[2].partition("(")[0] for part in parts if part.startswith("after")]
    return [name.removesuffix("_*") for name in names]


def log_of(raw: Raw, id: str) -> str:
    """The file that `standard_output` is a pattern of."""
    array, _, task = id.partition("_")
    pattern = fields.text(raw.get("standard_output")) or ("slurm-%A_%a.out" if task else "slurm-%j.out")
    values = {"%": "%", "A": array, "a": task, "j": str(fields.whole(raw.get("job_id"))), "J": id}
    values |= {"x": fields.text(raw.get("name")), "u": fields.text(raw.get("user_name"))}
    path, rest = "", pattern
    while rest:
        before, percent, rest = rest.partition("%")
        path += before + (values.get(rest[:1], f"%{rest[:1]}") if percent else "")
        rest = rest[1:] if percent else rest
    cwd = fields.text(raw.get("current_working_directory"))
    return path if path.startswith("/") or not cwd else f"{cwd}/{path}"


def lease_row(raw: Raw, id: str, command: str | None) -> LeaseRow:
    """Of what runs: a job, or an allocation that somebody holds."""
    comment = comment_of(raw)
    ends = fields.moment(raw.get("end_time"))
    start = fields.moment(raw.get("start_time")) or 0.0
    devices = devices_of(raw)
    row: LeaseRow = {
        "id": id,
        "kind": kind_of(raw),
        "labels": devices,
        "user": fields.text(raw.get("user_name")),
        "pid": None,
        "since": start,
        "until": ends if ends is not None and ends - start < YEAR else None,
        "memory": None,
        "note": comment.get("note"),
        "job": command,
        "ending": None,
    }
    return {**row, "devices": devices}  # type: ignore[typeddict-unknown-key]


def kind_of(raw: Raw) -> str:
    batch = raw.get("batch_flag")
    return "job" if batch else str(comment_of(raw).get("kind") or "run")


def line_row(raw: Raw, id: str, now: float) -> LineRow:
    row: LineRow = {
        "id": id,
        "kind": kind_of(raw),
        "user": fields.text(raw.get("user_name")),
        "gpus": gpus_of(raw),
        "memory": None,
        "priority": priority_of(raw),
        "since": fields.moment(raw.get("submit_time")) or now,
        "why": sentence(reason_of(raw), fields.text(raw.get("dependency"))),
        "note": comment_of(raw).get("note"),
        "why_short": short(reason_of(raw)),
    }
    return {**row, "expected_start": expected_start(raw, now)}  # type: ignore[typeddict-unknown-key]
