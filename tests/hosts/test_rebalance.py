"""`rebalance` moves what waits to where it starts sooner; killed at any step, no job is lost and none runs twice."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ssh_hosts import SshHosts, three_hosts  # noqa: F401  # pytest finds the fixture here
from support.waiting import PATIENCE, read_terminal, wait_until

# The calls of other hosts' gpulease that one `rebalance` of two jobs to one host makes: ls, ls, explain, explain, show,
# add, add (removes the originals), show, add (lets go), show.
CALLS = 10
SOME = ((6, "after"), (7, "after"))  # added and not heard of it; removed and not heard of it
# In gpulease's place on each host: counts the calls of all, and kills the one who asks before or after the chosen one.
KILLER = """\
exec 9>>{folder}/count.lock; flock 9
number=$(($(cat {folder}/count) + 1)); echo $number > {folder}/count
echo "$number $*" >> {folder}/calls
exec 9>&-
[ "$number $(cat {folder}/when)" != "$(cat {folder}/which) before" ] || kill -9 $(cat {folder}/victim)
{real} "$@"
code=$?
[ "$number $(cat {folder}/when)" != "$(cat {folder}/which) after" ] || kill -9 $(cat {folder}/victim)
exit $code
"""


@pytest.fixture(autouse=True)
def nothing_left(hosts: SshHosts) -> Iterator[None]:
    yield
    for name in hosts.hosts:
        hosts[name].as_it_was()
        hosts.run("--host", name, "kill", "all", "--wait")
        hosts.run("--host", name, "clean", "--all")


def fill(hosts: SshHosts, jobs: int, out: Path) -> list[str]:
    """gpu1 is busy for an hour, and so many short jobs wait there."""
    hosts.run("add", "--host", "gpu1", "-n", "2", "--for", "1h", "--", "sleep", "1000")
    wait_until(lambda: hosts.json("--host", "gpu1", "ls")["counts"].get("running") == 1)
    script = f"echo {{n}} >> {out}"
    done = hosts.run("add", "--host", "gpu1", "--name", "n{n}", "--sweep", f"n=1:{jobs}", "--", "sh", "-c", script)
    assert done.returncode == 0, done
    return done.stdout.split()


def settled(hosts: SshHosts) -> dict[str, dict[str, int]]:
    counts = {row["host"]: row["answer"]["counts"] for row in hosts.json("ls", "--hosts", "--all")["hosts"]}
    moving = sum(one.get(state, 0) for one in (counts["gpu2"], counts["gpu3"]) for state in ("waiting", "running"))
    return {} if moving else counts


def test_waiting_jobs_go_where_they_start_sooner(hosts: SshHosts, tmp_path: Path) -> None:
    ids = fill(hosts, 3, tmp_path / "out")
    planned = hosts.json("rebalance", "--dry-run")["moved"]
    assert [row["from"] for row in planned] == ids
    assert hosts.json("--host", "gpu1", "ls")["counts"] == {"running": 1, "waiting": 3}
    done = hosts.json("rebalance", "--yes")
    assert sorted(row["from"] for row in done["moved"]) == sorted(ids)
    assert hosts.run("wait", *(row["to"] for row in done["moved"])).returncode == 0
    assert sorted((tmp_path / "out").read_text().split()) == ["1", "2", "3"]
    rows = [hosts.json("show", row["to"])["jobs"][0] for row in done["moved"]]
    assert {row["name"] for row in rows} == {"n1", "n2", "n3"}
    assert hosts.json("--host", "gpu1", "ls", "--all")["counts"] == {"running": 1}
    assert hosts.json("rebalance", "--yes")["moved"] == []


def test_what_is_tied_to_its_host_stays(hosts: SshHosts, tmp_path: Path) -> None:
    first = fill(hosts, 1, tmp_path / "out")[0]
    hosts.run("add", "--host", "gpu1", "--after", first.partition(":")[2], "--", "true")
    hosts.run("add", "--host", "gpu1", "-d", "0", "--", "true")
    hosts.run("add", "--host", "gpu1", "--hold", "--", "true")
    hosts.run("add", "--host", "gpu1", "--name", "free", "--", "true")
    for words in (("rebalance", "--dry-run"), ("rebalance", "--yes")):
        reply = hosts.json(*words)
        assert [row["from"] for row in reply["moved"]] == [f"gpu1:{int(first.partition(':')[2]) + 4}"]
        assert [one.partition(" stays")[0] for one in reply["stayed"]] == [first]
        assert "comes after" in reply["stayed"][0]
    assert hosts.json("--host", "gpu1", "ls")["counts"] == {"running": 1, "waiting": 3, "held": 1}


def test_a_job_that_starts_meanwhile_stays_and_its_copy_goes(hosts: SshHosts, tmp_path: Path) -> None:
    """At the call that would remove it from gpu1, it has begun to run there."""
    folder, script = tmp_path, f'[ $1 != add ] || {real(hosts)} kill 1 --wait >/dev/null; {real(hosts)} "$@"'
    waiting = fill(hosts, 1, folder / "out")[0].partition(":")[2]
    running = hosts.json("--host", "gpu1", "ls", "--state", "running")["jobs"][0]["id"]
    starts = f"until {real(hosts)} show {waiting} --json | grep -q complete; do sleep 0.1; done"
    hosts["gpu1"].gpulease(
        script.replace("kill 1", f"kill {running}").replace(";", f"; [ $1 != add ] || {{ {starts}; }};", 1)
    )
    assert hosts.json("rebalance", "--yes")["moved"] == []
    hosts["gpu1"].as_it_was()
    assert (folder / "out").read_text().split() == ["1"]
    assert wait_until(lambda: settled(hosts))["gpu2"] == {}


def real(hosts: SshHosts) -> str:
    return str(Path(hosts.words()[0]).parent / "gpulease")


def killed_at(hosts: SshHosts, folder: Path, which: int, when: str) -> None:
    """A `rebalance` that dies around its call number `which`."""
    for name, text in (("count", "0"), ("calls", ""), ("which", str(which)), ("when", when)):
        (folder / name).write_text(f"{text}\n" if text else "")
    for host in hosts.hosts.values():
        host.gpulease(KILLER.format(folder=folder, real=real(hosts)))
    done = run_as_victim(hosts, folder)
    for host in hosts.hosts.values():
        host.as_it_was()
    calls = (folder / "calls").read_text().splitlines()
    assert done.returncode == -signal.SIGKILL, (done, calls)
    assert len(calls) >= which, calls


def run_as_victim(hosts: SshHosts, folder: Path) -> subprocess.CompletedProcess[str]:
    script = f"echo $$ > {folder}/victim; exec {' '.join(hosts.words('rebalance', '--yes', '--hosts', 'gpu1,gpu2'))}"
    return subprocess.run(["sh", "-c", script], env=hosts.environ, capture_output=True, text=True, timeout=PATIENCE)


def each_runs_once(hosts: SshHosts, folder: Path, jobs: int) -> None:
    """The next `rebalance` finishes it; then what is left on gpu1 may run there too."""
    done = hosts.run("rebalance", "--yes", "--hosts", "gpu1,gpu2", "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["troubles"] == []
    assert [path for path in (hosts.folder / "d" / "rebalance").iterdir() if path.suffix == ".json"] == []
    running = hosts.json("--host", "gpu1", "ls", "--state", "running")["jobs"]
    hosts.run("--host", "gpu1", "kill", *(str(job["id"]) for job in running if job["command"][0] == "sleep"))
    out = folder / "out"
    wait_until(lambda: out.exists() and len(out.read_text().split()) >= jobs)
    counts = wait_until(lambda: settled(hosts))
    assert not any(one.get("held") for one in counts.values())
    assert sorted(out.read_text().split()) == [str(number) for number in range(1, jobs + 1)]


@pytest.mark.parametrize(("which", "when"), SOME)
def test_killed_in_the_middle_each_job_runs_once(hosts: SshHosts, tmp_path: Path, which: int, when: str) -> None:
    fill(hosts, 2, tmp_path / "out")
    killed_at(hosts, tmp_path, which, when)
    each_runs_once(hosts, tmp_path, 2)


@pytest.mark.long("hosts")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", range(1, CALLS + 1))
def test_killed_at_any_call_each_job_runs_once(hosts: SshHosts, tmp_path: Path, which: int, when: str) -> None:
    fill(hosts, 2, tmp_path / "out")
    killed_at(hosts, tmp_path, which, when)
    each_runs_once(hosts, tmp_path, 2)


def test_two_at_a_time_are_refused(hosts: SshHosts, tmp_path: Path) -> None:
    fill(hosts, 1, tmp_path / "out")
    hosts["gpu1"].gpulease(f"echo here > {tmp_path}/here; while [ ! -e {tmp_path}/on ]; do sleep 0.05; done; exit 1")
    words = hosts.words("rebalance", "--yes")
    with subprocess.Popen(words, env=hosts.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        wait_until((tmp_path / "here").exists)
        second = hosts.run("rebalance", "--yes")
        (tmp_path / "on").touch()
        first.wait()
    assert (second.returncode, "Another `gpulease rebalance`" in second.stderr) == (75, True)


def test_a_share_by_memory_moves_with_all_that_was_asked(hosts: SshHosts, tmp_path: Path) -> None:
    """What it asks for, its environment and its folder are the same there; what it is told of its host is not."""
    hosts.run("add", "--host", "gpu1", "-n", "2", "--for", "1h", "--", "sleep", "1000")
    wait_until(lambda: hosts.json("--host", "gpu1", "ls")["counts"].get("running") == 1)
    asked = ("--mem", "6G", "--model", "A100", "--min-memory", "40G", "--max-leases", "3", "--priority", "4")
    more = ("--for", "20m", "--retry", "2", "--time-limit", "1h", "--label", "l", "--note", "n", "--env", "COLOUR=red")
    for name in ("gpu1", "gpu2"):
        hosts.run("--host", name, "notify", "set", "tty")
    reply = ("--notify=failed", "--env", "MY_TOKEN=secret")
    script = f"echo $COLOUR $MY_TOKEN $PWD $GPULEASE_DIR > {tmp_path}/out"
    done = hosts.run("add", "--host", "gpu1", *asked, *more, *reply, "--", "sh", "-c", script, cwd=tmp_path)
    before = hosts.json("show", done.stdout.strip())["jobs"][0]
    to = hosts.json("rebalance", "--yes", "--hosts", "gpu1,gpu2")["moved"][0]["to"]
    after = hosts.json("show", to)["jobs"][0]
    same = ("command", "cwd", "request", "retry", "time_limit", "label", "note", "name", "user", "notify")
    assert after["notify"] == ["failed"]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert hosts.run("wait", to).returncode == 0
    assert (tmp_path / "out").read_text() == f"red secret {tmp_path} {hosts['gpu2'].directory}\n"


# ---------------------------------------------------------------------- who acts before the next one


def copies(hosts: SshHosts) -> str:
    return ",".join(str(job["id"]) for job in hosts.json("--host", "gpu2", "ls", "--state", "held")["jobs"])


def test_a_copy_is_not_let_go_by_hand(hosts: SshHosts, tmp_path: Path) -> None:
    fill(hosts, 2, tmp_path / "out")
    killed_at(hosts, tmp_path, 6, "after")
    for words in (("resume", "all"), ("start", "all"), ("resume", copies(hosts)), ("start", copies(hosts))):
        done = hosts.run("--host", "gpu2", *words)
        assert (done.returncode, "`gpulease rebalance`" in done.stderr) == (1, True), done
    hosts.run("--host", "gpu2", "kill", copies(hosts).partition(",")[0])
    done = hosts.run("--host", "gpu2", "retry", "all")
    assert (done.returncode, "`gpulease rebalance`" in done.stderr) == (1, True), done
    each_runs_once(hosts, tmp_path, 2)


def test_an_original_that_was_changed_stays(hosts: SshHosts, tmp_path: Path) -> None:
    first = fill(hosts, 2, tmp_path / "out")[0]
    killed_at(hosts, tmp_path, 6, "after")
    assert hosts.run("edit", first, "--", "sh", "-c", f"echo changed >> {tmp_path}/out").returncode == 0
    reply = hosts.json("rebalance", "--yes", "--hosts", "gpu1,gpu2")
    assert f"{first} stays: it is not as it was copied" in reply["stayed"][0]
    assert [row["from"] for row in reply["moved"]].count(first) == 1  # anew, as it is now
    wait_until(lambda: len((tmp_path / "out").read_text().split()) == 2)
    assert wait_until(lambda: settled(hosts))["gpu2"] == {"complete": 2}
    assert sorted((tmp_path / "out").read_text().split()) == ["2", "changed"]


def test_what_its_user_removes_meanwhile_does_not_run(hosts: SshHosts, tmp_path: Path) -> None:
    """The call that would remove the originals is not heard there, and its sender dies."""
    first = fill(hosts, 2, tmp_path / "out")[0]
    hosts["gpu1"].gpulease(f'[ $1 != add ] || {{ kill -9 $(cat {tmp_path}/victim); exit 1; }}; {real(hosts)} "$@"')
    done = run_as_victim(hosts, tmp_path)
    hosts["gpu1"].as_it_was()
    assert (done.returncode, hosts.run("rm", first).returncode) == (-signal.SIGKILL, 0)
    reply = hosts.json("rebalance", "--yes", "--hosts", "gpu1,gpu2")
    assert first not in [row["from"] for row in reply["moved"]]
    wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().split() == ["2"])
    assert wait_until(lambda: settled(hosts))["gpu2"] == {"complete": 1}
    assert (tmp_path / "out").read_text().split() == ["2"]


def test_who_waits_for_a_moved_job_or_reads_its_log_is_told_its_new_id(hosts: SshHosts, tmp_path: Path) -> None:
    old = fill(hosts, 1, tmp_path / "out")[0]
    calls = [("wait", old), ("log", old, "-f")]
    followers = [
        subprocess.Popen(hosts.words(*words), env=hosts.environ, stderr=subprocess.PIPE, text=True) for words in calls
    ]
    new = hosts.json("rebalance", "--yes", "--hosts", "gpu1,gpu2")["moved"][0]["to"]
    for follower in followers:
        said = follower.communicate(timeout=PATIENCE)[1]
        assert (follower.returncode, f"was moved to {new}" in said) == (1, True), said
    for words in calls:
        done = hosts.run(*words)
        assert (done.returncode, f"was moved to {new}" in done.stderr) == (1, True), done


def test_a_copy_that_was_killed_by_hand_may_be_retried_once_it_is_moved(hosts: SshHosts, tmp_path: Path) -> None:
    fill(hosts, 1, tmp_path / "out")
    killed_at(hosts, tmp_path, 7, "after")
    copy = copies(hosts)
    assert hosts.run("--host", "gpu2", "kill", copy).returncode == 0
    assert hosts.run("--host", "gpu2", "retry", copy).returncode == 1
    assert hosts.json("rebalance", "--yes", "--hosts", "gpu1,gpu2")["troubles"] == []
    assert hosts.run("--host", "gpu2", "retry", copy).returncode == 0
    assert hosts.run("--host", "gpu2", "wait", copy).returncode == 0
    assert (tmp_path / "out").read_text().split() == ["1"]


# In gpulease's place on a host that lies: it names a job of its own choice, and one that waits in truth.
LIAR = """\
case "$1 $*" in
ls*|show*) {real} "$@" | sed 's|"sh",|"sh", "-c", "touch {mark}; exit 0",|' ;;
*) exec {real} "$@" ;;
esac
"""


def asked(hosts: SshHosts, answer: bytes) -> bytes:
    """What `rebalance` shows on a terminal before and after somebody answers."""
    pid, terminal = pty.fork()
    if not pid:
        words = hosts.words("rebalance", "--hosts", "gpu1,gpu2")
        os.execve(words[0], words, {**hosts.environ, "TERM": "dumb"})
    try:
        shown = read_terminal(terminal, b"Move them? [y/N] ")
        os.write(terminal, answer)
        shown += read_terminal(terminal, b"gpu1:" if answer == b"y\n" else b"nothing was moved")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return shown
    finally:
        os.close(terminal)


def test_a_command_is_shown_before_it_goes_to_another_host(hosts: SshHosts, tmp_path: Path) -> None:
    """A host may name any command as a job of yours: it would run as you on the others."""
    fill(hosts, 1, tmp_path / "out")
    mark = tmp_path / "stolen"
    hosts["gpu1"].gpulease(LIAR.format(real=real(hosts), mark=mark))
    refused = hosts.run("rebalance")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert str(mark) in str(hosts.json("rebalance", "--dry-run")["moved"][0]["command"])
    shown = asked(hosts, b"\n")
    assert f"touch {mark}".encode() in b"".join(shown.split(b"\r\n"))
    assert hosts.json("--host", "gpu2", "ls", "--all")["jobs"] == []
    hosts["gpu1"].as_it_was()
    asked(hosts, b"y\n")
    wait_until((tmp_path / "out").exists)
    assert not mark.exists()
