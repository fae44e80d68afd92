"""`get --until-released` holds for no process: it outlives its script and the broker, until somebody gives it back."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

GET = f'"{sys.executable}" -m gpulease get --until-released'


def taken_by_a_script(site: Site, words: str = "") -> int:
    """The pid of a script that took a GPU and has ended."""
    done = site.bash(f"GPUID=$({GET} {words}); echo $$ $GPUID; sleep 0")
    pid, gpu = done.stdout.split()
    assert gpu == "0", done.stderr
    return int(pid)


def test_it_outlives_its_script_and_the_broker_and_any_script_gives_it_back(site: Site) -> None:
    pid = taken_by_a_script(site, "--note demo")
    assert site.kill_broker()
    (lease,) = site.status()["leases"]
    assert (lease["kind"], lease["pid"], lease["asked_by"], lease["until"]) == ("reservation", None, pid, None)
    assert " s), until released: demo" in site.run("status").stdout
    assert site.bash("gpulease release 0").stdout == "released L1: GPU 0\n"
    wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])


def test_it_outlives_the_process_that_acquired_it_in_python(site: Site) -> None:
    code = "import gpulease, os; print(os.getpid(), gpulease.acquire(until_released=True).indices)"
    pid, gpu = site.python(code).communicate(timeout=60)[0].split()
    (lease,) = site.status()["leases"]
    assert (gpu, lease["labels"], lease["asked_by"]) == ("0", ["0"], int(pid))
    assert site.json("release", "--mine")["released"][0]["id"] == "L1"


def test_the_longest_lease_bounds_it(site: Site) -> None:
    site.run("set", "limits", "user:*:longest-lease=2h")
    taken_by_a_script(site)
    (lease,) = site.status()["leases"]
    assert lease["until"] - lease["since"] == pytest.approx(7200)


def test_it_is_not_combined_with_a_time(site: Site) -> None:
    done = site.run("get", "--until-released", "--for", "4h")
    assert (done.returncode, "both given" in done.stderr) == (2, True)
    code = "import gpulease; gpulease.acquire(until_released=True, duration=60)"
    assert "UsageError" in site.python(code).communicate(timeout=60)[1]


def test_a_client_that_is_killed_while_it_waits_gets_nothing(site: Site) -> None:
    holder = site.holder("-n", "4")
    waiting = site.start("get", "--until-released")
    wait_until(lambda: site.status()["line"])
    waiting.kill()
    wait_until(lambda: not site.status()["line"])
    holder.communicate(timeout=60)
    wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])
    assert site.status()["leases"] == []


def test_release_if_held_is_quiet_about_what_is_not_held(site: Site) -> None:
    for words in (["0"], ["L77"], [""], ["0,3"], []):
        done = site.run("release", "--if-held", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert site.run("release", "--if-held", "9").returncode == 2  # no such device: a mistake
    holder = site.holder("--devices", "1")  # another script of one's own
    assert site.bash("gpulease release --if-held 1").returncode == 0
    assert len(site.status()["leases"]) == 1
    holder.communicate(timeout=60)
    site.run("get", "--until-released", "--devices", "2")
    assert site.run("release", "--if-held", "2").stdout.startswith("released L")


def test_release_all_ends_every_lease_but_a_jobs(site: Site) -> None:
    holder = site.holder()
    site.run("get", "--until-released")
    site.run("add", "--", "sleep", "600")
    wait_until(lambda: len(site.status()["leases"]) == 3)
    assert len(site.json("release", "--all")["released"]) == 2
    assert [lease["kind"] for lease in site.status()["leases"]] == ["job"]
    assert site.run("release", "--all", "--mine").returncode == 2
    holder.communicate(timeout=60)


def test_release_gone_ends_what_a_script_left_and_nothing_else(site: Site) -> None:
    taken_by_a_script(site)
    script = site.popen(["bash", "-c", f"{GET}; read; sleep 0"])
    assert script.stdout is not None
    assert script.stdout.readline() == "1\n"
    site.holder()
    assert [row["devices"] for row in site.json("release", "--mine", "--gone")["released"]] == [["0"]]
    assert site.json("release", "1", "--gone")["released"] == []
    script.communicate("\n", timeout=60)
    assert [row["devices"] for row in site.json("release", "1", "--gone")["released"]] == [["1"]]
    assert len(site.status()["leases"]) == 1


def test_events_tell_the_note_and_who_gave_back(site: Site) -> None:
    pid = taken_by_a_script(site, "--note demo")
    done = site.bash("echo $$; gpulease release 0; sleep 0")
    granted, ended = site.json("events")["events"]
    assert (granted["note"], granted["asked_by"], ended["note"]) == ("demo", pid, "demo")
    assert ended["releaser_pid"] == int(done.stdout.split()[0])
    assert ended["releaser"] == ended["user"] == subprocess.check_output(["id", "-un"], text=True).strip()
    assert ended["since"] == pytest.approx(granted["time"], abs=1)


def test_a_python_program_that_gives_back_is_named_itself(site: Site) -> None:
    code = "import gpulease, os\nwith gpulease.acquire(): print(os.getpid())"
    pid = site.python(code).communicate(timeout=60)[0].strip()
    assert site.json("events")["events"][-1]["releaser_pid"] == int(pid)


def test_a_program_holds_what_it_asked_for_through_a_shell(site: Site) -> None:
    code = f"import os; print(os.popen('''{sys.executable} -m gpulease get | cat''').read()); input()"
    program = site.python(code)
    assert program.stdout is not None
    assert program.stdout.readline() == "0\n"
    assert site.status()["leases"][0]["pid"] == program.pid
    program.communicate("\n", timeout=60)
    wait_until(lambda: devices_of(site, "free") == [0, 1, 2, 3])
