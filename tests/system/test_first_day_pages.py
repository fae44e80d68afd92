"""The pages for containers, conda, Jupyter, VS Code, CI runners and Slurm's users: what stands there works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.machine import Machine
from support.waiting import wait_until

from gpulease.cli.main import ALIASES, VERBS, main
from gpulease.cli.parsing import parse

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("containers", "conda", "jupyter", "vscode", "ci-runners", "from-slurm")
INNER = re.compile(r"\$\((gpulease [^()]*)\)")
# Stand-ins for what this machine may lack. Each says what it was told, and what its processes would see.
TOOL = '#!/bin/sh\necho "${0##*/} $*"\necho "sees $NVIDIA_VISIBLE_DEVICES"\n'
PYTHON = (
    '#!/bin/sh\ncase "$*" in *gpulease*) exec {} "$@" ;; esac\necho "python $*"\necho "sees $NVIDIA_VISIBLE_DEVICES"\n'
)


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (HOW_TO / f"{page}.md").read_text(), re.DOTALL)


def commands(page: str) -> list[str]:
    """Every command line of gpulease on the page, those inside others too."""
    text = (HOW_TO / f"{page}.md").read_text()
    code = [line for kind in ("sh", "bash", "yaml") for block in blocks(page, kind) for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    code += [span.replace(r"\|", "|") for span in re.findall(r"`([^`\n]+)`", prose)]
    inner = [found for line in code for found in INNER.findall(line)]
    outer = [re.search(r"(?:^|[-:] )(gpulease(?: [a-z-].*)?)$", INNER.sub("X", line)) for line in code]
    return inner + [found.group(1) for found in outer if found]


def checked(line: str) -> list[str]:
    """The words of a command that gpulease understands."""
    words = [word for word in shlex.split(line, comments=True) if word != "…"][1:] or ["status"]
    verb = ALIASES.get(words[0], words[0])
    assert verb in VERBS, line
    parse(verb, words[1:])
    return words


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_is_understood(page: str) -> None:
    found = commands(page)
    assert found
    for line in found:
        checked(line)


def test_every_row_of_slurms_table_names_a_verb_and_its_jobs_can_be_queued(
    in_machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    (tmp_path / "job.sh").chmod(0o755)
    rows = re.findall(r"^\| `(s\w+|tail).* \| (.*) \|$", (HOW_TO / "from-slurm.md").read_text(), re.M)
    assert {"sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "scontrol"} <= {
        typed for typed, _ in rows
    }
    assert main(["pause", "--queue"]) == 0
    assert main(["add", "--sweep", "i=1:13", "--", "true", "{i}"]) == 0
    for _, cells in rows:
        assert re.match(r"`gpulease", cells)
        for line in re.findall(r"`(gpulease add[^`]*)`", cells):
            assert main(checked(line.replace(r"\|", "|").replace("/data", str(tmp_path)))) == 0, capsys.readouterr().err
    main(["stop"])


def environment(machine: Machine, folder: Path) -> dict[str, str]:
    folder.mkdir()
    own = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpulease "$@"\n'
    programs = {"gpulease": own, "python": PYTHON.format(shlex.quote(sys.executable))}
    for name, text in {**dict.fromkeys(("docker", "podman", "apptainer", "conda"), TOOL), **programs}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**machine.environ, "PATH": f"{folder}:{machine.environ['PATH']}", "GITHUB_REPOSITORY": "lab/x"}


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("containers", [["docker run --rm --gpus={2} my-image"], [], ["docker run --rm --gpus={1} my-image"] * 2]),
        ("conda", [["conda activate train", "python train.py"], []]),
        ("vscode", [["python train.py"]]),
        ("ci-runners", [["python -m pytest tests/gpu"], ["python -m pytest tests/gpu", "python bench.py"], ["on 0,1"]]),
    ],
)
def test_the_scripts_run_as_they_stand(page: str, told: list[list[str]], machine: Machine, tmp_path: Path) -> None:
    environ = environment(machine, tmp_path / "bin")
    (tmp_path / "train.py").touch()
    uuids = [device["uuid"] for device in machine.json("status")["devices"]]
    for script, wanted in zip(blocks(page, "bash"), told, strict=True):
        words = ["bash", "-ec", script]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        for line in wanted:
            shown = line.format(*(f'"device={",".join(uuids[:count])}"' for count in range(3)))
            assert shown in done.stdout, done.stdout
            done.stdout = done.stdout.replace(shown, "", 1)
    machine.run("stop")


def test_a_queued_container_is_told_its_gpus(machine: Machine, tmp_path: Path) -> None:
    environ = environment(machine, tmp_path / "bin")
    script = blocks("containers", "bash")[1]
    done = subprocess.run(["bash", "-ec", f"{script}gpulease log last"], env=environ, capture_output=True, text=True)
    assert re.search(r"podman run --rm --device=nvidia.com/gpu=(GPU-\S+) my-image.*\nsees \1\n", done.stdout), done
    machine.run("stop")


def test_docker_itself_understands_the_options() -> None:
    """Two GPUs: the comma between them is where a wrong quoting shows."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker is not installed")
    from gpulease.cli.commands.docker_args import options

    words = [docker, "-H", "unix:///nowhere.sock", "run", *options("docker", "GPU-a,GPU-b"), "image"]
    reply = subprocess.run(words, capture_output=True, text=True, timeout=60).stderr
    assert "invalid argument" not in reply
    assert "daemon" in reply


