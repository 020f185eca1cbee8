"""What a JobMaster answers: to TaskExecutors, its SlotPool, the Dispatcher and others."""

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
    ExecutionAttemptID,
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
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    NumberedOverview,
)
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceShortage,
    SlotOffer,
    SlotOfferAnswer,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.scheduler.slots.slot_requests import SlotEvent
from flinkray.spark.gateway import CoordinatorListenerGateway


class JobMasterGateway(CoordinatorListenerGateway, KvStateRegistryGateway, KvStateLocationOracle):
    """Runs one job; fenced by JobMasterId."""

    # from TaskExecutors

    @abstractmethod
    async def register_task_executor(
        self, job_id: JobID, report: TaskExecutorReport
    ) -> TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """A TaskExecutor presents itself, and what it has of the job.  What happens to that after
        the report was made is told when this has been answered."""

    @abstractmethod
    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer: ...

    @abstractmethod
    @oneway
    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        """One slot is not there (any more); the TaskExecutor is."""

    @abstractmethod
    @runs_to_completion
    async def tasks_reported(self, reports: tuple[TaskReport, ...]) -> None:
        """What is told of tasks, in their order, many in one message; repetitions do no harm."""

    @abstractmethod
    async def request_partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        """The state of the task that produces it.

        Raises:
            ValueError: the job has no such partition.
            PartitionProducerDisposedError: it is of an attempt that is not the current one.
        """

    @abstractmethod
    async def request_next_input_split(
        self, attempt_id: ExecutionAttemptID, number: int, host: str
    ) -> InputSplit | None:
        """The *number*-th input of a task, counted from 0, near *host* if there is one; None: there
        is no more.  Who asks again for the last one is answered the same.

        Raises:
            AttemptDisposedError: it is not (any more) the current attempt of its subtask.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def update_global_aggregate(
        self, attempt_id: ExecutionAttemptID, number: int, name: str, value: bytes, function: bytes
    ) -> bytes:
        """Add a pickled value to the aggregate of that name, and return its pickled result.

        *function* makes the AggregateFunction.  *number* counts the task's updates: one that is
        asked for again is made once.

        Raises:
            AttemptDisposedError: it is not (any more) the current attempt of its subtask.
            what the user's function raises.
        """

    @abstractmethod
    @oneway
    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None: ...

    # from the ResourceManager

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
        """Why slots are missing, now (the whole list; empty: nothing is short any more)."""

    @abstractmethod
    @oneway
    async def notify_task_executor_lost(
        self, resource_manager_id: ResourceManagerId, resource_id: ResourceID, reason: str
    ) -> None:
        """A TaskExecutor that has slots of the job is lost with all of them.  Whoever else tells of
        the same death, by watch or heartbeat, tells nothing new."""

    # from the SlotPool

    @abstractmethod
    @oneway
    async def slots_changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[AllocatedSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Slots that the pool has got and lost, and then what became of requests and slots; see
        :mod:`flinkray.scheduler.slots.slot_requests`.

        The news of the JobMaster's *pool_number*-th pool are counted from 1, so that it is noticed
        when some are lost.
        """

    # from the Dispatcher

    @abstractmethod
    @oneway
    async def heartbeat_from_dispatcher(
        self, resource_id: ResourceID, dispatcher_id: DispatcherId
    ) -> None: ...

    @abstractmethod
    async def request_job_status(self) -> JobStatus: ...

    @abstractmethod
    async def request_job_overview(self) -> NumberedOverview:
        """Its status and the numbers of its tasks: an answer whose size does not depend on them.
        When it holds no more, the Dispatcher is told."""

    @abstractmethod
    async def request_job_progress(self) -> JobProgress:
        """Likewise, with how far each vertex is."""

    @abstractmethod
    async def request_job_exceptions(self) -> tuple[ExceptionEntry, ...]: ...

    @abstractmethod
    async def request_job_details(self) -> JobDetails:
        """TaskExecutors are asked for what their stream tasks have read and written."""

    @abstractmethod
    @ask_timeout(None)
    async def take_snapshot(
        self, dispatcher_id: DispatcherId, request: SnapshotRequest
    ) -> SnapshotTaken:
        """Take a savepoint or a checkpoint, once for each trigger id; answered when it is complete,
        and, if it is to end the job, when the Dispatcher has stored that it has finished.

        Raises:
            CheckpointError: it is not taken.
            StopWithSavepointError: it is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
        """

    @abstractmethod
    @ask_timeout(None)
    async def keep_part(
        self, owner: JobMasterId, coordinator: CoordinatorID, part: KeptPart
    ) -> None:
        """From the coordinator of the job's sources, which that JobMaster has started: return when
        that is kept for the case that it dies.  May be repeated.

        Raises:
            CoordinatorReplacedError: another attempt of it is there by now, or it is not known yet
                whether this one goes on.
        """

    @abstractmethod
    async def request_source_coordinator(self) -> JobMasterId | None:
        """The JobMaster that has started the coordinator of the job's sources, whose process bears
        its id; None: that is not known yet."""

    @abstractmethod
    async def request_savepoint_in_use(self) -> str | None:
        """The metadata of the savepoint that the job would go on from after a failure; None: it has
        a checkpoint of its own, or would begin anew.

        Raises:
            JobStateError: that is not known yet.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def request_max_parallelism(self) -> tuple[tuple[JobVertexID, int], ...]:
        """Of all vertices, as the state has it that the job would go on from.

        Raises:
            JobStateError: that is not known yet.
        """

    @abstractmethod
    async def cancel(self, dispatcher_id: DispatcherId) -> None: ...

    @abstractmethod
    async def resize(
        self, dispatcher_id: DispatcherId, bounds: tuple[ParallelismBounds, ...]
    ) -> None:
        """An elastic job's; the same again changes nothing.  Raises JobStateError."""
