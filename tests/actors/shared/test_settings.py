"""The framework's settings come from the configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.actors.shared.settings import (
    apply_rpc_settings,
    default_restart_strategy,
    job_settings,
    with_checkpoint_options,
)
from flinkray.core.config import ReadableConfig
from flinkray.rpc import LocalRpcService, RayRpcService
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    JobGraph,
    NoRestart,
    ParallelismBounds,
    RestartStrategy,
    SchedulerMode,
)
from flinkray.scheduler.reports.job_info import JobSettings
from tests.scheduler.builders import JOB
from tests.scheduler.graphs import python_vertex


async def test_applying_rpc_settings_changes_only_the_configured_settings() -> None:
    service = LocalRpcService("process", ask_timeout=3.0)
    default_frame_size = service.max_frame_size
    apply_rpc_settings(service, ReadableConfig())
    assert (service.ask_timeout, service.max_frame_size) == (3.0, default_frame_size)
    apply_rpc_settings(service, ReadableConfig({"rpc.ask-timeout": "5 s", "rpc.frame-size": "1m"}))
    assert (service.ask_timeout, service.max_frame_size) == (5.0, 2**20)
    pending = {"rpc.max-pending-calls": "7", "rpc.max-pending-bytes": "2m"}
    apply_rpc_settings(service, ReadableConfig(pending))
    assert (service.max_pending_calls, service.max_pending_bytes) == (7, 2**21)
    apply_rpc_settings(service, ReadableConfig({"rpc.metrics.export-interval": "0 s"}))
    assert service.metrics_export_interval == 0
    await service.close()


EXPONENTIAL = {
    "restart-strategy.exponential-delay.initial-backoff": "2 s",
    "restart-strategy.exponential-delay.max-backoff": "20 s",
    "restart-strategy.exponential-delay.backoff-multiplier": "3",
    "restart-strategy.exponential-delay.reset-backoff-threshold": "4 min",
    "restart-strategy.exponential-delay.jitter-factor": "0.5",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": "6",
}
CHECKPOINTS = {"execution.checkpointing.interval": "10 s"}


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({}, NoRestart()),
        ({"restart-strategy.type": "off"}, NoRestart()),
        ({"restart-strategy.type": "fixed-delay"}, FixedDelayRestart(1, 1.0)),
        (
            {
                "restart-strategy.type": "fixeddelay",
                "restart-strategy.fixed-delay.attempts": "4",
                "restart-strategy.fixed-delay.delay": "20 ms",
            },
            FixedDelayRestart(4, 0.02),
        ),
        ({"restart-strategy.type": "failure-rate"}, FailureRateRestart(1, 60.0, 1.0)),
        (
            {
                "restart-strategy.type": "failurerate",
                "restart-strategy.failure-rate.max-failures-per-interval": "7",
                "restart-strategy.failure-rate.failure-rate-interval": "5 min",
                "restart-strategy.failure-rate.delay": "3 s",
            },
            FailureRateRestart(7, 300.0, 3.0),
        ),
        ({"restart-strategy.type": "exponentialdelay"}, ExponentialDelayRestart()),
        (
            {"restart-strategy.type": "exponential-delay", **EXPONENTIAL},
            ExponentialDelayRestart(2.0, 20.0, 3.0, 240.0, 0.5, 6),
        ),
        (CHECKPOINTS, ExponentialDelayRestart()),
        ({**CHECKPOINTS, **EXPONENTIAL}, ExponentialDelayRestart(2.0, 20.0, 3.0, 240.0, 0.5, 6)),
        ({**CHECKPOINTS, "restart-strategy.type": "none"}, NoRestart()),
        ({"execution.checkpointing.interval": "0 s"}, NoRestart()),
    ],
)
def test_restart_strategy_is_read_from_the_configuration(
    settings: dict[str, str], strategy: RestartStrategy
) -> None:
    """FO-14: a job with checkpoints is restarted by default."""
    assert default_restart_strategy(ReadableConfig(settings)) == strategy


def test_checkpoint_options_of_a_job_override_those_of_the_cluster() -> None:
    prefix = "execution.checkpointing."
    cluster = ReadableConfig({f"{prefix}interval": "10 s", f"{prefix}timeout": "1 min"})
    checkpoints = CheckpointConfiguration(max_retained=3)
    configuration = {f"{prefix}timeout": "2 min"}
    job = JobGraph(JOB, "job", (), configuration=configuration, checkpoints=checkpoints)
    assert with_checkpoint_options(job, cluster).checkpoints == CheckpointConfiguration(
        interval=10.0, timeout=120.0, max_retained=3
    )
    unaligned = cluster.with_values({f"{prefix}unaligned.enabled": "true"})
    for mode, is_unaligned in ((SchedulerMode.DEFAULT, True), (SchedulerMode.ADAPTIVE, False)):
        taken = with_checkpoint_options(replace(job, scheduler_mode=mode), unaligned).checkpoints
        assert taken is not None
        assert taken.is_unaligned is is_unaligned
    batch = replace(job, checkpoints=None)
    assert with_checkpoint_options(batch, cluster) == batch


@pytest.mark.parametrize("mode", SchedulerMode)
def test_settings_of_a_job_override_those_of_the_cluster(mode: SchedulerMode) -> None:
    cluster = ReadableConfig(
        {"restart-strategy.type": "fixed-delay", "state.backend.type": "rocksdb"}
    )
    vertex = python_vertex("map", 3, min_parallelism=2)
    job = JobGraph(JOB, "job", (vertex,), scheduler_mode=mode)
    lower = 2 if mode is SchedulerMode.ADAPTIVE else 3
    bounds = (ParallelismBounds(vertex.vertex_id, lower, 3),)
    is_elastic = mode is SchedulerMode.ADAPTIVE
    found = job_settings(job, cluster)
    assert found == JobSettings(FixedDelayRestart(1, 1.0), "rocksdb", None, is_elastic, bounds)
    own = replace(
        job,
        restart_strategy=NoRestart(),
        checkpoints=CheckpointConfiguration(),
        configuration={"state.backend.type": "hashmap", **CHECKPOINTS},
    )
    checkpoints = CheckpointConfiguration(interval=10.0)
    assert job_settings(own, cluster) == JobSettings(
        NoRestart(), "hashmap", checkpoints, is_elastic, bounds
    )


@pytest.mark.ray
async def test_rpc_transport_on_ray_is_read_from_the_configuration(ray_cluster: None) -> None:
    service = await RayRpcService.open("settings")
    for settings, transport in (({}, "auto"), ({"rpc.transport": "ray"}, "ray")):
        apply_rpc_settings(service, ReadableConfig(settings))
        assert service.transport == transport
    await service.close()
