"""Verbs on hosts that a real sshd serves: terminal, signals, exit codes; hosts that are dead, slow or strange."""

from __future__ import annotations

import csv
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from support.ssh_hosts import SshHosts, keygen, three_hosts  # noqa: F401  # pytest finds the fixture here
from support.waiting import read_terminal, wait_until

DEADLINES = ("2", "10", "40")  # seconds; the longer ones are for a machine on which a host that lives takes so long
# Verbs, with the host's own job 1 there, and the exit code of each.
SCRIPT = [
    ("add --name first -- sleep 1000", 0, "gpu1:1"),
    ("status", 0, "gpu1: 2 SIMULATED"),
    ("ls", 0, "first"),
    ("show 1", 0, "first"),
    ("log 1", 0, ""),
    ("explain -n 1", 0, "It would start now."),
    ("events", 0, "job 1"),
    ("doctor", 0, "gpulease"),
    ("set grace", 0, "grace"),
    ("set grace 1s", 0, ""),
    ("exclude 1", 0, ""),
    ("include 1", 0, ""),
    ("get -d 1 --for 1h", 0, "1"),
    ("renew --for 2h", 0, ""),
    ("release --mine", 0, ""),
    ("select -n 1", 0, "1"),
    ("pause 1", 0, "paused 1"),
    ("resume 1", 0, ""),
    ("add --hold -- true", 0, "gpu1:2"),
    ("edit 2 --name other", 0, "2"),
    ("start 2", 0, ""),
    ("wait 2", 0, "2 complete"),
    ("retry 2", 0, ""),
    ("wait 2", 0, "2 complete"),
    ("move 2", 1, ""),
    ("debug 2", 0, "nothing is wrong"),
    ("clean", 0, "2"),
    ("kill 1 --wait", 0, "1"),
    ("wait 1", 143, "1 killed"),
    ("rm 1", 0, "removed 1"),
    ("pool ls", 0, ""),
    ("docker-args", 1, ""),
    ("help engines", 0, ""),
    ("completion bash", 0, "complete"),
    ("ls --nonsense", 2, ""),
]


def test_every_verb_does_there_what_it_does_here(hosts: SshHosts) -> None:
    for words, code, output in SCRIPT:
        done = hosts.run("--host", "gpu1", *words.split())
        assert (done.returncode, output in done.stdout) == (code, True), (words, done)


def test_a_command_gets_folder_gpus_input_and_gives_its_exit_code(hosts: SshHosts, tmp_path: Path) -> None:
    script = 'pwd; echo "gpus $GPULEASE_DEVICES"; cat; echo wrong >&2; exit 7'
    done = hosts.run("run", "-q", "--host", "gpu2", "-n", "2", "--", "sh", "-c", script, input="hello\n", cwd=tmp_path)
    assert done.returncode == 7
    assert done.stdout == f"{tmp_path}\ngpus 0,1\nhello\n"
    assert done.stderr == "wrong\n"


