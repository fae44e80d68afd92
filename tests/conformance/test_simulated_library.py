"""The simulated library answers the real bindings as the state files of its machine say.

Each test asks a reader: a process of its own with the unmodified nvidia-ml-py.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpulease.simulator import state
from gpulease.simulator.keys import labels_of
from gpulease.simulator.library import library_path

GIBIBYTE = 1024**3
NONE_SET = 0xFFFFFFFF
DEADLINE = 30.0
LOOP = """
import ctypes, json, os, sys
from concurrent.futures import ThreadPoolExecutor as pool
from pathlib import Path
import pynvml as p
from gpulease.simulator.activate import activate
activate(Path(os.environ["GPULEASE_SIMULATION"]))
def handle(index): return p.nvmlDeviceGetHandleByIndex(index)
def instance(index, number): return p.nvmlDeviceGetMigDeviceHandleByIndex(handle(index), number)
def memory(h): m = p.nvmlDeviceGetMemoryInfo(h, version=p.nvmlMemory_v2); return [m.total, m.reserved, m.free, m.used]
def old_memory(h): m = p.nvmlDeviceGetMemoryInfo(h); return [m.total, m.free, m.used]
def rates(h): r = p.nvmlDeviceGetUtilizationRates(h); return [r.gpu, r.memory]
def listed(found): return [[x.pid, x.usedGpuMemory, x.gpuInstanceId] for x in found]
def compute(h): return listed(p.nvmlDeviceGetComputeRunningProcesses_v3(h))
def raw(name, *arguments): return int(p._nvmlGetFunctionPointer(name)(*arguments))
def bus(h): return p.nvmlDeviceGetPciInfo(h).busId
for line in sys.stdin:
    try:
        answer = eval(line)
        if isinstance(answer, bytes): answer = answer.decode()
        print(json.dumps(answer), flush=True)
    except p.NVMLError as error:
        print(json.dumps({"error": error.value}), flush=True)
"""


class Reader:
    """A process with the real bindings; `reader("handle(0)…")` is what they answer, or their error."""

    def __init__(self, directory: Path, here: Path | None = None) -> None:
        environ = {**os.environ, "GPULEASE_SIMULATION": str(directory)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=here,
        )

    def __call__(self, question: str) -> Any:
        self.send(question)
        answer = self.receive(DEADLINE)
        assert answer is not None, f"no answer to {question}"
        return answer[0]

    def send(self, question: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()

    def receive(self, seconds: float) -> list[Any] | None:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return [json.loads(self.process.stdout.readline())] if ready else None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    state.create(tmp_path / "machine", 4, "a100")
    return tmp_path / "machine"


@pytest.fixture
def reader(directory: Path) -> Iterator[Reader]:
    reader = Reader(directory)
    try:
        assert reader("p.nvmlInit()") is None
        yield reader
    finally:
        reader.close()


@contextmanager
def occupied(directory: Path, labels: str, memory: int | None, graphics: bool = False) -> Iterator[int]:
    """A real process that uses devices for as long as it lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            state.occupy(directory, labels, memory, process.pid, graphics)
            yield process.pid
        finally:
            process.kill()


def error(code: int) -> dict[str, int]:
    return {"error": code}


# ---- values


def test_a_new_machine_reads_as_its_profile_says(reader: Reader) -> None:
    assert reader("p.nvmlDeviceGetCount()") == 4
    assert reader("p.nvmlSystemGetDriverVersion()") == "550.54.15"
    assert reader("p.nvmlSystemGetCudaDriverVersion()") == 12040
    assert reader("p.nvmlSystemGetNVMLVersion()") == "12.550.54.15"
    assert reader("p.nvmlDeviceGetName(handle(0))") == "NVIDIA A100-SXM4-80GB"
    assert reader("[p.nvmlDeviceGetIndex(handle(i)) for i in range(4)]") == [0, 1, 2, 3]
    assert reader("p.nvmlDeviceGetMinorNumber(handle(3))") == 3
    assert reader("p.nvmlDeviceGetCudaComputeCapability(handle(0))") == [8, 0]
    assert reader("len({p.nvmlDeviceGetUUID(handle(i)) for i in range(4)})") == 4
    assert reader("memory(handle(0))") == [80 * GIBIBYTE, 904 << 20, 80 * GIBIBYTE - (904 << 20), 0]


