"""What `doctor` finds out about Slurm: controller, partition, GPUs, accounting, and by a test job the nodes."""

from __future__ import annotations

import os
import time

from gpulease.errors import GpuleaseError, SlurmUnavailable
from gpulease.model.quantities import folded_names
from gpulease.slurm import add, commands, fields
from gpulease.slurm.known_jobs import nodes
from gpulease.slurm.options import ASKED, read
from gpulease.slurm.status import gpu_types, node_states, trouble_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from gpulease.slurm.records import Records

    Told = tuple[str, str, str, str]  # level, subject, what was found, what to do

MAX_NODES = 8  # that the test job runs on
READY = {"IDLE", "MIXED"}
START = 10  # seconds for it to start
LARGEST_SKEW = 60.0  # seconds between clocks; munge takes no message that is five minutes old
SHARE = "Use a folder that all nodes share: set GPULEASE_DIR or XDG_STATE_HOME to one, or share the homes."
# Run on each node: whether a file that was written here is there, and what its clock says.
NODE_CHECK = 'test -e "$1" && there=yes || there=no; echo "gpulease-node $SLURMD_NODENAME $there $(date +%s)"'


def diagnosis(records: Records) -> Iterator[Told]:
    try:
        config = read(commands.output_of(ASKED))
    except SlurmUnavailable as trouble:
        yield "error", "controller", trouble.what, trouble.next_step
        return
    version = config.get("SLURM_VERSION", "of an unknown version")
    yield "ok", "controller", f"Slurm {version}, cluster {config.get('ClusterName', 'without a name')}, answers", ""
    try:
        there = nodes(records)
    except SlurmUnavailable as trouble:
        yield "error", "nodes", trouble.what, trouble.next_step
        return
    yield from partitions(commands.run(["sinfo", "-h", "-o", "%P|%a|%G"]).output, chosen_partition())
    yield from gpus(there)
    yield _accounting(config)
    ready = [node for node in there if node_states(node) & READY and trouble_of(node) is None]
    yield from _test_job(records, len(ready))


def chosen_partition() -> str | None:
    """By GPULEASE_SLURM_OPTIONS or Slurm's own variable; None for the default one."""
    words = add.extra()
    for number, word in enumerate(words):
        if word in ("-p", "--partition"):
            return "".join(words[number + 1 : number + 2])
        if word.startswith("--partition="):
            return word.partition("=")[2]
    return os.environ.get("SBATCH_PARTITION")


def partitions(output: str, chosen: str | None) -> Iterator[Told]:
    """PURE: of lines as `main*|up|gpu:a100:4`, `*` being the default."""
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
    usual = next((name.rstrip("*") for name, _, _ in rows if name.endswith("*")), None)
    wanted = (chosen or usual or "").split(",")
    listed = ", ".join(dict.fromkeys(name.rstrip("*") for name, _, _ in rows)) or "none"
    if not any(wanted):
        yield "error", "partition", "Slurm has no default partition", f"Name one of {listed} in GPULEASE_SLURM_OPTIONS."
    for name in filter(None, wanted):
        own = [(state, gres) for one, state, gres in rows if one.rstrip("*") == name]
        if not own:
            yield (
                "error",
                "partition",
                f"there is no partition {name}",
                f"There is {listed}: see GPULEASE_SLURM_OPTIONS.",
            )
        elif own[0][0] != "up":
            yield "error", "partition", f"{name} is {own[0][0]}", "Ask an administrator of Slurm, or name another."
        elif not any(gpu_types(gres) for _, gres in own):
            yield "error", "partition", f"{name} has no GPUs", f"There is {listed}: see GPULEASE_SLURM_OPTIONS."
        else:
            yield "ok", "partition", f"{name}, up", ""


def gpus(there: Sequence[Mapping[str, Any]]) -> Iterator[Told]:
    """PURE: how many there are of each model; the nodes that give none, by their reasons."""
    counts: dict[str, int] = {}
    for node in there:
        for name, count in gpu_types(fields.text(node.get("gres"))):
            counts[name] = counts.get(name, 0) + count
    if not counts:
        step = "See GresTypes and Gres in slurm.conf, and gres.conf: `gpulease slurm-config` writes them."
        yield "error", "GPUs", "no node of Slurm has a GPU", step
        return
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield "ok", "GPUs", f"{listed}, on {len(there)} nodes", ""
    troubles: dict[str, list[str]] = {}
    for node in there:
        trouble = trouble_of(node)
        if trouble is not None:
            troubles.setdefault(trouble[1].partition(" is ")[2], []).append(str(node.get("name")))
    for why, names in troubles.items():
        verb = "is" if len(names) == 1 else "are"
        yield "warning", "nodes", f"{folded_names(names)} {verb} {why}", "Jobs that need them wait; see `sinfo -R`."


