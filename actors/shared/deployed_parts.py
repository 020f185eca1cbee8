"""What deployments refer to: parts that were sent once and are kept for the job."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.ids import JobID
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    PartitionLocations,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
)


class DeployedParts:
    """By job and key; what was sent last counts."""

    def __init__(self) -> None:
        self._parts: dict[JobID, dict[int, SharedPart]] = {}

    def add(self, deployments: TaskDeployments) -> None:
        """Keep the parts that came with a message."""
        known = self._parts.setdefault(deployments.job_id, {})
        for part in deployments.parts:
            known[part.key] = part

    def forget(self, job_id: JobID) -> None:
        """The job has nothing here any more."""
        self._parts.pop(job_id, None)

    def job(self, deployments: TaskDeployments) -> JobInformation:
        """Raises TaskError when it was never sent; so do the others."""
        content = self.part(deployments.job_id, deployments.job).content
        assert isinstance(content, JobInformation)
        return content

    def vertex(self, job_id: JobID, task: TaskDeployment) -> VertexInformation:
        content = self.part(job_id, task.vertex).content
        assert isinstance(content, VertexInformation)
        return content

    def inputs(self, job_id: JobID, task: TaskDeployment) -> tuple[PartitionLocations, ...]:
        contents = [self.part(job_id, key).content for key in task.inputs]
        return tuple(c for c in contents if isinstance(c, PartitionLocations))

    def part(self, job_id: JobID, key: int) -> SharedPart:
        part = self._parts.get(job_id, {}).get(key)
        if part is None:
            raise TaskError(
                f"part {key} of job {job_id} is not here: the message that it was in was lost; "
                "the job's next attempt sends it again"
            )
        return part


class SentParts:
    """Which parts somebody has been sent, so that each goes there once."""

    def __init__(self) -> None:
        self._versions: dict[JobID, dict[int, int]] = {}

    def take_new(self, job_id: JobID, parts: Iterable[SharedPart]) -> tuple[SharedPart, ...]:
        """Those that were not sent in that version; from now on they were."""
        versions = self._versions.setdefault(job_id, {})
        new = {p.key: p for p in parts if versions.get(p.key) != p.version}
        versions.update((p.key, p.version) for p in new.values())
        return tuple(new.values())

    def forget(self, job_id: JobID) -> None:
        self._versions.pop(job_id, None)
