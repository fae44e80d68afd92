"""PURE: the batch script of jobs that are added together: one for all of them, which Slurm keeps.

Task N of the array runs the N-th command. Nothing of it lies in a file that has to be there when the job starts. That
it began and how it ended is written into the folder of records, where that is there on the node. A controller that was
killed may start again what it had started: the second run then ends as the first did, and runs nothing. When Slurm ends
the job, its command hears SIGTERM once, has the time that Slurm gives, and is not tried again. The notes have the
token in their names, since Slurm gives an id again after years, or when its state was lost.
"""

from __future__ import annotations

from gpulease.model.shell_text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The command runs in the background, so that the shell handles a signal while it runs. A shell gives such a command no
# input and ignores a terminal's interrupts for it: both are undone. The file `.began` has a line for each try: the
# number of the run, which Slurm counts; and a line `RUN ended` when Slurm ended that run. A young child is still a
# copy of the shell, with its traps: a signal that comes to it then is lost.
AROUND = """\
gpulease_twice() {
  echo "gpulease: Slurm ended this job and started it again; it runs once, unless added with --retry." >&2
  exit 75
}
gpulease_end() {
  [ -n "$gpulease_killed" ] || echo "$gpulease_run ended" >&8
  gpulease_killed=killed gpulease_heard=1
  if [ -n "$gpulease_child" ]; then
    [ -z "$gpulease_alone" ] && ! gpulease_young || gpulease_tell
  fi
}
gpulease_young() {
  [ "$(tr -d '\\0' </proc/$$/cmdline)" = "$(tr -d '\\0' </proc/$gpulease_child/cmdline)" ]
} 2>/dev/null
gpulease_tell() {
  gpulease_left=20
  while gpulease_young && [ $gpulease_left -gt 0 ]; do
    gpulease_left=$((gpulease_left - 1))
    sleep 0.1
  done
  gpulease_pass TERM
}
gpulease_pass() {
  gpulease_heard=1
  [ -z "$gpulease_child" ] || kill -s "$1" "$gpulease_child" 2>/dev/null
}
GPULEASE_JOB=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID-}" ] || GPULEASE_JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
GPULEASE_DEVICES=${CUDA_VISIBLE_DEVICES-}
export GPULEASE_JOB GPULEASE_DEVICES
gpulease_note=$gpulease_ends/$GPULEASE_JOB.$gpulease_token
gpulease_run=${SLURM_RESTART_COUNT:-0}
gpulease_killed= gpulease_child= gpulease_code=143
if [ -d "$gpulease_ends" ] && [ -w "$gpulease_ends" ]; then
  exec 8>>"$gpulease_note.began"
  flock 8
  gpulease_last=$(tail -n 1 "$gpulease_note.began")
  if [ "${gpulease_last% ended}" = "$gpulease_run" ]; then
    [ ! -s "$gpulease_note" ] || exit "$(cut -d ' ' -f 1 "$gpulease_note")"
  fi
  # A run that neither ended itself nor was ended by Slurm has lost its node, or is started twice.
  case $gpulease_last in
  '') ;;
  "$gpulease_run" | "$gpulease_run ended") [ "$gpulease_most" -gt 1 ] || gpulease_twice ;;
  *ended) ;;
  *) [ -s "$gpulease_note" ] || [ "$gpulease_most" -gt 1 ] || gpulease_twice ;;
  esac
  rm -f "$gpulease_note"
else
  exec 8>/dev/null
fi
exec 7<&0
trap gpulease_end TERM
for gpulease_signal in HUP INT QUIT USR1 USR2 ALRM; do
  trap "gpulease_pass $gpulease_signal" $gpulease_signal
done
if env --default-signal=INT,QUIT true 2>/dev/null; then
  set -- env --default-signal=INT,QUIT sh -c 'exec "$@"' sh "$@"
fi
gpulease_began=$(date +%s)
gpulease_tries=0
while [ -z "$gpulease_killed" ]; do
  gpulease_tries=$((gpulease_tries + 1))
  echo "$gpulease_run" >&8
  "$@" <&7 7<&- 8>&- &
  gpulease_child=$! gpulease_code=
  [ -z "$gpulease_killed" ] || gpulease_tell # it came while the command was begun
  while :; do
    gpulease_heard=
    wait "$gpulease_child"
    gpulease_now=$?
    [ -n "$gpulease_code" ] && [ $gpulease_now -eq 127 ] || gpulease_code=$gpulease_now
    [ -n "$gpulease_heard" ] || break
  done
  gpulease_child=
  [ $gpulease_code -ne 0 ] && [ $gpulease_tries -lt $gpulease_most ] || break
  sleep 1 # Slurm may end the command first, and this shell a moment later
done
gpulease_times="$gpulease_began $(date +%s) $gpulease_tries"
{ echo "$gpulease_code $gpulease_times $gpulease_token $gpulease_run $gpulease_killed" >"$gpulease_note"; } 2>/dev/null
exit $gpulease_code
"""


def batch_script(
    commands: Sequence[Sequence[str]],
    logs: Sequence[str | None],
    ends: str,
    token: str,
    retry: int = 0,
    alone: bool = False,
) -> str:
    """`logs`: of each command, the file of its own that its output goes to, or None for the one of the array.

    `alone`: whether Slurm's SIGTERM comes to the script alone, which then passes it on. See Site.signals_script_alone.
    """
    head = f"#!/bin/sh\ngpulease_ends={quoted(ends)}\ngpulease_token={token}\ngpulease_most={retry + 1}\n"
    head += f"gpulease_alone={1 if alone else ''}\n"
    if len(commands) == 1:
        return f"{head}{_command(commands[0], logs[0])}\n{AROUND}"
    cases = "".join(
        f"{number}) {_command(words, log)} ;;\n" for number, (words, log) in enumerate(zip(commands, logs, strict=True))
    )
    return f"{head}case $SLURM_ARRAY_TASK_ID in\n{cases}esac\n{AROUND}"


def _command(words: Sequence[str], log: str | None) -> str:
    output = f"exec >>{quoted(log)} 2>&1; " if log else ""
    return f"{output}set -- {' '.join(map(quoted, words))}"
