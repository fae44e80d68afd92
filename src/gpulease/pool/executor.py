"""`gpulease.Pool`: an executor of `concurrent.futures` whose workers hold GPUs and stay warm."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

from gpulease.errors import PoolClosed, UsageError
from gpulease.pool.items import Function, Item, PoolFuture
from gpulease.pool.log import Log
from gpulease.pool.pickling import mark_of, name_of, pack_call, pack_whole
from gpulease.pool.record import Record, make_folder

if TYPE_CHECKING:
    from gpulease.pool.engine import Engine, OnStart
    from gpulease.pool.feed import Mapped
    from gpulease.pool.plan import SharedData

P = ParamSpec("P")
T = TypeVar("T")
Names = int | str | Iterable[int | str]
Folder = str | os.PathLike[str]
OF_THE_LEASE = ("mem", "model", "devices", "exclude", "min_memory", "priority", "note", "visible_by")  # of each worker


class Pool(Executor):
    """Warm workers, each with its own lease. See `gpulease help reference/pool`."""

    def __init__(
        self,
        gpus: int | str = 1,
        *,
        gpus_per_worker: int = 1,
        mem: int | str | None = None,
        init: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        shared: Mapping[str, Any] | None = None,
        retries: int = 1,
        max_items: int | None = None,
        on_start: OnStart | None = None,
        results: Folder | None = None,
        log: Folder | None = None,
        model: str | Iterable[str] | None = None,
        devices: Names | None = None,
        exclude: Names | None = None,
        min_memory: int | str | None = None,
        priority: int | None = None,
        note: str | None = None,
        visible_by: str | None = None,
        quiet: bool = False,
        engine: str = "local",
        address: str | None = None,
        max_workers: None = None,
        name: None = None,
    ) -> None:
        given = dict(locals())  # the arguments, by their names
        from gpulease.api.leases import refuse_name
        from gpulease.pool.plan import check_engine, check_hook, make_plan

        refuse_name(name)
        if max_workers is not None:  # the standard library's word
            raise UsageError("A pool has as many workers as GPUs.", "Say gpus= instead of max_workers=.")
        check_engine(engine, address)
        request = {name: given[name] for name in OF_THE_LEASE}
        check_hook(on_start)
        plan = make_plan(gpus, gpus_per_worker, request, init, initargs, shared, retries, max_items)
        results = None if results is None else make_folder(results)
        if engine == "ray":
            from gpulease.pool.ray_engine import Cluster

            self._begin(Cluster(plan, Log(log), retries, address, on_start).engine, results, init)
        else:
            from gpulease.pool.sources import Local

            self._begin(Local(plan._replace(quiet=quiet), Log(log), retries, on_start).engine, results, init)

    @classmethod
    def connect(
        cls,
        name: str,
        *,
        shared: Mapping[str, Any] | SharedData | None = None,
        retries: int = 1,
        on_start: OnStart | None = None,
        results: Folder | None = None,
    ) -> Pool:
        """Use the workers that `gpulease pool start NAME` keeps warm. Shutting it down leaves them running."""
        from gpulease.pool.plan import SharedData, check_hook
        from gpulease.pool.sources import Named

        check_hook(on_start)
        results = None if results is None else make_folder(results)
        if shared is not None and not isinstance(shared, SharedData):
            shared = SharedData(shared)
        pool = cls.__new__(cls)
        pool._begin(Named(name, retries, shared, on_start).engine, results)
        return pool

    def _begin(self, engine: Engine, results: Folder | None, init: Callable[..., Any] | None = None) -> None:
        self._engine, self._results, self._init = engine, results, init
        self._pid = os.getpid()
        self._keys = count(1)
        self._known: WeakKeyDictionary[Callable[..., Any], tuple[Any, Function]] = WeakKeyDictionary()
        self._by_payload: WeakValueDictionary[bytes, Function] = WeakValueDictionary()
        # A pool that nobody holds any more finishes what it has, as the standard library's do.
        weakref.finalize(self, _finish, engine, self._pid).atexit = False
        _open.difference_update([other for other in _open if other.ended()])
        _open.add(engine)

    # ---------------------------------------------------------------- the interface

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]:
        self._check_process()
        self._engine.check_open()
        function = self._function(fn)
        item = Item(function, pack_call(args, kwargs, function.name))
        self._engine.submit([item])
        return item.future

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool | str = False,
        results: Folder | None = None,
        key: Callable[..., str] | None = None,
        return_errors: Literal[False] = False,
        _ordered: bool = True,
    ) -> Mapped[T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool | str = False,
        results: Folder | None = None,
        key: Callable[..., str] | None = None,
        return_errors: bool,
        _ordered: bool = True,
    ) -> Mapped[T | BaseException]: ...

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool | str = False,
        results: Folder | None = None,
        key: Callable[..., str] | None = None,
        return_errors: bool = False,
        _ordered: bool = True,
    ) -> Mapped[Any]:
        """Results in the order of the items. `chunksize` is accepted and not needed."""
        from gpulease.pool.feed import Feed, Mapped
        from gpulease.pool.progress import Bar

        self._check_process()
        self._engine.check_open()
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
            raise UsageError(f"timeout is {timeout!r}.", "Give seconds, or None to wait as long as it takes.")
        if not iterables:
            raise UsageError("map() needs something to go through.", "Give at least one iterable.")
        folder = self._results if results is None else results
        record = None if folder is None else Record(folder, fn, key, self._init)
        function = self._function(fn)
        bar = Bar(progress, iterables, self._engine.gpus) if progress else None
        feed = Feed(self._engine, function, iterables, _ordered, record, bar)
        mapped: Mapped[Any] = Mapped(feed, timeout, return_errors, self)
        self._engine.add(feed)
        return mapped

    def map_unordered(self, fn: Callable[..., T], *iterables: Iterable[Any], **options: Any) -> Mapped[T]:
        """As `map`, but results as they come."""
        return self.map(fn, *iterables, _ordered=False, **options)

    def grow(self, gpus: int = 1, *, devices: Names | None = None) -> None:
        """Workers for this many more GPUs; they get items as soon as they are ready. `devices`: which these may be."""
        self._check_process()
        self._engine.check_open()
        self._engine.source.grow(gpus, {"devices": _listed(devices)})

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has no part in it
        self._engine.close(cancel_futures)
        if wait:
            self._join()

    def terminate(self) -> None:
        """End the workers now; what is not done fails with PoolClosed."""
        if os.getpid() == self._pid:
            self._engine.terminate()
            self._join()

    @property
    def gpus(self) -> list[str]:
        """The devices of the workers that are ready, one entry for each worker."""
        return self._engine.gpus()

    def __repr__(self) -> str:
        """`<pool: workers on GPU 0, 1; 3 items wait>`"""
        if self._engine.ended():
            return "<pool: ended>"
        workers = f"workers on GPU {', '.join(self.gpus)}" if self.gpus else "no worker is ready yet"
        pending = self._engine.pending()
        return f"<pool: {workers}{f'; {pending} items wait' if pending else ''}>"

    def __reduce__(self) -> Any:
        raise TypeError("a pool cannot be sent to its own workers")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is not None and not issubclass(kind, Exception):  # Ctrl-C: nobody waits for the rest
            self.terminate()
        else:
            # After an error nobody goes on with what has not begun: no input, maybe endless, is read any further, and
            # workers that still wait for a GPU are given up.
            self.shutdown(cancel_futures=kind is not None)
        return None

    # ---------------------------------------------------------------- inside

    def _join(self) -> None:
        self._engine.join()
        _open.discard(self._engine)

    def _function(self, fn: Callable[..., Any]) -> Function:
        """Kept, here and in workers, as long as the program has the function where its pickle cannot change. All else
        is pickled at each call, as it is now, and kept only as long as items of it are under way.
        """
        if not callable(fn):
            raise UsageError(f"{name_of(fn)} is not a function.", "Give something that can be called.")
        mark = mark_of(fn)
        known, function = (None, None) if mark is None else self._known.get(fn, (None, None))
        if function is not None and known == mark:
            return function
        payload = pack_whole(fn, f"The function {name_of(fn)}")
        function = self._by_payload.get(payload)
        if function is None:
            function = self._by_payload[payload] = Function(next(self._keys), name_of(fn), payload)
            weakref.finalize(function, self._engine.forget, function.key).atexit = False
        if mark is not None:
            self._known[fn] = mark, function
        return function

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise PoolClosed("This pool belongs to the process that this one was forked from.", "Make a new pool.")


def _listed(names: Names | None) -> int | str | list[int | str] | None:
    return names if names is None or isinstance(names, (int, str)) else list(names)


# Open pools finish when the program ends, before the interpreter takes their threads away.
_open: set[Engine] = set()
_pid = os.getpid()


@atexit.register
def _finish_all() -> None:
    if os.getpid() == _pid:
        for engine in list(_open):
            engine.close(only_unstarted=True)
            engine.join()


def _finish(engine: Engine, pid: int) -> None:
    if os.getpid() == pid:
        engine.close()
