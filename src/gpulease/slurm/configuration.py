"""PURE: the files of a new Slurm for hosts that were looked at, and the commands that put them in place.

Not for: looking at hosts (`cli.slurm_config` does, by ssh), nor for changing anything there: a person reads and runs
the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpulease.errors import UsageError

FOLDER = "/etc/slurm"
SPOOL = "/var/spool"
LARGEST_SKEW = 60.0  # seconds between clocks; munge takes no message that is five minutes old
KEPT_MEMORY = 0.95  # of a host's memory is Slurm's to give; the system needs some
# Run by `sh` on each host. It reads and prints; a line for each fact.
PROBE = r"""
echo "name $(hostname -s 2>/dev/null || uname -n)"
echo "time $(date +%s)"
echo "system $(. /etc/os-release 2>/dev/null; echo "${ID:-unknown} ${ID_LIKE:-}")"
echo "memory $(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
lscpu -p=CPU,CORE,SOCKET 2>/dev/null | grep -v '^#' | sed 's/^/cpu /'
nvidia-smi --query-gpu=index,name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
echo "home $(df -P "$HOME" 2>/dev/null | sed -n '2s/ .*//p')"
for name in slurmd slurmctld munged; do command -v $name >/dev/null 2>&1 && echo "has $name"; done
true
"""


# Run as root on each host, as often as anybody likes. A key of TOML that stands behind a table belongs to that table.
ENGINE = """\
# Has everybody's gpulease on this host use Slurm: engine = "slurm" in the first lines of its config.
file=${1:-/etc/gpulease/config.toml}
mkdir -p "$(dirname "$file")" && touch "$file" || exit 1
{
  echo 'engine = "slurm"'
  awk '/^[[:space:]]*\\[/ { table = 1 } table || !/^[[:space:]]*engine[[:space:]]*=/' "$file"
} >"$file.new" && chmod 644 "$file.new" && mv "$file.new" "$file"
"""


class SeenHost(NamedTuple):
    """One host, as the probe saw it."""

    asked: str  # the name by which ssh knows it
    name: str  # its own
    time: float
    system: str
    memory: int  # MB
    cpus: int
    sockets: int
    cores: int  # of a socket
    gpus: tuple[str, ...]  # the model of each, by its index
    has: tuple[str, ...]  # daemons that are installed
    home: str = ""  # the file system of the user's home: a device of the host, or what is mounted from elsewhere


def read_probe(asked: str, text: str) -> SeenHost:
    """What PROBE printed."""
    facts: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        facts.setdefault(key, []).append(value.strip())
    try:
        cpus = [tuple(map(int, row.split(","))) for row in facts["cpu"]]
        sockets = {socket for _, _, socket in cpus}
        cores = {(core, socket) for _, core, socket in cpus}
        gpus = [row.partition(",")[2].strip() for row in facts.get("gpu", ())]
        memory = int(facts["memory"][0]) // 1024
        return SeenHost(
            asked,
            facts["name"][0].partition(".")[0],
            float(facts["time"][0]),
            facts["system"][0],
            memory,
            len(cpus),
            len(sockets),
            len(cores) // len(sockets),
            tuple(gpus),
            tuple(facts.get("has", ())),
            facts.get("home", [""])[0],
        )
    except (KeyError, ValueError, ZeroDivisionError):
        raise UsageError(
            f"{asked} sent an answer that gpulease cannot read.",
            f"Is it a Linux machine with lscpu? See `ssh {asked} lscpu`.",
        ) from None


def type_of(model: str) -> str:
    """A short name without spaces: `NVIDIA A100-SXM4-80GB` is a100."""
    words = model.replace("NVIDIA", "").replace("GeForce", "").replace("-", " ").split()
    kept = [word for word in words if word.lower() not in ("tesla", "quadro", "rtx", "gtx")] or words or ["gpu"]
    return "".join(letter for letter in kept[0].lower() if letter.isalnum() or letter == "_") or "gpu"


def files(hosts: Sequence[SeenHost], cluster: str, date: str) -> dict[str, str]:
    """Name -> content: three files for Slurm, a script for gpulease's config, and the commands."""
    refuse_unfit(hosts)
    return {
        "slurm.conf": slurm_conf(hosts, cluster, date),
        "gres.conf": gres_conf(hosts, date),
        "cgroup.conf": cgroup_conf(date),
        "engine.sh": ENGINE,
        "commands.txt": commands_text(hosts),
    }


