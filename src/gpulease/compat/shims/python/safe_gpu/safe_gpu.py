"""safe-gpu's names on leases of gpulease.

The lease keeps others away, so nothing depends on how fast a placeholder is made. Placeholders are made all the same:
programs use them, and people who look at nvidia-smi see them.
"""

import errno
import fcntl
import importlib.util
import logging
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional

import gpulease_shim

LOCK_FILENAME = "/tmp/safe_gpu/gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users"
NOTE = "safe_gpu"

gpu_owner = None  # type: Optional[GPUOwner]


class NvidiasmiError(Exception):
    """There is no driver, or it does not answer."""


class PytorchPlaceholder:
    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger

    def __call__(self, device_no: int) -> Any:
        import torch

        return torch.zeros(1, device="cuda:{}".format(device_no))

    def release(self, placeholder: Any) -> None:
        self.logger.info("Did nothing, PyTorch doesn't expose interface for releasing GPUs")


class TensorflowPlaceholder:
    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger

    def __call__(self, device_no: int) -> Any:
        import tensorflow

        with tensorflow.device("GPU:{}".format(device_no)):
            return tensorflow.constant([1.0])

    def release(self, placeholder: Any) -> None:
        self.logger.info("Did nothing, TensorFlow doesn't expose interface for releasing GPUs")


class PyCudaPlaceholder:
    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger

    def __call__(self, device_no: int) -> Any:
        import pycuda.driver

        pycuda.driver.init()
        return pycuda.driver.Device(device_no).make_context()

    def release(self, placeholder: Any) -> None:
        placeholder.detach()
        self.logger.info("Released a CUDA context")


NEEDED = {PytorchPlaceholder: "torch", TensorflowPlaceholder: "tensorflow", PyCudaPlaceholder: "pycuda"}

# As releases before 1.5 had them, and safe-gpu's document still names one.
pytorch_placeholder = PytorchPlaceholder()
tensorflow_placeholder = TensorflowPlaceholder()
pycuda_placeholder = PyCudaPlaceholder()


class GPUOwner:
    """Holds GPUs until release_gpus() or the end of this process."""

    def __init__(
        self,
        nb_gpus: int = 1,
        placeholder_fn: Callable[[int], Any] = pytorch_placeholder,
        logger: Any = None,
        debug_sleep: float = 0.0,
    ) -> None:
        self.logger = logging if logger is None else logger
        self.debug_sleep = debug_sleep
        self.placeholder_fn = placeholder_fn
        self.devices_taken = []  # type: List[int]
        self.placeholders = []  # type: List[Any]
        self._lease = None  # type: Optional[str]
        _check_backend(placeholder_fn)
        if is_single_gpu_display_mode():
            self.logger.info("Running on a machine with single GPU used for actual display")
            if nb_gpus != 1:
                raise ValueError("Requested {} GPUs on a machine with single one.".format(nb_gpus))
            self._allocate(_display_gpu())
        else:
            self._choose(nb_gpus)

    def _choose(self, nb_gpus: int) -> None:
        self.logger.info("acquiring lock")
        granted = _take(nb_gpus)
        self.logger.info("lock acquired")
        try:
            if granted is None:
                raise RuntimeError(
                    "Required {} GPUs, only found these free: {}. "
                    "Somebody didn't properly declare their resources?".format(nb_gpus, get_free_gpus())
                )
            self._allocate(granted)
        finally:
            self.logger.info("lock released")

    def _allocate(self, granted: Dict[str, Any]) -> None:
        self._lease = granted.get("id")
        shown = gpulease_shim.show_devices(granted["devices"])
        self.logger.info("Set CUDA_VISIBLE_DEVICES={}".format(shown))
        try:
            time.sleep(self.debug_sleep)
            for device_no in range(len(granted["devices"])):
                self.placeholders.append(self._placeholder(device_no))
        except BaseException as trouble:
            if isinstance(trouble, RuntimeError):
                self.logger.error("No placeholder could be made. Was CUDA initialized before the GPUs were claimed?")
            self._give_back()
            raise
        # An instance of a divided GPU is named 1:0; its GPU is 1.
        self.devices_taken.extend(int(device["label"].partition(":")[0]) for device in granted["devices"])

    def _placeholder(self, device_no: int) -> Any:
        try:
            return self.placeholder_fn(device_no)
        except ImportError as missing:
            if self.placeholder_fn is not pytorch_placeholder:
                raise
            self.logger.info("No placeholder, the lease alone holds the GPU: {}".format(missing))
            return None

    def release_gpus(self) -> None:
        try:
            for device, placeholder in zip(self.devices_taken, self.placeholders):
                self.logger.info("Releasing placeholder on CUDA device: {}".format(device))
                getattr(self.placeholder_fn, "release", lambda _: None)(placeholder)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                gpulease_shim.release(lease)
            except gpulease_shim.GpuleaseFailed as trouble:
                self.logger.info("The lease {} was not given back: {}".format(lease, trouble))


