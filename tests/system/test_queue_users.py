"""Several users: a job runs as its submitter, its log is its submitter's, and so are the verbs."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.other_users import as_user, needs_root, two_users
from support.queue_site import QueueSite, pick
from support.waiting import wait_until

pytestmark = needs_root
WHO = (
    'echo "$(id -u) $(id -g) $(id -G)"; echo "$HOME $USER $LOGNAME"; pwd; ulimit -S -n >/dev/null; echo "${ROOTS-none}"'
)


@contextmanager
def site_of(kind: str) -> Iterator[QueueSite]:
    site = QueueSite(shared=True)
    try:
        site.start("broker", kind, environ={"ROOTS": "secret"})
        wait_until(site.broker_pid)
        yield site
        assert "Traceback" not in site.log()
    finally:
        site.close()


@pytest.fixture(name="system")
def system_site() -> Iterator[QueueSite]:
    with site_of("--system") as site:
        yield site


def told(site: QueueSite, user: pwd.struct_passwd, verb: str, **fields: Any) -> Any:
    """The broker's whole answer to another user."""

    def ask() -> Any:
        with site.raw() as raw:
            return raw.ask(verb, **fields)

    return as_user(user, ask)


def submit(site: QueueSite, user: pwd.struct_passwd, script: str, **options: Any) -> Any:
    environ = {"PATH": os.environ["PATH"], "GPULEASE_DIR": site.directory, "MINE": "yes", "HOME": "/wrong"}
    given = {"cwd": "/tmp", "environment": environ, **options}
    return told(site, user, "add", request={}, options=given, commands=[["sh", "-c", script]])


def test_a_job_runs_as_its_submitter_with_its_groups_and_home(system: QueueSite) -> None:
    for user in two_users():
        id = submit(system, user, WHO)["ok"]["first"]
        (job,) = system.end(id)
        assert job["state"] == "complete", job
        numbers, names, folder, roots = Path(job["log"]).read_text().splitlines()
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        assert numbers.split()[:2] == [str(user.pw_uid), str(user.pw_gid)]
        assert sorted(map(int, numbers.split()[2:])) == sorted(groups)
        assert names == f"{user.pw_dir} {user.pw_name} {user.pw_name}"
        assert (folder, roots) == ("/tmp", "none")


def test_a_log_and_an_environment_are_their_submitters_alone(system: QueueSite) -> None:
    one, other = two_users()
    id = submit(system, one, "echo private")["ok"]["first"]
    (job,) = system.end(id)
    log = Path(job["log"])
    assert log.stat().st_uid == one.pw_uid
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert as_user(one, log.read_text) == "private\n"
    assert as_user(other, lambda: os.access(log, os.R_OK)) is False
    assert told(system, one, "show", select=pick(id), environment=True)["ok"]["jobs"][0]["environment"]["MINE"] == "yes"
    assert system.ask("show", select=pick(id), environment=True)["jobs"][0]["environment"] is None
    for path in Path(system.directory).glob("state.db*"):
        assert as_user(other, lambda path=path: os.access(path, os.R_OK)) is False  # type: ignore[misc]


@pytest.mark.parametrize("verb", ["kill", "rm", "pause", "resume", "start", "retry", "show", "wait"])
def test_another_users_job_is_not_touched(system: QueueSite, verb: str) -> None:
    one, other = two_users()
    id = submit(system, one, "sleep 600")["ok"]["first"]
    system.until(id, "running")
    trouble = told(system, other, verb, select=pick(id))["error"]
    assert (trouble["code"], one.pw_name in trouble["what"]) == ("not-permitted", True)
    assert told(system, other, "edit", select=pick(id), changes={"note": "x"})["error"]["code"] == "not-permitted"
    assert told(system, other, "kill", select={"all": True})["error"]["code"] == "not-found"
    assert system.job(id)["state"] == "running"
    assert told(system, other, "set", name="grace", value="1")["error"]["code"] == "not-permitted"
    assert told(system, other, "pause", queue=True)["error"]["code"] == "not-permitted"
    system.act("kill", id)
    assert system.end(id)[0]["why"] == "killed by root"


