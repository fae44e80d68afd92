"""gpuselect's names on gpulease.

What is selected for this process, or for a command, is held by a lease where nobody else uses it. A GPU that another
lease holds is not selected.
"""

import argparse
import logging
import os
import random
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import gpulease_shim

NOTE = "gpuselect"
SELECTABLE = ("free", "outside")

logger = logging.getLogger("gpuselect")
logger.setLevel(logging.INFO)
if not logger.handlers:  # once, where it is also loaded as gpulease.compat.gpuselect
    logger.addHandler(logging.StreamHandler(sys.stderr))

_job = os.environ.get("GPULEASE_LEASE")  # in which this program runs, if it does
_held = None  # type: Optional[Dict[str, Any]]  # what this process holds by itself


class GpuInfo(NamedTuple):
    """A GPU as it is seen; what the driver does not tell is None."""

    device: int
    name: str
    util: Optional[int] = 0
    mem_util: Optional[int] = 0
    processes: Optional[int] = 0
    fan_speed: Optional[int] = 0
    effective_power_limit: Optional[int] = 0
    performance_state: Optional[int] = 0
    power_usage: Optional[int] = 0
    temperature: Optional[int] = 0
    is_throttling: Optional[int] = 0
    mem_free: Optional[int] = 0
    mem_used: Optional[int] = 0
    mem_total: Optional[int] = 0

    @property
    def effective_power_limt(self) -> Optional[int]:
        """As gpuselect spells it."""
        return self.effective_power_limit


class GpuStatus(Dict[str, Any]):
    """The dict that gpuselect's document describes, with the attributes of GpuInfo."""

    def __init__(self, info: GpuInfo) -> None:
        super().__init__(
            device=info.device,
            name=info.name,
            utilization=info.util,
            mem_utilization=info.mem_util,
            processes=info.processes,
            performance_state=info.performance_state,
            power_usage=info.power_usage,
            temperature=info.temperature,
        )
        self._info = info

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks before there is an _info
            raise AttributeError(name)
        return getattr(self._info, name)


Selector = Callable[[GpuInfo], Any]


class Rules(NamedTuple):
    """In the order of __filter_gpus."""

    wanted: int
    devices: List[int]
    name: Optional[str]
    util: float
    mem_util: float
    processes: int
    selector: Optional[Selector]