def _check_backend(placeholder_fn: Callable[[int], Any]) -> None:
    """Before anything is taken. The default one is done without; it is not imported here, lest CUDA be initialized."""
    module = NEEDED.get(type(placeholder_fn))
    if module is None or placeholder_fn is pytorch_placeholder or sys.modules.get(module) is not None:
        return
    if importlib.util.find_spec(module) is None:
        kind = type(placeholder_fn).__name__
        raise ModuleNotFoundError("{} needs {}, which is not installed here.".format(kind, module), name=module)


def claim_gpus(
    nb_gpus: int = 1,
    placeholder_fn: Callable[[int], Any] = pytorch_placeholder,
    logger: Any = None,
    debug_sleep: float = 0.0,
) -> None:
    """Take GPUs for this process; the owner is `gpu_owner`. To be called before CUDA is initialized."""
    global gpu_owner
    gpu_owner = GPUOwner(nb_gpus, placeholder_fn, logger, debug_sleep)


def release_gpus() -> None:
    assert gpu_owner is not None, "claim_gpus() was not called"
    gpu_owner.release_gpus()


def get_free_gpus() -> List[str]:
    """The indices of GPUs that nobody uses or holds. Another process may take them at any moment."""
    return [device["label"] for device in _status(fresh=True)["devices"] if device["state"] == "free"]


def is_single_gpu_display_mode() -> bool:
    devices = _status()["devices"]
    return len(devices) == 1 and (devices[0]["display_active"] is True or _display_mode() == "Enabled")


def _display_mode() -> str:
    """As nvidia-smi tells it: of a GPU with a display that is not drawn on now."""
    try:
        done = subprocess.run(["nvidia-smi", "-q"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if "Display Mode" in line]
    return lines[0].split()[-1] if lines else ""


def _status(fresh: bool = False) -> Dict[str, Any]:
    try:
        return gpulease_shim.fresh_status() if fresh else gpulease_shim.status()
    except gpulease_shim.GpuleaseFailed as trouble:
        raise _as_safe_gpus(trouble)


def _as_safe_gpus(trouble: gpulease_shim.GpuleaseFailed) -> Exception:
    return NvidiasmiError(str(trouble)) if trouble.code == gpulease_shim.UNAVAILABLE else RuntimeError(str(trouble))


def _take(nb_gpus: int) -> Optional[Dict[str, Any]]:
    """A lease, or None if not enough are free; nothing is granted while somebody who uses safe-gpu itself chooses."""
    granted = _of_this_job(nb_gpus) or _ask(nb_gpus)
    while granted is None and _lock_is_held():
        time.sleep(gpulease_shim.NEXT_TRY)
        granted = _ask(nb_gpus)
    return granted


def _of_this_job(nb_gpus: int) -> Optional[Dict[str, Any]]:
    """GPUs of the lease in which this program runs, as a job or under `gpulease run`: it needs no second one."""
    lease = os.environ.get("GPULEASE_LEASE")
    if not lease:
        return None
    held = gpulease_shim.devices_of_lease(_status(fresh=True), lease)
    unused = [device for device in held if not gpulease_shim.computing(device)]
    return {"devices": unused[:nb_gpus]} if len(unused) >= nb_gpus else None


def _ask(nb_gpus: int) -> Optional[Dict[str, Any]]:
    if nb_gpus < 1:
        return {"devices": []}
    try:
        return gpulease_shim.get(nb_gpus, os.getpid(), "--no-wait", "--note", NOTE)
    except gpulease_shim.GpuleaseFailed as trouble:
        if trouble.code in (gpulease_shim.FAILED, gpulease_shim.NOT_GRANTED):
            return None
        raise _as_safe_gpus(trouble)


def _display_gpu() -> Dict[str, Any]:
    """A lease on the only GPU, or the GPU without one where only programs outside gpulease, or others of ours, are."""
    granted = _ask(1)
    if granted is not None:
        return granted
    document = _status()
    notes = {lease["id"]: lease["note"] for lease in document["leases"]}
    holders = [notes.get(lease) for lease in document["devices"][0]["leases"]]
    if all(note == NOTE for note in holders):
        return {"devices": document["devices"]}
    raise RuntimeError("Required 1 GPUs, only found these free: []. A lease holds the only one.")


def _lock_is_held() -> bool:
    """Whether somebody who uses safe-gpu itself chooses now."""
    try:
        descriptor = os.open(LOCK_FILENAME, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError as trouble:
        return trouble.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(descriptor)
