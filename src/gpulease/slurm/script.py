"""PURE: the batch script of jobs that are added together: one for all of them, which Slurm keeps.

Task N of the array runs the N-th command. Nothing of it lies in a file that has to be there when the job starts. How
each command ended is written into the folder of records, for the day when Slurm has forgotten it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./,:@%")
AROUND = """\
gpulease_began=$(date +%s)
GPULEASE_JOB=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID-}" ] || GPULEASE_JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
GPULEASE_DEVICES=${CUDA_VISIBLE_DEVICES-}
export GPULEASE_JOB GPULEASE_DEVICES
gpulease_tries=1
while :; do
  "$@"
  gpulease_code=$?
  [ $gpulease_code -ne 0 ] && [ $gpulease_tries -lt $gpulease_most ] || break
  gpulease_tries=$((gpulease_tries + 1))
done
{ echo "$gpulease_code $gpulease_began $(date +%s) $gpulease_tries" >"$gpulease_ends/$GPULEASE_JOB"; } 2>/dev/null
exit $gpulease_code
"""


def batch_script(commands: Sequence[Sequence[str]], logs: Sequence[str | None], ends: str, retry: int = 0) -> str:
    """`logs`: of each command, the file of its own that its output goes to, or None for the one of the array."""
    head = f"#!/bin/sh\ngpulease_ends={quoted(ends)}\ngpulease_most={retry + 1}\n"
    if len(commands) == 1:
        return f"{head}{_command(commands[0], logs[0])}\n{AROUND}"
    cases = "".join(
        f"{number}) {_command(words, log)} ;;\n" for number, (words, log) in enumerate(zip(commands, logs, strict=True))
    )
    return f"{head}case $SLURM_ARRAY_TASK_ID in\n{cases}esac\n{AROUND}"


def _command(words: Sequence[str], log: str | None) -> str:
    output = f"exec >>{quoted(log)} 2>&1; " if log else ""
    return f"{output}set -- {' '.join(map(quoted, words))}"


def quoted(word: str) -> str:
    """For a shell."""
    if word and PLAIN.issuperset(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"
