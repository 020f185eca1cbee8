"""Dashboard, alert rules and docs speak of the metrics that are exported, and only of those."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.util.metrics import Gauge

from flinkray.actors.shared.exported_metrics import (
    DESCRIPTIONS,
    exported_name,
    job_tags,
    state_of_job,
)
from flinkray.core.ids import JobID
from flinkray.rpc.calls.metrics import BUCKETS, LatencyHistogram, MethodMetrics, RpcMetrics
from flinkray.rpc.ray.metrics import MetricsExporter
from flinkray.scheduler.shared.states import JobStatus

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "share/grafana-dashboard.json").read_text())
RULES = yaml.safe_load((ROOT / "share/prometheus-alerts.yml").read_text())

OF_TABLE = {exported_name(scope, name) for scope, names in DESCRIPTIONS.items() for name in names}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """With Ray's prefix."""
    told: set[str] = set()
    monkeypatch.setattr(Gauge, "set", lambda self, _value, _tags: told.add(self.info["name"]))
    histogram = LatencyHistogram((0, 1, *[0] * (BUCKETS - 2)), 1e-6)
    calls = RpcMetrics({"EchoGateway.echo": MethodMetrics(1, 1, histogram)})
    MetricsExporter("flinkray-default", "process").export(calls, 0, 0)
    return {f"ray_{name}" for name in told | OF_TABLE}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bray_flinkray_\w+", text))


def expressions_of_dashboard() -> list[str]:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_dashboard_queries_only_exported_metrics(exported: set[str]) -> None:
    queries = [it["query"] for it in DASHBOARD["templating"]["list"]]
    used = names_in("\n".join([*expressions_of_dashboard(), *queries]))
    assert len(used) > 15
    assert used <= exported


def test_metric_names_have_no_capitals() -> None:
    """Ray converts them to lower case, and dashboards would show nothing."""
    assert all(name == name.lower() for name in OF_TABLE)


def test_every_dashboard_panel_is_limited_to_the_chosen_clusters() -> None:
    assert all('cluster_id=~"$cluster"' in each for each in expressions_of_dashboard())


def test_alerts_query_only_exported_metrics(exported: set[str]) -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert names_in(rule["expr"]), rule["alert"]
        assert names_in(rule["expr"]) <= exported
        assert rule["annotations"]["summary"]


def test_no_alert_uses_the_prometheus_function_absent() -> None:
    """An absent metric has no labels: a missing leader in one of two clusters would not be seen,
    and the alert would stay after `flinkray cluster down`."""
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert not [rule["alert"] for rule in rules if "absent" in rule["expr"]]


SCRAPERS = {"job", "instance", "le", "__name__"}
"""Labels that Prometheus gives to what it scrapes, and then ours get other names."""
RAYS = {"Component", "NodeAddress", "NodeId", "SessionName", "Version", "WorkerId", "JobId", "pid"}


def test_no_metric_label_has_a_name_used_by_the_scraper_or_by_ray() -> None:
    """Ray's discovery file sets job="ray": flinkray's label would become exported_job."""
    tags = {"cluster_id", "process", "method", "side", "quantile", "vertex", "subtask", "metric"}
    tags |= job_tags("flights", JobID(bytes(16))).keys()
    (sample,) = state_of_job("flights", JobID(bytes(16)), JobStatus.RUNNING)
    tags |= sample.tags.keys()
    assert tags & (SCRAPERS | RAYS) == set()
    told = "\n".join(
        [*expressions_of_dashboard(), (ROOT / "share/prometheus-alerts.yml").read_text()]
    )
    used = set(re.findall(r"labels\.(\w+)|(\w+)=~?\"", told))
    used |= {(name, "") for by in re.findall(r"by \(([^)]*)\)", told) for name in by.split(", ")}
    assert {one or other for one, other in used} <= tags


def test_metrics_page_lists_every_metric_with_its_description(exported: set[str]) -> None:
    """In the table of its scope."""
    page = (ROOT / "docs/metrics.md").read_text()
    for scope, names in DESCRIPTIONS.items():
        _, _, section = page.partition(f"`ray_{scope}…`")
        section = section.partition("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.M))
        assert {scope + name: text for name, text in rows.items()} == {
            exported_name(scope, name): text for name, text in names.items()
        }
    _, _, of_calls = page.partition("`ray_flinkray_rpc_…`")
    told = set(re.findall(r"`(\w+)`", of_calls.partition("\n## ")[0]))
    of_rpc = {name.removeprefix("ray_flinkray_rpc_") for name in exported if "_rpc_" in name}
    assert told == of_rpc
