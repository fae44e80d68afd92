"""Every error that gpulease raises on purpose.

    GpuleaseError
    ├── UsageError            usage            2   the request itself makes no sense
    │   ├── UnknownDevice     unknown-device   2   a device was named that is not here
    │   ├── BadVisibleDevices visible-devices  2   CUDA_VISIBLE_DEVICES cannot be understood
    │   └── NotOnEngine       engine           2   the engine that was chosen cannot do this
    ├── NotFound              not-found        1   the thing asked for does not exist
    │   └── CommandNotFound   command          1   CMD cannot be started
    ├── WrongState            wrong-state      1   what was asked cannot be done to a job in its state
    ├── NotEnoughDevices      not-enough       1   fewer devices match than were asked for
    │   └── NotNow            not-now         75   enough would match, and they are in use
    ├── SlurmRefused          slurm-refused    1   Slurm refused it, in its own words
    ├── SimulationError       simulation       1   the simulated machine cannot be made or changed
    ├── StateError            state            1   the broker's state cannot be read or written
    ├── HistoryError          history          1   the history cannot be read
    ├── NotGranted            not-granted     75   no device within the time that was given
    │   └── Cancelled         cancelled       75   the request left the line before it was granted
    ├── NotDelivered          not-delivered    1   a notice could not be sent to its address
    ├── NotPermitted          not-permitted   77   it belongs to another user
    ├── TooMuch               too-much        75   one user asks more of the broker than its limits allow
    ├── ProtocolError         protocol         1   a message that the broker or the client cannot understand
    ├── PoolError             pool             1   a pool of workers cannot do what was asked
    │   ├── CannotPickle      pickle           1   a function, argument, result or shared object cannot be sent
    │   ├── WorkerDied        worker-died      1   an item ended the workers that tried it
    │   ├── OutOfMemory       out-of-memory    1   the GPU's memory did not suffice for an item
    │   ├── TaskFailed        task-failed      1   an item raised what cannot be sent back as it was
    │   ├── PoolBroken        pool-broken      1   no worker can be started: `init` failed, or none is left
    │   └── PoolClosed        pool-closed      1   the pool was shut down
    └── Unavailable                           69
        ├── NoDevices         no-devices      69   no driver, no GPU, no simulation
        ├── NoLibrary         no-library      69   the library that simulates GPUs cannot be built or loaded
        ├── BrokerUnavailable broker          69   no broker answers, and none could be started
        │   └── ConfigError   config          69   the config file is wrong, so the broker does not start
        ├── HostUnavailable   host            69   another host, or the gpulease there, cannot be used by ssh
        ├── SlurmUnavailable  slurm           69   no Slurm here, or its controller does not answer
        ├── DriverError       driver          69   the driver is there and answers with an error
        └── DriverHangs       driver-hangs    69   the driver did not answer within the deadline

Each has a code for programs, one sentence of what happened and one of what to do next. People read them on a terminal
and in a traceback, so outside of cli/ they name neither options nor arguments, but what these stand for.
CudaAlreadyInitialised is a warning.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_NOT_GRANTED = 75
EXIT_NOT_PERMITTED = 77


class GpuleaseError(Exception):
    code = "error"
    exit_code = EXIT_FAILED
    next_step = "Run `gpulease doctor` to see what is wrong."

    def __init__(self, what: str, next_step: str | None = None, **fields: object) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step or type(self).next_step
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.what} {self.next_step}"


class UsageError(GpuleaseError, ValueError):
    code = "usage"
    exit_code = EXIT_USAGE
    next_step = "See `gpulease --help`."


class UnknownDevice(UsageError):
    code = "unknown-device"
    next_step = "Run `gpulease status` to see the devices that are here."


class BadVisibleDevices(UsageError):
    code = "visible-devices"
    next_step = "Unset CUDA_VISIBLE_DEVICES, or give it indices or UUIDs from `gpulease status`."


class NotOnEngine(UsageError):
    code = "engine"
    next_step = "See which verb does what on which engine: `gpulease help engines`."


class NotFound(GpuleaseError):
    code = "not-found"


class CommandNotFound(NotFound):
    code = "command"
    next_step = "Check the spelling, or give the full path."


class WrongState(GpuleaseError):
    code = "wrong-state"
    next_step = "See `gpulease ls --all`."


class NotEnoughDevices(GpuleaseError):
    code = "not-enough"


class NotNow(NotEnoughDevices):
    code = "not-now"
    exit_code = EXIT_NOT_GRANTED


class SimulationError(GpuleaseError):
    code = "simulation"


class SlurmRefused(GpuleaseError):
    code = "slurm-refused"
    next_step = "`gpulease help engines` tells what Slurm is asked for, and with which of its options."


class StateError(GpuleaseError):
    code = "state"
    next_step = "Check that the disk is not full and that the folder is writable; nothing was changed."


class HistoryError(GpuleaseError):
    """No StateError: leases and jobs need no history."""

    code = "history"
    next_step = "Check that the disk is not full and that the broker's state folder is writable."


class NotGranted(GpuleaseError, RuntimeError):
    code = "not-granted"
    exit_code = EXIT_NOT_GRANTED
    next_step = "Wait longer, or ask for less; `gpulease status` shows who holds what."


class Cancelled(NotGranted):
    code = "cancelled"
    next_step = "Ask again."


class NotDelivered(GpuleaseError):
    code = "not-delivered"
    next_step = "Check the address, and set it again with `gpulease notify set`."


class NotPermitted(GpuleaseError):
    code = "not-permitted"
    exit_code = EXIT_NOT_PERMITTED
    next_step = "Ask its owner, or root."


class TooMuch(GpuleaseError):
    code = "too-much"
    exit_code = EXIT_NOT_GRANTED
    next_step = "Let some of what you already asked for end first."


class ProtocolError(GpuleaseError):
    code = "protocol"
    next_step = "Use the same gpulease version as the broker; `gpulease stop` ends an older one."


class PoolError(GpuleaseError):
    code = "pool"
    next_step = "See the pool's log."


class CannotPickle(PoolError, TypeError):
    code = "pickle"
    next_step = "Make it inside the worker instead, in `init` or in the function, or leave it out."


class WorkerDied(PoolError):
    """`fields`: `exit_code` or `signal`, and `tries`."""

    code = "worker-died"
    next_step = "Run the item alone to see why; the pool's log has what the workers printed."


class OutOfMemory(PoolError, MemoryError):
    """Its `__cause__` is what the item raised."""

    code = "out-of-memory"
    next_step = "Give each worker more memory, or make the item smaller; other items are not affected."


class TaskFailed(PoolError):
    code = "task-failed"
    next_step = "The worker's traceback is its cause."


class PoolBroken(PoolError, RuntimeError):
    code = "pool-broken"
    next_step = "Correct what is named above and make a new pool."


class PoolClosed(PoolError, RuntimeError):
    code = "pool-closed"
    next_step = "Make a new pool, or submit before the `with` block ends."


class Unavailable(GpuleaseError):
    code = "unavailable"
    exit_code = EXIT_UNAVAILABLE


class NoDevices(Unavailable):
    code = "no-devices"
    next_step = "To try gpulease without a GPU, run `gpulease simulate -n 4 -- gpulease status`."


class NoLibrary(Unavailable):
    code = "no-library"
    next_step = (
        "Install a C compiler and its headers: `apt-get install gcc libc6-dev` (Debian, Ubuntu) "
        "or `dnf install gcc` (Fedora). Without root: `pip install 'gpulease[simulate]'`."
    )


class BrokerUnavailable(Unavailable):
    code = "broker"


class ConfigError(BrokerUnavailable):
    code = "config"
    next_step = "`gpulease help parameters` tells what it may say."


class HostUnavailable(Unavailable):
    code = "host"
    next_step = "See `gpulease doctor --hosts`."


class SlurmUnavailable(Unavailable):
    code = "slurm"
    next_step = "Jobs that run go on without it. Try again later; `scontrol ping` tells whether it is back."


class DriverError(Unavailable):
    code = "driver"
    next_step = "See what `nvidia-smi` and `dmesg` say; the driver may have to be loaded again."


class DriverHangs(Unavailable):
    code = "driver-hangs"
    next_step = "Check `dmesg` for driver errors; a reboot may be needed."


class CudaAlreadyInitialised(UserWarning):
    """A warning, not an error: devices were granted or selected that CUDA in this process will not use."""


def in_words(error: BaseException) -> str:
    """What it says, without the number and the path that Python puts around the words of the system."""
    inner = getattr(error, "reason", None)  # of urllib
    if isinstance(inner, OSError):
        return in_words(inner)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def by_code(code: str, what: str, next_step: str | None, fields: dict[str, object]) -> GpuleaseError:
    """The error that a broker reported, as the class that it was there."""
    rest: list[type[GpuleaseError]] = [GpuleaseError]
    while rest:
        kind = rest.pop()
        if kind.code == code:
            return kind(what, next_step, **fields)
        rest += kind.__subclasses__()
    return GpuleaseError(what, next_step, **fields)