@pytest.mark.parametrize(
    ("assignment", "question", "answer"),
    [
        ("gpu.1.name=Some Card", "p.nvmlDeviceGetName(handle(1))", "Some Card"),
        ("gpu.1.uuid=GPU-abc", "p.nvmlDeviceGetUUID(handle(1))", "GPU-abc"),
        ("gpu.1.utilization=90", "rates(handle(1))[0]", 90),
        ("gpu.1.memory_utilization=12", "rates(handle(1))[1]", 12),
        ("gpu.1.temperature=71", "p.nvmlDeviceGetTemperature(handle(1), 0)", 71),
        ("gpu.1.temperature=71", "p.nvmlDeviceGetTemperatureV(handle(1), 0)", 71),
        ("gpu.1.power=250W", "p.nvmlDeviceGetPowerUsage(handle(1))", 250_000),
        ("gpu.1.power_limit=300W", "p.nvmlDeviceGetEnforcedPowerLimit(handle(1))", 300_000),
        ("gpu.1.fan=45", "p.nvmlDeviceGetFanSpeed(handle(1))", 45),
        ("gpu.1.performance_state=P2", "p.nvmlDeviceGetPerformanceState(handle(1))", 2),
        ("gpu.1.throttling=sw_power_cap,hw_slowdown", "p.nvmlDeviceGetCurrentClocksThrottleReasons(handle(1))", 13),
        ("gpu.1.display_active=1", "p.nvmlDeviceGetDisplayActive(handle(1))", 1),
        ("gpu.1.pci_bus_id=00000001:2a:00.0", "bus(handle(1))", "00000001:2A:00.0"),
        ("gpu.1.memory_total=10G", "memory(handle(1))[0]", 10 * GIBIBYTE),
        ("gpu.1.memory_used=3G", "memory(handle(1))[3]", 3 * GIBIBYTE),
        ("gpu.1.memory_reserved=1G", "memory(handle(1))[1]", GIBIBYTE),
        ("gpu.1.compute_capability=75", "p.nvmlDeviceGetCudaComputeCapability(handle(1))", [7, 5]),
        ("driver_version=535.1", "p.nvmlSystemGetDriverVersion()", "535.1"),
        ("cuda_version=11.8", "p.nvmlSystemGetCudaDriverVersion()", 11080),
        ("gpu.1.group=other", "p.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(1))", 50),
        ("gpu.1.group=0", "p.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(1))", 10),
    ],
)
def test_a_changed_key_is_seen_at_once(
    reader: Reader, directory: Path, assignment: str, question: str, answer: object
) -> None:
    before = reader(question)
    state.set_values(directory, [assignment])
    assert reader(question) == answer
    assert before is not None


@pytest.mark.parametrize(
    ("key", "question"),
    [
        ("utilization", "rates(handle(0))"),
        ("temperature", "p.nvmlDeviceGetTemperature(handle(0), 0)"),
        ("power", "p.nvmlDeviceGetPowerUsage(handle(0))"),
        ("power_limit", "p.nvmlDeviceGetPowerManagementLimit(handle(0))"),
        ("fan", "p.nvmlDeviceGetFanSpeed(handle(0))"),
        ("throttling", "p.nvmlDeviceGetCurrentClocksEventReasons(handle(0))"),
        ("performance_state", "p.nvmlDeviceGetPerformanceState(handle(0))"),
        ("display_active", "p.nvmlDeviceGetDisplayActive(handle(0))"),
        ("memory_total", "memory(handle(0))"),
        ("memory_used", "memory(handle(0))"),
        ("mig", "p.nvmlDeviceGetMigMode(handle(0))"),
        ("name", "p.nvmlDeviceGetName(handle(0))"),
        ("pci_bus_id", "bus(handle(0))"),
        ("compute_capability", "p.nvmlDeviceGetCudaComputeCapability(handle(0))"),
    ],
)
def test_none_is_not_supported(reader: Reader, directory: Path, key: str, question: str) -> None:
    state.set_values(directory, [f"gpu.0.{key}=none"])
    assert reader(question) == error(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_hundred_quick_changes_are_each_seen(reader: Reader, directory: Path) -> None:
    for value in range(100):
        state.set_values(directory, [f"gpu.0.utilization={value}"])
        assert reader("rates(handle(0))[0]") == value


def test_only_the_first_version_of_memory_counts_the_reserve_as_used(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["gpu.0.memory_total=10G", "gpu.0.memory_reserved=1G", "gpu.0.memory_used=2G"])
    assert reader("memory(handle(0))") == [10 * GIBIBYTE, GIBIBYTE, 7 * GIBIBYTE, 2 * GIBIBYTE]
    assert reader("old_memory(handle(0))") == [10 * GIBIBYTE, 7 * GIBIBYTE, 3 * GIBIBYTE]


def test_used_memory_never_exceeds_the_total(reader: Reader, directory: Path) -> None:
    with occupied(directory, "0", 79 * GIBIBYTE), occupied(directory, "0", 79 * GIBIBYTE):
        total, reserved, free, used = reader("memory(handle(0))")
    assert (free, reserved + used) == (0, total)


# ---- handles and symbols


def test_a_handle_is_found_by_uuid_and_by_bus(reader: Reader) -> None:
    by_uuid = "p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByUUID(p.nvmlDeviceGetUUID(handle(2))))"
    assert reader(by_uuid) == 2
    assert reader("p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByPciBusId(b'0000:0f:00.0'))") == 1
    assert reader("p.nvmlDeviceGetHandleByUUID(b'GPU-nobody')") == error(pynvml.NVML_ERROR_NOT_FOUND)
    assert reader("p.nvmlDeviceGetHandleByIndex(4)") == error(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def test_what_is_no_handle_is_refused(reader: Reader) -> None:
    assert reader("p.nvmlDeviceGetName(p.c_nvmlDevice_t())") == error(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def test_every_symbol_of_the_bindings_is_there(reader: Reader) -> None:
    source = Path(pynvml.__file__).read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)))
    assert len(names) > 300
    assert reader(f"[name for name in {names} if not hasattr(p.nvmlLib, name)]") == []
    assert reader("hasattr(p.nvmlLib, 'nvmlNobodyKnowsThis')") is False


