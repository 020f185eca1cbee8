"""The TaskExecutors and JobMasters that are registered at a ResourceManager."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import TaskExecutorRegistration
from flinkray.core.ids import InstanceID, JobID, JobMasterId, ResourceID
from flinkray.rpc import TerminationWatch
from flinkray.scheduler.shared.slots import WorkerLocation


@dataclass(slots=True)
class RegisteredTaskExecutor:
    """A registration of a TaskExecutor.
    The process may register again with a new instance id (RM-01).
    """

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    gateway: TaskExecutorGateway
    watch: TerminationWatch
    has_reported: bool = False
    """Whether the TaskExecutor's first slot report has arrived.
    Until then it has no slots (RM-12).
    """

    @property
    def location(self) -> WorkerLocation:
        return self.registration.location


@dataclass(slots=True)
class RegisteredJobMaster:
    """The JobMaster that is registered for a job, with its gateway."""

    job_id: JobID
    job_master_id: JobMasterId
    resource_id: ResourceID
    gateway: JobMasterGateway
    watch: TerminationWatch


class Members:
    """All TaskExecutors and JobMasters that are registered now."""

    def __init__(self) -> None:
        self.task_executors: dict[ResourceID, RegisteredTaskExecutor] = {}
        self.job_masters: dict[JobID, RegisteredJobMaster] = {}