def test_a_folder_or_an_environment_that_is_not_there_is_told(hosts: SshHosts, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {' '.join(hosts.words('run', '--host', 'gpu2', '--', 'true'))}"
    done = subprocess.run(["sh", "-c", script], env=hosts.environ, capture_output=True, text=True)
    assert done.returncode == 2, done
    done = hosts.run("run", "--host", "gpu2", "--", "true", environ={"VIRTUAL_ENV": "/nowhere/env"})
    assert (done.returncode, "/nowhere/env does not exist on gpu2" in done.stderr) == (2, True)


def test_a_terminal_and_its_interrupt_reach_the_command(hosts: SshHosts) -> None:
    command = (
        "test -t 0 && test -t 1 && trap 'echo interrupted; exit 9' INT && echo ready && while :; do sleep 0.1; done"
    )
    pid, terminal = pty.fork()
    if not pid:
        words = hosts.words("run", "-q", "--host", "gpu1", "--", "sh", "-c", command)
        os.execve(words[0], words, {**hosts.environ, "TERM": "dumb"})
    try:
        assert read_terminal(terminal, b"ready\r\n") == b"ready\r\n"
        os.write(terminal, b"\x03")
        assert b"interrupted" in read_terminal(terminal, b"interrupted")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    finally:
        os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_without_a_terminal_reaches_the_command(hosts: SshHosts, number: int) -> None:
    command = "trap 'echo got it; exit 5' TERM INT; echo ready; while :; do sleep 0.1; done"
    words = hosts.words("run", "--host", "gpu1", "--", "sh", "-c", command)
    with subprocess.Popen(words, env=hosts.environ, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd="/") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(number)
        assert run.stdout.read() == b"got it\n"
        assert run.wait() == 5


def test_ids_of_several_hosts_are_taken_in_one_command(hosts: SshHosts) -> None:
    ids = [hosts.run("add", "--host", name, "--", "sleep", "1000").stdout.strip() for name in ("gpu1", "gpu2")]
    assert [id.partition(":")[0] for id in ids] == ["gpu1", "gpu2"]
    shown = hosts.json("show", *ids)["hosts"]
    assert [(row["host"], row["answer"]["jobs"][0]["command"]) for row in shown] == [
        ("gpu1", ["sleep", "1000"]),
        ("gpu2", ["sleep", "1000"]),
    ]
    done = hosts.run("kill", ",".join(ids))
    assert done.returncode == 0, done
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == ["gpu1", "gpu2"]
    done = hosts.run("wait", *ids, f"gpu3:{10**9}")
    assert done.returncode == 128 + signal.SIGTERM
    assert "gpu3: gpulease: No such job" in done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == ["gpu1", "gpu2"]


def test_a_log_is_followed_there_until_the_job_ends(hosts: SshHosts) -> None:
    id = hosts.run("add", "--host", "gpu2", "--", "sh", "-c", "echo one; sleep 0.3; echo two").stdout.strip()
    assert hosts.run("log", id, "-f").stdout == "one\ntwo\n"


def test_a_job_after_one_of_a_host_goes_there(hosts: SshHosts) -> None:
    first = hosts.run("add", "--host", "gpu2", "--", "true").stdout.strip()
    second = hosts.run("add", "--after", first, "--", "true").stdout.strip()
    assert second.startswith("gpu2:")
    number = int(first.partition(":")[2])
    assert hosts.json("show", second)["jobs"][0]["after"] == [number]


def test_jobs_of_two_hosts_do_not_come_after_each_other(hosts: SshHosts) -> None:
    assert hosts.run("add", "--host", "gpu1", "--after", "gpu2:1", "--", "true").returncode == 2
    assert hosts.run("edit", "gpu1:1", "--after", "gpu2:1").returncode == 2
    assert hosts.run("events", "--job", "gpu2:1", "--json").returncode == 0


def test_completion_offers_hosts(hosts: SshHosts) -> None:
    for words in (["--host", ""], ["run", "--host", ""]):
        assert hosts.run("completion", "--words", *words).stdout.split() == ["gpu1", "gpu2", "gpu3", "any"]
    assert hosts.run("completion", "--words", "--host", "gpu1", "stat").stdout.split() == ["status"]


def test_python_asks_other_hosts_too(hosts: SshHosts) -> None:
    program = "import gpulease; print(len(gpulease.status(host='gpu2')['devices'])); "
    program += "print([row['host'] for row in gpulease.status(hosts=())['hosts']])"
    done = subprocess.run([hosts.words()[0], "-c", program], env=hosts.environ, capture_output=True, text=True)
    assert done.stdout == "4\n['gpu1', 'gpu2', 'gpu3']\n", done


# ---------------------------------------------------------------------- all hosts


def rows(hosts: SshHosts, *words: str, **more: str) -> dict[str, dict[str, object]]:
    return {row["host"]: row for row in hosts.json(*words, environ=more)["hosts"]}


def test_one_table_has_all_hosts(hosts: SshHosts) -> None:
    done = hosts.run("status", "--hosts")
    assert done.returncode == 0, done
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == ["gpu1", "gpu2", "gpu3"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    documents = [row["answer"] for row in rows(hosts, "status", "--hosts").values()]
    assert [len(reply["devices"]) for reply in documents] == [2, 4, 1]  # type: ignore[index]


def test_the_queues_of_all_hosts_are_listed_with_ids_that_are_taken(hosts: SshHosts) -> None:
    id = hosts.run("add", "--host", "gpu3", "--hold", "--name", "listed", "--", "true").stdout.strip()
    line = next(line for line in hosts.run("ls", "--hosts").stdout.splitlines() if "listed" in line)
    assert line.split()[0] == id
    assert hosts.run("rm", line.split()[0]).returncode == 0


def test_what_was_is_shown_for_all_hosts_together(hosts: SshHosts) -> None:
    ids = [hosts.run("add", "--host", name, "--", "true").stdout.strip() for name in ("gpu1", "gpu3")]
    assert hosts.run("wait", *ids).returncode == 0
    table = hosts.run("events", "--hosts", "--since", "1h").stdout.splitlines()
    assert table[0].split()[:2] == ["HOST", "START"]
    assert {"gpu1", "gpu3"} <= {line.split()[0] for line in table[1:] if "job " in line}
    documents = [row["answer"] for row in hosts.json("usage", "--hosts", "--since", "1h")["hosts"]]
    jobs = sum(reply["total"]["jobs"].get("complete", 0) for reply in documents)
    (row,) = csv.DictReader(hosts.run("usage", "--hosts", "--since", "1h", "--csv").stdout.splitlines())
    assert int(row["complete"]) == jobs >= 2
    assert hosts.run("events", "--hosts", "--job", "1").returncode == 2
    known = hosts.run("learned", "--hosts").stdout.splitlines()
    assert known[0].split()[:2] == ["HOST", "RUNS"]
    assert {"gpu1", "gpu3"} <= {line.split()[0] for line in known[1:] if line.endswith("true")}
    assert all(row["answer"]["shapes"] for row in hosts.json("learned", "--hosts")["hosts"] if row["host"] != "gpu2")
    assert hosts.run("learned", "--hosts", "--clear").returncode == 2


def test_a_host_that_is_down_is_a_row_and_comes_back(hosts: SshHosts) -> None:
    hosts["gpu2"].stop()
    hosts.disconnect("gpu2")
    found = rows(hosts, "status", "--hosts")
    assert [row["trouble"] is None for row in found.values()] == [True, False, True]
    assert "gpu2 cannot be reached" in str(found["gpu2"]["trouble"])
    done = hosts.run("--host", "gpu2", "ls")
    assert (done.returncode, done.stdout) == (69, "")
    hosts["gpu2"].start()
    assert rows(hosts, "status", "--hosts")["gpu2"]["trouble"] is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exec sleep 1000", "does not answer"),
        ("printf '{\"devices\": ['; exec sleep 1000", "stopped in the middle"),
        ("echo '<html>'; exit 0", "gives no answer"),
        ("echo '{\"gpus\": 8}'", "another version"),
        ("echo 'gpulease: The following arguments are required: ID' >&2; exit 2", "another version"),
        ("echo 'gpulease: The disk is full.' >&2; echo 'Make room.' >&2; exit 1", "gpu3: The disk is full."),
    ],
)
def test_a_host_that_hangs_or_is_strange_is_a_row(hosts: SshHosts, script: str, told: str) -> None:
    hosts["gpu3"].gpulease(script)
    try:
        for deadline in DEADLINES:
            found = rows(hosts, "status", "--hosts", GPULEASE_HOST_TIMEOUT=deadline)
            if found["gpu1"]["trouble"] is None:
                break
    finally:
        hosts["gpu3"].as_it_was()
    assert told in str(found["gpu3"]["trouble"])
    assert found["gpu1"]["trouble"] is None