def test_a_call_without_an_answer_is_not_supported(reader: Reader) -> None:
    assert reader("p.nvmlDeviceGetTotalEnergyConsumption(handle(0))") == error(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_nothing_answers_before_init_or_after_shutdown(directory: Path) -> None:
    reader = Reader(directory)
    try:
        assert reader("p.nvmlDeviceGetCount()") == error(pynvml.NVML_ERROR_UNINITIALIZED)
        assert reader("[p.nvmlInit(), p.nvmlInit(), p.nvmlShutdown(), p.nvmlDeviceGetCount()][3]") == 4
        assert reader("[p.nvmlShutdown(), p.nvmlDeviceGetCount()]") == error(pynvml.NVML_ERROR_UNINITIALIZED)
        assert reader("p.nvmlShutdown()") == error(pynvml.NVML_ERROR_UNINITIALIZED)
    finally:
        reader.close()


def test_the_library_does_not_simulate_unless_asked() -> None:
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).nvmlInitWithFlags(0))"
    environ = {key: value for key, value in os.environ.items() if key != "GPULEASE_SIMULATION"}
    ended = subprocess.run([sys.executable, "-c", code, str(library_path())], env=environ, check=False)
    assert ended.returncode == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


# ---- processes


def test_a_process_counts_for_as_long_as_it_lives(reader: Reader, directory: Path) -> None:
    assert reader("compute(handle(0))") == []
    with occupied(directory, "0,2", 8 * GIBIBYTE) as pid:
        assert reader("compute(handle(0))") == [[pid, 8 * GIBIBYTE, NONE_SET]]
        assert reader("compute(handle(1))") == []
        assert reader("[memory(handle(i))[3] for i in range(4)]") == [8 * GIBIBYTE, 0, 8 * GIBIBYTE, 0]
    assert reader("compute(handle(0))") == []
    assert reader("memory(handle(0))[3]") == 0


