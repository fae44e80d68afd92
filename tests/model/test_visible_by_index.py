"""Programs that take CUDA_VISIBLE_DEVICES for numbers get numbers, if they, their variable or the broker says so."""

from __future__ import annotations

from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

SHOW = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER")
INDEX = "--visible-by", "index"


def job_output(queue: QueueSite, *words: str, **more: str) -> str:
    id = queue.run("add", *words, "--", *SHOW, **more).stdout.strip()
    assert queue.run("wait", id).returncode == 0
    return queue.run("log", id).stdout


def test_each_verb_takes_it_as_an_option(queue: QueueSite) -> None:
    assert queue.run("run", "--devices", "1", *INDEX, "--", *SHOW).stdout == "1 PCI_BUS_ID\n"
    assert queue.run("select", "--devices", "0,3", *INDEX, "--", *SHOW).stdout == "0,3 PCI_BUS_ID\n"
    assert "export CUDA_VISIBLE_DEVICES=3\n" in queue.run("select", "-d", "3", *INDEX, "--export").stdout
    exported = queue.run("get", "--devices", "2", "--for", "1h", "--export", *INDEX).stdout
    assert "export CUDA_VISIBLE_DEVICES=2\n" in exported
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in exported
    assert job_output(queue, "--devices", "1", *INDEX) == "1 PCI_BUS_ID\n"
    assert queue.run("shell", "--devices", "1", *INDEX, SHELL="/usr/bin/env").stdout.count("CUDA_VISIBLE_DEVICES=1\n")
    assert queue.run("run", "--visible-by", "number", "--", "true").returncode == 2


def test_a_variable_serves_everything_below_it_and_an_option_wins(queue: QueueSite) -> None:
    index = {"GPULEASE_VISIBLE": "index"}
    assert queue.run("run", "--devices", "1", "--", *SHOW, **index).stdout == "1 PCI_BUS_ID\n"
    assert queue.run("run", "--devices", "1", "--visible-by", "uuid", "--", *SHOW, **index).stdout.startswith("GPU-")
    assert job_output(queue, "--devices", "2", **index) == "2 PCI_BUS_ID\n"
    assert job_output(queue, "--devices", "2", "--visible-by", "uuid", **index).startswith("GPU-")
    done = queue.run("run", "--devices", "1", "--", "true", GPULEASE_VISIBLE="number")
    assert done.returncode == 2
    assert "GPULEASE_VISIBLE" in done.stderr


def test_the_brokers_parameter_is_the_default_of_all(queue: QueueSite) -> None:
    assert queue.run("run", "--devices", "1", "--", *SHOW).stdout.startswith("GPU-")
    assert queue.run("set", "visible", "index").returncode == 0
    assert queue.run("run", "--devices", "1", "--", *SHOW).stdout == "1 PCI_BUS_ID\n"
    assert queue.run("select", "--devices", "2", "--", *SHOW).stdout == "2 PCI_BUS_ID\n"
    assert job_output(queue, "--devices", "3") == "3 PCI_BUS_ID\n"
    assert queue.run("run", "--devices", "1", "--visible-by", "uuid", "--", *SHOW).stdout.startswith("GPU-")
    assert queue.run("set", "visible", "number").returncode == 2


PROGRAM = """
import os, gpulease

def seen(): return os.environ["CUDA_VISIBLE_DEVICES"]

with gpulease.acquire(devices=[1, 2], gpus=2, visible_by="index") as lease:
    assert seen() == "1,2" == lease.environment["CUDA_VISIBLE_DEVICES"], seen()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
assert "CUDA_VISIBLE_DEVICES" not in os.environ
assert gpulease.select(devices=3, visible_by="index") == "3" == seen()
job = gpulease.submit(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], devices=2, visible_by="index")
assert job.wait(60) == "complete" and job.log() == "2\\n", job.log()

def nested():
    with gpulease.Pool(1) as pool:
        return seen(), pool.submit(seen).result(60)

with gpulease.Pool(2, gpus_per_worker=2, devices="0,3", visible_by="index") as pool:
    assert pool.submit(nested).result(60) == ("0,3", "0")
for wrong in (lambda: gpulease.acquire(visible_by="x"), lambda: gpulease.Pool(1, visible_by="x")):
    try:
        wrong()
    except ValueError as error:
        assert "visible_by" in str(error)
    else:
        raise AssertionError
print("done")
"""


def test_python_has_it_as_a_parameter_pools_included(queue: QueueSite) -> None:
    process = queue.python(PROGRAM)
    out, error = process.communicate(timeout=60)
    assert out == "done\n", error


def test_a_mig_instance_keeps_its_uuid(queue: QueueSite) -> None:
    queue.set("gpu.1.mig=2")
    assert queue.run("run", "--devices", "1:0", *INDEX, "--", *SHOW).stdout.startswith("MIG-")