def gpuselect(
    count: int = 1,
    devices: Union[int, List[int], None] = None,
    name: Optional[str] = None,
    util: float = 0,
    mem_util: float = 0,
    processes: int = 0,
    selector: Optional[Selector] = None,
    silent: bool = False,
    set_cvd: bool = True,
) -> str:
    """Select GPUs by rule and show this process only those; returns their indices, as "0,3".

    Raises an Exception if there are not so many, or with `silent` returns "".
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # in each call, as gpuselect does: what is returned means that order
    rules = _checked(Rules(count, _as_list(devices), name, util, mem_util, processes, selector))
    logger.debug("Selecting by %s", rules)
    try:
        chosen = _select(rules, hold=set_cvd)
    except TooFew as error:
        logger.debug("%s", error)
        if silent:
            return ""
        raise Exception(str(error))  # of no other class: programs may compare it
    shown = ",".join(str(gpu.device) for gpu in chosen)
    if set_cvd:
        os.environ["CUDA_VISIBLE_DEVICES"] = shown
    logger.debug("CUDA_VISIBLE_DEVICES=%s", shown)
    return shown


def gpustatus(only_cvd: bool = True) -> List[GpuStatus]:
    """All GPUs, or those that CUDA_VISIBLE_DEVICES shows; it may have indices or UUIDs, and unset it shows all."""
    devices = _whole(_status())
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if only_cvd and named not in ("", "all"):
        names = [name.strip() for name in named.split(",")]
        devices = [device for device in devices if _is_named(device, names)]
    return [GpuStatus(_info(device)) for device in devices]


class TooFew(Exception):
    """Fewer GPUs match than were asked for, or this user may not hold them."""


def _as_list(devices: Union[int, List[int], None]) -> List[int]:
    if devices is None:
        return []
    return [devices] if isinstance(devices, int) else list(devices)


def _checked(rules: Rules) -> Rules:
    if rules.wanted < 1:
        raise Exception("GPU count must be >= 1")
    if rules.devices and rules.name is not None:
        raise Exception("Use only one of 'devices' and 'name' parameters")
    if rules.util < 0 or rules.mem_util < 0 or rules.processes < 0:
        raise Exception("Utilization/process count thresholds must be >= 0")
    named = len(rules.devices)
    if named > rules.wanted:
        logger.warning(
            "count=%s but %s device IDs were specified, setting count=%s",
            rules.wanted,
            named,
            named,
        )
        return rules._replace(wanted=named)
    return rules


def _select(rules: Rules, hold: bool) -> List[GpuInfo]:
    """GPUs that match, and with `hold` the lease of those that nobody uses, if it can be had soon."""
    until = time.time() + gpulease_shim.NEXT_LOOK
    while True:
        document = _status()
        chosen = _choose(document, rules)
        if len(chosen) < rules.wanted:
            raise TooFew("Requested {} GPUs, but {} matched filters".format(rules.wanted, len(chosen)))
        if not hold or _hold(document, [gpu.device for gpu in chosen]):
            return chosen
        if time.time() > until:
            logger.warning("gpulease grants nothing now; what was selected is not held")
            return chosen
        time.sleep(gpulease_shim.NEXT_TRY)


def _choose(document: Dict[str, Any], rules: Rules) -> List[GpuInfo]:
    """Among the GPUs of the lease in which this program runs, if those suffice; else among all."""
    devices = _whole(document)
    _check_ids(rules.devices, [device["index"] for device in devices])
    of_job = [device["index"] for device in gpulease_shim.devices_of_lease(document, _job)]
    infos = [_info(device) for device in devices if device["state"] in SELECTABLE or _is_own(device)]
    logger.debug("GPU count: %s, of which others hold %s", len(devices), len(devices) - len(infos))
    for info in infos:
        logger.debug("Device %s: %s", info.device, info)
    if of_job:
        inside = __filter_gpus([info for info in infos if info.device in of_job], *rules)
        if len(inside) == rules.wanted:
            return inside
    return __filter_gpus(infos, *rules)


def __filter_gpus(
    gpu_info: List[GpuInfo],
    count: int,
    devices: List[int],
    name: Optional[str],
    util: float,
    mem_util: float,
    processes: int,
    selector: Optional[Selector],
) -> List[GpuInfo]:
    """`count` of those that match, at random; or as many as match, if these are fewer."""
    if selector is None:
        rules = Rules(count, devices, name, util, mem_util, processes, None)
        matching = [gpu for gpu in gpu_info if _matches(gpu, rules)]
    else:
        matching = [gpu for gpu in gpu_info if _accepts(selector, gpu)]
    logger.debug("GPUs left after filtering (%s requested): %s", count, len(matching))
    chosen = random.sample(matching, min(count, len(matching)))
    return sorted(chosen, key=lambda gpu: devices.index(gpu.device)) if devices and selector is None else chosen


def _matches(gpu: GpuInfo, rules: Rules) -> bool:
    """Whether a GPU passes all rules; a value that is not known passes none."""
    if rules.devices and gpu.device not in rules.devices:
        return False
    if rules.name is not None and rules.name not in gpu.name:
        return False
    pairs = ((gpu.util, rules.util), (gpu.mem_util, rules.mem_util), (gpu.processes, rules.processes))
    return all(seen is not None and seen <= most for seen, most in pairs)


def _accepts(selector: Selector, gpu: GpuInfo) -> bool:
    try:
        return bool(selector(gpu))
    except TypeError:
        if None not in gpu:
            raise
        return False  # it compared a value that the driver does not tell


def _check_ids(asked: List[int], there: List[int]) -> None:
    for number in asked:
        if number not in there:
            raise Exception("Invalid device ID {}".format(number))


def _status() -> Dict[str, Any]:
    try:
        return gpulease_shim.fresh_status()
    except gpulease_shim.GpuleaseFailed as trouble:
        raise Exception(str(trouble))


def _whole(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """GPUs with a number of their own, which instances of a divided one have not."""
    return [device for device in document["devices"] if device["instance"] is None and device["lost"] is None]


def _is_named(device: Dict[str, Any], names: List[str]) -> bool:
    return any(name == device["label"] or (name[:1] == "G" and device["uuid"].startswith(name)) for name in names)


def _is_own(device: Dict[str, Any]) -> bool:
    own = {_job, None if _held is None else _held["id"]} - {None}
    return device["state"] == "leased" and set(device["leases"]) <= own


def _info(device: Dict[str, Any]) -> GpuInfo:
    total, used = device["memory_total"], device["memory_used"]
    throttling = device.get("throttling")
    return GpuInfo(
        device=device["index"],
        name=device["name"],
        util=device["utilization"],
        mem_util=device["memory_utilization"],
        processes=None if device["processes"] is None else gpulease_shim.computing(device),
        fan_speed=device.get("fan_speed"),
        effective_power_limit=device.get("power_limit"),
        performance_state=device["performance_state"],
        power_usage=device["power"],
        temperature=device["temperature"],
        is_throttling=None if throttling is None else int(bool(throttling)),
        mem_free=None if total is None or used is None else total - used,
        mem_used=used,
        mem_total=total,
    )


def _hold(document: Dict[str, Any], numbers: List[int]) -> bool:
    """Hold those that nobody uses, instead of what this process held before; False if somebody else was faster."""
    global _held
    mine = set() if _held is None else {device["label"] for device in _held["devices"]}
    free = {device["label"] for device in document["devices"] if device["state"] == "free"}
    wanted = {str(number) for number in numbers} & (free | mine)
    if wanted == mine:
        return True
    before = _held
    if wanted & mine:
        _release(before)
        before = None
    try:
        granted = _get(sorted(wanted)) if wanted else None
    except gpulease_shim.GpuleaseFailed as trouble:
        if trouble.code != gpulease_shim.NOT_GRANTED:
            raise TooFew(str(trouble))
        return False
    _release(before)
    _held = granted
    if granted is not None:
        os.environ["GPULEASE_LEASE"] = granted["id"]
        os.environ["GPULEASE_DEVICES"] = ",".join(sorted(wanted))
    return True


def _get(labels: List[str]) -> Dict[str, Any]:
    words = ["--no-wait", "--devices", ",".join(labels), "--note", NOTE]
    return gpulease_shim.get(len(labels), os.getpid(), *words)


def _release(lease: Optional[Dict[str, Any]]) -> None:
    global _held
    if lease is None:
        return
    _held = None
    for name in ("GPULEASE_LEASE", "GPULEASE_DEVICES"):
        os.environ.pop(name, None)
    try:
        gpulease_shim.release(lease["id"])
    except gpulease_shim.GpuleaseFailed as trouble:
        logger.debug("%s was not given back: %s", lease["id"], trouble)


def _numbers(text: str) -> Union[int, List[int]]:
    try:
        return int(text) if text.isdigit() else [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("Parameter must be a single int or 'int1,int2,...'")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gpuselect", usage="gpuselect [options] [-- COMMAND ...]")
    parser.add_argument("-d", "--devices", type=_numbers, help="only these device IDs, as 0 or 0,1")
    parser.add_argument("-n", "--name", help="only GPUs with this in their name")
    parser.add_argument("-u", "--util", type=int, default=0, help="load up to this percentage (default 0)")
    parser.add_argument("-m", "--mem_util", type=int, default=0, help="memory load up to this percentage (default 0)")
    parser.add_argument("-c", "--count", type=int, default=1, help="how many GPUs (default 1)")
    parser.add_argument("-p", "--processes", type=int, default=0, help="up to so many processes (default 0)")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print what was selected")
    parser.add_argument("-D", "--debug", action="store_true", help="say on stderr what was seen")
    return parser


def _words(words: List[str]) -> Tuple[argparse.Namespace, Optional[List[str]]]:
    """Options, and the command: what stands behind `--`, or what is no option. None if there is none."""
    place = words.index("--") if "--" in words else len(words)
    arguments, unknown = _parser().parse_known_args(words[:place])
    command = unknown + words[place + 1 :]
    return arguments, command if command or "--" in words else None


def main() -> None:
    arguments, command = _words(sys.argv[1:])
    if arguments.debug:
        logger.setLevel(logging.DEBUG)
    rules = (arguments.count, arguments.devices, arguments.name)
    limits = (arguments.util, arguments.mem_util, arguments.processes)
    try:
        shown = gpuselect(*rules, *limits, set_cvd=command is not None)
        if command is not None:
            _become(command)
    except Exception as error:
        sys.exit("gpuselect: {}".format(error))
    if not arguments.quiet:
        print(shown)


def _become(command: List[str]) -> None:
    """The command has this process's number, and so its lease."""
    print("Running: {}".format(command))
    if not command:
        raise Exception("No command stands behind `--`.")
    sys.stdout.flush()
    os.environ["PYTHONUNBUFFERED"] = "1"
    try:
        os.execvp(command[0], command)
    except OSError as trouble:
        raise Exception("{}: {}".format(command[0], trouble.strerror))


if __name__ == "__main__":
    main()