def test_a_connection_that_stands_still_is_a_row_after_the_deadline(hosts: SshHosts) -> None:
    assert rows(hosts, "status", "--hosts")["gpu2"]["trouble"] is None  # the connection is open
    hosts["gpu2"].freeze()
    try:
        for deadline in DEADLINES:
            found = rows(hosts, "status", "--hosts", GPULEASE_HOST_TIMEOUT=deadline)
            if found["gpu1"]["trouble"] is None:
                break
    finally:
        hosts["gpu2"].freeze(signal.SIGCONT)
    assert found["gpu2"]["trouble"] == "gpu2 does not answer."
    assert found["gpu1"]["trouble"] is None


def test_one_host_that_stands_still_is_told_after_the_deadline(hosts: SshHosts) -> None:
    assert hosts.run("--host", "gpu2", "ls").returncode == 0  # the connection is open, and its own patience is longer
    hosts["gpu2"].freeze()
    try:
        done = hosts.run("--host", "gpu2", "ls", environ={"GPULEASE_HOST_TIMEOUT": "0.5"})
    finally:
        hosts["gpu2"].freeze(signal.SIGCONT)
    assert (done.returncode, done.stderr.splitlines()[0]) == (69, "gpulease: gpu2 does not answer.")


def test_get_on_another_host_needs_to_know_until_when(hosts: SshHosts) -> None:
    done = hosts.run("get", "--host", "gpu1")
    assert (done.returncode, "--for" in done.stderr) == (2, True)
    assert hosts.json("--host", "gpu1", "status")["leases"] == []
    assert hosts.run("get", "--host", "gpu1", "--until-released").returncode == 0
    assert hosts.run("release", "--host", "gpu1", "--mine").returncode == 0


