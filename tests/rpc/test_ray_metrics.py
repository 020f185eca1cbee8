"""The figures of calls, where Ray shows them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import ray

from flinkray.rpc import MetricSample, RayRpcService
from flinkray.rpc.calls.metrics import BUCKETS, LatencyHistogram
from flinkray.rpc.ray.metrics import MetricsExporter, since
from tests.rpc.endpoints import EchoGateway, OrderError, echo_spec

pytestmark = pytest.mark.ray


def figures(process: str) -> dict[tuple[str, str, str], float]:
    """By name, method (or nothing) and side (or quantile): from the endpoint of Ray's node."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for line in text.splitlines():
        sample = re.fullmatch(r"(ray_flinkray_\w+)\{(.*)\} (\S+)", line)
        if sample is None:
            continue
        name, tags_text, value = sample.groups()
        tags: dict[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', tags_text))
        if tags["process"] == process:
            side = tags.get("quantile", tags.get("side", ""))
            found[name, tags.get("method", ""), side] = float(value)
    return found


async def until(
    service: RayRpcService,
    process: str,
    wanted: Callable[[dict[tuple[str, str, str], float]], bool],
) -> dict[tuple[str, str, str], float]:
    """The figures, as soon as they are as wanted."""
    while True:
        found = await service.run_blocking(figures, process)
        if wanted(found):
            return found
        await asyncio.sleep(0.2)  # Ray collects them every few seconds


async def test_call_metrics_are_exported_on_both_sides_and_gauges_while_they_have_samples(
    ray_cluster: None,
) -> None:
    name = f"driver-{uuid.uuid4().hex}"
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", name)
    service.metrics_export_interval = 0.1
    gauge = ("ray_flinkray_depth", "", "")
    samples = [MetricSample("flinkray_depth", "Of a queue.", 7.0, {"queue": "one"})]
    service.samplers.append(lambda: iter(samples))
    echo = await service.connect(await service.spawn(echo_spec(f"worker-{name}")), EchoGateway)
    for number in range(50):
        await echo.echo(number)
    with pytest.raises(OrderError):
        await echo.fail("order")

    def of_side(side: str, *others: tuple[str, str, str]) -> Callable[[dict[Any, float]], bool]:
        """Whether all metrics of *side* and *others* are there: Ray collects one after another."""
        calls = ("ray_flinkray_rpc_calls_total", "EchoGateway.echo", side)
        wanted = {
            ("ray_flinkray_rpc_calls_total", "EchoGateway.fail", side),
            ("ray_flinkray_rpc_failures_total", "EchoGateway.fail", side),
            *(("ray_flinkray_rpc_latency_seconds", "EchoGateway.echo", q) for q in ("0.5", "0.99")),
            *others,
        }
        return lambda found: wanted <= found.keys() and found.get(calls, 0) >= 50

    connections = ("ray_flinkray_rpc_connections", "", "")
    calling, called = await asyncio.wait_for(
        asyncio.gather(
            until(service, name, of_side("calling", gauge, connections)),
            until(service, f"worker-{name}", of_side("called")),
        ),
        120,
    )
    for side, found in (("calling", calling), ("called", called)):
        assert found["ray_flinkray_rpc_calls_total", "EchoGateway.echo", side] == 50
        assert found["ray_flinkray_rpc_calls_total", "EchoGateway.fail", side] == 1
        assert found["ray_flinkray_rpc_failures_total", "EchoGateway.fail", side] == 1
        assert ("ray_flinkray_rpc_failures_total", "EchoGateway.echo", side) not in found
        median = found["ray_flinkray_rpc_latency_seconds", "EchoGateway.echo", "0.5"]
        assert 0 < median <= found["ray_flinkray_rpc_latency_seconds", "EchoGateway.echo", "0.99"]
    assert calling[connections] == 1
    assert calling[gauge] == 7
    samples.clear()
    await asyncio.wait_for(until(service, name, lambda found: gauge not in found), 60)
    await service.close()


async def test_no_metrics_are_exported_without_an_export_interval(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = asyncio.Event()
    monkeypatch.setattr(MetricsExporter, "export", lambda *_: exported.set())
    monkeypatch.setattr(RayRpcService, "metrics_export_interval", 0.0)
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    (exporting,) = (t for t in asyncio.all_tasks() if "_export_metrics" in repr(t.get_coro()))
    await exporting
    assert not exported.is_set()
    await service.close()


UNCLEAN = """
import sys
import ray
from flinkray.client.loop_thread import LoopThread
from flinkray.rpc import RayRpcService

ray.init(address=sys.argv[1], log_to_driver=False)
RayRpcService.metrics_export_interval = 0.001
LoopThread("client").run(RayRpcService.open("rpc-unclean"))
print("opened")
"""


def test_program_that_does_not_close_its_service_ends_without_error_output(
    ray_cluster: None,
) -> None:
    """The exports continue when the interpreter does not start threads any more."""
    ended = subprocess.run(
        [sys.executable, "-c", UNCLEAN, ray.get_runtime_context().gcs_address],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RAY_AUTH_MODE": "token"},
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "opened\n"), ended.stderr
    assert "export metrics" not in ended.stderr
    assert "cannot schedule" not in ended.stderr


def test_exported_latencies_are_those_since_the_last_export() -> None:
    before = LatencyHistogram((1, 0, 2, *[0] * (BUCKETS - 3)), 4.0)
    now = LatencyHistogram((1, 5, 3, *[0] * (BUCKETS - 3)), 5.5)
    assert since(now, before) == LatencyHistogram((0, 5, 1, *[0] * (BUCKETS - 3)), 1.5)