def refuse_unfit(hosts: Sequence[SeenHost]) -> None:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two of the hosts are called {twice!r}.", "Name each host once.")
    if not any(host.gpus for host in hosts):
        raise UsageError("None of the hosts has a GPU that nvidia-smi shows.", "See `nvidia-smi` there.")
    ahead = max(host.time for host in hosts) - min(host.time for host in hosts)
    if ahead > LARGEST_SKEW:
        raise UsageError(
            f"The clocks of the hosts are {ahead:.0f} s apart; munge refuses what is from another time.",
            "Keep them by NTP: `timedatectl set-ntp true` on each.",
        )


def warnings(hosts: Sequence[SeenHost]) -> list[str]:
    """What works, and not as people expect."""
    apart = [host.name for host in hosts if host.home.startswith("/dev/")] if len(hosts) > 1 else []
    homes = f"The home on {', '.join(apart)} is on a disk of its own: jobs need one folder for logs on all hosts, so"
    return [f"{homes} share the homes, or set GPULEASE_DIR to a folder that is shared."] * bool(apart) + [
        f"{host.name} has {len(host.gpus)} GPUs and {host.cpus} CPUs: Slurm gives a job a CPU at least, so not all"
        " of its GPUs can be in use at a time."
        for host in hosts
        if host.cpus < len(host.gpus)
    ]


def slurm_conf(hosts: Sequence[SeenHost], cluster: str, date: str) -> str:
    controller = hosts[0]
    lines = [
        f"# {FOLDER}/slurm.conf, the same file on every host. Written by `gpulease slurm-config` on {date}.",
        "",
        f"ClusterName={cluster}",
        "# The host that decides. It may also have GPUs; when it is down, what runs goes on and nothing new starts.",
        f"SlurmctldHost={_named(controller)}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"StateSaveLocation={SPOOL}/slurmctld",
        f"SlurmdSpoolDir={SPOOL}/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "",
        "# A job is all that it started, by its control group; it sees the GPUs that it was given and no others.",
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "",
        "# Cores and GPUs are given one by one, not whole hosts. Memory is not counted: nobody has to ask for it.",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=gpu",
        "MpiDefault=none",
        "",
        "# Jobs that fit before a large one may start first; users may put a job of theirs before their others",
        "# (`gpulease move`).",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=enable_user_top",
        "# A host that was down takes jobs again as soon as it is back.",
        "ReturnToService=2",
        "# How long an ended job is remembered, in seconds: `gpulease ls` shows it so long to everybody.",
        "MinJobAge=86400",
        "# No accounting. For `sacct`, shares by user and limits set up slurmdbd: accounting_storage/slurmdbd.",
        "AccountingStorageType=accounting_storage/none",
        "",
        "# The hosts, as they were seen; each must find the others by these names.",
        *(_node_line(host) for host in hosts),
        "",
        "# One line for all. Without a time limit a job is taken to run for a year: set DefaultTime to have forecasts.",
        f"PartitionName=gpu Nodes={','.join(host.name for host in hosts)} Default=YES MaxTime=INFINITE State=UP"
        f" DefCpuPerGPU={_cores_of_a_gpu(hosts)}",
    ]
    return "\n".join(lines) + "\n"


def _named(host: SeenHost) -> str:
    return host.name if host.asked == host.name else f"{host.name}({_address(host)})"


def _address(host: SeenHost) -> str:
    """Without the user that ssh may need."""
    return host.asked.rpartition("@")[2]


def _node_line(host: SeenHost) -> str:
    threads = max(1, host.cpus // (host.sockets * host.cores))
    address = "" if host.asked == host.name else f" NodeAddr={_address(host)}"
    gres = ",".join(f"gpu:{name}:{last - first + 1}" for name, first, last in _groups(host))
    return (
        f"NodeName={host.name}{address} CPUs={host.cpus} Sockets={host.sockets} CoresPerSocket={host.cores}"
        f" ThreadsPerCore={threads} RealMemory={int(host.memory * KEPT_MEMORY)}{f' Gres={gres}' if gres else ''}"
        " State=UNKNOWN"
    )


def _groups(host: SeenHost) -> list[tuple[str, int, int]]:
    """Type, first and last index of GPUs of one type that follow each other."""
    found: list[tuple[str, int, int]] = []
    for index, model in enumerate(host.gpus):
        name = type_of(model)
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], index)
        else:
            found.append((name, index, index))
    return found


