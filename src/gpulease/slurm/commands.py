"""Running Slurm's commands, each with a deadline, and telling in our words what they refuse.

Without the subprocess module, which costs more than sbatch does. Input and output are files in memory, so that nothing
can wait for anything but the end of the command.
"""

from __future__ import annotations

import os
import select

from gpulease.errors import (
    NotEnoughDevices,
    NotFound,
    NotGranted,
    NotPermitted,
    SlurmRefused,
    SlurmUnavailable,
    WrongState,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpulease.errors import GpuleaseError


DEADLINE = 30.0  # seconds; a controller that is away is told of by Slurm's commands after 9
ACTING = 60.0
MISSING = "Install Slurm's commands here (`apt-get install slurm-client`), or leave the engine out."
AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Communication connection failure",
    "Connection refused",
    "Unable to establish controller machine",
    "in standby mode",
    "Slurm backup controller",
)
# what a command prints -> the error, its sentence, and what to do next
REFUSALS: tuple[tuple[str, type[GpuleaseError], str, str], ...] = (
    (
        "Requested node configuration is not available",
        NotEnoughDevices,
        "No node of Slurm can ever serve this request.",
        "Ask for fewer GPUs or another model; `gpulease status --engine slurm` shows all nodes.",
    ),
    (
        "Requested nodes are busy",
        NotGranted,
        "Slurm has no such GPUs free now.",
        "Wait longer; `gpulease status --engine slurm` shows who holds what.",
    ),
    (
        "Immediate execution impossible",
        NotGranted,
        "Slurm has no such GPUs free now.",
        "Wait longer; `gpulease status --engine slurm` shows who holds what.",
    ),
    (
        "Invalid --nice value",
        NotPermitted,
        "Slurm lets only its operators give a priority below 5.",
        "Leave the priority out, or give 5 or more.",
    ),
    (
        "Access/permission denied",
        NotPermitted,
        "Slurm does not permit it: it is another user's, or for Slurm's operators only.",
        "Ask an administrator of Slurm.",
    ),
    (
        "Invalid job id specified",
        NotFound,
        "Slurm does not know this job.",
        "It forgets ended jobs after some minutes; see `gpulease ls --all --engine slurm`.",
    ),
    (
        "Job has already finished",
        WrongState,
        "The job has ended already.",
        "See `gpulease ls --all --engine slurm`.",
    ),
    (
        "Job/step already completing or completed",
        WrongState,
        "The job has ended already.",
        "See `gpulease ls --all --engine slurm`.",
    ),
    (
        "invalid partition specified",
        SlurmRefused,
        "Slurm has no such partition.",
        "`sinfo` lists them; it comes from SBATCH_PARTITION or GPULEASE_SLURM_OPTIONS.",
    ),
    (
        "Invalid generic resource",
        NotEnoughDevices,
        "No node of Slurm has such GPUs.",
        "`gpulease status --engine slurm` shows all nodes.",
    ),
)


KILL, PIPE, TERM, XFSZ = 9, 13, 15, 25  # the module `signal` would be loaded for four numbers


class Ran:
    """How a command ended, and what it printed."""

    def __init__(self, code: int, output: str, complaint: str) -> None:
        self.code, self.output, self.complaint = code, output, complaint


def run(
    words: list[str], given: bytes = b"", deadline: float = DEADLINE, environ: Mapping[str, str] | None = None
) -> Ran:
    """What the command printed and how it ended, also when it refused."""
    files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("in", "out", "err")]
    try:
        with open(files[0], "wb", closefd=False) as open_file:
            open_file.write(given)
        os.lseek(files[0], 0, os.SEEK_SET)
        code = _ended(_spawn(words, files, os.environ if environ is None else environ), words[0], deadline)
        return Ran(code, *(all_of(file) for file in files[1:]))
    finally:
        for file in files:
            os.close(file)


def output_of(
    words: list[str], given: bytes = b"", deadline: float = DEADLINE, environ: Mapping[str, str] | None = None
) -> str:
    """What the command printed; raises what it refused."""
    ran = run(words, given, deadline, environ)
    if ran.code:
        raise refusal(words[0], ran.complaint)
    return ran.output


def document(words: list[str]) -> dict[str, Any]:
    """The JSON that it printed."""
    from gpulease.protocol.wire import from_text

    try:
        found = from_text(output_of(words))
    except ValueError:
        found = None
    if isinstance(found, dict):
        if found.get("errors"):  # then it ends well all the same, with no jobs and no nodes
            raise away()
        return found
    raise SlurmUnavailable(
        f"`{' '.join(words)}` printed no JSON.", "gpulease needs Slurm 22.05 or newer; see `squeue --version`."
    )


def refusal(program: str, complaint: str) -> GpuleaseError:
    """What Slurm's command complained of, as an error of ours."""
    if any(words in complaint for words in AWAY):
        return away()
    for words, kind, what, next_step in REFUSALS:
        if words in complaint:
            return kind(what, next_step)
    lines = [line for line in complaint.strip().splitlines() if not line.startswith("Try ")]
    last = lines[-1] if lines else f"`{program}` failed and said nothing"
    said = last.partition("error: ")[2] or last
    return SlurmRefused(f"Slurm refused it: {said.rstrip('.')[:300]}.")


def away() -> SlurmUnavailable:
    return SlurmUnavailable("Slurm's controller does not answer.")


def _spawn(words: list[str], files: list[int], environ: Mapping[str, str]) -> int:
    return spawn(words, [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)], environ)


def spawn(
    words: list[str], actions: list[tuple[int, int, int]], environ: Mapping[str, str], apart: bool = False
) -> int:
    """`apart`: in a session of its own, which no terminal ends."""
    conf = environ.get("SLURM_CONF")
    if conf and not os.path.exists(conf):  # Slurm's commands would look for another for half a minute
        raise SlurmUnavailable(
            f"SLURM_CONF is {conf[:200]!r}, and there is no such file.", "Correct it, or unset it.", absent=1
        )
    try:
        # The ignored signals of Python would be ignored by srun's commands too.
        return os.posix_spawnp(words[0], words, environ, file_actions=actions, setsid=apart, setsigdef=(PIPE, XFSZ))
    except FileNotFoundError:
        raise SlurmUnavailable(
            f"There is no Slurm here: the command `{words[0]}` is not found.", MISSING, absent=1
        ) from None


def _ended(pid: int, program: str, deadline: float) -> int:
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(deadline * 1000):
            raise SlurmUnavailable(f"Slurm's `{program}` gave no answer in {deadline:g} s.")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        end(pid)
        raise
    finally:
        os.close(descriptor)


def end(pid: int, number: int = KILL) -> None:
    """Now: what was begun is not left behind, for instance at Ctrl-C."""
    try:
        os.kill(pid, number)
        os.waitpid(pid, 0)
    except OSError:
        pass


def all_of(file: int) -> str:
    with open(file, "rb", closefd=False) as open_file:
        open_file.seek(0)
        return open_file.read().decode(errors="replace")
