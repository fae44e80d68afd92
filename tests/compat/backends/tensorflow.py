"""As much of TensorFlow as a placeholder needs, on a simulated GPU."""

from contextlib import contextmanager
from typing import Any, Iterator

from simulated_use import place

_current = []


@contextmanager
def device(name: str) -> Iterator[None]:
    _current.append(name)
    yield
    _current.pop()


def constant(values: Any) -> str:
    return "constant on {}".format(place(int(_current[-1].partition(":")[2])))