def test_the_command_line_says_77(system: QueueSite, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two_users()
    id = submit(system, one, "sleep 600")["ok"]["first"]
    from gpulease.cli.main import main, run_verb

    for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION"):
        monkeypatch.setenv(name, system.environ[name])
    assert run_verb("ls", []) == 0  # loads what the other user cannot read

    def kill() -> int:
        return main(["kill", str(id)])

    assert as_user(other, kill) == 77
    assert as_user(one, kill) == 0


def test_everybody_sees_the_queue_and_commands_only_if_the_policy_says_so(system: QueueSite) -> None:
    one, other = two_users()
    id = submit(system, one, "sleep 600", name="named")["ok"]["first"]
    system.until(id, "running")
    assert told(system, other, "ls")["ok"]["jobs"][0]["command"] == ["sh", "-c", "sleep 600"]
    system.ask("set", name="hide-commands", value="on")
    (hidden,) = told(system, other, "ls")["ok"]["jobs"]
    assert (hidden["command"], hidden["name"], hidden["user"]) == (["(hidden)"], None, one.pw_name)
    assert told(system, other, "ls", select=pick(id))["ok"]["jobs"][0]["command"] == ["(hidden)"]
    assert told(system, one, "ls")["ok"]["jobs"][0]["name"] == "named"


def test_an_invalid_job_of_another_user_says_so(system: QueueSite) -> None:
    one, _ = two_users()
    options = {"cwd": "/root", "environment": {"PATH": "/usr/bin:/bin"}}
    ids = [
        told(system, one, "add", request={}, options={**options, "cwd": "/"}, commands=[["no-such-command"]]),
        told(system, one, "add", request={}, options={**options, "cwd": "/root/x"}, commands=[["true"]]),
        told(system, one, "add", request={}, options={**options, "cwd": "/", "log": "/root/x"}, commands=[["true"]]),
    ]
    found = system.end(*(told["ok"]["first"] for told in ids))
    assert [job["state"] for job in found] == ["invalid"] * 3
    assert ["does not exist" in found[0]["why"], "folder" in found[1]["why"], "log" in found[2]["why"]] == [True] * 3


def test_a_user_cannot_make_root_hang_or_harm_by_the_files_of_a_job(system: QueueSite) -> None:
    one, _ = two_users()
    victim = system.folder / "victim"
    victim.write_text("precious")
    fifo = Path(f"/tmp/gpulease-fifo-{os.getpid()}")
    journal = f"{system.directory}/jobs/{one.pw_uid}/journal"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    try:
        script = f"rm -f {journal}; ln -s {victim} {journal}; exec >/dev/null; exit 3"
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        id = submit(system, one, script, log=str(fifo))["ok"]["first"]
        assert system.end(id)[0]["exit_code"] == 3
        os.close(reader)
        system.run("stop")
        assert victim.read_text() == "precious"
    finally:
        fifo.unlink()


def test_jobs_of_others_go_on_when_the_system_broker_is_killed(system: QueueSite) -> None:
    one, _ = two_users()
    id = submit(system, one, "while ! [ -e go ]; do sleep 0.05; done; exit 4", cwd=str(system.folder))["ok"]["first"]
    system.until(id, "running")
    system.kill_broker()
    (system.folder / "go").touch()
    system.start("broker", "--system")
    wait_until(system.broker_pid)
    assert system.end(id)[0]["exit_code"] == 4


def test_a_shared_broker_refuses_a_foreign_job_and_names_the_way_out() -> None:
    with site_of("--shared") as site:
        one, _ = two_users()
        trouble = submit(site, one, "true")["error"]
        assert trouble["code"] == "not-permitted"
        assert "cannot run jobs as another user" in trouble["what"]
        assert "gpulease run" in trouble["next_step"]
        assert "--system" in trouble["next_step"]
        assert site.end(site.submit("true"))[0]["state"] == "complete"
