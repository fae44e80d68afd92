"""What Prometheus is told: names and units as promised, a bounded number of series, sums that never fall."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from support.needs import program
from support.queue_site import QueueSite
from support.waiting import wait_until
from support.web_site import Web, site, start_web, web, web_site

from gpulease.model.spans import Activity, Span, SpanHolder, SpanUse
from gpulease.render import metrics
from gpulease.render.metrics import text

FIXTURES = (site, web, web_site)
NAMES = {
    "gpulease_up", "gpulease_gpu_info", "gpulease_lease_info", "gpulease_gpus", "gpulease_waiting",
    "gpulease_gpu_held_seconds_total", "gpulease_gpu_busy_seconds_total", "gpulease_wait_seconds",
    "gpulease_gpu_outside_processes", "gpulease_gpu_known_seconds_total", "gpulease_gpu_idle_seconds_total",
    "gpulease_gpu_utilization_ratio", "gpulease_gpu_memory_used_bytes", "gpulease_gpu_memory_total_bytes",
}  # fmt: skip
PROMTOOL = shutil.which("promtool")


def values(told: str, name: str) -> dict[str, float]:
    """By labels, as they are written."""
    found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", told, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def total(told: str, name: str) -> float:
    return sum(values(told, name).values())


def test_promtool_accepts_it_and_the_names_are_those_promised(site: QueueSite) -> None:
    site.until(site.shell("sleep 60", name='a "name"\\\n', request={"gpus": 2}), "running")
    waiting = site.shell("true", request={"gpus": 4})
    site.until(waiting, "waiting")
    wait_until(lambda: site.run("stop").returncode == 0)  # so that the first minute is written
    site.ensure_broker()
    reply = wait_until(lambda: one if "held_seconds_total{" in (one := site.run("metrics").stdout) else None)
    assert set(re.findall(r"^# TYPE (\S+)", reply, re.MULTILINE)) == NAMES
    assert values(reply, "gpulease_gpus")['{state="leased"}'] == 2
    assert total(reply, "gpulease_waiting") == 1
    assert total(reply, "gpulease_lease_info") == 2
    assert total(reply, "gpulease_wait_seconds_count") >= 1
    assert "sleep" not in reply
    done = subprocess.run([program("promtool"), "check", "metrics"], input=reply, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sums_never_fall_though_the_broker_is_killed(site: QueueSite) -> None:
    site.until(site.shell("sleep 60"), "running")
    site.run("stop")
    site.ensure_broker()
    before = site.ask("totals")
    assert before["granted"] >= 1
    assert before["held"]
    for _ in range(2):
        site.restart()
        after = site.ask("totals")
        assert after["granted"] >= before["granted"]
        assert all(after["held"][user] >= seconds for user, seconds in before["held"].items())
        before = after


def test_the_page_s_server_tells_the_same_to_who_has_the_token(site: QueueSite, web: Web) -> None:
    assert web.ask("/metrics", Host="localhost").status == 403
    id = site.shell("sleep 60")
    reply = wait_until(lambda: one if f'lease="J{id}"' in (one := web.ask("/metrics").text) else None)
    assert values(reply, "gpulease_up") == {"": 1}
    assert web.ask("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_a_file_for_the_collector_is_whole_at_any_time(site: QueueSite) -> None:
    path = site.folder / "gpulease.prom"
    path.write_text("before\n")
    with path.open() as reader:  # who reads while it is written has the old one
        assert site.run("metrics", "--textfile", str(path)).returncode == 0
        assert reader.read() == "before\n"
    assert "gpulease_up 1\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in site.folder.iterdir() if "prom" in one.name] == ["gpulease.prom"]
    done = site.run("metrics", "--textfile", "/nonexistent/gpulease.prom")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_dcgm_exporter_finds_the_lease_of_each_gpu(site: QueueSite) -> None:
    folder = site.folder / "map"
    folder.mkdir()
    id = site.shell("sleep 60", request={"devices": ["2"]})
    site.until(id, "running")
    assert site.run("metrics", "--dcgm-mapping", str(folder)).stdout == ""
    assert {one.name: one.read_text() for one in folder.iterdir()} == {"2": f"J{id}\n"}
    start_web(site, "--dcgm-mapping", str(folder))  # nobody looks at it
    other = site.shell("sleep 60", request={"devices": ["0"]})
    site.act("kill", id)
    wait_until(lambda: {one.name: one.read_text() for one in folder.iterdir()} == {"0": f"J{other}\n"})


def test_the_dashboard_asks_for_nothing_that_is_not_told(site: QueueSite) -> None:
    dashboard = json.loads(site.run("metrics", "--dashboard").stdout)
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"gpulease_\w+", asked)}
    assert used <= NAMES
    (idle,) = (panel["targets"][-1]["expr"] for panel in dashboard["panels"] if "idle" in panel["title"])
    assert "gpulease_gpu_idle_seconds_total" in idle, "a GPU that is half busy is not half idle"
    assert "busy" not in idle
    assert site.run("metrics", "--dashboard", "--textfile", "x").returncode == 2


def test_the_query_of_the_page_answers_where_leases_share_a_gpu(tmp_path: Path) -> None:
    """The other way round Prometheus refuses it: many leases on the side of which there may be one."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md").read_text()
    (query,) = re.findall(r"^gpulease.* group_left .*$", page, re.MULTILINE)
    on = 'instance="lab",uuid="GPU-0"'
    leases = [f'{{{on},user="ada",lease="{lease}"}}' for lease in ("L1", "L2")]
    series = {f"gpulease_gpu_utilization_ratio{{{on}}}": "0.5", **{f"gpulease_lease_info{one}": "1" for one in leases}}
    expected = {"expr": query, "eval_time": "0m", "exp_samples": [{"labels": one, "value": 0.5} for one in leases]}
    asked = {"input_series": [{"series": name, "values": value} for name, value in series.items()]}
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [{**asked, "promql_expr_test": [expected]}]}))
    words = [program("promtool"), "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_broker_it_says_so_and_what_is_seen(tmp_path: Path) -> None:
    reply = text({"broker": None, "devices": [], "leases": []}, None)
    assert "gpulease_up 0\n" in reply
    assert "held" not in reply


def test_what_is_added_up_is_what_was_held_and_each_wait_is_in_one_bucket() -> None:
    span = Span(
        Activity(), {SpanHolder("ada"): SpanUse(3000, 2500, 1500, 200), SpanHolder("bob", outside=True): SpanUse(9000)}
    )
    amounts = metrics.of_spans([span, span])
    for wait in (0, 1000, 1001, 59_999, 10**9):
        metrics.add(amounts, metrics.of_wait(wait))
    shown = metrics.shown(amounts, None)
    assert (shown["held"], shown["busy"]) == ({"ada": 6.0}, {"ada": 3.0})
    assert (shown["known"], shown["idle"]) == ({"ada": 5.0}, {"ada": 0.4})
    assert shown["waits"][:3] == [[1, 2], [10, 3], [60, 4]]
    assert (shown["waits"][-1][1], shown["granted"]) == (4, 5)
    assert metrics.shown(amounts, "bob")["held"] == {}


def test_labels_are_escaped() -> None:
    document = {"broker": {}, "devices": [], "line": [], "line_length": 3, "leases": []}
    sums = {
        "held": {'a"b\\c\nd': 1.5},
        "known": {},
        "busy": {},
        "idle": {},
        "waits": [[1, 0]],
        "granted": 0,
        "waited": 0.0,
    }
    reply = text(document, sums)
    assert 'gpulease_gpu_held_seconds_total{user="a\\"b\\\\c\\nd"} 1.5\n' in reply
    assert 'gpulease_waiting{reason="further-back"} 3\n' in reply