def test_a_zombie_holds_nothing(reader: Reader, directory: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    state.occupy(directory, "0", GIBIBYTE, process.pid)
    assert len(reader("compute(handle(0))")) == 1
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has reaped it
    assert Path(f"/proc/{process.pid}").exists()
    assert reader("compute(handle(0))") == []
    process.wait()


def test_a_pid_with_another_start_time_is_another_process(reader: Reader, directory: Path) -> None:
    with occupied(directory, "0", GIBIBYTE) as pid:
        path = directory / "processes" / f"{pid}.{state.start_time(pid)}"
        path.rename(path.with_name(f"{pid}.1"))
        assert reader("compute(handle(0))") == []
        assert reader("memory(handle(0))[3]") == 0


def test_graphics_processes_are_listed_apart(reader: Reader, directory: Path) -> None:
    with occupied(directory, "1", GIBIBYTE, graphics=True) as pid:
        assert reader("compute(handle(1))") == []
        found = reader("listed(p.nvmlDeviceGetGraphicsRunningProcesses(handle(1)))")
        assert found == [[pid, GIBIBYTE, NONE_SET]]
        assert reader("memory(handle(1))[3]") == GIBIBYTE


def test_processes_are_in_the_order_of_their_pids(reader: Reader, directory: Path) -> None:
    with occupied(directory, "0", 1) as one, occupied(directory, "0", 2) as two, occupied(directory, "0", 3) as three:
        assert [row[0] for row in reader("compute(handle(0))")] == sorted([one, two, three])


def test_memory_of_a_process_that_the_driver_does_not_say(reader: Reader, directory: Path) -> None:
    with occupied(directory, "0", None) as pid:
        assert reader("compute(handle(0))") == [[pid, None, NONE_SET]]
        assert reader("memory(handle(0))[3]") == 0


@pytest.mark.parametrize("suffix", ["", "_v2", "_v3"])
def test_a_small_buffer_is_told_how_much_it_needs(reader: Reader, directory: Path, suffix: str) -> None:
    name = f"nvmlDeviceGetComputeRunningProcesses{suffix}"
    ask = f"(lambda count: [raw('{name}', handle(0), ctypes.byref(count), None), count.value])(ctypes.c_uint(0))"
    assert reader(ask) == [pynvml.NVML_SUCCESS, 0]
    with occupied(directory, "0", 1), occupied(directory, "0", 2):
        assert reader(ask) == [pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2]
        one = "(ctypes.c_uint64 * 3)()"
        ask = f"(lambda n, room: [raw('{name}', handle(0), ctypes.byref(n), room), n.value])(ctypes.c_uint(1), {one})"
        assert reader(ask) == [pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2]


def test_the_first_version_has_sixteen_bytes_a_process(reader: Reader, directory: Path) -> None:
    with occupied(directory, "0", 5 * GIBIBYTE) as one, occupied(directory, "0", 6 * GIBIBYTE) as two:
        ask = (
            "(lambda n, room: [raw('nvmlDeviceGetComputeRunningProcesses', handle(0), ctypes.byref(n), room),"
            " n.value, list(room)])(ctypes.c_uint(2), (ctypes.c_uint64 * 4)())"
        )
        code, count, words = reader(ask)
        assert (code, count) == (0, 2)
        assert {words[0] & NONE_SET: words[1], words[2] & NONE_SET: words[3]} == {
            one: 5 * GIBIBYTE,
            two: 6 * GIBIBYTE,
        }


def test_utilization_is_shared_by_the_processes(reader: Reader, directory: Path) -> None:
    ask = "[[s.pid, s.smUtil] for s in p.nvmlDeviceGetProcessUtilization(handle(0), 0)]"
    assert reader(ask) == error(pynvml.NVML_ERROR_NOT_FOUND)
    state.set_values(directory, ["gpu.0.utilization=80"])
    with occupied(directory, "0", 1) as one, occupied(directory, "0", 2) as two:
        assert sorted(reader(ask)) == sorted([[one, 40], [two, 40]])


# ---- MIG


def test_instances_split_a_gpu(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["gpu.1.mig=2"])
    assert reader("p.nvmlDeviceGetMigMode(handle(0))") == [0, 0]
    assert reader("p.nvmlDeviceGetMigMode(handle(1))") == [1, 1]
    assert reader("p.nvmlDeviceGetMaxMigDeviceCount(handle(1))") == 7
    assert reader("p.nvmlDeviceGetName(instance(1, 0))") == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    uuids = reader("[p.nvmlDeviceGetUUID(instance(1, i)) for i in (0, 1)]")
    assert len(set(uuids)) == 2
    assert all(re.fullmatch(r"MIG-\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", uuid) for uuid in uuids)
    assert reader(f"p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByUUID({uuids[1]!r}.encode()))") == 1
    assert reader("memory(instance(1, 0))[0]") == 40 * GIBIBYTE
    assert reader("p.nvmlDeviceIsMigDeviceHandle(instance(1, 0)).value") == 1
    assert reader("p.nvmlDeviceIsMigDeviceHandle(handle(1)).value") == 0
    assert reader("p.nvmlDeviceGetGpuInstanceId(instance(1, 1))") == 2
    assert reader("p.nvmlDeviceGetComputeInstanceId(instance(1, 1))") == 0
    parent = "p.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance(1, 1))"
    assert reader(f"p.nvmlDeviceGetIndex({parent})") == 1
    assert reader("p.nvmlDeviceGetAttributes(instance(1, 0)).memorySizeMB") == 40 * 1024
    assert reader("instance(1, 2)") == error(pynvml.NVML_ERROR_NOT_FOUND)


def test_with_instances_no_utilization_is_known(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["gpu.0.mig=3"])
    for device in ("handle(0)", "instance(0, 0)"):
        assert reader(f"rates({device})") == error(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_an_instance_lists_its_own_processes_and_the_gpu_all(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["gpu.0.mig=2"])
    with occupied(directory, "0:0", GIBIBYTE) as one, occupied(directory, "0:1", 2 * GIBIBYTE) as two:
        assert reader("compute(instance(0, 0))") == [[one, GIBIBYTE, 1]]
        assert reader("compute(instance(0, 1))") == [[two, 2 * GIBIBYTE, 2]]
        assert sorted(reader("compute(handle(0))")) == sorted([[one, GIBIBYTE, 1], [two, 2 * GIBIBYTE, 2]])
        assert reader("memory(instance(0, 1))[3]") == 2 * GIBIBYTE
        assert reader("memory(handle(0))[3]") == 3 * GIBIBYTE


def test_the_library_names_the_instances_as_simulate_use_does(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["gpu.0.mig=7"])
    uuids = reader("[p.nvmlDeviceGetUUID(instance(0, i)) for i in range(7)]")
    assert labels_of(state.read_machine(directory), ",".join(uuids)) == [f"0:{i}" for i in range(7)]


# ---- faults


def test_every_call_on_a_lost_gpu_fails_and_the_others_go_on(reader: Reader, directory: Path) -> None:
    reader("globals().__setitem__('kept', handle(0))")
    state.set_values(directory, ["gpu.0.lost=1"])
    lost = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    for question in (
        "handle(0)",
        "p.nvmlDeviceGetName(kept)",
        "memory(kept)",
        "compute(kept)",
        "p.nvmlDeviceGetTotalEnergyConsumption(kept)",
    ):
        assert reader(question) == lost, question
    assert reader("p.nvmlDeviceGetName(handle(1))") == "NVIDIA A100-SXM4-80GB"
    state.set_values(directory, ["gpu.0.lost=0"])
    assert reader("p.nvmlDeviceGetIndex(kept)") == 0


@pytest.mark.parametrize("code", [9, 18, 999])
def test_init_fails_with_the_code_asked_for(directory: Path, code: int) -> None:
    state.set_values(directory, [f"fault.init={code}"])
    reader = Reader(directory)
    try:
        assert reader("p.nvmlInit()") == error(code)
        assert reader("p.nvmlDeviceGetCount()") == error(pynvml.NVML_ERROR_UNINITIALIZED)
    finally:
        reader.close()


def test_a_machine_that_is_gone_is_a_driver_not_loaded(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "nothing")
    try:
        assert reader("p.nvmlInit()") == error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    finally:
        reader.close()


def test_a_slow_driver_takes_its_time_on_device_calls_only(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["fault.slow=1000"])
    timed = "[(t := __import__('time')), (b := t.monotonic()), {}, t.monotonic() - b][3] >= 1"
    assert reader(timed.format("handle(0)")) is True
    assert reader(timed.format("p.nvmlDeviceGetCount()")) is False


@pytest.mark.parametrize("hang", ["1", "GetPower"])
def test_a_hanging_call_returns_when_the_fault_is_cleared(reader: Reader, directory: Path, hang: str) -> None:
    reader("globals().__setitem__('kept', handle(0))")
    state.set_values(directory, [f"fault.hang={hang}"])
    if hang != "1":
        assert reader("p.nvmlDeviceGetIndex(kept)") == 0
    reader.send("p.nvmlDeviceGetPowerUsage(kept)")
    assert reader.receive(0.3) is None
    state.set_values(directory, ["fault.hang=0"])
    assert reader.receive(DEADLINE) == [62_000]


def test_a_call_does_not_hang_for_longer_than_its_machine_is_there(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["fault.hang=GetCount"])
    reader.send("p.nvmlDeviceGetCount()")
    assert reader.receive(0.3) is None
    (directory / "machine").unlink()
    assert reader.receive(DEADLINE) == [error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)]


@pytest.mark.parametrize(
    "assignment", ["fault.hang=GetName", "fault.middle=GetName:999", "fault.init=9", "driver.old=1"]
)
@pytest.mark.parametrize("off", ["0", "none"])
def test_every_fault_is_ended_by_zero_and_by_none(directory: Path, assignment: str, off: str) -> None:
    state.set_values(directory, [assignment, "fault.slow=1", "gpu.0.lost=1"])
    keys = (assignment.partition("=")[0], "fault.slow", "gpu.0.lost")
    state.set_values(directory, [f"{key}={off}" for key in keys])
    reader = Reader(directory)
    try:
        assert reader("[p.nvmlInit(), p.nvmlDeviceGetName(handle(0)), compute(handle(0))][2]") == []
    finally:
        reader.close()


@pytest.mark.parametrize("content", [b"", b"gpu_count=few\n", b"gpu_count=0\n"])
def test_a_damaged_machine_is_a_driver_not_loaded(directory: Path, content: bytes) -> None:
    (directory / "machine").write_bytes(content)
    reader = Reader(directory)
    try:
        assert reader("p.nvmlInit()") == error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    finally:
        reader.close()


def test_a_relative_directory_is_that_of_the_start(directory: Path) -> None:
    reader = Reader(Path(directory.name), directory.parent)
    try:
        assert reader("[p.nvmlInit(), os.chdir('/'), p.nvmlDeviceGetCount()][2]") == 4
    finally:
        reader.close()


def test_a_name_beyond_ascii_is_read_as_it_was_written(reader: Reader, directory: Path) -> None:
    name = "ü" * 45
    state.set_values(directory, [f"gpu.0.name={name}"])
    assert reader("p.nvmlDeviceGetName(handle(0))") == name


def test_one_thread_hangs_without_the_others(reader: Reader, directory: Path) -> None:
    reader("globals().__setitem__('kept', handle(0))")
    state.set_values(directory, ["fault.hang=GetPower"])
    start = "__import__('threading').Thread(target=p.nvmlDeviceGetPowerUsage, args=(kept,), daemon=True).start()"
    assert reader(start) is None
    assert reader("p.nvmlDeviceGetIndex(kept)") == 0


def test_a_driver_that_fails_in_the_middle(reader: Reader, directory: Path) -> None:
    state.set_values(directory, ["fault.middle=nvmlDeviceGetPowerUsage:999"])
    assert reader("p.nvmlDeviceGetPowerUsage(handle(0))") == error(pynvml.NVML_ERROR_UNKNOWN)
    assert reader("p.nvmlDeviceGetName(handle(0))") == "NVIDIA A100-SXM4-80GB"
    state.set_values(directory, ["fault.middle=none"])
    assert reader("p.nvmlDeviceGetPowerUsage(handle(0))") == 62_000


def test_an_old_driver_lacks_the_newer_calls(reader: Reader, directory: Path) -> None:
    missing = error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    second = "listed(p.nvmlDeviceGetComputeRunningProcesses_v2(handle(0)))"
    state.set_values(directory, ["driver.old=2"])
    assert reader("compute(handle(0))") == missing
    assert reader(second) == []
    assert reader("memory(handle(0))") == missing
    assert reader("old_memory(handle(0))")[0] == 80 * GIBIBYTE
    state.set_values(directory, ["driver.old=1"])
    assert reader("compute(handle(0))") == missing
    assert reader(second) == missing
    assert reader("p.nvmlDeviceGetTemperatureV(handle(0), 0)") == missing
    assert reader("p.nvmlDeviceGetTemperature(handle(0), 0)") == 31
    first = "raw('nvmlDeviceGetComputeRunningProcesses', handle(0), ctypes.byref(ctypes.c_uint(0)), None)"
    assert reader(first) == pynvml.NVML_SUCCESS


def test_threads_read_while_the_machine_changes(reader: Reader, directory: Path) -> None:
    """Eight threads ask at once; each answer is one that was true at some moment."""
    ask = "sorted(set().union(*pool(8).map(lambda _: {rates(handle(0))[0] for _ in range(200)}, range(8))))"
    reader.send(ask)
    allowed = {0}
    for value in (10, 20, 30, 40):
        allowed.add(value)
        state.set_values(directory, [f"gpu.0.utilization={value}"])
    answer = reader.receive(DEADLINE)
    assert answer is not None
    assert set(answer[0]) <= allowed