def _accounting(config: Mapping[str, str]) -> Told:
    kept = config.get("MinJobAge", "some minutes")
    if config.get("AccountingStorageType", "").endswith("/none"):
        text = f"off: of others, jobs that ended are known for {kept}"
        return "ok", "accounting", text, "For `usage` of everybody set up slurmdbd."
    ran = commands.run(["sacct", "-n", "-X", "-P", "--format=JobID"])
    if ran.code:
        said = (ran.complaint.strip().splitlines() or ["it said nothing"])[-1]
        return "warning", "accounting", f"sacct does not answer: {said[:200]}", "Ask an administrator: is slurmdbd up?"
    return "ok", "accounting", "on, and sacct answers", ""


def _test_job(records: Records, ready: int) -> Iterator[Told]:
    """A short job on some nodes, without a GPU: it takes none from anybody. `ready`: nodes that take jobs now."""
    environ = add.job_environment(os.environ)
    if not ready:
        yield "warning", "test job", "no node takes jobs now, so none was looked at", "Try again when one is free."
        return
    try:
        records.prepare()
        mark = os.path.join(records.folder, f"doctor.{os.urandom(8).hex()}")
        with open(mark, "x"):
            pass
    except OSError as trouble:
        yield "error", "records", f"{records.folder} cannot be written: {trouble.strerror}", SHARE
        return
    began = time.time()
    try:
        for count in dict.fromkeys((min(MAX_NODES, ready), 1)):  # if they are busy, on one of them at least
            ran = commands.run(_test_words(count, mark), deadline=2.0 * START, environ=environ)
            if seen := read_node_check(ran.output):
                break
    except GpuleaseError as trouble:
        yield "warning", "test job", f"it did not end: {trouble.what}", "The nodes were not looked at."
        return
    finally:
        os.unlink(mark)
    if not seen:
        said = (ran.complaint.strip().splitlines() or ["it said nothing"])[-1].partition("error: ")[2]
        step = "The nodes were not looked at. If they are busy, try again later."
        yield "warning", "test job", f"none could be started within {START} s: {said[:200]}", step
        return
    yield from findings_of_check(seen, records.folder, began, time.time())


def _test_words(count: int, mark: str) -> list[str]:
    words = ["srun", "--quiet", f"--immediate={START}", *add.extra(), f"--nodes={count}", f"--ntasks={count}"]
    return [*words, "--job-name=gpulease-doctor", "--time=1", "sh", "-c", NODE_CHECK, "sh", mark]


def read_node_check(text: str) -> list[tuple[str, bool, float]]:
    """PURE: of each node its name, whether the file was there, and the time by its clock."""
    rows = [line.split() for line in text.splitlines() if line.startswith("gpulease-node ")]
    return [(row[1], row[2] == "yes", float(row[3])) for row in rows if len(row) == 4 and row[3].isdecimal()]


def findings_of_check(seen: list[tuple[str, bool, float]], folder: str, began: float, ended: float) -> Iterator[Told]:
    """PURE."""
    absent = [name for name, there, _ in seen if not there]
    names = folded_names([name for name, _, _ in seen])
    if absent:
        text = f"{folder}, with the logs and ends of your jobs, is not there on {folded_names(absent)}"
        yield "error", "records", f"{text}: jobs there cannot start", SHARE
    else:
        yield "ok", "records", f"{folder} is there on {names}", ""
    apart = [name for name, _, now in seen if not began - LARGEST_SKEW <= now <= ended + LARGEST_SKEW]
    if apart:
        text = f"the clock of {folded_names(apart)} differs from this one's by more than {LARGEST_SKEW:.0f} s"
        yield "error", "clocks", text, "Keep them by NTP: `timedatectl set-ntp true`. munge refuses what is too old."
    else:
        yield "ok", "clocks", f"that of {names} agrees with this one's", ""
