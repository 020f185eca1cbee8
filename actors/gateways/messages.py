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
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobResult, JobSettings
from flinkray.scheduler.shared.slots import SameWorkerGroup, WorkerLocation


def job_master_resource_id(process_name: str, job_master_id: JobMasterId) -> ResourceID:
    """Return the name by which heartbeats identify a JobMaster.
    It differs between the JobMasters of a job, although they have the same process name.
    """
    return ResourceID(f"{process_name}@{job_master_id}")


def process_of_job_master(resource_id: ResourceID) -> str:
    """Return the process name in a resource id from :func:`job_master_resource_id`."""
    return resource_id.rpartition("@")[0]


@message
class TaskExecutorRegistration:
    """A TaskExecutor's request to be registered at the ResourceManager."""

    location: WorkerLocation
    total_profile: ResourceProfile
    number_of_slots: int


@message
class TaskExecutorRegistrationSuccess:
    """The ResourceManager has accepted a TaskExecutor. ``instance_id``: id of this registration."""

    instance_id: InstanceID
    resource_manager_resource_id: ResourceID


@message
class JobMasterRegistrationSuccess:
    """Answer of the ResourceManager to a JobMaster whose registration it has accepted."""

    resource_manager_id: ResourceManagerId
    resource_manager_resource_id: ResourceID


@message
class JobMasterToDispatcherRegistrationSuccess:
    """Answer of the Dispatcher to a JobMaster whose registration it has accepted."""

    dispatcher_resource_id: ResourceID
    cancel_requested: bool
    """Whether a client has requested the job's cancellation before this JobMaster registered."""
    bounds: tuple[ParallelismBounds, ...] = ()
    """Parallelism bounds of an elastic job, which may have changed since the JobMaster's start."""


@message
class TaskExecutorToJobMasterRegistrationSuccess:
    """Answer of the JobMaster to a TaskExecutor whose registration it has accepted."""

    job_master_resource_id: ResourceID


@message
class WantedSlot:
    """Order of the ResourceManager to a TaskExecutor: allocate this slot for a job."""

    slot_index: int
    """Index of the slot. -1 means a dynamic slot with exactly the given profile."""
    allocation_id: AllocationID
    profile: ResourceProfile
    constraint: SameWorkerGroup | None = None
    """Constraint of the job's requirement.
    The TaskExecutor passes it on when it offers the slot.
    """


@message
class SlotAnswer:
    """A TaskExecutor's answer to a WantedSlot: whether it gives the slot."""

    slot_id: SlotID
    """Id of the slot, even if the slot is refused."""
    refusal: str | None = None
    """Why the slot is refused. None if it is given."""


@message
class AllocatedSlotReport:
    """A JobMaster's heartbeat to a TaskExecutor.
    Lists the job's slots there that the JobMaster knows.
    """

    job_id: JobID
    allocations: tuple[AllocationID, ...]


@message
class TaskExecutorHeartbeat:
    """A TaskExecutor's heartbeat to a JobMaster. Lists the job's attempts that run there."""

    attempts: tuple[ExecutionAttemptID, ...]


@message
class RefusedTask:
    """A task that the JobMaster has deployed to a TaskExecutor, but that will not run there."""

    attempt_id: ExecutionAttemptID
    cause: str
    lost_slot: AllocationID | None = None
    """The slot of the task, if the job does not have the slot (any more). Otherwise None."""


@message
class ClusterArguments:
    """Arguments with which the processes of Dispatcher and ResourceManager are started."""

    cluster_id: str
    configuration: dict[str, str]
    """Configuration of the cluster: values for :class:`flinkray.core.config.ReadableConfig`."""
    storage_dir: str
    """This cluster's own directory (path or URI), with ``storage.dir`` and its defaults resolved.
    It contains ``job-graphs``, ``job-results``, ``blobs`` and, for the data of returned DataFrames,
    ``data/<job id hex>``.
    """


@message
class JobMasterArguments:
    """Arguments with which a JobMaster process is started."""

    cluster: ClusterArguments
    job_graph: JobGraph
    job_master_id: JobMasterId
    has_predecessors: bool = False
    """Whether SlotPools of past JobMasters of the job may exist."""
    has_run: bool = False
    """Whether a past JobMaster is known to have deployed tasks of the job."""


@message
class SlotPoolArguments:
    """Arguments with which a SlotPool process is started."""

    cluster: ClusterArguments
    job_id: JobID
    job_master_id: JobMasterId
    job_master_address: str
    number: int = 1
    """Number of the pool among its JobMaster's SlotPools, from 1."""


@stored("StoredJob", version=2, migrations={1: with_defaults})
@message
class StoredJob:
    """Record of an accepted job in the JobGraphStore. Deleted after the job has ended."""

    graph: JobGraph
    start_time: float
    """Time of the submission, in seconds since the epoch."""
    cancel_requested: bool = False
    """Whether a client was told that the job will be cancelled."""
    cancel_cause: ExceptionEntry | None = None
    """Why the job is cancelled, if no client has requested the cancellation."""
    has_run: bool = False
    """Whether a JobMaster has told the Dispatcher that it has deployed tasks of the job."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id


@stored("ArchivedJob", version=2, migrations={1: with_defaults})
@message
class ArchivedJob:
    """How a job has ended: its record in the JobResultStore."""

    result: JobResult
    details: JobDetails
    settings: JobSettings | None = None
    """Settings of the job.
    None if the flinkray version that ran the job did not keep them, or if they contradict each
    other and the job has failed for that reason.
    """

    @property
    def job_id(self) -> JobID:
        return self.result.job_id
