"""`gpulease slurm-config`: look at hosts by ssh and write the files of a Slurm for all of them."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json
from gpulease.errors import StateError, UsageError

EXAMPLES = """\
It reads the hosts by ssh and changes nothing there. It writes slurm.conf,
gres.conf, cgroup.conf, engine.sh and commands.txt into a folder. Read them,
then run the commands. The first host becomes the controller.

examples:
  gpulease slurm-config gpu1 gpu2 gpu3
  gpulease slurm-config gpu1 gpu2 --cluster lab --to /tmp/slurm
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="host names for ssh; the first becomes the controller")
    parser.add_argument("--cluster", default="lab", metavar="NAME", help="the name of the cluster (default lab)")
    parser.add_argument(
        "--to", default="slurm-config", metavar="DIR", help="write into this folder (default slurm-config)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from time import localtime, strftime

    from gpulease.slurm.configuration import files, warnings

    name = arguments.cluster
    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum() and len(name) <= 40):
        raise UsageError(f"The name of the cluster is {name[:40]!r}.", "Use letters, digits, `-` and `_`.")
    seen = [_probed(host) for host in dict.fromkeys(arguments.hosts)]
    written = files(seen, name, strftime("%Y-%m-%d", localtime()))
    _write(arguments.to, written, arguments.force)
    for warning in warnings(seen):
        print(f"gpulease: {warning}", file=sys.stderr)
    if arguments.json:
        return print_json({"folder": arguments.to, "files": list(written), "hosts": [host._asdict() for host in seen]})
    for host in seen:
        print(f"{host.asked}: {len(host.gpus)} GPUs, {host.cpus} CPUs, {host.memory} MB")
    print(f"wrote {', '.join(written)} into {arguments.to}")
    print(f"Read them; then run the commands of {os.path.join(arguments.to, 'commands.txt')}.")
    print("Homes, or at least ~/.local/state/gpulease, must be the same on all hosts: `gpulease doctor --engine slurm`")
    print("looks at that once Slurm runs.")
    return 0


def _probed(host: str):  # type: ignore[no-untyped-def]  # a SeenHost, whose module is loaded for this verb alone
    import subprocess

    from gpulease.hosts import ssh
    from gpulease.model.shell_text import quoted
    from gpulease.slurm.configuration import PROBE, read_probe

    words = ssh.command(host, f"sh -c {quoted(PROBE)}")
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=3 * ssh.patience())
    except FileNotFoundError:
        raise ssh.no_ssh() from None
    except subprocess.TimeoutExpired:
        raise ssh.silent(host) from None
    if done.returncode == ssh.LOST:
        raise ssh.failure(host, done.stderr.decode(errors="replace"))
    return read_probe(host, done.stdout.decode(errors="replace"))


def _write(folder: str, written: dict[str, str], force: bool) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        there = [name for name in written if os.path.exists(os.path.join(folder, name))]
        if there and not force:
            raise UsageError(f"{os.path.join(folder, there[0])} is there already.", "Name another folder, or --force.")
        for name, text in written.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
    except OSError as error:
        raise StateError(
            f"The files cannot be written into {folder!r}: {error.strerror}.", "Name another --to."
        ) from None
