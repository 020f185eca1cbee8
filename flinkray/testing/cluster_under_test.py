"""Defines the operations that tests need on any kind of cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod

from flinkray.actors.gateways import DispatcherGateway
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    Invokable,
    JobGraph,
    JobVertex,
    RestartStrategy,
)
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.scripted_spark_driver import script

_SLOT = ResourceProfile(1, 2**30)


class ClusterUnderTest(ABC):
    """Interface to a cluster under test, with a client of the cluster."""

    @abstractmethod
    async def dispatcher(self) -> DispatcherGateway:
        """Return a gateway to the current Dispatcher."""

    async def submit(self, job: JobGraph) -> JobID:
        await (await self.dispatcher()).submit_job(job)
        return job.job_id

    async def result(self, job_id: JobID) -> JobResult:
        """Wait until the job has ended; return its result."""
        return await (await self.dispatcher()).request_job_result(job_id)

    async def details(self, job_id: JobID) -> JobDetails:
        return await (await self.dispatcher()).request_job_details(job_id)

    async def status(self, job_id: JobID) -> JobStatus:
        return (await self.details(job_id)).status


def scripted_job(
    *attempts: list[str],
    parallelism: int = 2,
    profile: ResourceProfile = _SLOT,
    name: str = "scripted",
    restart_strategy: RestartStrategy | None = None,
) -> JobGraph:
    """Create a job of one Spark vertex whose driver follows a script instead of running Spark.
    *attempts*: for each attempt its steps, as in :mod:`flinkray.testing.scripted_spark_driver`."""
    vertex = JobVertex(
        JobVertexID.generate(), name, parallelism, profile, Invokable(SPARK, script(*attempts))
    )
    return JobGraph(JobID.generate(), name, (vertex,), restart_strategy)
