"""What gpuget's GPU.py printed, the drop-in prints, without Redis; and what it does of which GPU.py said nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from subprocess import PIPE
from tempfile import TemporaryDirectory

import pytest
from support.compat_machines import CompatMachines, compat_machines
from support.drop_ins import old_python
from support.recorded import Call, calls_of, recorded_of
from support.site import Site
from support.waiting import wait_until

from gpulease.simulator.library import library_path

RECORDED = recorded_of("gpuget")
CALLS = calls_of("gpuget")


@pytest.fixture(scope="module")
def machines() -> Iterator[CompatMachines]:
    with compat_machines() as made:
        yield made


@pytest.fixture
def site(machines: CompatMachines) -> Site:
    """With nothing held, and nothing managed."""
    found = machines.site(Call("four"))
    assert bash(machines, "GPU.py --redis-delete").endswith("deleted.\n")
    found.run("release", "--all")
    return found


def bash(machines: CompatMachines, script: str, patience: float = 60) -> str:
    found = machines.site(Call("four"))
    process = found.popen(["bash", "-c", script], env=machines.environ(found, sys.executable), stdin=None)
    out, said = process.communicate(timeout=patience)
    assert process.returncode == 0, said
    return str(out)


def test_there_are_calls_enough() -> None:
    assert sum(call.command.count("\nt ") + call.command.count("\nt\n") for call in CALLS) >= 100


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_prints_what_it_printed(call: Call, machines: CompatMachines) -> None:
    machines.site(call).run("release", "--all")
    printed, said = machines.make(call, sys.executable)
    assert printed == call.expected(RECORDED[call.name]), said


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.6 here")
def test_and_with_old_python(machines: CompatMachines) -> None:
    call = next(call for call in CALLS if call.name == "purge")
    machines.site(call).run("release", "--all")
    printed, said = machines.make(call, old_python() or "")
    assert printed == call.expected(RECORDED[call.name]), said


def test_the_first_get_manages_all_where_nothing_ever_was(machines: CompatMachines, site: Site) -> None:
    """Who came over from a Redis that is initialised would else wait for ever."""
    assert bash(machines, "GPU.py --redis-prefix NEW --info; GPU.py --redis-prefix NEW --get") == (
        "GPU total:4 no managed\n0\n"
    )
    assert bash(machines, "GPU.py --redis-prefix NEW --info") == "GPU total:4 managed:4 idle:3\n"


def test_it_is_held_for_the_script_that_asked_past_its_subshell(machines: CompatMachines, site: Site) -> None:
    script = (
        "GPU.py --redis-manage-all > /dev/null; GPUID=$(GPU.py --get); GPU.py --redis-purge; GPU.py --active; echo $$"
    )
    count, line, pid = bash(machines, script).splitlines()
    assert (count, line.split(" at ")[0]) == ("There is 1 ACTIVE GPUs, IDs: 0", f"GPU 0 acquired by PID {pid}")
    (lease,) = site.status()["leases"]
    assert (lease["asked_by"], lease["note"], lease["until"]) == (int(pid), "GPU.py", None)


@pytest.mark.parametrize(
    "way", ["os.popen('GPU.py --get 2>&1 | tail -n 1').read()", "subprocess.getoutput('GPU.py --get')"]
)
def test_a_program_that_asks_through_a_shell_is_who_asked(machines: CompatMachines, site: Site, way: str) -> None:
    program = f"import os, subprocess\nassert int({way}) == 0\nprint(os.getpid())"
    pid = bash(machines, f"GPU.py --redis-manage-all >&2; '{sys.executable}' -c \"{program}\"")
    assert site.status()["leases"][0]["asked_by"] == int(pid)


def test_the_log_tells_the_pids_of_scripts(machines: CompatMachines, site: Site) -> None:
    script = "GPU.py --redis-manage-all >&2; GPUID=$(GPU.py --get); GPU.py --release $GPUID >&2; GPU.py --log; echo $$"
    *lines, pid = bash(machines, script).splitlines()
    assert [line.rpartition(": ")[2] for line in lines[1:]] == [
        f"GPU 0 acquired by PID {pid}.",
        f"GPU 0 released by PID {pid}.",
    ]


TASK = 'G=$(GPU.py --get); mkdir "$D/$G" && echo ok; rmdir "$D/$G"; GPU.py --release $G >&2'  # alone, or mkdir fails


def test_many_tasks_share_the_gpus_one_on_each(machines: CompatMachines, site: Site) -> None:
    begin = "GPU.py --redis-manage-all >&2; D=$(mktemp -d)"
    *done, info = bash(machines, f"{begin}; for i in $(seq 10); do ( {TASK} ) & done; wait; GPU.py --info").splitlines()
    assert (done, info) == (["ok"] * 10, "GPU total:4 managed:4 idle:4")


@pytest.mark.long("neighbours")
@pytest.mark.timeout(600)
def test_a_hundred_and_fifty_tasks(machines: CompatMachines, site: Site) -> None:
    begin = "GPU.py --redis-manage-all >&2; export D=$(mktemp -d)"
    script = f"{begin}; seq 150 | xargs -P 20 -I%% bash -c '{TASK}'; GPU.py --info"
    *done, info = bash(machines, script, patience=500).splitlines()
    assert (done, info) == (["ok"] * 150, "GPU total:4 managed:4 idle:4")


def test_a_get_that_is_killed_while_it_waits_takes_nothing(machines: CompatMachines, site: Site) -> None:
    bash(machines, "GPU.py --redis-manage-all; for i in 1 2 3 4; do GPU.py --get; done")
    environ = machines.environ(site, sys.executable)
    waiting = site.popen(["GPU.py", "--get"], env=environ, stdout=PIPE)
    wait_until(lambda: site.status()["line"])
    waiting.kill()
    wait_until(lambda: not site.status()["line"])
    assert bash(machines, "GPU.py --release 2; GPU.py --idle").splitlines()[1] == "There is 1 IDDLE GPUs, IDs: 2"


def test_what_others_use_is_active_and_is_not_handed_out(machines: CompatMachines, site: Site) -> None:
    bash(machines, "GPU.py --redis-manage-all")
    holder = site.holder("--devices", "1")
    with site.occupied("0") as outsider:
        wait_until(lambda: site.status()["devices"][0]["state"] == "outside")
        site.run("exclude", "3")
        *_, managed, get = bash(machines, "GPU.py --active; GPU.py --managed; GPU.py --get").splitlines()
        assert (managed, get) == ("There is 3 MANAGED GPUs, IDs: 0,1,2", "2")
        shown = bash(machines, "GPU.py --active")
        assert f"GPU 0 acquired by PID {outsider.pid} at 20" in shown
        assert f"GPU 1 acquired by PID {holder.pid} at 20" in shown
    site.run("include", "3")
    holder.communicate(timeout=60)


def test_another_scripts_lease_is_not_released(machines: CompatMachines, site: Site) -> None:
    bash(machines, "GPU.py --redis-manage-all")
    holder = site.holder("--devices", "1")
    environ = machines.environ(site, sys.executable)
    process = site.popen(["bash", "-c", "GPU.py --release 1; exit $?"], env=environ)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "is held by another of your scripts" in said
    bash(machines, "GPU.py --redis-manage-all --force")
    assert len(site.status()["leases"]) == 1
    holder.communicate(timeout=60)


def test_without_a_gpu_it_says_so(machines: CompatMachines, site: Site) -> None:
    environ = {**machines.environ(site, sys.executable), "GPULEASE_SIMULATION": "/nonexistent"}
    process = site.popen(["GPU.py", "--info"], env={**environ, "GPULEASE_DIR": str(site.folder / "none")})
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said.count("\n")) != (0, "", 0)
    assert "Traceback" not in said


def test_the_first_call_on_a_simulated_machine_without_a_broker(machines: CompatMachines) -> None:
    """Every first call ended with a traceback: a machine that is tried so has no broker yet."""
    with TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as home:  # as a socket's path has to be
        _try_it(machines, home)


def _try_it(machines: CompatMachines, home: str) -> None:
    found = machines.site(Call("four"))
    environ = {**machines.environ(found, sys.executable), "GPULEASE_SIMULATE": "4", "HOME": home, "TMPDIR": home}
    environ["XDG_CACHE_HOME"] = str(library_path().parents[2])  # what is built there need not be built once more
    for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        environ.pop(name, None)
    said = []
    for words in ("--idle", "--redis-manage 1,2", "--managed", "--get", "--info"):
        process = found.popen(["bash", "-c", f"GPU.py {words}"], env=environ, stdin=None)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, (words, error)
        said.append(out.strip())
    found.popen(found.words("stop"), env=environ).communicate(timeout=60)
    assert said == [
        "There is 0 IDDLE GPUs, IDs:", "2", "There is 2 MANAGED GPUs, IDs: 1,2", "1", "GPU total:4 managed:2 idle:1",
    ]  # fmt: skip
