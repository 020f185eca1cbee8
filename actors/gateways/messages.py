"""Registrations and heartbeats between the actors of a cluster."""

from __future__ import annotations

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    InstanceID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    SlotID,
)
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import stored, with_defaults
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobResult
from flinkray.scheduler.reports.job_settings import JobSettings
from flinkray.scheduler.shared.slots import SameWorkerGroup, WorkerLocation


def job_master_resource_id(process_name: str, job_master_id: JobMasterId) -> ResourceID:
    """A JobMaster's name in heartbeats: those of a job have one process name, one by one."""
    return ResourceID(f"{process_name}@{job_master_id}")


def process_of_job_master(resource_id: ResourceID) -> str:
    """The reverse of :func:`job_master_resource_id`."""
    return resource_id.rpartition("@")[0]


@message
class TaskExecutorRegistration:
    """A TaskExecutor presents itself to the ResourceManager."""

    location: WorkerLocation
    total_profile: ResourceProfile
    number_of_slots: int


@message
class TaskExecutorRegistrationSuccess:
    """Accepted by the ResourceManager; ``instance_id`` is this registration's name."""

    instance_id: InstanceID
    resource_manager_resource_id: ResourceID


@message
class JobMasterRegistrationSuccess:
    """Accepted by the ResourceManager."""

    resource_manager_id: ResourceManagerId
    resource_manager_resource_id: ResourceID


@message
class JobMasterToDispatcherRegistrationSuccess:
    """Accepted by the Dispatcher."""

    dispatcher_resource_id: ResourceID
    cancel_requested: bool
    """A client has asked for the job's end before this JobMaster was there."""
    bounds: tuple[ParallelismBounds, ...] = ()
    """Of an elastic job's vertices, which may have been changed since the JobMaster was started."""


@message
class TaskExecutorToJobMasterRegistrationSuccess:
    """Accepted by the JobMaster."""

    job_master_resource_id: ResourceID


@message
class WantedSlot:
    """A slot that a TaskExecutor is to give to a job."""

    slot_index: int
    """-1: a dynamic slot, of exactly that profile."""
    allocation_id: AllocationID
    profile: ResourceProfile
    constraint: SameWorkerGroup | None = None
    """Of the job's requirement; it is offered with it."""


@message
class SlotAnswer:
    """What a TaskExecutor answers to a WantedSlot."""

    slot_id: SlotID
    """Which one it is, or would have been."""
    refusal: str | None = None
    """Why it is not given; None: it is."""


@message
class AllocatedSlotReport:
    """A JobMaster's view of its slots on one TaskExecutor."""

    job_id: JobID
    allocations: tuple[AllocationID, ...]


@message
class TaskExecutorHeartbeat:
    """What a TaskExecutor tells a JobMaster in a heartbeat: the attempts it runs."""

    attempts: tuple[ExecutionAttemptID, ...]


@message
class RefusedTask:
    """A task that a TaskExecutor was told to run and will not."""

    attempt_id: ExecutionAttemptID
    cause: str
    lost_slot: AllocationID | None = None
    """The slot that it was to run in, if that is not the job's (any more)."""


@message
class ClusterArguments:
    """What the factories of Dispatcher and ResourceManager are given."""

    cluster_id: str
    configuration: dict[str, str]
    """For :class:`flinkray.core.config.Configuration`."""
    storage_dir: str
    """This cluster's own directory (path or URI), resolved: ``storage.dir`` and its defaults do not
    matter any more.  Below it: ``job-graphs``, ``job-results``, ``blobs`` and, for the data
    of returned DataFrames, ``data/<job id hex>``."""


@message
class JobMasterArguments:
    """What a JobMaster process is started with."""

    cluster: ClusterArguments
    job_graph: JobGraph
    job_master_id: JobMasterId
    has_predecessors: bool = False
    """Whether there may be SlotPools of past JobMasters."""


@message
class SlotPoolArguments:
    """What a SlotPool process is started with."""

    cluster: ClusterArguments
    job_id: JobID
    job_master_id: JobMasterId
    job_master_address: str
    number: int = 1
    """Which of its JobMaster's SlotPools it is."""


@stored("StoredJob")
@message
class StoredJob:
    """An accepted job as the Dispatcher keeps it in the JobGraphStore until it has ended."""

    graph: JobGraph
    start_time: float
    """Of its submission, in seconds since the epoch."""
    cancel_requested: bool = False
    """A client was told that it will be cancelled."""
    cancel_cause: ExceptionEntry | None = None
    """Why, if no client has asked for it."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id


@stored("ArchivedJob", version=2, migrations={1: with_defaults})
@message
class ArchivedJob:
    """An ended job as the Dispatcher keeps it in the JobResultStore."""

    result: JobResult
    details: JobDetails
    settings: JobSettings | None = None
    """None: the version that has run it did not keep them, or they contradict each other, which is
    why it has failed."""

    @property
    def job_id(self) -> JobID:
        return self.result.job_id
