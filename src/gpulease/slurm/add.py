"""`add` on Slurm: jobs that are added together are one array and one script, submitted once.

Task N of the array runs the N-th command. Nothing of it lies in a file that has to be there when the job starts. That
it began and how it ended is written into the folder of records, where that is there on the node. A controller that was
killed may start again what it had started: the second run then ends as the first did, and runs nothing. When Slurm ends
the job, its command hears SIGTERM once, has the time that Slurm gives, and is not tried again. The notes have the
token in their names, since Slurm gives an id again after years, or when its state was lost.
"""

from __future__ import annotations

import os
import time

from gpulease.errors import NotFound, SlurmUnavailable, UsageError, WrongState
from gpulease.model.shell_text import quoted
from gpulease.slurm import commands, options
from gpulease.slurm.options import site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpulease.slurm.records import Records

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


# -------------------------------------------------------------------- adding

AT_ONCE = 1000  # tasks of an array; MaxArraySize is 1001 unless somebody changed it
LONGEST = 3 << 20  # characters of a script; Slurm takes 4 MB
PATIENCE = 60.0  # seconds for a controller that took a job and gave no answer
PAUSE = 2.0  # seconds between looks
DROPPED = ("GPULEASE_UMASK", "GPULEASE_ENGINE")  # a job serves what is inside its own allocation
INTERACTIVE = ("bash", "interactive")  # names of jobs by which Lightning takes itself to be typed at
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


def add(
    records: Records,
    batch: list[list[str]],
    each: list[dict[str, str]],
    request: Mapping[str, Any],
    job_options: Mapping[str, Any],
) -> list[str]:
    """The ids, in the order of the commands."""
    kind = model(records, request)
    after = ids_to_come_after(records, job_options)
    found: list[str] = []
    for first, last in parts(batch):
        found += _add_part(records, batch[first:last], each[first:last], request, job_options, kind, after)
    return found


def parts(batch: list[list[str]]) -> list[tuple[int, int]]:
    """PURE: from and to of each array."""
    found, first, length = [], 0, 0
    for number, words in enumerate(batch):
        more = sum(map(len, words)) + 8 * len(words)
        if number > first and (number - first >= AT_ONCE or length + more > LONGEST):
            found.append((first, number))
            first, length = number, 0
        length += more
    return [*found, (first, len(batch))]


def model(records: Records, request: Mapping[str, Any]) -> str | None:
    """Slurm's name for the first of the models that there is."""
    models = request.get("models") or []
    if not models:
        return None
    from gpulease.slurm.known_jobs import nodes
    from gpulease.slurm.status import matching_type

    there = nodes(records)
    found = next((kind for name in models if (kind := matching_type(name, there)) is not None), None)
    if found is None:
        from gpulease.errors import NotEnoughDevices

        raise NotEnoughDevices(
            f"No node of Slurm has a GPU of the model {', '.join(models)[:80]}.",
            "`gpulease status --engine slurm` shows all nodes.",
        )
    return found


