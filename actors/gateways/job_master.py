"""The gateway of the JobMaster, for TaskExecutors, the SlotPool, the Dispatcher and others."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.kv_states import KvStateLocationOracle, KvStateRegistryGateway
from flinkray.actors.gateways.messages import (
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
)
from flinkray.rpc.gateway import (
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.liveness.registration import RegistrationFailure, RegistrationRejection
from flinkray.scheduler.graph.job_graph import ParallelismBounds
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    NumberedOverview,
)
from flinkray.scheduler.shared.slots import (
    ResourceShortage,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.scheduler.slots.slot_requests import HeldSlot, SlotEvent
from flinkray.spark.gateway import CoordinatorListenerGateway


class JobMasterGateway(CoordinatorListenerGateway, KvStateRegistryGateway, KvStateLocationOracle):
    """The JobMaster, which runs one job. Fenced by JobMasterId."""

    # called by TaskExecutors

    @abstractmethod
    async def register_task_executor(
        self, job_id: JobID, report: TaskExecutorReport
    ) -> TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """Register a TaskExecutor, with a report of all slots, tasks and results of the job there.
        The TaskExecutor sends later changes only after the answer to this call.
        """

    @abstractmethod
    @oneway
    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        """Report that one slot of the job is lost. Its TaskExecutor and the other slots there
        continue."""

    @abstractmethod
    @runs_to_completion
    async def tasks_reported(self, reports: tuple[TaskReport, ...]) -> None:
        """Receive many reports of tasks, in their order. Repeated reports have no effect."""

    @abstractmethod
    async def request_partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        """Return the state of the task that produces the partition.

        Raises:
            ValueError: the job has no such partition.
            PartitionProducerDisposedError: the partition does not belong to the current attempt.
        """

    @abstractmethod
    @oneway
    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None: ...

    # called by the ResourceManager

    @abstractmethod
    @oneway
    async def heartbeat_from_resource_manager(
        self, resource_id: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None: ...

    @abstractmethod
    @oneway
    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None: ...

    @abstractmethod
    @oneway
    async def notify_not_enough_resources(
        self, resource_manager_id: ResourceManagerId, shortages: tuple[ResourceShortage, ...]
    ) -> None:
        """Receive the reasons why slots are missing now.
        The list replaces the earlier list. It is empty if no slots are missing.
        """

    @abstractmethod
    @oneway
    async def notify_task_executor_lost(
        self, resource_manager_id: ResourceManagerId, resource_id: ResourceID, reason: str
    ) -> None:
        """Report that a TaskExecutor is lost, with all its slots of the job.
        If the JobMaster learns of the same death later by other means, nothing more happens.
        """

    # called by the SlotPool

    @abstractmethod
    @oneway
    async def slots_changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[HeldSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Receive gained and lost slots, and then other events of slots and slot requests.
        For the events see :mod:`flinkray.scheduler.slots.slot_requests`.

        Messages of the JobMaster's *pool_number*-th pool are numbered from 1 by *news_number*, so
        that the JobMaster notices lost messages.
        """

    # called by the Dispatcher

    @abstractmethod
    @oneway
    async def heartbeat_from_dispatcher(
        self, resource_id: ResourceID, dispatcher_id: DispatcherId
    ) -> None: ...

    @abstractmethod
    async def request_job_status(self) -> JobStatus: ...

    @abstractmethod
    async def request_job_overview(self) -> NumberedOverview:
        """Return the job's status, and the number of its tasks in each state.
        The size of the answer does not depend on the number of tasks. When the overview becomes
        outdated, the JobMaster tells the Dispatcher.
        """

    @abstractmethod
    async def request_job_progress(self) -> JobProgress:
        """Return the job's status, the number of tasks per state, and each vertex's progress."""

    @abstractmethod
    async def request_job_exceptions(self) -> tuple[ExceptionEntry, ...]: ...

    @abstractmethod
    async def request_job_details(self) -> JobDetails:
        """Return all details of the job. Asks TaskExecutors for the I/O metrics of stream tasks."""

    @abstractmethod
    @ask_timeout(None)
    async def take_snapshot(
        self, dispatcher_id: DispatcherId, request: SnapshotRequest
    ) -> SnapshotTaken:
        """Take a savepoint or a checkpoint, once for each trigger id.
        Returns when the snapshot is complete. If the snapshot is to stop the job, returns when the
        Dispatcher has stored that the job has finished.

        Raises:
            CheckpointError: the snapshot is not taken.
            StopWithSavepointError: the savepoint is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
        """

    @abstractmethod
    @ask_timeout(None)
    async def keep_part(
        self, owner: JobMasterId, coordinator: CoordinatorID, part: KeptPart
    ) -> None:
        """Store a part of the source coordinator's state for the next JobMaster.
        Returns when the next JobMaster would find the part.

        Called by the coordinator that the JobMaster *owner* has started. May be repeated. Raises
        CoordinatorReplacedError if another attempt has replaced the coordinator, or while this
        JobMaster is taking over the job and has not decided whether the coordinator continues.
        """

    @abstractmethod
    async def request_source_coordinator(self) -> JobMasterId | None:
        """Return the id of the JobMaster that has started the coordinator of the job's sources.
        The coordinator's process name contains this id. None if it is not known yet.
        """

    @abstractmethod
    async def request_savepoint_in_use(self) -> str | None:
        """Return the metadata path of the savepoint from which the job would recover now.
        None if it would not recover from a savepoint.

        Raises JobStateError while it is not known from which snapshot the job would recover.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def request_max_parallelism(self) -> tuple[tuple[JobVertexID, int], ...]:
        """Return each vertex's maximum parallelism, as the state requires from which the job would
        recover.

        Raises:
            JobStateError: it is not known yet from which state the job would recover.
        """

    @abstractmethod
    async def cancel(self, dispatcher_id: DispatcherId) -> None: ...

    @abstractmethod
    async def resize(
        self, dispatcher_id: DispatcherId, bounds: tuple[ParallelismBounds, ...]
    ) -> None:
        """Change the parallelism bounds of an elastic job. Idempotent. Raises JobStateError."""