def _cores_of_a_gpu(hosts: Sequence[SeenHost]) -> int:
    """So that a job on each GPU of a host leaves no core idle and none waits for a core."""
    return max(1, min(host.cpus // len(host.gpus) for host in hosts if host.gpus))


def gres_conf(hosts: Sequence[SeenHost], date: str) -> str:
    lines = [
        f"# {FOLDER}/gres.conf, the same file on every host. Written by `gpulease slurm-config` on {date}.",
        "# Which device file is which GPU. The type is what `--model` and `--gres=gpu:TYPE:1` name.",
        "AutoDetect=off",
    ]
    for host in hosts:
        for name, first, last in _groups(host):
            file = f"/dev/nvidia{first}" if first == last else f"/dev/nvidia[{first}-{last}]"
            lines.append(f"NodeName={host.name} Name=gpu Type={name} File={file}")
    return "\n".join(lines) + "\n"


def cgroup_conf(date: str) -> str:
    return (
        f"# {FOLDER}/cgroup.conf, the same file on every host. Written by `gpulease slurm-config` on {date}.\n"
        "# A job uses its own cores and opens its own GPUs only. Its memory is not limited.\n"
        "ConstrainCores=yes\n"
        "ConstrainDevices=yes\n"
        "ConstrainRAMSpace=no\n"
    )


def commands_text(hosts: Sequence[SeenHost]) -> str:
    """To be read and typed, in the folder that has the files; nothing of it was run."""
    controller, others = hosts[0], hosts[1:]
    lines = [
        "# Type these, or run them with `sh`, in this folder, as a user who may `sudo` on every host.",
        "# Stop the gpulease brokers of everybody first: one GPU must have one master.",
        *(f"ssh {host.asked} 'sudo systemctl disable --now gpulease' # if it was installed there" for host in hosts),
        "",
        "# 1. Slurm and munge on every host, with the user `slurm`.",
        *(f"ssh {host.asked} 'sudo {_install(host, host is controller)}'" for host in hosts if not _complete(host)),
        *(f"ssh {host.asked} 'id slurm >/dev/null 2>&1 || sudo useradd --system slurm'" for host in hosts),
        "",
        "# 2. One munge key for all of them. Anybody who has it can act as any user: keep it secret.",
        f"ssh {controller.asked} 'sudo test -s /etc/munge/munge.key || sudo mungekey --create'",
        *(
            f"ssh {controller.asked} 'sudo cat /etc/munge/munge.key' | ssh {host.asked}"
            " 'sudo install -o munge -g munge -m 400 /dev/stdin /etc/munge/munge.key'"
            for host in others
        ),
        *(f"ssh {host.asked} 'sudo systemctl enable munge && sudo systemctl restart munge'" for host in hosts),
        "",
        "# 3. The same three files on every host.",
    ]
    for host in hosts:
        lines.append(f"ssh {host.asked} 'sudo install -d {FOLDER} {SPOOL}/slurmd /var/log/slurm'")
        lines += [
            f"ssh {host.asked} 'sudo install -m 644 /dev/stdin {FOLDER}/{name}' <{name}"
            for name in ("slurm.conf", "gres.conf", "cgroup.conf")
        ]
    lines += [
        f"ssh {controller.asked} 'sudo install -d -o slurm {SPOOL}/slurmctld && sudo chown slurm /var/log/slurm'",
        "",
        "# 4. The controller, then the hosts.",
        f"ssh {controller.asked} 'sudo systemctl enable slurmctld && sudo systemctl restart slurmctld'",
        *(f"ssh {host.asked} 'sudo systemctl enable slurmd && sudo systemctl restart slurmd'" for host in hosts),
        "",
        "# 5. See that it works, and have everybody's gpulease use it.",
        f"ssh {controller.asked} 'sinfo -N -l; srun --gres=gpu:1 nvidia-smi -L'",
        *(f"ssh {host.asked} 'sudo sh -s' <engine.sh" for host in hosts),
    ]
    return "\n".join(lines) + "\n"


def _complete(host: SeenHost) -> bool:
    return {"slurmd", "munged"} <= {*host.has}


def _install(host: SeenHost, controls: bool) -> str:
    if any(name in host.system for name in ("debian", "ubuntu")):
        return "apt-get install -y slurmd slurm-client munge" + (" slurmctld" if controls else "")
    return "dnf install -y slurm-slurmd slurm munge" + (" slurm-slurmctld" if controls else "")
