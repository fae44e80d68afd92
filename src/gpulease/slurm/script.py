"""PURE: the batch script of jobs that are added together: one for all of them, which Slurm keeps.

Task N of the array runs the N-th command. Nothing of it lies in a file that has to be there when the job starts. That
it began and how it ended is written into the folder of records, where that is there on the node. A controller that was
killed may start again what it had started: the second run then ends as the first did, and runs nothing. The notes have
the token in their names, since Slurm gives an id again after years, or when its state was lost.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./,:@%")
AROUND = """\
gpulease_twice() {
  echo "gpulease: Slurm ended this job and started it again; it runs once, unless added with --retry." >&2
  exit 75
}
GPULEASE_JOB=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID-}" ] || GPULEASE_JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
GPULEASE_DEVICES=${CUDA_VISIBLE_DEVICES-}
export GPULEASE_JOB GPULEASE_DEVICES
gpulease_note=$gpulease_ends/$GPULEASE_JOB.$gpulease_token
gpulease_run=${SLURM_RESTART_COUNT:-0}
if [ -d "$gpulease_ends" ] && [ -w "$gpulease_ends" ]; then
  exec 8>>"$gpulease_note.began"
  flock 8
  if [ "$(tail -n 1 "$gpulease_note.began")" = "$gpulease_run" ]; then
    [ ! -s "$gpulease_note" ] || exit "$(cut -d ' ' -f 1 "$gpulease_note")"
    [ "$gpulease_most" -gt 1 ] || gpulease_twice
  fi
  rm -f "$gpulease_note"
else
  exec 8>/dev/null
fi
gpulease_began=$(date +%s)
gpulease_tries=1
while :; do
  echo "$gpulease_run" >&8
  "$@" 8>&-
  gpulease_code=$?
  [ $gpulease_code -ne 0 ] && [ $gpulease_tries -lt $gpulease_most ] || break
  gpulease_tries=$((gpulease_tries + 1))
done
{ echo "$gpulease_code $gpulease_began $(date +%s) $gpulease_tries $gpulease_token" >"$gpulease_note"; } 2>/dev/null
exit $gpulease_code
"""


def batch_script(
    commands: Sequence[Sequence[str]], logs: Sequence[str | None], ends: str, token: str, retry: int = 0
) -> str:
    """`logs`: of each command, the file of its own that its output goes to, or None for the one of the array."""
    head = f"#!/bin/sh\ngpulease_ends={quoted(ends)}\ngpulease_token={token}\ngpulease_most={retry + 1}\n"
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
