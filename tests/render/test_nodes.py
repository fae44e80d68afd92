"""Nodes by the hundred in few lines."""

from __future__ import annotations

from typing import Any

from gpulease.model.quantities import folded_names
from gpulease.render.hosts import joined, node_lines
from gpulease.render.status import lines
from gpulease.render.terminal import Terminal
from gpulease.slurm.doctor import findings_of_check, gpus, partitions, read_node_check
from gpulease.slurm.fields import hosts
from gpulease.slurm.status import device_rows


def node(number: int, **more: Any) -> dict[str, Any]:
    return {"name": f"node{number:03d}", "gres": "gpu:a100:8", "state": "idle", "gres_used": "", **more}


def document(nodes: list[dict[str, Any]], leases: list[Any]) -> dict[str, Any]:
    reply = {"host": "lab", "simulated": False, "driver": None, "time": 0.0, "sample_age": 0.0, "trouble": None}
    broker = {"kind": "slurm", "version": "22.05"}
    devices = device_rows(nodes, leases)
    return {**reply, "broker": broker, "devices": devices, "leases": leases, "line": [], "line_length": 0}


def test_200_nodes_are_a_few_lines_with_all_that_matters() -> None:
    nodes = [node(number) for number in range(1, 201)]
    nodes[6] = node(7, state="idle", state_flags=["DRAIN"], reason="fan")
    lease: Any = {"id": "12", "user": "ada", "labels": ["node009:0", "node009:1"]}
    reply = lines(document(nodes, [lease]), Terminal(), 0.0)
    assert len(reply) < 10
    text = "\n".join(reply)
    assert "lab: 1600 GPUs, 1590 free" in text
    assert "node[001-006,008,010-200]" in text
    busy = next(line for line in reply if line.startswith("node009"))
    assert " ".join(busy.split()) == "node009 8 a100 6 LL...... ada 2"
    assert "drained: fan" in next(line for line in reply if line.startswith("node007"))


def test_a_few_nodes_are_shown_gpu_by_gpu() -> None:
    assert len(lines(document([node(1), node(2)], []), Terminal(), 0.0)) > 16
    assert "NODE" in node_lines(document([node(1)], []), Terminal())[0]


def test_reasons_that_are_alike_share_a_row() -> None:
    rows = [(f"n{number}", "0 of 8 GPUs are held") for number in range(200)]
    rows[3] = ("n3", "node n3 is drained: fan")
    rows[4] = ("n4", "node n4 is drained: fan")
    assert joined(rows) == [("n[0-2,5-199]", "0 of 8 GPUs are held"), ("n[3-4]", "it is drained: fan")]
    assert joined(rows[:5]) == rows[:5]


def test_names_are_folded_as_slurm_writes_them() -> None:
    names = ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert folded_names(names) == "gpu[01-03,7], login"
    assert sorted(hosts(folded_names(names).replace(" ", ""))) == sorted(names)
    assert folded_names(["a9", "a10", "a11", "b"]) == "a[9-11], b"


def test_partitions_gpus_folders_and_clocks_are_judged() -> None:
    reply = "main*|up|gpu:a100:4\nmain*|up|(null)\ncpu|up|(null)\nold|down|gpu:k80:2\n"

    def level(chosen: str | None, text: str = reply) -> list[str]:
        return [row[0] for row in partitions(text, chosen)]

    assert (level(None), level("cpu"), level("old"), level("x"), level("main,x")) == (
        ["ok"], ["error"], ["error"], ["error"], ["ok", "error"],
    )  # fmt: skip
    assert level(None, "cpu|up|(null)\n") == ["error"]
    assert [row[0] for row in gpus([node(1, gres="")])] == ["error"]
    seen = read_node_check("noise\ngpulease-node n1 yes 1000\ngpulease-node n2 no 1200\ngpulease-node n3 yes x\n")
    assert seen == [("n1", True, 1000.0), ("n2", False, 1200.0)]
    found = list(findings_of_check(seen, "/home/ada/x", 999.0, 1001.0))
    assert [(row[0], row[1]) for row in found] == [("error", "records"), ("error", "clocks")]
    assert "not there on n2" in found[0][2]
    assert "the clock of n2 differs" in found[1][2]
