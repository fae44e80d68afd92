"""An `nvidia-smi` for the simulated machine, on PATH inside `gpulease simulate`, and the fields that it knows.

It answers what scripts ask: -L, -q, --query-gpu and --query-compute-apps in csv, and a small table
for people. It reads through the NVML bindings like any other reader, so it shows what they show.
"""

from __future__ import annotations

import io
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import pynvml

from gpulease.errors import GpuleaseError
from gpulease.simulator.state import is_number


def print_anything() -> None:
    """From here on a letter that stdout cannot show is a question mark, and no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def printable(text: str) -> str:
    """Without control characters, which would drive the terminal instead of being shown by it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# -------------------------------------------------------------------- fields

MEBIBYTE = 1024**2
NOT_AVAILABLE = "[N/A]"


class SmiField(NamedTuple):
    read: Callable[[Any], Any]
    unit: str = ""


class SmiProcess(NamedTuple):
    handle: Any
    pid: int
    memory: int | None


def text(field: SmiField, row: Any) -> str:
    """The value as nvidia-smi has it; what the driver does not support is [N/A], a lost GPU says so."""
    try:
        return printable(str(field.read(row)))
    except pynvml.NVMLError as error:
        return "[GPU is lost]" if error.value == pynvml.NVML_ERROR_GPU_IS_LOST else NOT_AVAILABLE
    except UnicodeDecodeError:  # the command of a process may have any name
        return NOT_AVAILABLE


def shown(field: SmiField, row: Any, units: bool) -> str:
    value = text(field, row)
    return f"{value} {field.unit}" if units and field.unit and not value.startswith("[") else value


def heading(name: str, field: SmiField, units: bool) -> str:
    return f"{name} [{field.unit}]" if field.unit and units else name


def processes(handle: Any) -> list[SmiProcess]:
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except pynvml.NVMLError:
        return []
    return [SmiProcess(handle, process.pid, process.usedGpuMemory) for process in found]


def instances(handle: Any) -> list[Any]:
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    except pynvml.NVMLError:
        pass
    return found


def cuda_version() -> str:
    version = pynvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _memory(part: str) -> Callable[[Any], int]:
    def read(handle: Any) -> int:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError_FunctionNotFound:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(getattr(memory, part)) // MEBIBYTE

    return read


def _bus_id(handle: Any) -> str:
    bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)


def _watts(read: Callable[[Any], int]) -> Callable[[Any], str]:
    return lambda handle: f"{read(handle) / 1000:.2f}"


def _enabled(read: Callable[[Any], int]) -> Callable[[Any], str]:
    return lambda handle: "Enabled" if read(handle) else "Disabled"


def _process_memory(process: SmiProcess) -> str | int:
    return NOT_AVAILABLE if process.memory is None else process.memory // MEBIBYTE