def test_outside_a_lease_docker_args_prints_nothing_and_says_what_to_do(machine: Machine) -> None:
    for shown in ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}, {"NVIDIA_VISIBLE_DEVICES": "void", "GPULEASE_LEASE": "L1"}):
        done = machine.run("docker-args", **shown)
        assert (done.returncode, done.stdout) == (1, "")
    assert "gpulease run -- sh -c 'docker run $(gpulease docker-args) IMAGE'" in machine.run("docker-args").stderr
    assert machine.run("docker-args", "--podman", "--apptainer").returncode == 2


def test_docker_args_prints_only_what_is_leased_now(machine: Machine, tmp_path: Path) -> None:
    script = """
    eval "$(gpulease get --export)"; held=$GPULEASE_LEASE
    gpulease docker-args || echo refused
    (unset GPULEASE_LEASE; gpulease docker-args) || echo refused
    NVIDIA_VISIBLE_DEVICES='GPU-feed;rm -rf /,x y' gpulease docker-args || echo refused
    NVIDIA_VISIBLE_DEVICES=all gpulease docker-args || echo refused
    gpulease select -- gpulease docker-args || echo refused
    gpulease release -q $held
    gpulease docker-args || echo refused
    (unset GPULEASE_LEASE; gpulease docker-args) || echo refused
    GPULEASE_LEASE=L999 gpulease docker-args || echo refused
    """
    done = subprocess.run(
        ["bash", "-c", script], env=environment(machine, tmp_path / "bin"), capture_output=True, text=True, timeout=120
    )
    first = machine.json("status")["devices"][0]["uuid"]
    machine.run("stop")
    assert done.stdout.splitlines() == [*[f'--gpus="device={first}"'] * 2, *["refused"] * 6], done.stderr
    unreachable = machine.run("docker-args", NVIDIA_VISIBLE_DEVICES=first, GPULEASE_DIR="/dev/null/x")
    assert (unreachable.returncode, unreachable.stdout) == (69, "")


def test_apptainer_is_told_too(machine: Machine) -> None:
    script = f"echo $({shlex.join(machine.words('docker-args', '--apptainer'))})"
    done = machine.run("run", "-n", "2", "--", "sh", "-c", script)
    shown = ",".join(device["uuid"] for device in machine.json("status")["devices"][:2])
    machine.run("stop")
    assert done.stdout == f"--nv --env=CUDA_VISIBLE_DEVICES={shown} --env=CUDA_DEVICE_ORDER=PCI_BUS_ID\n"


# ---- notebooks


def test_the_cells_run_in_one_kernel(machine: Machine) -> None:
    cells = blocks("jupyter", "python")
    shown = "import os; print(os.environ.get('NVIDIA_VISIBLE_DEVICES', 'restored'))\n"
    program = shown.join([*cells, ""])
    done = subprocess.run(
        [sys.executable, "-c", program], env=machine.environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first = machine.json("status")["devices"][0]["uuid"]
    assert done.stdout.split("\n") == ["GPU 0", first, "restored", "GPU 0", "restored", ""]
    machine.run("stop")


def test_the_kernel_holds_a_gpu_as_long_as_it_lives(machine: Machine) -> None:
    (text,) = blocks("jupyter", "json")
    argv = json.loads(text)["argv"]
    checked(shlex.join(argv))
    place = argv.index("--")
    assert argv[place + 1 : place + 4] == ["python", "-m", "ipykernel_launcher"]
    with TemporaryDirectory() as folder:
        (Path(folder) / "ipykernel_launcher.py").write_text("import sys; print(sys.argv, flush=True); sys.stdin.read()")
        words = [*machine.words(*argv[1:place]), "--", sys.executable, *argv[place + 2 :]]
        with subprocess.Popen(
            words,
            env={**machine.environ, "PYTHONPATH": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as kernel:
            assert kernel.stdout
            assert "{connection_file}" in kernel.stdout.readline()
            (lease,) = machine.json("status")["leases"]
            assert (lease["pid"], lease["note"]) == (kernel.pid, "notebook")
            kernel.communicate()
    wait_until(lambda: not machine.json("status")["leases"])
    machine.run("stop")


def test_what_vs_code_is_given_is_json_and_its_commands_are_understood() -> None:
    tasks, launch = (json.loads(block) for block in blocks("vscode", "json"))
    (task,) = tasks["tasks"]
    checked(shlex.join([task["command"], *task["args"]]))
    port = launch["configurations"][0]["connect"]["port"]
    assert f"--listen {port} " in blocks("vscode", "sh")[0]


@pytest.mark.parametrize(
    "words",
    [
        ["docker", "run", "--gpus", "all", "image"],
        ["docker", "run", "--gpus=2", "image"],
        ["sh", "-c", "docker run --rm --gpus 'all' image"],
        ["podman", "run", "--device", "nvidia.com/gpu=all", "image"],
    ],
)
def test_a_container_that_would_see_all_gpus_is_warned_of(machine: Machine, tmp_path: Path, words: list[str]) -> None:
    environ = environment(machine, tmp_path / "bin")
    for verb in ("run", "add"):
        done = subprocess.run(["gpulease", verb, "--", *words], env=environ, capture_output=True, text=True)
        assert "sees GPUs that are not of its lease" in done.stderr, done
        assert "docker-args" in done.stderr
    machine.run("stop")


def test_a_container_with_the_gpus_of_its_lease_is_not(machine: Machine, tmp_path: Path) -> None:
    environ = environment(machine, tmp_path / "bin")
    text = "docker run --rm $(gpulease docker-args) image --gpus_used 3"
    done = subprocess.run(["gpulease", "run", "--", "sh", "-c", text], env=environ, capture_output=True, text=True)
    assert "not of its lease" not in done.stderr
    machine.run("stop")
