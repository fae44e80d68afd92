"""sge-template's programs run on pools unchanged: its document's `main.py` and `expensive_task.py`, and its classes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.drop_ins import DropIns
from support.machine import Machine
from support.waiting import wait_until

CHECKOUT = Path(__file__).parent / "sge_checkout"
# What the template itself printed and left for the program in sge_checkout, with its agents in tmux.
RECORDED = json.loads((Path(__file__).parent / "recorded" / "sge.json").read_text())
PATIENCE = 60
RUN = """
import sys, numpy, logging
from sge.jobs import Job
from sge.master import Master
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
"""
WAITS = """
import os, time
def expensive_task(data, gpu_id):
    open(f"began-{data}", "w").close()
    while not os.path.exists(f"go-{data}"):
        time.sleep(0.01)
    return data, gpu_id
"""


def whichever(line: str) -> str:
    """Which of the agents does a job is left to chance."""
    return re.sub(r"\b([Aa]gent) \d", r"\1 N", line)


class Checkout(DropIns):
    """A user's folder with their own two files, where the drop-ins have taken the place of the template's."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        super().__init__(machine, folder / "shims")
        self.place = folder / "checkout"
        shutil.copytree(CHECKOUT, self.place)
        for name in ("start_agents.sh", "gpu_session.py"):
            (self.place / name).symlink_to(self.folder / "bin" / name)
        self.base = self.place / "sge" / "comms"
        self.calls = self.place / "calls"
        python = Path(sys.executable).parent  # its `python` is ours
        self.environ |= {"CALLS": str(self.calls), "PATH": f"{self.folder}/bin:{python}:{machine.environ['PATH']}"}
        self.started: list[subprocess.Popen[str]] = []

    def here(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **more}
        return subprocess.run(words, cwd=self.place, env=environ, capture_output=True, text=True, timeout=PATIENCE)

    def main(self, **more: str) -> list[str]:
        done = self.here("python", "main.py", **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def background(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, cwd=self.place, env=self.environ, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def session(self, agent: int) -> subprocess.Popen[str]:
        """An agent in a terminal, which is ready."""
        process = self.background("python", str(self.folder / "bin" / "gpu_session.py"), str(agent), "sge/comms/")
        wait_until((self.base / "agent_pool" / f"{agent}.POOL").exists, PATIENCE)
        return process

    def called(self) -> list[Any]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def agents_said(self) -> list[str]:
        """In their logs, without the time."""
        logs = [path.read_text() for path in (self.base / "log").iterdir()]
        assert all(re.match(r"\d\d:\d\d:\d\d: ", line) for log in logs for line in log.splitlines())
        return sorted(whichever(line.partition(": ")[2]) for log in logs for line in log.splitlines())

    def leased(self) -> list[int]:
        return sorted(
            device["index"] for device in self.machine.json("status")["devices"] if device["state"] == "leased"
        )

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        pools = [pool["name"] for pool in self.machine.json("pool", "ls")["pools"]]
        if pools:
            self.machine.run("pool", "stop", "--now", *pools)


@pytest.fixture
def checkout(machine: Machine, tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(machine, tmp_path)
    yield made
    made.close()


# -------------------------------------------------------------------- the document's programs


def test_main_and_expensive_task_run_unchanged_cold_and_hot(checkout: Checkout) -> None:
    lines = checkout.main()
    assert re.fullmatch(r"Started agent 0 as pool sge-[0-9a-f]{8}-0", lines[0])
    assert re.fullmatch(r"Started agent 1 as pool sge-[0-9a-f]{8}-1", lines[1])
    assert sorted(map(whichever, lines[2:])) == RECORDED["master"]
    assigned = [line for line in lines if line.startswith("Assigned")]
    assert [line.split()[2] for line in assigned] == [f"job_{number}" for number in range(10)]
    assert {line.rpartition(" ")[2] for line in assigned} == {"0.", "1."}
    assert {call["device"] for call in checkout.called()} == {"cuda:0", "cuda:1"}
    assert len(checkout.called()) == 10
    assert checkout.leased() == [0, 1]  # the agents stay, and hold their GPUs
    assert checkout.agents_said() == RECORDED["agents"]
    files = [path for path in checkout.base.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(checkout.base)) for path in files) == RECORDED["files"]

    # The second program is hot: the same processes, with new shared data.
    pids = {call["pid"] for call in checkout.called()}
    checkout.calls.unlink()
    main = checkout.place / "main.py"
    main.write_text(main.read_text().replace("HOT_START = False", "HOT_START = True").replace("eye(4)", "eye(4) * 2"))
    assert len([line for line in checkout.main() if line.startswith("Collected")]) == 10
    assert {call["pid"] for call in checkout.called()} <= pids
    assert {call["shared"][0][0] for call in checkout.called()} == {2.0}
    # To start them again changes nothing.
    again = checkout.here("start_agent.sh", "2", "sge/comms/")
    assert (again.returncode, again.stdout) == (0, "Agent 0 runs already.\nAgent 1 runs already.\n")


def test_agents_join_a_run_and_leave_it_and_no_job_is_lost(checkout: Checkout) -> None:
    (checkout.place / "expensive_task.py").write_text(WAITS)
    checkout.base.joinpath("agent_pool").mkdir(parents=True)
    code = f"{RUN}print(*Master('sge/comms/').run(['a', 'b', 'c']))"
    master = checkout.background("python", "-c", code)
    first = checkout.session(2)
    wait_until((checkout.place / "began-a").exists)  # the master was there before any agent
    assert (checkout.base / "agent_pool" / "2.POOL").read_text() != ""
    second = checkout.session(3)
    wait_until((checkout.place / "began-b").exists)
    assert checkout.leased() == [2, 3]
    first.kill()  # with its job, which another agent does
    wait_until(lambda: checkout.leased() == [3])
    for name in "abc":
        (checkout.place / f"go-{name}").touch()
    out, err = master.communicate(timeout=PATIENCE)
    assert out.splitlines()[-1] == "('a', 3) ('b', 3) ('c', 3)", err
    assert "Dead agent id = 2 found!" in out
    second.send_signal(signal.SIGINT)
    assert second.wait(PATIENCE) == 0
    assert list((checkout.base / "agent_pool").iterdir()) == []
    wait_until(lambda: checkout.leased() == [])


# -------------------------------------------------------------------- its classes


def test_a_job_of_ones_own_passes_data_and_results_as_files(checkout: Checkout) -> None:
    assert checkout.here("start_agents.sh", "1", "sge/comms").returncode == 0
    code = f"""{RUN}
import os, numpy
class Mine(Job):
    def deploy(self, sge_job_id, base_path):
        path = f"{{base_path}}/job_pool/{{sge_job_id}}.npz"
        numpy.savez(path, matrix_a=self.data, matrix_b=numpy.ones((2, 2)), name=self.name)
        return True
    def collect(self, base_path):
        try:
            with numpy.load(f"{{base_path}}/result_pool/{{self.name}}.npz") as found:
                self.result = float(found["result"]), found["matrix_a"].tolist(), str(found["name"])
            return True
        except FileNotFoundError:
            return False
numpy.savez("shared.npz", matrix_c=numpy.eye(2))
print(Master("sge/comms", shared_data_path="shared.npz").run([Mine("mine", numpy.eye(2))]))
"""
    done = checkout.here("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[(2.0, [[1.0, 0.0], [0.0, 1.0]], 'mine')]"
    assert list((checkout.base / "job_pool").iterdir()) == []  # the agent has taken it


def test_tasks_may_be_plain_arguments_and_an_error_is_raised_when_the_rest_is_done(checkout: Checkout) -> None:
    (checkout.place / "expensive_task.py").write_text("def expensive_task(a, b=1): return a / b\n")
    assert checkout.here("start_agents.sh", "1", "sge/comms").returncode == 0
    code = f"{RUN}master = Master('sge/comms')\n"
    code += "assert master.logger.name == 'sge.master'\n"
    code += "print(master.run([(6, 3), {'a': 4}, 5, *(Job('x', {'a': [8.0], 'b': 2}) for _ in range(9))]))\n"
    code += "assert list(master.known_agents) == ['0'] and master.known_agents['0'].is_alive()\n"
    code += "limited = Master('sge/comms', max_jobs=2); limited.run([1, 2, 3, 4]); print(limited.count_jobs)\n"
    code += "jobs = [Job('bad', {'a': 1, 'c': 0}), Job('good', {'a': 3})]\n"
    code += "try: master.run(jobs)\nexcept TypeError as error: print(type(error).__name__, jobs[1].result)\n"
    done = checkout.here("python", "-c", code)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if not re.match("New|Assigned|Collected", line)]
    assert shown[0] == "[2.0, 4.0, 5.0" + ", array([4.])" * 9 + "]"
    assert 2 <= int(shown[1]) <= 3
    assert shown[2].startswith("Job bad failed: TypeError")
    assert shown[3] == "TypeError 3.0"


def test_the_classes_work_by_hand_and_from_gpulease_itself(checkout: Checkout) -> None:
    (checkout.place / "expensive_task.py").write_text("def expensive_task(n): return int(n) + 1\n")
    assert checkout.here("start_agents.sh", "1", "sge/comms").returncode == 0
    code = """
import time, sge.agent, sge.jobs, sge.master
from gpulease.compat.sge import Agent, Job, JobPool, Master
assert (sge.agent.Agent, sge.jobs.Job, sge.jobs.JobPool, sge.master.Master) == (Agent, Job, JobPool, Master)
agent = Agent(sge_job_id="0", base_path="sge/comms/", shared_data_path=None)
pool = JobPool(to_distribute=[Job("one", {"n": 1})], base_path="sge/comms/")
while not agent.is_available(): time.sleep(0.01)
pool.distribute(agent)
(job,) = pool.to_collect
while not pool.is_finished(): pool.collect()
print(job.name, job.result, job.sge_job_id, agent.is_available())
"""
    done = checkout.here("python", "-c", code)
    assert (done.stdout, done.returncode) == ("one 2 0 True\n", 0), done.stderr


# -------------------------------------------------------------------- GPUs


def test_an_agent_waits_for_a_gpu_that_another_holds_and_is_used_when_it_has_it(checkout: Checkout) -> None:
    (checkout.place / "expensive_task.py").write_text("def expensive_task(n, gpu_id): return n, gpu_id\n")
    holder = checkout.background(*checkout.machine.words("run", "--devices", "0", "--", "sleep", "600"))
    wait_until(lambda: checkout.leased() == [0])
    started = checkout.here("start_agents.sh", "1", "sge/comms/")
    assert started.stdout.endswith("; it waits for its GPU\n"), started.stderr
    master = checkout.background("python", "-c", f"{RUN}print(Master('sge/comms/').run([7]))")
    assert master.stdout is not None
    assert master.stdout.readline() == "No agent in sge/comms/ yet; waiting for one.\n"
    holder.kill()
    assert master.communicate(timeout=PATIENCE)[0].splitlines()[-1] == "[(7, 0)]"


def test_gpu_id_counts_among_the_devices_that_the_session_sees(checkout: Checkout) -> None:
    text = "import os\ndef expensive_task(n, gpu_id): return gpu_id, os.environ.get('CUDA_VISIBLE_DEVICES')\n"
    (checkout.place / "expensive_task.py").write_text(text)
    assert checkout.here("start_agents.sh", "2", "sge/comms/", CUDA_VISIBLE_DEVICES="3,1").returncode == 0
    assert checkout.leased() == [1, 3]
    done = checkout.here("python", "-c", f"{RUN}print(set(Master('sge/comms/').run(list(range(20)))))")
    assert "(0, '3,1')" in done.stdout, done.stderr
    refused = checkout.here("start_agents.sh", "3", "sge/comms/", CUDA_VISIBLE_DEVICES="3,1")
    assert (refused.returncode, refused.stderr) == (
        1,
        "gpulease: There is no GPU 2: 2 can be seen here.\nSee `gpulease status`.\n",
    )


def test_more_agents_than_gpus_are_refused_before_one_starts(checkout: Checkout) -> None:
    refused = checkout.here("start_agents.sh", "6", "sge/comms/")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "gpulease: There is no GPU 5: 4 can be seen here.\nSee `gpulease status`.\n"
    assert checkout.machine.json("pool", "ls")["pools"] == []
    assert checkout.leased() == []


def test_a_python_without_gpulease_takes_the_one_that_wrote_the_drop_ins(checkout: Checkout) -> None:
    bare = Path(sys.base_prefix, "bin", "python3")
    if subprocess.run([bare, "-c", "import gpulease"], capture_output=True).returncode == 0:
        pytest.skip("the system's own Python has gpulease")
    (checkout.place / "expensive_task.py").write_text("def expensive_task(n): return n * 2\n")
    (checkout.place / "bin").mkdir()
    (checkout.place / "bin" / "python").symlink_to(bare)
    path = f"{checkout.place}/bin:{checkout.environ['PATH']}"
    done = checkout.here("start_agents.sh", "1", "sge/comms/", PATH=path)
    assert done.returncode == 0, done.stderr
    done = checkout.here(
        "python", "-c", "from sge.master import Master; print(Master('sge/comms/').run([4]))", PATH=path
    )
    assert done.stdout == "[8]\n", done.stderr


def test_what_is_wrong_is_said(checkout: Checkout) -> None:
    usage = checkout.here("start_agent.sh", "2")
    assert (usage.returncode, usage.stdout) == (1, "")  # the template's code
    assert checkout.here("./start_agents.sh").returncode == 1
    assert usage.stderr.endswith("Usage: start_agents.sh NUMBER_OF_AGENTS BASE_FOLDER\n")
    assert checkout.here("gpu_session.py", "x", "base").returncode == 1
    (checkout.place / "expensive_task.py").write_text("raise RuntimeError('no model here')\n")
    broken = checkout.here("start_agents.sh", "1", "sge/comms/")
    assert broken.returncode == 1
    assert "no model here" in broken.stderr
    assert "Traceback" not in broken.stderr
    missing = checkout.here("python", "-c", f"{RUN}Master('nowhere/')")
    assert "FileNotFoundError" in missing.stderr
    assert os.listdir(checkout.base / "agent_pool") == []
