"""Information that many task deployments share (``SharedPart``): about the job, its vertices and
their inputs. It is sent to each receiver once.
"""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.ids import ExecutionGraphID, JobID
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    PartitionLocations,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
)


class DeployedParts:
    """Stores the shared parts of deployments (``SharedPart``) that a TaskExecutor has received, by
    execution graph and key. A newer version of a part replaces the older version. For each job only
    the parts of the latest execution graph are stored."""

    def __init__(self) -> None:
        self._graphs: dict[JobID, ExecutionGraphID] = {}
        self._parts: dict[ExecutionGraphID, dict[int, SharedPart]] = {}

    def add(self, deployments: TaskDeployments) -> None:
        """Store the shared parts that came with this message, in place of older versions."""
        job_id, graph_id = deployments.job_id, deployments.graph_id
        if self._graphs.get(job_id) != graph_id:
            self.forget(job_id)
            self._graphs[job_id] = graph_id
        known = self._parts.setdefault(graph_id, {})
        for part in deployments.parts:
            known[part.key] = part

    def forget(self, job_id: JobID) -> None:
        """Drop all shared parts of the job."""
        graph_id = self._graphs.pop(job_id, None)
        if graph_id is not None:
            del self._parts[graph_id]

    def job(self, deployments: TaskDeployments) -> JobInformation:
        """Return the job's information that *deployments* refers to.
        Raises TaskError if this information was never received.
        """
        content = self.part(deployments.graph_id, deployments.job).content
        assert isinstance(content, JobInformation)
        return content

    def vertex(self, graph_id: ExecutionGraphID, task: TaskDeployment) -> VertexInformation:
        content = self.part(graph_id, task.vertex).content
        assert isinstance(content, VertexInformation)
        return content

    def inputs(
        self, graph_id: ExecutionGraphID, task: TaskDeployment
    ) -> tuple[PartitionLocations, ...]:
        contents = [self.part(graph_id, key).content for key in task.inputs]
        return tuple(c for c in contents if isinstance(c, PartitionLocations))

    def part(self, graph_id: ExecutionGraphID, key: int) -> SharedPart:
        part = self._parts.get(graph_id, {}).get(key)
        if part is None:
            raise TaskError(
                f"part {key} of execution graph {graph_id} is not here: the message that it was in "
                "was lost; the job's next attempt sends it again"
            )
        return part


class SentParts:
    """Remembers which shared parts were sent to a receiver, so that each is sent there once."""

    def __init__(self) -> None:
        self._versions: dict[JobID, tuple[ExecutionGraphID, dict[int, int]]] = {}

    def take_new(
        self, job_id: JobID, graph_id: ExecutionGraphID, parts: Iterable[SharedPart]
    ) -> tuple[SharedPart, ...]:
        """Return those of *parts* whose version was not sent yet, and count them as sent."""
        known, versions = self._versions.get(job_id, (graph_id, {}))
        if known != graph_id:
            versions = {}
        self._versions[job_id] = graph_id, versions
        new = {p.key: p for p in parts if versions.get(p.key) != p.version}
        versions.update((p.key, p.version) for p in new.values())
        return tuple(new.values())

    def forget(self, job_id: JobID) -> None:
        self._versions.pop(job_id, None)
