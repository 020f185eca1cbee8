"""What a Dispatcher keeps of a job that has ended."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.dispatcher.managed_job import JobMasterDeaths, ManagedJob, overview_of
from flinkray.actors.shared.settings import job_settings
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, JobExecutionError
from flinkray.scheduler.graph.job_graph import JobGraph
from tests.scheduler.builders import JOB

INITIAL = "restart-strategy.exponential-delay.initial-backoff"
MAXIMUM = "restart-strategy.exponential-delay.max-backoff"


def managed(cluster: ReadableConfig) -> ManagedJob:
    loop = asyncio.get_running_loop()
    futures = loop.create_future(), loop.create_future(), loop.create_future()
    graph = JobGraph(JOB, "job", (), configuration={MAXIMUM: "10 s"})
    return ManagedJob(graph, 0.0, JobMasterDeaths(cluster), *futures, cluster)


async def test_job_ended_as_its_job_masters_died_keeps_its_timestamps_and_settings() -> None:
    job = managed(ReadableConfig({INITIAL: "5 s"}))
    ended = job.failed(JobExecutionError(JOB, "its JobMasters died"), 7.0)
    assert ended.details.status_timestamps["FAILED"] == ended.details.end_time == 7.0
    assert overview_of(ended.details).last_modified == 7.0
    assert ended.settings == job_settings(job.graph, job.configuration)


async def test_job_with_settings_invalid_for_the_cluster_can_still_end() -> None:
    """The cluster was restarted with another configuration."""
    job = managed(ReadableConfig({INITIAL: "20 s"}))
    with pytest.raises(ConfigurationError, match=MAXIMUM):
        _ = job.settings
    ended = job.failed(JobExecutionError(JOB, "its JobMasters died"), 7.0)
    assert ended.settings is None
