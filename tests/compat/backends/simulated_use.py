"""Puts this process on a simulated GPU, as CUDA would: for the stand-ins of torch, tensorflow and pycuda beside it.

For Python 3.6 and newer.
"""

import os

taken = set()


def place(device_no: int) -> str:
    """Use the device that this process calls `device_no`; its index in the machine."""
    index = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[device_no]
    taken.add(index)
    _write()
    return index


def leave(index: str) -> None:
    taken.discard(index)
    _write()


def _write() -> None:
    with open("/proc/self/stat") as file:
        start_time = file.read().rpartition(")")[2].split()[19]
    folder = os.path.join(os.environ["GPULEASE_SIMULATION"], "processes")
    path = os.path.join(folder, "{}.{}".format(os.getpid(), start_time))
    with open(path + ".part", "w") as file:
        file.writelines("gpu.{}.memory=1048576\n".format(number) for number in sorted(taken))
    os.rename(path + ".part", path)
    if not taken:
        os.unlink(path)
