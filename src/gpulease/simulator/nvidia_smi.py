"""An `nvidia-smi` for the simulated machine, on PATH inside `gpulease simulate`.

It answers what scripts ask: -L, -q, --query-gpu and --query-compute-apps in csv, and a small table
for people. It reads through the NVML bindings like any other reader, so it shows what they show.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pynvml

from gpulease.errors import GpuleaseError
from gpulease.simulator import smi_fields as fields
from gpulease.simulator.output import print_anything
from gpulease.simulator.state import is_number

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
    parser.add_argument("--query-gpu", metavar="FIELDS", help=f"of {', '.join(fields.GPU)}")
    parser.add_argument("--query-compute-apps", metavar="FIELDS", help=f"of {', '.join(fields.PROCESS)}")
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
        return _print_csv(arguments.query_gpu, arguments.format, fields.GPU, handles)
    if arguments.query_compute_apps:
        rows = [process for handle in handles for process in fields.processes(handle)]
        return _print_csv(arguments.query_compute_apps, arguments.format, fields.PROCESS, rows)
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


def _print_csv(asked: str, layout: str | None, known: dict[str, fields.SmiField], rows: Sequence[Any]) -> int:
    options = [option.strip() for option in (layout or "").split(",")]
    if options[0] != "csv":
        print('"--format=" is missing the format "csv". Please run \'nvidia-smi -h\' for help.\n')
        return INVALID_ARGUMENT
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.\n')
            return INVALID_ARGUMENT
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(fields.heading(name, known[name], units) for name in names))
    for row in rows:
        print(", ".join(fields.shown(known[name], row, units) for name in names))
    return 0


def _print_list(handles: Sequence[Any]) -> int:
    for handle in handles:
        index, name, uuid = (fields.text(fields.GPU[key], handle) for key in ("index", "name", "uuid"))
        print(f"GPU {index}: {name} (UUID: {uuid})")
        for number, instance in enumerate(fields.instances(handle)):
            slices = pynvml.nvmlDeviceGetName(instance).rpartition("MIG ")[2]
            print(f"  MIG {slices:<11} Device {number:>2}: (UUID: {pynvml.nvmlDeviceGetUUID(instance)})")
    return 0


def _print_query(handles: Sequence[Any]) -> int:
    print("\n==============NVSMI LOG==============\n")
    _print_line("Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))
    _print_line("Driver Version", pynvml.nvmlSystemGetDriverVersion())
    _print_line("CUDA Version", fields.cuda_version())
    _print_line("Simulated", "Yes")
    print()
    _print_line("Attached GPUs", str(pynvml.nvmlDeviceGetCount()))
    for handle in handles:
        _print_gpu(handle)
    return 0


def _print_gpu(handle: Any) -> None:
    print(f"GPU {fields.text(fields.GPU['pci.bus_id'], handle)}")
    for section, lines in fields.QUERY.items():
        indent = 8 if section else 4
        if section:
            print(f"    {section}")
        for label, name in lines:
            field = fields.GPU[name]
            field = field._replace(unit=fields.QUERY_UNITS.get(name, field.unit))
            _print_line(" " * indent + label, fields.shown(field, handle, units=True))
    running = fields.processes(handle)
    print("    Processes" if running else f"{'    Processes':<42}: None")
    for process in running:
        for label, name in fields.QUERY_PROCESS:
            _print_line(" " * 8 + label, fields.shown(fields.PROCESS[name], process, units=True))
    print()


def _print_line(label: str, value: str) -> None:
    print(f"{label:<42}: {value}")


def _print_table(handles: Sequence[Any]) -> int:
    rule = f"+{'-' * 77}+"
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    print(rule)
    version = f"SIMULATED by gpulease   Driver Version: {pynvml.nvmlSystemGetDriverVersion()}"
    print(f"| {version:<52}CUDA Version: {fields.cuda_version():<10}|")
    print(rule)
    for handle in handles:
        print(f"| {_table_line(handle):<76}|")
    print(rule)
    rows = [process for handle in handles for process in fields.processes(handle)]
    for row in rows:
        cells = (fields.shown(fields.PROCESS[name], row, True) for name in ("gpu", "pid", "name", "used_memory"))
        gpu, pid, name, memory = cells
        print(f"| {gpu:>3} {pid:>9}  {name:<47.47} {memory:>13}|")
    if not rows:
        print(f"| {'No running processes found':<76}|")
    print(rule)
    return 0


def _table_line(handle: Any) -> str:
    show: Callable[[str], str] = lambda name: fields.shown(fields.GPU[name], handle, units=False)  # noqa: E731
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
