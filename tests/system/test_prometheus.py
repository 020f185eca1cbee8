"""A real Prometheus, with the discovery file of a real Ray, evaluates our alerts and dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

import flinkray
from flinkray.client import ClusterClient
from flinkray.core.errors import JobExecutionError, JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.datastream import (
    MapFunction,
    StreamExecutionEnvironment,
    TimestampAssigner,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DiscardingSink
from flinkray.testing.waiting import wait_until
from tests.ray_client_server import free_port

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="needs Debian's package prometheus"
    ),
]

SHARE = Path(__file__).parents[2] / "share"
RULES = yaml.safe_load((SHARE / "prometheus-alerts.yml").read_text())
DASHBOARD = json.loads((SHARE / "grafana-dashboard.json").read_text())
CLUSTER = "prometheus"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "3",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "5",
    "restart-strategy.fixed-delay.delay": "8 s",
    "rpc.metrics.export-interval": "500 ms",
}
WITHOUT_SERIES = {"Sources that wait for Spark"}
"""Panels of what only jobs with Spark have."""


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=150) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert told["status"] == "success", told
        return told["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    def scrapes(self) -> bool:
        """Whether it has read the endpoint of Ray's node."""
        port = ray.nodes()[0]["MetricsExportPort"]
        targets = self.get("/api/v1/targets")["activeTargets"]
        states = {target["scrapeUrl"]: target["health"] for target in targets}
        return any(state == "up" and f":{port}/" in url for url, state in states.items())

    def series(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> dict[tuple[str, str], str]:
        """Alert and id of the job -> summary."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("job_id", "")): alert["annotations"][
                "summary"
            ]
            for alert in self.get("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
        }


@pytest.fixture(scope="module")
def discovery_file(ray_cluster: object) -> Path:
    """Ray's dashboard writes it."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]
    name = "prom_metrics_service_discovery.json"
    places = [session / name, session / "metrics" / name, session.parent / name]

    def written() -> Path | None:
        port = str(ray.nodes()[0]["MetricsExportPort"])
        return next((it for it in places if it.exists() and port in it.read_text()), None)

    return wait_until(written, 300, "Ray to write its discovery file")


@pytest.fixture(scope="module")
def prometheus(
    discovery_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    configuration = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "2s"},
        "rule_files": [str(SHARE / "prometheus-alerts.yml")],
        "scrape_configs": [
            {"job_name": "ray", "file_sd_configs": [{"files": [str(discovery_file)]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            server = Prometheus(port)
            wait_until(server.is_ready, 300, "Prometheus to be ready")
            yield server
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER, configuration=CONFIGURATION) as client:
        yield client


class Itself(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


class Broken(MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        raise ValueError("this job never works")


def begin(client: ClusterClient, name: str, *functions: MapFunction[Any, Any]) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client).set_parallelism(1)
    env.enable_checkpointing(500)
    by_value = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    stream = env.from_sequence(1, 10**12).assign_timestamps_and_watermarks(by_value).rebalance()
    for function in functions:
        stream = stream.map(function).name("broken")
    stream.sink_to(DiscardingSink()).name("end")
    return env.execute_async(name)


def expression_of(target: dict[str, Any]) -> str:
    """As Grafana asks it when all clusters and jobs are chosen."""
    expression: str = target["expr"]
    return expression.replace("$cluster", ".*").replace("$job", ".*")


def test_alerts_and_panels_name_flinkray_jobs_under_rays_service_discovery(
    client: ClusterClient, prometheus: Prometheus
) -> None:
    """Ray's discovery file gives every series the label job="ray". An alert must not say "Job ray
    was restarted"."""
    unique = uuid.uuid4().hex
    name = f"failing-{unique}"
    running, failing = begin(client, f"running-{unique}"), begin(client, name, Broken())

    def fail_a_call() -> None:
        with pytest.raises(JobNotFoundError):
            client.job(JobID(bytes(16))).status()

    panels = {panel["title"]: panel["targets"] for panel in DASHBOARD["panels"]}
    assert len(panels) == len(DASHBOARD["panels"])
    missing = {
        (title, target["expr"])
        for title, targets in panels.items()
        for target in targets
        if title not in WITHOUT_SERIES
    }

    def every_panel_has_series() -> bool:
        fail_a_call()
        for title, expression in tuple(missing):
            if prometheus.series(expression_of({"expr": expression})):
                missing.discard((title, expression))
        return not missing

    wait_until(prometheus.scrapes, 300, "Prometheus to scrape Ray's endpoint")
    wait_until(every_panel_has_series, 300, "series of every panel")
    for title in WITHOUT_SERIES:
        for target in panels[title]:
            prometheus.series(expression_of(target))  # Prometheus accepts it
    (jobs,) = (it["query"] for it in DASHBOARD["templating"]["list"] if it["name"] == "job")
    metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", jobs).groups()  # type: ignore[union-attr]
    offered = prometheus.get(
        f"/api/v1/label/{label}/values", **{"match[]": metric.replace("$cluster", ".*")}
    )
    assert {name, f"running-{unique}"} <= set(offered), "what the dashboard's $job offers"
    shown = prometheus.series("ray_flinkray_taskmanager_job_task_num_records_out")
    assert f"running-{unique}" in {one["metric"]["job_name"] for one in shown}
    assert {one["metric"]["job"] for one in shown} == {"ray"}
    assert not [one for one in shown if [it for it in one["metric"] if it.startswith("exported_")]]

    failing_id = failing.get_job_id().hex()
    restarts = ("FlinkrayJobRestarts", failing_id)
    wait_until(lambda: restarts in prometheus.firing(), 300, "the alert about restarts")
    assert f"Job {name} was restarted" in prometheus.firing()[restarts]
    with pytest.raises(JobExecutionError):
        failing.get_job_execution_result().result(300)
    failed = ("FlinkrayJobFailed", failing_id)
    wait_until(lambda: failed in prometheus.firing(), 300, "the alert about the failed job")
    assert prometheus.firing()[failed] == f"Job {name} has failed"

    running_id = running.get_job_id().hex()
    assert [alert for alert, job_id in prometheus.firing() if job_id == running_id] == []
    states = {
        (one["metric"]["job_id"], one["metric"]["state"])
        for one in prometheus.series("ray_flinkray_jobmanager_job_state == 1")
    }
    assert {(running_id, "RUNNING"), (failing_id, "FAILED")} <= states
    for group in RULES["groups"]:
        for rule in group["rules"]:
            prometheus.series(rule["expr"])  # Prometheus accepts it
    running.cancel().result(300)


OF_JOB = f'cluster_id="{CLUSTER}", job_name="flights", job_id="0a", job="ray"'
JOB = "ray_flinkray_jobmanager_job_"
TASK = "ray_flinkray_taskmanager_job_task_"
OF_TASK = f'{OF_JOB}, vertex="map", subtask="0"'
OF_CLUSTER = f'cluster_id="{CLUSTER}", job="ray"'

SITUATIONS: dict[str, tuple[dict[str, str], str]] = {
    "FlinkrayJobFailed": ({f'{JOB}state{{{OF_JOB}, state="FAILED"}}': "1x15"}, "1m"),
    "FlinkrayJobIsDown": ({f"{JOB}downtime{{{OF_JOB}}}": "0+60000x60"}, "7m"),
    "FlinkrayJobDoesNotRun": (
        {
            f'{JOB}state{{{OF_JOB}, state="RESTARTING"}}': "1 1 1 _ _ stale 1 1 1 1 1",
            f'{JOB}state{{{OF_JOB}, state="FAILING"}}': "_ _ _ 1 1 1 stale",
        },
        "8m",
    ),
    "FlinkrayJobRestarts": ({f"{JOB}num_restarts{{{OF_JOB}}}": "0+1x20"}, "10m"),
    "FlinkrayCheckpointsFail": (
        {f"{JOB}number_of_failed_checkpoints{{{OF_JOB}}}": "0+1x20"},
        "15m",
    ),
    "FlinkrayCheckpointsFailInARow": (
        {f"{JOB}number_of_consecutive_failed_checkpoints{{{OF_JOB}}}": "0 3 6 9 10 10 10"},
        "5m",
    ),
    "FlinkrayCheckpointIsOld": ({f"{JOB}last_checkpoint_age{{{OF_JOB}}}": "0+60000x60"}, "33m"),
    "FlinkrayBackPressure": (
        {f"{TASK}back_pressured_time_ms_per_second{{{OF_TASK}}}": "900x20"},
        "16m",
    ),
    "FlinkraySourceWaitsForSpark": ({f"{TASK}is_held{{{OF_TASK}}}": "1x40"}, "31m"),
    "FlinkrayNoFreeSlots": (
        {
            f"ray_flinkray_jobmanager_num_jobs_short_of_slots{{{OF_CLUSTER}}}": "1x10",
            f"ray_flinkray_jobmanager_task_slots_available{{{OF_CLUSTER}}}": "0x10",
        },
        "6m",
    ),
    "FlinkrayNoDispatcher": ({f"ray_flinkray_rpc_connections{{{OF_CLUSTER}}}": "3x10"}, "3m"),
    "FlinkrayNoResourceManager": ({f"ray_flinkray_rpc_connections{{{OF_CLUSTER}}}": "3x10"}, "3m"),
}
"""Alert -> series as promtool writes them, one value a minute, and when it fires."""


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES["groups"][0]["rules"]])
def test_each_alert_fires_in_its_situation_and_names_the_job_or_the_cluster(
    alert: str, tmp_path: Path
) -> None:
    """Except FlinkrayJobFailed, an alert does not fire at the beginning of its situation."""
    series, when = SITUATIONS[alert]
    (rule,) = (it for it in RULES["groups"][0]["rules"] if it["alert"] == alert)
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    expected = {
        "interval": "1m",
        "input_series": inputs,
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                "eval_time": when,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    if alert != "FlinkrayJobFailed":
        expected["alert_rule_test"] = [{"alertname": alert, "eval_time": "0m", "exp_alerts": []}]
    tests = {
        "rule_files": [str(SHARE / "prometheus-alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [expected],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "tests.yml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = rule["annotations"]["summary"] + rule["annotations"].get("description", "")
    assert "$labels.job_name" in text or "$labels.cluster_id" in text