def _temperature(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


_INDEX = SmiField(pynvml.nvmlDeviceGetIndex)
_UUID = SmiField(pynvml.nvmlDeviceGetUUID)
_NAME = SmiField(pynvml.nvmlDeviceGetName)
_BUS_ID = SmiField(_bus_id)

GPU: dict[str, SmiField] = {
    "timestamp": SmiField(lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": SmiField(lambda _: pynvml.nvmlSystemGetDriverVersion()),
    "count": SmiField(lambda _: pynvml.nvmlDeviceGetCount()),
    "index": _INDEX,
    "name": _NAME,
    "gpu_name": _NAME,
    "uuid": _UUID,
    "gpu_uuid": _UUID,
    "serial": SmiField(pynvml.nvmlDeviceGetSerial),
    "pci.bus_id": _BUS_ID,
    "gpu_bus_id": _BUS_ID,
    "display_mode": SmiField(_enabled(pynvml.nvmlDeviceGetDisplayMode)),
    "display_active": SmiField(_enabled(pynvml.nvmlDeviceGetDisplayActive)),
    "persistence_mode": SmiField(_enabled(pynvml.nvmlDeviceGetPersistenceMode)),
    "mig.mode.current": SmiField(_enabled(lambda handle: pynvml.nvmlDeviceGetMigMode(handle)[0])),
    "compute_mode": SmiField(lambda handle: "Default" if pynvml.nvmlDeviceGetComputeMode(handle) == 0 else "Other"),
    "compute_cap": SmiField(lambda handle: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
    "fan.speed": SmiField(pynvml.nvmlDeviceGetFanSpeed, "%"),
    "pstate": SmiField(lambda handle: f"P{pynvml.nvmlDeviceGetPerformanceState(handle)}"),
    "memory.total": SmiField(_memory("total"), "MiB"),
    "memory.reserved": SmiField(_memory("reserved"), "MiB"),
    "memory.used": SmiField(_memory("used"), "MiB"),
    "memory.free": SmiField(_memory("free"), "MiB"),
    "utilization.gpu": SmiField(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, "%"),
    "utilization.memory": SmiField(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory, "%"),
    "temperature.gpu": SmiField(_temperature),
    "power.draw": SmiField(_watts(pynvml.nvmlDeviceGetPowerUsage), "W"),
    "power.limit": SmiField(_watts(pynvml.nvmlDeviceGetPowerManagementLimit), "W"),
    "enforced.power.limit": SmiField(_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit), "W"),
}

PROCESS: dict[str, SmiField] = {
    "gpu": SmiField(lambda process: pynvml.nvmlDeviceGetIndex(process.handle)),
    "pid": SmiField(lambda process: process.pid),
    "name": SmiField(lambda process: pynvml.nvmlSystemGetProcessName(process.pid)),
    "process_name": SmiField(lambda process: pynvml.nvmlSystemGetProcessName(process.pid)),
    "used_memory": SmiField(_process_memory, "MiB"),
    "used_gpu_memory": SmiField(_process_memory, "MiB"),
    "gpu_name": SmiField(lambda process: pynvml.nvmlDeviceGetName(process.handle)),
    "gpu_uuid": SmiField(lambda process: pynvml.nvmlDeviceGetUUID(process.handle)),
    "gpu_serial": SmiField(lambda process: pynvml.nvmlDeviceGetSerial(process.handle)),
    "gpu_bus_id": SmiField(lambda process: _bus_id(process.handle)),
}

# The sections of `nvidia-smi -q`: label and field.
QUERY: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("Product Name", "name"),
        ("Display Mode", "display_mode"),
        ("Display Active", "display_active"),
        ("Persistence Mode", "persistence_mode"),
        ("Serial Number", "serial"),
        ("GPU UUID", "uuid"),
        ("Fan Speed", "fan.speed"),
        ("Performance State", "pstate"),
        ("Compute Mode", "compute_mode"),
    ),
    "MIG Mode": (("Current", "mig.mode.current"),),
    "PCI": (("Bus Id", "pci.bus_id"),),
    "FB Memory Usage": (
        ("Total", "memory.total"),
        ("Reserved", "memory.reserved"),
        ("Used", "memory.used"),
        ("Free", "memory.free"),
    ),
    "Utilization": (("Gpu", "utilization.gpu"), ("Memory", "utilization.memory")),
    "Temperature": (("GPU Current Temp", "temperature.gpu"),),
    "GPU Power Readings": (("Power Draw", "power.draw"), ("Current Power Limit", "power.limit")),
}
QUERY_UNITS = {"temperature.gpu": "C"}  # which the csv has without
QUERY_PROCESS = (("Process ID", "pid"), ("Name", "name"), ("Used GPU Memory", "used_memory"))


# -------------------------------------------------------------------- the command

INVALID_ARGUMENT = 2
NO_DEVICE = 6
DRIVER_NOT_LOADED = 9


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"Invalid combination of input arguments. {message}. Please run 'nvidia-smi -h' for help.\n")
        sys.exit(INVALID_ARGUMENT)


def main(words: Sequence[str] | None = None) -> int:
    print_anything()
    arguments = _parser().parse_args(words)
    try:
        _begin()
        return _answer(arguments)
    except pynvml.NVMLError as error:
        return _failed(error)
    except GpuleaseError as error:
        print(error)
        return DRIVER_NOT_LOADED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


def _parser() -> Parser:
    parser = Parser(prog="nvidia-smi", description="gpulease's nvidia-smi for SIMULATED GPUs.", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true", help="list the GPUs with their UUIDs")
    parser.add_argument("-q", "--query", action="store_true", help="show everything")
    parser.add_argument("-i", "--id", help="only these: indices, UUIDs or PCI bus ids, with commas")
    parser.add_argument("--query-gpu", metavar="FIELDS", help=f"of {', '.join(GPU)}")
    parser.add_argument("--query-compute-apps", metavar="FIELDS", help=f"of {', '.join(PROCESS)}")
    parser.add_argument("--format", metavar="csv[,noheader][,nounits]", help="needed for the --query-… options")
    return parser


def _begin() -> None:
    from gpulease.simulator.activate import activate, directory_from_environment

    directory = directory_from_environment(os.environ)
    if directory is None:
        raise GpuleaseError(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "This is gpulease's nvidia-smi for simulated GPUs, and no machine is simulated.",
        )
    activate(directory)
    pynvml.nvmlInit()


def _answer(arguments: Namespace) -> int:
    handles = _handles(arguments.id)
    if arguments.query_gpu:
        return _print_csv(arguments.query_gpu, arguments.format, GPU, handles)
    if arguments.query_compute_apps:
        rows = [process for handle in handles for process in processes(handle)]
        return _print_csv(arguments.query_compute_apps, arguments.format, PROCESS, rows)
    if arguments.list_gpus:
        return _print_list(handles)
    return _print_query(handles) if arguments.query else _print_table(handles)


def _handles(wanted: str | None) -> list[Any]:
    if wanted is None:
        indices = range(pynvml.nvmlDeviceGetCount())
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
    return [_handle(part.strip()) for part in wanted.split(",")]


def _handle(wanted: str) -> Any:
    if is_number(wanted):
        return pynvml.nvmlDeviceGetHandleByIndex(int(wanted))
    if wanted.upper().startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(wanted)
    return pynvml.nvmlDeviceGetHandleByPciBusId(wanted)


def _print_csv(asked: str, layout: str | None, known: dict[str, SmiField], rows: Sequence[Any]) -> int:
    options = [option.strip() for option in (layout or "").split(",")]
    if options[0] != "csv":
        print('"--format=" is missing the format "csv". Please run \'nvidia-smi -h\' for help.\n')
        return INVALID_ARGUMENT
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in known:
            print(f'SmiField "{name}" is not a valid field to query.\n')
            return INVALID_ARGUMENT
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(heading(name, known[name], units) for name in names))
    for row in rows:
        print(", ".join(shown(known[name], row, units) for name in names))
    return 0


