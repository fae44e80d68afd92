"""PURE: a job: a command with its request, and where it is in its life."""

from __future__ import annotations

from typing import Any, NamedTuple, NotRequired, TypedDict

from gpulease.errors import StateError, in_words
from gpulease.model.job_selection import line_id
from gpulease.model.lifecycle import JOB, JOB_ENDS, REMEMBERED, START, Effects, Step, transition
from gpulease.model.request import RequestRow, stored_request
from gpulease.model.values import Request

WAITING = ("waiting", "held")
RUNNING = ("running", "paused")
OPEN = (*WAITING, *RUNNING)
NEW = START
ENDS = tuple(sorted(JOB_ENDS))


class JobSpec(NamedTuple):
    """What was asked for: `add` and `edit` write it."""

    command: tuple[str, ...]
    cwd: str
    environment: str  # the key of its environment in the store, which only its submitter may read
    request: Request
    name: str | None = None
    label: str | None = None
    note: str | None = None
    log: str = ""
    retry: int = 0  # how often it may run again after a failure
    time_limit: float | None = None
    after: tuple[int, ...] = ()
    after_any: bool = False
    at_most: int | None = None  # of its sweep that run at a time; what holds is in the broker's state
    notify: tuple[str, ...] | None = None  # of which its user is told; None: as they chose for all
    transfer: str | None = None  # by which token a copy of another host's job is let go, once the original is gone
    script: str | None = None  # the file that its command runs, if that was seen
    script_time: int | None = None  # when that had last been changed as the job was added, in milliseconds


class AskedRow(TypedDict):
    """The same as programs read it. What another version may not know is not required."""

    command: list[str]
    cwd: str
    request: RequestRow
    name: str | None
    label: str | None
    note: str | None
    log: str
    retry: int
    time_limit: float | None
    after: list[int | str]
    after_any: bool
    at_most: int | None
    notify: NotRequired[list[str] | None]
    script: NotRequired[str | None]
    script_time: NotRequired[int | None]


class Job(NamedTuple):
    """What was asked for, and its life."""

    id: int
    uid: int
    user: str
    spec: JobSpec
    added: float
    state: str = "waiting"
    history: tuple[Step, ...] = ()
    tries: int = 0
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None  # why it is killed, invalid or lost
    out_of_memory: bool = False
    devices: tuple[str, ...] = ()  # labels, of the last try
    peak_memory: int | None = None
    pid: int | None = None
    place: float | None = None  # its place in the line after a `move`
    forced: bool = False
    run: int = 0  # which run of it this is; counted on through every retry, so that no two have the same name
    ending: str | None = None  # why it is being killed, from the order until all of it is gone
    removing: bool = False  # to be forgotten once it is gone
    log_begin: int = 0  # where the output of this run begins in the log
    cap: int | None = None  # its sweep, by the id of the first, if that has a number
    script_changed: int | None = None  # when its script had last been changed as its last run began, if it was another
    met: tuple[int, ...] = ()  # of those that it comes after: who has ended as it must, whatever becomes of it later

    @property
    def over(self) -> bool:
        return self.state in JOB_ENDS

    @property
    def planner_id(self) -> str:
        return line_id(self.id)

    @property
    def run_name(self) -> str:
        return f"{self.id}.{self.run}"


ASKED = frozenset(JobSpec._fields)


def changed(job: Job, **changes: Any) -> Job:
    """The job with other values, of what was asked for or of its life."""
    asked = {name: changes.pop(name) for name in ASKED & changes.keys()}
    return job._replace(spec=job.spec._replace(**asked), **changes) if asked else job._replace(**changes)


def step(job: Job, event: str, now: float, **changes: Any) -> tuple[Job, Effects]:
    """The job after `event`, as the table of lifecycle.py has it."""
    state, effects = transition(JOB, f"job {job.id}", job.state, event, job.history)
    history = (*job.history, Step(now, job.state, event, state))[-REMEMBERED:]
    return changed(job, state=state, history=history, **changes), effects


def document(job: Job) -> dict[str, Any]:
    """All about it in one level, as the store and programs read it."""
    fields = {**job._asdict(), **job.spec._asdict(), "request": job.spec.request._asdict()}
    del fields["spec"]
    return fields


ALWAYS = ("state", "label")  # columns of the store
_NOTHING = object()


def _usual(kind: type[Job | JobSpec | Request]) -> tuple[object, ...]:
    return tuple(_NOTHING if name in ALWAYS else kind._field_defaults.get(name, _NOTHING) for name in kind._fields)


_USUAL, _USUAL_SPEC, _USUAL_REQUEST = _usual(Job), _usual(JobSpec), _usual(Request)


def stored(job: Job) -> dict[str, Any]:
    """As the store keeps it: what is as usual is left out, for there may be a hundred thousand."""
    found = _unusual(Job._fields, job, _USUAL) | _unusual(JobSpec._fields, job.spec, _USUAL_SPEC)
    del found["spec"]
    found["request"] = _unusual(Request._fields, job.spec.request, _USUAL_REQUEST)
    return found


def _unusual(names: tuple[str, ...], values: tuple[Any, ...], usual: tuple[Any, ...]) -> dict[str, Any]:
    rows = zip(names, values, usual, strict=True)
    return {name: value for name, value, default in rows if value is not default and value != default}


def read(stored: dict[str, Any]) -> Job:
    """Raises StateError where it is not what any version has stored."""
    try:
        return _read(stored)
    except (TypeError, ValueError, KeyError, AttributeError) as trouble:
        raise StateError(
            f"The state of job {str(stored.get('id'))[:20]} is damaged: {in_words(trouble)}.",
            "Remove it with `gpulease rm`; if that fails too, move the state away: `gpulease doctor` says where it is.",
        ) from None


def _read(stored: dict[str, Any]) -> Job:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    values["request"] = stored_request(stored["request"])
    values["history"] = tuple(Step(*entry) for entry in stored.get("history", ()))
    spec = JobSpec(**{name: values[name] for name in JobSpec._fields if name in values})
    return Job(spec=spec, **{name: values[name] for name in Job._fields if name in values})


OUT_OF_MEMORY = (
    b"CUDA out of memory",
    b"CUDA error: out of memory",
    b"cudaMalloc failed: out of memory",
    b"torch.OutOfMemoryError",
    b"torch.cuda.OutOfMemoryError",
    b"CUDA_ERROR_OUT_OF_MEMORY",
    b"cudaErrorMemoryAllocation",
    b"CUBLAS_STATUS_ALLOC_FAILED",
    b"RESOURCE_EXHAUSTED: Out of memory",
    b"OOM when allocating tensor",
    b"ResourceExhaustedError",
    b"CUDNN_STATUS_ALLOC_FAILED",
    b"HIP out of memory",
    b"hipErrorOutOfMemory",
    b"out of memory trying to allocate",
)


def ran_out_of_memory(output: bytes) -> bool:
    """Whether the end of a failed job's output has CUDA's, PyTorch's, TensorFlow's or JAX's out-of-memory in it."""
    return any(mark in output for mark in OUT_OF_MEMORY)


def after_out_of_memory(request: Request) -> Request:
    """What to ask for instead: a share becomes a whole device, alone."""
    return request if request.memory is None else request._replace(memory=None, gpus=1, max_leases=None)
