"""Several users: a job runs as its submitter, its log is its submitter's, and so are the verbs."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from support.accounts import GROUP, SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root
from support.queue_site import pick, state_of
from support.waiting import wait_until
from support.web_site import BROWSER, action_token, start_web

pytestmark = needs_root
WHO = (
    'echo "$(id -u) $(id -g) $(id -G)"; echo "$HOME $USER $LOGNAME"; pwd; ulimit -S -n >/dev/null; echo "${ROOTS-none}"'
)


def test_a_job_runs_as_its_submitter_with_its_groups_and_home(system: SystemSite) -> None:
    for user in (system.alice, system.bob):
        id = system.add(user, WHO)["ok"]["first"]
        (job,) = system.end(id)
        assert job["state"] == "complete", job
        numbers, names, folder, roots = Path(job["log"]).read_text().splitlines()
        groups = [user.pw_gid, GROUP] if user is system.alice else [user.pw_gid]
        assert numbers.split()[:2] == [str(user.pw_uid), str(user.pw_gid)]
        assert sorted(map(int, numbers.split()[2:])) == sorted(groups)
        assert names == f"{user.pw_dir} {user.pw_name} {user.pw_name}"
        assert (folder, roots) == ("/tmp", "none")


def test_a_log_and_an_environment_are_their_submitters_alone(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    id = system.add(one, "echo private")["ok"]["first"]
    (job,) = system.end(id)
    log = Path(job["log"])
    assert log.stat().st_uid == one.pw_uid
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert system.as_user(one, log.read_text) == "private\n"
    assert system.as_user(other, lambda: os.access(log, os.R_OK)) is False
    assert system.told(one, "show", select=pick(id), environment=True)["ok"]["jobs"][0]["environment"]["MINE"] == "yes"
    assert system.ask("show", select=pick(id), environment=True)["jobs"][0]["environment"] is None
    for path in Path(system.directory, "state").glob("state.db*"):
        assert system.as_user(other, lambda path=path: os.access(path, os.R_OK)) is False  # type: ignore[misc]


@pytest.mark.parametrize("verb", ["kill", "rm", "pause", "resume", "start", "retry", "show", "subscribe"])
def test_another_users_job_is_not_touched(system: SystemSite, verb: str) -> None:
    one, other = system.alice, system.bob
    id = system.add(one, "sleep 600")["ok"]["first"]
    system.until(id, "running")
    topics = {"topics": ["jobs"]} if verb == "subscribe" else {}
    trouble = system.told(other, verb, select=pick(id), **topics)["error"]
    assert (trouble["code"], one.pw_name in trouble["what"]) == ("not-permitted", True)
    assert system.told(other, "edit", select=pick(id), changes={"note": "x"})["error"]["code"] == "not-permitted"
    assert system.told(other, "kill", select={"all": True})["ok"]["ids"] == []
    assert system.job(id)["state"] == "running"
    assert system.told(other, "set", name="grace", value="1")["error"]["code"] == "not-permitted"
    assert system.told(other, "pause", queue=True)["error"]["code"] == "not-permitted"
    system.act("kill", id)
    assert system.end(id)[0]["why"] == "killed by root"


def test_the_command_line_says_77(system: SystemSite, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = system.alice, system.bob
    id = system.add(one, "sleep 600")["ok"]["first"]
    from gpulease.cli.main import main, run_verb

    for name in ("GPULEASE_DIR", "GPULEASE_SIMULATION"):
        monkeypatch.setenv(name, system.environ[name])
    assert run_verb("ls", []) == 0  # loads what the other user cannot read

    def kill() -> int:
        return main(["kill", str(id)])

    assert system.as_user(other, kill) == 77
    assert system.as_user(one, kill) == 0


def test_everybody_sees_the_queue_and_commands_only_if_the_policy_says_so(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    id = system.add(one, "sleep 600", name="named")["ok"]["first"]
    system.until(id, "running")
    assert system.told(other, "ls")["ok"]["jobs"][0]["command"] == ["sh", "-c", "sleep 600"]
    system.ask("set", name="hide-commands", value="on")
    (hidden,) = system.told(other, "ls")["ok"]["jobs"]
    assert (hidden["command"], hidden["name"], hidden["user"]) == (["(hidden)"], None, one.pw_name)
    assert system.told(other, "ls", select=pick(id))["ok"]["jobs"][0]["command"] == ["(hidden)"]
    assert system.told(one, "ls")["ok"]["jobs"][0]["name"] == "named"


def test_root_is_not_led_to_anothers_file_by_the_log_of_a_job(system: SystemSite) -> None:
    """Before, `show` as root printed whatever file a user had named as the log of a job."""
    one, _ = system.alice, system.bob
    secret = Path(system.folder, "secret")
    secret.write_text("SECRET\n")
    secret.chmod(0o600)
    options = {"cwd": "/", "environment": {"PATH": "/usr/bin:/bin"}, "log": str(secret)}
    id = system.told(one, "add", request={}, options=options, commands=[["true"]])["ok"]["first"]
    system.end(id)
    for verb in ("show", "log", "debug"):
        done = system.run(verb, str(id))
        assert "SECRET" not in done.stdout + done.stderr, verb
    assert "does not belong to the job's user" in system.run("log", str(id)).stderr
    os.chown(secret, one.pw_uid, one.pw_gid)
    assert system.run("log", str(id)).stdout == "SECRET\n"


def test_a_log_below_roots_home_does_not_tell_which_folders_are_there(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    closed = Path(system.folder, "closed")
    (closed / "there").mkdir(parents=True)
    closed.chmod(0o700)
    whys = []
    for name in ("there", "nowhere"):
        options = {"cwd": "/", "environment": {"PATH": "/usr/bin:/bin"}, "log": f"{closed}/{name}/log"}
        id = system.told(one, "add", request={}, options=options, commands=[["true"]])["ok"]["first"]
        system.end(id)
        job = system.told(one, "show", select=pick(id))["ok"]["jobs"][0]
        whys.append((job["state"], job["why"].replace(name, "?")))
    assert whys[0] == whys[1]


def test_a_hidden_command_is_not_told_by_the_reason_or_the_events_either(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    system.ask("set", name="hide-commands", value="on")
    options = {"cwd": "/", "environment": {"PATH": "/usr/bin:/bin"}}
    id = system.told(one, "add", request={}, options=options, commands=[["secret-program"]])["ok"]["first"]
    system.end(id)
    assert "secret-program" in str(system.told(one, "ls"))
    assert "secret-program" in str(system.told(one, "events"))
    for verb in ("ls", "events"):
        assert "secret-program" not in str(system.told(other, verb))


@pytest.mark.parametrize("verb", ["kill", "pause"])
def test_a_user_reaches_nobody_elses_process_by_the_mark_of_their_job(system: SystemSite, verb: str) -> None:
    one, other = system.alice, system.bob
    system.ask("set", name="grace", value="0.2")
    id = system.add(one, "echo token $GPULEASE_TOKEN.; sleep 600")["ok"]["first"]
    token = system.said(id, ".\n").split()[1].removesuffix(".")
    marks = {"GPULEASE_TOKEN": token}, {"FOO": f"xGPULEASE_TOKEN={token}"}
    bystanders = [subprocess.Popen(["sleep", "600"], env=mark, user=uid) for mark in marks for uid in (0, other.pw_uid)]
    bystanders.append(subprocess.Popen(["sleep", "600"], env=marks[1], user=one.pw_uid))
    try:
        assert "ok" in system.told(one, verb, select=pick(id))
        wait_until(lambda: system.job(id)["state"] in ("killed", "paused"))
        assert [state_of(process.pid) for process in bystanders] == ["S"] * len(bystanders)
    finally:
        for process in bystanders:
            process.kill()
            process.wait()


def test_a_user_cannot_have_others_killed_by_what_is_in_their_journal(system: SystemSite) -> None:
    """A pid whose process is gone while its session lives on: the session is not the job's."""
    one, other = system.alice, system.bob
    id = system.add(one, "sleep 600")["ok"]["first"]
    job = system.until(id, "running")
    shell, log = job["pid"], job["log"]
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"],
        user=other.pw_uid,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert leader.stdout is not None
    bystander = int(leader.stdout.readline())
    leader.wait()
    try:
        system.kill_broker()
        (note,) = Path(log).parent.glob("runs/*")
        system.as_user(one, lambda: note.write_text(f"{leader.pid}\n"))
        system.start_broker()
        system.ask("ls")
        assert state_of(bystander) == "S"
    finally:
        for pid in (bystander, shell):
            os.kill(pid, signal.SIGKILL)


