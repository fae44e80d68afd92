"""PURE: why a job waits on Slurm, as a whole sentence. The short form is Slurm's own word."""

from __future__ import annotations

# https://slurm.schedmd.com/job_reason_codes.html has all of them; here those that people meet.
SENTENCES = {
    "None": "Slurm has not yet considered it.",
    "Resources": "It is the next of its kind, and waits for GPUs or nodes to become free.",
    "Priority": "Jobs with a higher priority are ahead of it.",
    "Dependency": "It comes after jobs that have not ended yet.",
    "DependencyNeverSatisfied": "A job that it comes after did not end well, so it never starts.",
    "JobHeldUser": "It is held by its user; `gpulease resume` lets it go.",
    "JobHeldAdmin": "It is held by an administrator of Slurm, who alone can let it go.",
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