def test_where_hosts_are_written_is_told(hosts: SshHosts, tmp_path: Path) -> None:
    done = hosts.run("status", "--hosts", environ={"GPULEASE_DIR": str(tmp_path), "HOME": str(tmp_path)})
    assert (done.returncode, f"into {tmp_path}/config.toml" in done.stderr) == (2, True), done


def test_the_doctor_tells_of_hosts_without_gpulease_or_with_another_version(hosts: SshHosts) -> None:
    real = Path(hosts.words()[0]).parent / "gpulease"
    hosts["gpu2"].gpulease(f'[ $1 = doctor ] && exec {real} "$@" | sed \'s/"text": "0[.][0-9.]*"/"text": "0.0.1"/\'')
    hosts["gpu3"].hide_gpulease()
    try:
        done = hosts.json_of_any_code("doctor", "--hosts")
        missing = hosts.run("--host", "gpu3", "ls")
    finally:
        hosts["gpu2"].as_it_was()
        hosts["gpu3"].show_gpulease()
    found = {one["subject"]: one for one in done["findings"]}
    assert found["gpu1"]["level"] != "error"
    assert (found["gpu2"]["level"], found["gpu2"]["text"]) == ("warning", "has gpulease 0.0.1")
    assert (found["gpu3"]["level"], found["gpu3"]["text"]) == ("error", "There is no gpulease on gpu3.")
    assert (missing.returncode, missing.stderr.splitlines()[0]) == (69, "gpulease: There is no gpulease on gpu3.")


def test_a_changed_host_key_is_never_accepted(hosts: SshHosts, tmp_path: Path) -> None:
    known = (hosts.folder / "known").read_text()
    keygen(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text()
    (hosts.folder / "known").write_text(known.replace(known.splitlines()[0], f"gpu1 {other.strip()}"))
    hosts.disconnect("gpu1")
    try:
        done = hosts.run("--host", "gpu1", "run", "--", "true")
        table = rows(hosts, "status", "--hosts")
        assert f"{other.strip()}" in (hosts.folder / "known").read_text()
    finally:
        hosts.trust()
    assert done.returncode == 69
    assert "The host key of gpu1 has changed" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 2
    assert "has changed" in str(table["gpu1"]["trouble"])
    assert table["gpu2"]["trouble"] is None


def test_a_host_that_is_new_or_takes_no_key_is_told(hosts: SshHosts) -> None:
    (hosts.folder / "known").write_text("")
    hosts.disconnect("gpu1")
    try:
        done = hosts.run("--host", "gpu1", "ls")
    finally:
        hosts.trust()
    assert (done.returncode, "does not know the host key of gpu1 yet" in done.stderr) == (69, True)
    keys = hosts["gpu1"].folder / "authorized_keys"
    kept = keys.read_text()
    keys.write_text("")
    try:
        done = hosts.run("--host", "gpu1", "ls")
    finally:
        keys.write_text(kept)
    assert (done.returncode, "gpu1 takes no key of yours" in done.stderr) == (69, True)


def test_without_ssh_it_says_so(hosts: SshHosts) -> None:
    done = hosts.run("--host", "gpu1", "ls", environ={"GPULEASE_SSH": "/nowhere/ssh"})
    assert (done.returncode, "no command '/nowhere/ssh'" in done.stderr) == (69, True)


def test_the_connection_is_kept_in_a_private_folder(hosts: SshHosts) -> None:
    hosts.run("--host", "gpu1", "ls")
    folder = hosts.folder / "d" / "ssh"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert wait_until(lambda: list(folder.iterdir()))


def test_an_engine_that_nobody_knows_is_refused(hosts: SshHosts) -> None:
    done = hosts.run("ls", "--engine", "abacus")
    assert (done.returncode, "There is no engine 'abacus'" in done.stderr) == (2, True)
    assert hosts.run("ls", environ={"GPULEASE_ENGINE": "abacus"}).returncode == 2
    assert hosts.run("--engine", "local", "ls").returncode == 0
    assert hosts.run("ls", "--engine", "local", "--host", "gpu1").returncode == 2