def test_only_whoever_runs_the_broker_passes_limits_a_paused_queue_and_others(system: SystemSite) -> None:
    one, other = system.alice, system.bob
    system.ask("set", name="limits", value=f"user:{one.pw_name}:gpus=1")
    first, second, third = (system.add(one, "sleep 600")["ok"]["first"] for _ in range(3))
    system.until(first, "running")
    assert "ok" in system.told(one, "start", select=pick(second))
    assert "limit of 1" in wait_until(lambda: system.job(second)["why_waiting"])
    system.act("start", third)
    system.until(third, "running")
    system.ask("set", name="limits", value="none")
    system.until(second, "running")
    system.ask("pause", queue=True)
    fourth, last = system.add(other, "true")["ok"]["first"], system.add(one, "true")["ok"]["first"]
    refused = system.told(one, "move", id=last, index=0)["error"]
    assert (refused["code"], other.pw_name in refused["what"]) == ("not-permitted", True)
    assert "ok" in system.told(one, "start", select=pick(last))
    assert "paused" in wait_until(lambda: system.job(last)["why_waiting"])
    system.act("start", fourth)
    assert system.end(fourth)[0]["state"] == "complete"
    assert system.job(last)["state"] == "waiting"


def test_start_goes_ahead_of_ones_own_jobs_and_of_nobody_elses(system: SystemSite) -> None:
    """`start` by anybody passed everybody in the line."""
    one, other = system.alice, system.bob
    system.ask("pause", queue=True)
    before = system.add(other, "true")["ok"]["first"]
    ours = [system.add(one, "true")["ok"]["first"] for _ in range(2)]
    between = system.add(other, "true")["ok"]["first"]
    late, held = system.add(one, "true")["ok"]["first"], system.add(one, "true", hold=True)["ok"]["first"]
    assert system.told(one, "start", select=pick(late, held))["ok"]["ids"] == [late, held]
    line = [job["id"] for job in system.jobs() if job["state"] == "waiting"]
    assert line == [before, late, held, *ours, between]
    assert "ok" in system.told(one, "start", select=pick(late))
    assert [job["id"] for job in system.jobs() if job["state"] == "waiting"] == line


