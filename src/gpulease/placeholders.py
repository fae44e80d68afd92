"""A little memory on a device, so that tools that only look at nvidia-smi see it taken.

    gpulease.acquire(1, placeholder=gpulease.placeholders.torch)

Each takes the number of a device as this process sees it and returns what keeps the memory.
"""

from __future__ import annotations

from importlib import import_module


def torch(device_no: int) -> object:
    return import_module("torch").zeros((1,), device=f"cuda:{device_no}")


def tensorflow(device_no: int) -> object:
    library = import_module("tensorflow")
    with library.device(f"GPU:{device_no}"):
        return library.constant([1.0])


def pycuda(device_no: int) -> object:
    driver = import_module("pycuda.driver")
    driver.init()
    return driver.Device(device_no).make_context()
