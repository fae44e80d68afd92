"""Where the driver hides UUIDs every way to get a GPU names it by its index."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

SHOW = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _hidden(queue: QueueSite) -> None:
    queue.set("fault.middle=nvmlDeviceGetUUID:3")  # NVML_ERROR_NOT_SUPPORTED


def test_commands_get_indices(queue: QueueSite) -> None:
    assert queue.run("run", "--devices", "1", "--", *SHOW).stdout == "1\n"
    assert "CUDA_VISIBLE_DEVICES=2\n" in queue.run("get", "--devices", "2", "--for", "1h", "--export").stdout
    assert queue.run("select", "--devices", "3", "--", *SHOW).stdout == "3\n"
    id = queue.run("add", "--devices", "1", "--", *SHOW).stdout.strip()
    assert queue.run("wait", id).returncode == 0
    assert queue.run("log", id).stdout == "1\n"


def test_programs_get_indices(queue: QueueSite) -> None:
    code = "import gpulease, os; lease = gpulease.acquire(devices=1); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert queue.python(code).communicate(timeout=60)[0] == "1\n"