def _add_part(
    records: Records,
    batch: list[list[str]],
    each: list[dict[str, str]],
    request: Mapping[str, Any],
    job_options: Mapping[str, Any],
    kind: str | None,
    after: list[str],
) -> list[str]:
    count, token = len(batch), os.urandom(8).hex()
    own = [texts.get("log") for texts in each] or [None] * count
    log = options.pattern(job_options.get("log"), records.logs, count)
    kept = {name: value for name, value in job_options.items() if name not in ("environment", "env_kept")}
    records.write(
        token,
        {
            "commands": batch,
            "each": each,
            "request": dict(request),
            "options": kept,
            "added": time.time(),
            "log": log,
            "uid": os.geteuid(),
        },
    )
    name = job_options.get("name") or os.path.basename(batch[0][0])
    name = f"gpulease-{name}" if name in INTERACTIVE and not job_options.get("name") else name
    comment = {"token": token, "command": batch[0] if count == 1 else None, "name": job_options.get("name")}
    comment["job_name"] = None if job_options.get("name") else name
    comment |= {name: job_options.get(name) for name in ("label", "note", "retry")}
    chosen, more = site(records), extra()
    words = options.batch(request, job_options, kind, count, after, log, chosen.preempts, more)
    words += [f"--job-name={name}", *more]
    words.append(f"--comment={options.comment(comment)}")
    logs = [None if path is None or path.endswith("/") else path for path in own]
    alone = chosen.signals_script_alone
    text = batch_script(batch, logs, records.ends, token, job_options.get("retry") or 0, alone)
    try:
        id = _submit(words, text, job_environment(job_options["environment"]), token)
    except BaseException as trouble:
        if not getattr(trouble, "fields", {}).get("unsure"):
            records.drop(token)
        raise
    records.submitted(token, id)
    return [f"{id}_{number}" for number in range(count)] if count > 1 else [id]


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what belongs to an allocation in which this command runs itself."""
    return {
        name: value
        for name, value in environ.items()
        if name not in DROPPED and (not name.startswith("SLURM_") or name in KEPT)
    }


def extra() -> list[str]:
    """Options that the user always wants: a partition, an account."""
    text = os.environ.get("GPULEASE_SLURM_OPTIONS", "")
    if not text.strip():
        return []
    from shlex import split

    try:
        return split(text)
    except ValueError:
        raise UsageError(
            f"GPULEASE_SLURM_OPTIONS is {text[:60]!r}, in which a quote is not closed.",
            "Write it as `--partition=gpu --account=lab`.",
        ) from None


def _submit(words: list[str], script: str, environ: Mapping[str, str], token: str) -> str:
    ran = None
    try:
        ran = commands.run(words, script.encode(errors="surrogateescape"), commands.ACTING, environ)
    except SlurmUnavailable as trouble:
        if trouble.fields.get("absent"):
            raise
    if ran is not None and not ran.code:
        return ran.output.split(";")[0].strip()
    if ran is not None and not _may_have_been_taken(ran.complaint):
        raise commands.refusal("sbatch", ran.complaint)
    return _find(token)


def _may_have_been_taken(complaint: str) -> bool:
    return any(words in complaint for words in ("Socket timed out", "Zero Bytes were transmitted", "timed out on recv"))


def _find(token: str) -> str:
    """The job that carries the token, when the answer of sbatch was lost."""
    from gpulease.slurm import rows
    from gpulease.slurm.known_jobs import SQUEUE

    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            comment = commands.document(SQUEUE)
        except SlurmUnavailable:
            time.sleep(PAUSE)
            continue
        for raw in comment.get("jobs", ()):
            if rows.carries(raw, token, os.geteuid()) and not rows.was_refused(raw):
                return rows.ids_of(raw)[0].partition("_")[0]
        raise SlurmUnavailable("Slurm's controller gave no answer, and the job was not queued.", "Add it again.")
    raise SlurmUnavailable(
        "Slurm's controller gave no answer.",
        "It may be queued all the same: see `gpulease ls --engine slurm` before you add it again.",
        unsure=1,
    )


def ids_to_come_after(records: Records, job_options: Mapping[str, Any]) -> list[str]:
    """Slurm's ids of what the jobs come after; what has ended well, and is forgotten, is waited for no more."""
    after, label = job_options.get("after") or [], job_options.get("after_label")
    if not after and label is None:
        return []
    from gpulease.slurm.known_jobs import OPEN, SlurmJobs

    seen = SlurmJobs(records)
    known, found = seen.jobs(), set[str]()
    own = [row for row in known if row["uid"] == os.geteuid()]
    if label is not None:
        found |= {str(row["id"]) for row in own if row["label"] == label and row["state"] in OPEN}
    if after == "all":
        found |= {str(row["id"]) for row in own if row["state"] in OPEN}
    elif after == "last":
        found |= {str(row["id"]) for row in own[-1:]}
    else:
        for one in after:
            first, last = one if isinstance(one, (list, tuple)) else (one, one)
            span = [str(first)] if first == last else [str(id) for id in range(int(first), int(last) + 1)]
            for id in span:
                found |= _still_to_wait_for(id, known, {id for id, _ in seen.raw}, bool(job_options.get("after_any")))
    if not found and (label is not None or after in ("all", "last")):
        raise NotFound("There is no such job to come after.", "See `gpulease ls --engine slurm`.")
    from gpulease.model.job_selection import id_order

    return sorted(found, key=id_order)


def _still_to_wait_for(id: str, known: list[Any], in_slurm: set[str], however: bool) -> set[str]:
    meant = [row for row in known if str(row["id"]) == id or str(row["id"]).startswith(f"{id}_")]
    if not meant:
        raise NotFound(f"No such job: {id}.", "See `gpulease ls --all --engine slurm`.")
    if any(str(row["id"]) in in_slurm for row in meant):
        return {id}
    if not however and any(row["state"] != "complete" for row in meant):
        raise WrongState(f"Job {id} did not end well, so this would never start.", "Use `after-any`, or leave it out.")
    return set()
