"""A function of one's own orders the line of a real broker; one that misbehaves is passed over, and said to be."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policy.md"
LAST_FIRST = """
print("who asks?")
def order(waiting, now):
    print("asked about", len(waiting))
    assert all(abs(now - one.since - one.waited) < 1 for one in waiting)
    with open(__file__ + ".asked", "a") as file:
        file.write(f"{len(waiting)}\\n")
    return [one.id for one in reversed(waiting)]
"""


def configure(queue: QueueSite, code: str, name: str = "site_order") -> Path:
    """Let the broker follow the function `order` of this code."""
    folder = Path(queue.directory)
    path = folder / f"{name}.py"
    path.write_text(code)
    path.chmod(0o644)
    (folder / "config.toml").write_text(f'policy.order = "{path}:order"\n')
    os.kill(queue.broker_pid() or 0, signal.SIGHUP)
    wait_until(lambda: parameter(queue)["value"] == f"{path}:order")
    return path


def parameter(queue: QueueSite) -> Any:
    return queue.ask("set", name="policy.order")["parameters"][0]


def trouble(queue: QueueSite) -> str:
    return " ".join(parameter(queue)["warnings"])


def run_in_line(queue: QueueSite, durations: list[float | None], ready: Callable[[], object]) -> list[int]:
    """Jobs on one GPU, in the order in which they began; `ready` comes before the GPU is given back."""
    holder = queue.holder("-n", "4")
    ids = [queue.submit("true", request={"devices": ["0"], "duration": duration}) for duration in durations]
    wait_until(ready)
    holder.kill()
    holder.wait()
    rows = sorted(queue.end(*ids), key=lambda row: row["started"])
    assert all(row["state"] == "complete" for row in rows)
    return [row["id"] - ids[0] for row in rows]


def answered(queue: QueueSite, path: Path, count: int) -> Callable[[], bool]:
    """Whether the broker has the answer about so many: it asks about one more only then."""

    def asked(number: int) -> bool:
        file = Path(f"{path}.asked")
        return file.exists() and str(number) in file.read_text().split()

    def ready() -> bool:
        wait_until(lambda: asked(count))
        queue.submit("true", request={"devices": ["1"]})
        return bool(wait_until(lambda: asked(count + 1)))

    return ready


def test_the_line_is_served_in_its_order(queue: QueueSite) -> None:
    path = configure(queue, LAST_FIRST)
    assert run_in_line(queue, [None] * 4, answered(queue, path, 4)) == [3, 2, 1, 0]
    assert trouble(queue) == ""
    assert parameter(queue)["from"] == "config"
    refused = queue.run("set", "policy.order", "os:getcwd")
    assert refused.returncode == 77
    assert "config file only" in refused.stderr


MISBEHAVING = {
    "did not answer in time": "def order(waiting, now):\n    while True: pass",
    "ValueError: no taste": "def order(waiting, now): raise ValueError('no taste')",
    "its process ended": "import os\ndef order(waiting, now): os._exit(3)",
    "twice": "def order(waiting, now):\n    while True: yield waiting[0].id",
}
ALSO = {
    "SystemExit": "def order(waiting, now): raise SystemExit",
    "returned 1 of 2": "def order(waiting, now): return [waiting[0].id]",
    "AttributeError": "def order(waiting, now): waiting[0].priority = 0",
    "has no function order": "order = 5",
    "SyntaxError": "def order(waiting, now) return",
}


@pytest.mark.parametrize(
    "codes", [MISBEHAVING, pytest.param(ALSO, marks=pytest.mark.long("queue"))], ids=["most", "also"]
)
def test_one_that_misbehaves_costs_nothing_but_its_own_say(queue: QueueSite, codes: dict[str, str]) -> None:
    for number, (said, code) in enumerate(codes.items()):
        configure(queue, code, f"order{number}")
        assert run_in_line(queue, [None, None], lambda said=said: said in trouble(queue)) == [0, 1], said  # type: ignore[misc]
    found = queue.json("doctor")["findings"]
    assert [one["level"] for one in found if one["subject"] == "policy.order"] == ["warning"]
    assert "not followed" in queue.run("set", "policy.order").stderr


def test_a_file_that_others_may_write_is_not_run(queue: QueueSite) -> None:
    path = configure(queue, LAST_FIRST)
    path.chmod(0o666)
    assert run_in_line(queue, [None] * 3, lambda: "may be written by others" in trouble(queue)) == [0, 1, 2]
    assert not Path(f"{path}.asked").exists()


def test_bytecode_that_somebody_put_beside_the_file_is_not_run(queue: QueueSite, tmp_path: Path) -> None:
    path = configure(queue, LAST_FIRST)
    planted = tmp_path / "planted.py"
    planted.write_text("def order(waiting, now): raise ValueError('planted')")
    plant(planted, path)
    assert run_in_line(queue, [None] * 3, answered(queue, path, 3)) == [2, 1, 0]
    assert trouble(queue) == ""


def plant(code: Path, beside: Path) -> None:
    """Bytecode that Python's own import takes for the file's, made of other code."""
    cache = Path(importlib.util.cache_from_source(str(beside)))
    py_compile.compile(str(code), str(cache), doraise=True)
    size_and_time = struct.pack("<II", int(beside.stat().st_mtime), beside.stat().st_size)
    data = cache.read_bytes()
    cache.write_bytes(data[:8] + size_and_time + data[16:])
    found = importlib.util.spec_from_file_location("checked", beside)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    with pytest.raises(ValueError, match="planted"):
        module.order((), 0.0)


def test_a_link_to_a_file_is_refused(queue: QueueSite) -> None:
    path = configure(queue, LAST_FIRST)
    path.rename(f"{path}.real")
    path.symlink_to(f"{path}.real")
    assert run_in_line(queue, [None] * 2, lambda: "is a link" in trouble(queue)) == [0, 1]


GREEDY = """
import os, time
def order(waiting, now):
    child = os.fork()
    if child == 0:
        while True: time.sleep(60)
    open(__file__ + ".child", "w").write(f"{child}\\n")
    while True: os.write(1, b"flood " * 10000)
"""


def test_what_it_prints_and_starts_is_bounded(queue: QueueSite) -> None:
    path = configure(queue, GREEDY)
    log = Path(queue.directory) / "broker.log"
    before = log.stat().st_size
    run_in_line(queue, [None, None], lambda: "did not answer in time" in trouble(queue))
    configure(queue, "def order(waiting, now): bytearray(2 << 30)", "large")
    run_in_line(queue, [None, None], lambda: "MemoryError" in trouble(queue))
    assert log.read_text().count("flood") > 100
    assert log.stat().st_size - before < 200_000
    child = int(Path(f"{path}.child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_the_example_of_the_page_serves_the_short_ones_first(queue: QueueSite) -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]
    spy = f"{example}\ninner = order\ndef order(waiting, now):\n    told = inner(waiting, now)\n"
    spy += "    open(__file__ + '.asked', 'a').write(str(len(told)) + '\\n')\n    return told\n"
    path = configure(queue, spy)
    assert run_in_line(queue, [None, 7200.0, 3600.0], answered(queue, path, 3)) == [2, 1, 0]
    assert trouble(queue) == ""


def test_a_wrong_name_keeps_the_broker_from_starting_and_is_named_with_its_line(queue: QueueSite) -> None:
    queue.kill_broker()
    (Path(queue.directory) / "config.toml").write_text('grace = "5s"\npolicy.order = "nonsense"\n')
    done = queue.run("ls")
    assert done.returncode == 69
    assert "config.toml, line 2" in done.stderr