def test_one_may_move_ahead_of_ones_own_jobs(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    system.ask("pause", queue=True)
    ids = [system.add(one, "true")["ok"]["first"] for _ in range(3)]
    assert "ok" in system.told(one, "move", id=ids[2], index=0)
    assert [job["id"] for job in system.jobs() if job["state"] == "waiting"] == [ids[2], ids[0], ids[1]]


def test_who_has_no_account_is_refused_at_once(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    nobody = pwd.struct_passwd((one.pw_name, "x", 54321, one.pw_gid, "", "/", "/bin/sh"))
    assert "no account" in system.add(nobody, "true")["error"]["what"]


def test_an_invalid_job_of_another_user_says_so(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    options = {"cwd": "/root", "environment": {"PATH": "/usr/bin:/bin"}}
    ids = [
        system.told(one, "add", request={}, options={**options, "cwd": "/"}, commands=[["no-such-command"]]),
        system.told(one, "add", request={}, options={**options, "cwd": "/root/x"}, commands=[["true"]]),
        system.told(one, "add", request={}, options={**options, "cwd": "/", "log": "/root/x"}, commands=[["true"]]),
    ]
    found = system.end(*(reply["ok"]["first"] for reply in ids))
    assert [job["state"] for job in found] == ["invalid"] * 3
    assert ["does not exist" in found[0]["why"], "folder" in found[1]["why"], "log" in found[2]["why"]] == [True] * 3


def test_a_user_cannot_make_root_hang_or_harm_by_the_files_of_a_job(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    victim = system.folder / "victim"
    victim.write_text("precious")
    fifo = Path(f"/tmp/gpulease-fifo-{os.getpid()}")
    notes = f"{one.pw_dir}/.local/state/gpulease/*/system*/runs"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    try:
        script = f"cd {notes}; for note in *; do ln -sf {victim} $note; done; exec >/dev/null; exit 3"
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        id = system.add(one, script, log=str(fifo))["ok"]["first"]
        assert system.end(id)[0]["exit_code"] == 3
        os.close(reader)
        system.run("stop")
        assert victim.read_text() == "precious"
    finally:
        fifo.unlink()


def test_jobs_of_others_go_on_when_the_system_broker_is_killed(system: SystemSite) -> None:
    one, _ = system.alice, system.bob
    id = system.add(one, "while ! [ -e go ]; do sleep 0.05; done; exit 4", cwd=str(system.folder))["ok"]["first"]
    system.until(id, "running")
    system.kill_broker()
    (system.folder / "go").touch()
    system.start_broker()
    assert system.end(id)[0]["exit_code"] == 4


def test_a_kill_by_roots_page_is_recorded_as_who_pressed_the_button(system: SystemSite) -> None:
    """Events said `killed by root`, since the page's connection is root's."""
    id = system.add(system.alice, "sleep 600")["ok"]["first"]
    system.until(id, "running")
    web = start_web(system, "--user-header", "X-Remote-User", "--actions")
    named = {"X-Remote-User": "alice"}
    page = web.ask(f"/jobs/{id}", **web.headers(Accept=BROWSER), **named).text
    assert web.act(id, "kill", action_token(page), **named).status == 200
    (job,) = system.end(id)
    assert (job["state"], job["why"]) == ("killed", "killed by alice")
    reply = system.ask("events", most=50)["events"]
    assert any("killed by alice" in event.get("why", "") for event in reply if event["id"] == f"J{id}")


def test_only_who_runs_the_broker_kills_in_anothers_name(system: SystemSite) -> None:
    id = system.add(system.alice, "sleep 600")["ok"]["first"]
    refused = system.told(system.alice, "kill", select=pick(id), by="bob")["error"]
    assert (refused["code"], system.job(id)["state"] in ("waiting", "running")) == ("not-permitted", True)


def test_a_shared_broker_refuses_a_foreign_job_and_names_the_way_out() -> None:
    site = SystemSite()
    try:
        site.start("broker", "--shared")
        wait_until(site.broker_pid)
        trouble = site.add(site.alice, "true")["error"]
        assert trouble["code"] == "not-permitted"
        assert "cannot run jobs as another user" in trouble["what"]
        assert "gpulease run" in trouble["next_step"]
        assert "--system" in trouble["next_step"]
        assert site.end(site.submit("true"))[0]["state"] == "complete"
    finally:
        site.close()
