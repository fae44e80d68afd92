"""Results on disk, each as it comes, so that a second run only does what is missing.

A result's name is made of the function and of the arguments, or by `key`. A function that its module has is known by
its name. A hash of its source, of what it uses of its own module, and of `init` lies beside the results, so that a
changed function never gets the results of the old one.

A plain pickle of the arguments will not do as a name: equal values pickle differently by which of their parts are the
same object, a set by the run's hash seed, and cloudpickle writes a class of `__main__` with its code. So they are
pickled into a hash, as joblib's `hash` does, by a pickler that has no memo and orders what has no order; there a class
is its name, and a function that its module does not have is its code and what it keeps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from gpulease.errors import NotPermitted, StateError, UsageError
from gpulease.pool.items import Item
from gpulease.pool.pickling import Packed, has_its_name, pack_whole

ENDING = ".pickle"
PLAIN = frozenset({int, float, complex, bool, str, bytes, NoneType})
MANY = 16  # plain parts, from which they are hashed at once
NAME_THEM = "Name the items yourself with key=, as in key=lambda item: item.name."
PROTOCOL = 4  # without buffers beside the pickle


class Record:
    def __init__(
        self,
        folder: str | os.PathLike[str],
        function: Callable[..., Any],
        key: Callable[..., str] | None,
        init: Callable[..., Any] | None = None,
    ) -> None:
        self.folder = make_folder(folder)
        self._key = key
        try:
            self._function = b"" if key is not None else digest(function)
        except Unnameable as error:
            text = f"Results of this function would not be found again: it holds {error}."
            raise UsageError(text, NAME_THEM) from None
        self._seen: Counter[str] = Counter()
        self._warned = False
        self._there = {entry.name for entry in os.scandir(self.folder) if entry.name.endswith(ENDING)}
        self.reused = 0  # results that were there already
        self._check_source(function, init)

    def name(self, arguments: tuple[Any, ...], packed: Packed) -> str:
        """The same for the same arguments in every run; a number tells equal ones apart."""
        stem = self._given(arguments) if self._key else self._digest(arguments, packed)
        self._seen[stem] += 1
        repeated = self._seen[stem] - 1
        return f"{stem}-{repeated}{ENDING}" if repeated else f"{stem}{ENDING}"

    def look_up(self, item: Item, arguments: tuple[Any, ...]) -> None:
        """The item's result where it is there; else it will be written before anybody sees it."""
        name = self.name(arguments, item.packed)
        if name in self._there:
            item.begin()
            item.succeed(self.read(name))
            self.reused += 1
        else:
            item.keep = partial(self.write, name)

    def say_reused(self, items: int) -> None:
        text = f"gpulease: {self.reused} of {items} results were in {str(self.folder)!r} already and are reused."
        print(text, file=sys.stderr, flush=True)

    def read(self, name: str) -> Any:
        try:
            with open(self.folder / name, "rb", opener=_open_own) as file:
                return pickle.load(file)
        except NotPermitted:
            raise
        except (Exception, SystemExit) as error:
            raise StateError(
                f"The result {name!r} cannot be read: {type(error).__name__}: {error}.",
                "Remove that file and run again.",
            ) from None

    def write(self, name: str, value: Any) -> None:
        """Whole or not at all: under another name first."""
        data = pack_whole(value, "The result")
        partial = self.folder / f".{name}.{os.getpid()}"
        try:
            partial.write_bytes(data)
            os.replace(partial, self.folder / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StateError(f"A result cannot be written to {str(self.folder)!r}: {error.strerror}.") from None

    def _check_source(self, function: Callable[..., Any], init: Callable[..., Any] | None) -> None:
        """Refuse a function that was changed since the results of one of its name were written."""
        function = _plain(function)
        if not isinstance(function, FunctionType) or not has_its_name(function):
            return
        parts = _sources(function)
        if not parts:
            return
        if init is not None:
            parts |= _sources(_plain(init))
        name = f"{function.__module__}.{function.__qualname__}"
        noted = self.folder / f".{name[:100]}.source"
        try:
            before = dict(json.loads(noted.read_bytes())) if noted.exists() else parts
            if before == parts or not self._there:
                noted.write_text(json.dumps(parts, indent=1))
        except (ValueError, TypeError):  # not what is written here
            before = {}
        except OSError as error:
            raise StateError(f"{str(noted)!r} cannot be read or written: {error.strerror}.") from None
        if before != parts and self._there:
            changed = sorted(part for part in {*before, *parts} if before.get(part) != parts.get(part))
            raise UsageError(
                f"The code of {', '.join(changed)} has changed since the results in {str(self.folder)!r} were written.",
                f"Empty the folder, or give another. If they are right all the same, remove {str(noted)!r}.",
            )

    def _given(self, arguments: tuple[Any, ...]) -> str:
        assert self._key is not None
        text = self._key(*arguments)
        if not isinstance(text, str) or not text:
            raise UsageError(f"key gave {text!r} for an item.", "Let it return a text that names the item.")
        clean = re.sub(r"[^A-Za-z0-9._=-]", "_", text)[:100].lstrip(".") or "_"
        return clean if clean == text else f"{clean}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def _digest(self, arguments: tuple[Any, ...], packed: Packed) -> str:
        try:
            named = digest(arguments)
        except Unnameable as error:
            if not self._warned:
                self._warned = True
                text = f"An item may not be found again by the next run: it holds {error}. {NAME_THEM}"
                warnings.warn(text, stacklevel=2)
            named = hashlib.sha256(b"".join([packed.payload, *packed.buffers])).digest()  # the second best
        return hashlib.sha256(self._function + named).hexdigest()[:24]


def _plain(function: Any) -> Any:
    """Without the arguments of a partial, and a method without its object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__func__", function)


def _sources(function: object) -> dict[str, str]:
    """Hashes of its text and of the functions and classes of its own module that it uses, by name.

    Comments and layout do not count. Empty where the text of the function is not known.
    """
    found: dict[str, str] = {}
    left = [function]
    while left:
        one = left.pop()
        name = f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', '')}"
        if name not in found and (text := _text(one)) is not None:
            found[name] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            left += _used(one)
    return found


def _text(part: Any) -> str | None:
    import ast
    import inspect
    import textwrap

    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(part))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _used(part: Any) -> list[Any]:
    """The functions and classes of the same module whose names occur in its code."""
    functions = (
        [each for each in vars(part).values() if isinstance(each, FunctionType)] if isinstance(part, type) else [part]
    )
    used: list[Any] = []
    for function in functions:
        known = getattr(function, "__globals__", {})
        values = [known.get(name) for name in _names(getattr(function, "__code__", None))]
        used += [
            value for value in values if isinstance(value, (FunctionType, type)) and value.__module__ == part.__module__
        ]
    return used


def _names(code: CodeType | None) -> set[str]:
    if code is None:
        return set()
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def make_folder(folder: str | os.PathLike[str]) -> Path:
    try:
        path = Path(folder)
        path.mkdir(0o755, parents=True, exist_ok=True)
        seen = path.stat()
    except TypeError:
        raise UsageError(f"results is {folder!r}.", "Give the path of a folder.") from None
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{str(folder)!r} for results is not a folder.", "Give a folder, or a new path.") from None
    except OSError as error:
        raise StateError(f"The folder {str(folder)!r} for results cannot be made: {error.strerror}.") from None
    if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
        text = (
            f"The folder {str(folder)!r} for results can be written by others, and what is read there could run code."
        )
        raise NotPermitted(text, f"chmod go-w {shlex.quote(str(folder))}, if it is yours; else give another.")
    return path


def _open_own(path: str, flags: int) -> int:
    """A pickle can run any code when it is read, so only one's own is."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise NotPermitted(f"The result {path!r} belongs to another user.", "Remove that file and run again.")
    return descriptor


# -------------------------------------------------------------------- a name for what a value holds


class Unnameable(Exception):
    """Says which kind of object has no name that stays."""


def digest(value: object) -> bytes:
    """The same in every run for what holds the same. Raises Unnameable."""
    try:
        hasher = _Hasher()
        hasher.dump(value)
        return hasher.hash.digest()
    except Exception as error:  # of an object's own methods; or it holds itself
        raise Unnameable(f"a {type(value).__name__}: {type(error).__name__}: {error}") from None


class _Hasher(pickle._Pickler):  # the one in C cannot be told about plain dictionaries and sets
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        super().__init__(self, PROTOCOL)
        self.fast = True  # no memo

    def write(self, data: Any) -> None:
        self.hash.update(data)

    def reducer_override(self, value: Any) -> Any:
        """What a value is hashed as, where that is not what pickle does."""
        kind = type(value)
        if kind in PLAIN:
            return NotImplemented
        if kind is dict:
            return _part, ("dict", *sorted(digest(key) + digest(part) for key, part in value.items()))
        if kind in (set, frozenset):
            return _part, (kind.__name__, *sorted(map(digest, value)))
        if kind in (list, tuple) and len(value) > MANY and set(map(type, value)) <= PLAIN:
            with contextlib.suppress(ValueError):  # a number of thousands of digits
                return _part, (kind.__name__, repr(list(value)))  # much faster
        if isinstance(value, type):
            return _part, ("class", value.__module__, value.__qualname__)
        if isinstance(value, ModuleType):
            return _part, ("module", value.__name__)
        return _function_parts(value) or _array_parts(value) or NotImplemented

    def _batch_setitems(self, items: Any, *more: Any) -> None:
        self.save(dict(items))  # type: ignore[attr-defined]  # of a kind of dictionary: in no order either


def _part(*parts: object) -> None:
    """Stands for parts in a hash, and is never called."""


def _function_parts(value: Any) -> Any:
    if isinstance(value, MethodType):
        return _part, ("method", value.__func__, value.__self__)
    if isinstance(value, FunctionType) and not has_its_name(value):
        kept = [cell.cell_contents for cell in value.__closure__ or ()]
        given = (value.__defaults__, value.__kwdefaults__, value.__dict__)
        return _part, ("function", value.__module__, value.__code__, given, kept)
    if isinstance(value, CodeType):
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        shape = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        return _part, ("code", value.co_code, names, shape, value.co_consts)
    return None


def _array_parts(value: Any) -> Any:
    """Of NumPy and PyTorch, by their bytes; those modules are there if such a value is."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return _part, ("tensor", str(value.dtype), tuple(value.shape), hashlib.sha256(flat).digest())
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray or value.dtype.hasobject:
        return None
    described = str(value.dtype.descr if value.dtype.names else value.dtype.str)
    flat = numpy.ascontiguousarray(value).reshape(-1).view("u1")
    return _part, ("array", described, value.shape, hashlib.sha256(flat).digest())