def _print_list(handles: Sequence[Any]) -> int:
    for handle in handles:
        index, name, uuid = (text(GPU[key], handle) for key in ("index", "name", "uuid"))
        print(f"GPU {index}: {name} (UUID: {uuid})")
        for number, instance in enumerate(instances(handle)):
            slices = pynvml.nvmlDeviceGetName(instance).rpartition("MIG ")[2]
            print(f"  MIG {slices:<11} Device {number:>2}: (UUID: {pynvml.nvmlDeviceGetUUID(instance)})")
    return 0


def _print_query(handles: Sequence[Any]) -> int:
    print("\n==============NVSMI LOG==============\n")
    _print_line("Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))
    _print_line("Driver Version", pynvml.nvmlSystemGetDriverVersion())
    _print_line("CUDA Version", cuda_version())
    _print_line("Simulated", "Yes")
    print()
    _print_line("Attached GPUs", str(pynvml.nvmlDeviceGetCount()))
    for handle in handles:
        _print_gpu(handle)
    return 0


def _print_gpu(handle: Any) -> None:
    print(f"GPU {text(GPU['pci.bus_id'], handle)}")
    for section, lines in QUERY.items():
        indent = 8 if section else 4
        if section:
            print(f"    {section}")
        for label, name in lines:
            field = GPU[name]
            field = field._replace(unit=QUERY_UNITS.get(name, field.unit))
            _print_line(" " * indent + label, shown(field, handle, units=True))
    running = processes(handle)
    print("    Processes" if running else f"{'    Processes':<42}: None")
    for process in running:
        for label, name in QUERY_PROCESS:
            _print_line(" " * 8 + label, shown(PROCESS[name], process, units=True))
    print()


def _print_line(label: str, value: str) -> None:
    print(f"{label:<42}: {value}")


def _print_table(handles: Sequence[Any]) -> int:
    rule = f"+{'-' * 77}+"
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    print(rule)
    version = f"SIMULATED by gpulease   Driver Version: {pynvml.nvmlSystemGetDriverVersion()}"
    print(f"| {version:<52}CUDA Version: {cuda_version():<10}|")
    print(rule)
    for handle in handles:
        print(f"| {_table_line(handle):<76}|")
    print(rule)
    rows = [process for handle in handles for process in processes(handle)]
    for row in rows:
        cells = (shown(PROCESS[name], row, True) for name in ("gpu", "pid", "name", "used_memory"))
        gpu, pid, name, memory = cells
        print(f"| {gpu:>3} {pid:>9}  {name:<47.47} {memory:>13}|")
    if not rows:
        print(f"| {'No running processes found':<76}|")
    print(rule)
    return 0


def _table_line(handle: Any) -> str:
    show: Callable[[str], str] = lambda name: shown(GPU[name], handle, units=False)  # noqa: E731
    memory = f"{show('memory.used')}/{show('memory.total')}MiB"
    return (
        f"{show('index'):>3}  {show('name'):<25.25} {show('temperature.gpu'):>5}C "
        f"{show('power.draw'):>7}W {memory:>17} {show('utilization.gpu'):>7}%"
    )


def _failed(error: pynvml.NVMLError) -> int:
    code = int(error.value)
    if code == DRIVER_NOT_LOADED:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    elif code in (INVALID_ARGUMENT, NO_DEVICE):
        print("No devices were found")
        return NO_DEVICE
    else:
        print(f"Unable to determine the device handle of a GPU: {error}")
    return code


if __name__ == "__main__":
    sys.exit(main())
