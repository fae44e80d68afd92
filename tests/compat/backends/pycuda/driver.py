"""As much of pycuda as a placeholder needs, on a simulated GPU."""

from typing import Any

from simulated_use import leave, place


def init() -> None:
    pass


class Context:
    def __init__(self, number: int) -> None:
        self.index = place(number)

    def __repr__(self) -> str:
        return "context on {}".format(self.index)

    def push(self) -> None:
        pass

    @staticmethod
    def pop() -> None:
        pass

    def detach(self) -> None:
        print("detached {}".format(self.index))
        leave(self.index)


class Device:
    def __init__(self, number: int) -> None:
        self.number = number

    def make_context(self) -> Context:
        return Context(self.number)


def mem_alloc(size: int) -> str:
    return "memory"


def memcpy_htod(target: Any, source: Any) -> None:
    pass
