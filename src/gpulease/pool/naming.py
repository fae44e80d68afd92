"""A name for a value that is the same in every run: by what the value holds, not by how it came about.

A pickle will not do: equal values pickle differently by which of their parts are the same object, a set by the run's
hash seed, and a class of `__main__` with its code. Here a class is its name, a function that can be imported too; any
other function is its code and what it keeps: defaults, closure, bound object.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

PLAIN = frozenset({int, float, complex, bool, str, bytes, NoneType})
MANY = 16  # parts
PROTOCOL = 4  # without buffers beside the pickle


class Unnameable(Exception):
    """Says which kind of object has no name that stays."""


def digest(value: object) -> bytes:
    """Raises Unnameable."""
    try:
        return _Names().of(value)
    except Unnameable:
        raise
    except Exception as error:  # of an object's own methods; or it is nested too deeply
        raise Unnameable(f"a {type(value).__name__}: {type(error).__name__}: {error}") from None


class _Names:
    def __init__(self) -> None:
        self._open: list[object] = []  # what is being looked into now, from the outside in

    def of(self, value: object) -> bytes:
        kind = type(value)
        if kind in PLAIN:
            return _hash(kind.__name__, _text(value))
        for place, outer in enumerate(self._open):
            if outer is value:
                return _hash("again", str(place))
        self._open.append(value)
        try:
            return self._inside(kind, value)
        finally:
            self._open.pop()

    def _inside(self, kind: type, value: Any) -> bytes:
        if kind in (list, tuple):
            return self._sequence(kind, value)
        if kind is dict:
            return _hash("dict", *sorted(self.of(key) + self.of(part) for key, part in value.items()))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self.of, value)))
        if isinstance(value, type):
            return _hash("class", value.__module__, value.__qualname__)
        if isinstance(value, enum.Enum):
            return _hash("enum", kind.__module__, kind.__qualname__, value.name)
        if isinstance(value, os.PathLike):
            return _hash("path", kind.__qualname__, os.fspath(value))
        if isinstance(value, ModuleType):
            return _hash("module", value.__name__)
        return self._function(value) or self._array(value) or self._object(value)

    def _sequence(self, kind: type, value: Any) -> bytes:
        if len(value) > MANY and set(map(type, value)) <= PLAIN:
            with contextlib.suppress(ValueError):  # a number of thousands of digits
                return _hash(kind.__name__, "plain", repr(list(value)))  # much faster
        return _hash(kind.__name__, *map(self.of, value))

    # ---------------------------------------------------------------- functions

    def _function(self, value: Any) -> bytes | None:
        if isinstance(value, FunctionType):
            return self._plain_function(value)
        if isinstance(value, functools.partial):
            return _hash("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, MethodType):
            return _hash("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, BuiltinFunctionType):
            return _hash("builtin", value.__qualname__, self.of(value.__self__))
        if isinstance(value, CodeType):
            return self._code(value)
        return None

    def _plain_function(self, function: FunctionType) -> bytes:
        if _found_by_name(function):
            return _hash("function", function.__module__, function.__qualname__)
        kept = [self.of(_content(cell)) for cell in function.__closure__ or ()]
        given = self.of((function.__defaults__, function.__kwdefaults__, function.__dict__))
        return _hash("made", function.__module__ or "", self.of(function.__code__), given, *kept)

    def _code(self, code: CodeType) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        return _hash("code", code.co_name, code.co_code, self.of(names), self.of(shape), self.of(code.co_consts))

    # ---------------------------------------------------------------- data

    def _array(self, value: Any) -> bytes | None:
        """Of NumPy and PyTorch, by their bytes; those modules are there if such a value is."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            return _hash("tensor", str(value.dtype), str(tuple(value.shape)), flat.tobytes())
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            return None
        array = numpy.asarray(value)
        if array.dtype.hasobject:
            return _hash("array", type(value).__name__, str(array.shape), self.of(array.tolist()))
        described = (type(value).__name__, str(array.dtype.descr if array.dtype.names else array.dtype.str))
        return _hash("array", *described, str(array.shape), numpy.ascontiguousarray(array).reshape(-1).view("u1").data)

    def _object(self, value: Any) -> bytes:
        """By what it says to be made of when it is pickled, each part by itself."""
        reducer: Callable[[Any], Any] | None = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(PROTOCOL)
        if isinstance(reduced, str):
            return _hash("global", type(value).__module__, reduced)
        make, arguments, *rest = reduced
        state, listed, mapped = (*rest[:3], None, None, None)[:3]
        listed = None if listed is None else list(listed)
        mapped = None if mapped is None else dict(mapped)
        return _hash("object", self.of(make), self.of(arguments), self.of(state), self.of(listed), self.of(mapped))


def _hash(kind: str, *parts: Any) -> bytes:
    """Each part with its length, so that no two lists of parts look the same."""
    hashed = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        hashed.update(b"%d:" % (data.nbytes if isinstance(data, memoryview) else len(data)))
        hashed.update(data)
    return hashed.digest()


def _text(value: Any) -> str | bytes:
    if isinstance(value, (str, bytes)):
        return value
    return hex(value) if type(value) is int else repr(value)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _found_by_name(function: FunctionType) -> bool:
    """Whether its module has it under its name: there it is the same one in every run."""
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def pickled_digest(payload: bytes, buffers: Iterable[memoryview]) -> bytes:
    """The second best: the same only where the pickle is."""
    return _hash("pickle", payload, *buffers)
