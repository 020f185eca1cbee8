"""The life of a job: the decisions of a JobMaster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResourceID
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.job_graph import JobGraph, RestartStrategy
from flinkray.scheduler.job_info import JobDetails
from flinkray.scheduler.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.states import JobStatus
from flinkray.scheduler.tasks import TaskExecutionState

if TYPE_CHECKING:
    from flinkray.spark.gateway import SparkExecutorInfo, SparkFailure, SparkProgress, SparkResult


class JobScheduler:
    """Runs the job's Spark vertices, one after another, in the slots of the job's worker group.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in monotonic seconds.  Events of an
    earlier attempt or generation, and all events after JobEnded, change nothing.
    """

    def __init__(
        self,
        job_graph: JobGraph,
        job_master_address: str,
        *,
        default_restart_strategy: RestartStrategy,
        epoch_offset: float,
        now: float,
        slot_request_timeout: float = 300.0,
    ) -> None:
        """*epoch_offset*: ``clock.time() - clock.monotonic()``, for the timestamps that people see.

        Raises:
            JobSubmissionError: the graph cannot run (see :func:`flinkray.scheduler.job_graph.validate`).
        """
        raise NotImplementedError

    # orders

    def start(self, now: float) -> list[JobSchedulerAction]:
        """Begin; once."""
        raise NotImplementedError

    def cancel(self, now: float) -> list[JobSchedulerAction]:
        """Cancel the job; a second time is fine, also after its end."""
        raise NotImplementedError

    def suspend(self, reason: str, now: float) -> list[JobSchedulerAction]:
        """End this JobMaster's work on the job, whose result is SUSPENDED (EX-08)."""
        raise NotImplementedError

    def global_failure(self, cause: Failure, now: float) -> list[JobSchedulerAction]:
        """Something failed that concerns the whole job."""
        raise NotImplementedError

    # slots

    def slots_changed(
        self, slots: tuple[AllocatedSlot, ...], now: float
    ) -> list[JobSchedulerAction]:
        """All slots the pool holds now; a used one that is missing is lost."""
        raise NotImplementedError

    def slot_failed(
        self, allocation_id: AllocationID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A slot is lost, with its cause (send it before the ``slots_changed`` that lacks the slot)."""
        raise NotImplementedError

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """All slots on that TaskExecutor are lost (send it before the ``slots_changed`` that lacks them)."""
        raise NotImplementedError

    def slot_pool_lost(self, cause: str, now: float) -> list[JobSchedulerAction]:
        """The SlotPool is gone.  Start the new one first: the requirements are declared to it."""
        raise NotImplementedError

    def resources_short(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[JobSchedulerAction]:
        """Why slots are missing now (the whole list); an unfulfillable one fails the job."""
        raise NotImplementedError

    def slot_request_timed_out(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleSlotRequestTimeout is over (EX-18)."""
        raise NotImplementedError

    # tasks

    def task_state_changed(self, state: TaskExecutionState, now: float) -> list[JobSchedulerAction]:
        """A TaskExecutor's report."""
        raise NotImplementedError

    def deploy_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A DeployTask could not be carried out (EX-02)."""
        raise NotImplementedError

    def cancel_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A CancelTask could not be carried out: the attempt counts as canceled (EX-04)."""
        raise NotImplementedError

    # coordinators

    def coordinator_started(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver's process is there."""
        raise NotImplementedError

    def coordinator_stopped(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """A StopCoordinator is carried out."""
        raise NotImplementedError

    def coordinator_lost(
        self, vertex_id: JobVertexID, attempt_number: int, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver died, or could not be started; while it is being stopped that is as good as stopped."""
        raise NotImplementedError

    def executors_changed(
        self,
        vertex_id: JobVertexID,
        attempt_number: int,
        registered: tuple[SparkExecutorInfo, ...],
        now: float,
    ) -> list[JobSchedulerAction]:
        """The Spark executors that are registered now (all of them)."""
        raise NotImplementedError

    def stage_progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress, now: float
    ) -> list[JobSchedulerAction]:
        """Shown in :meth:`details`; never an action."""
        raise NotImplementedError

    def stage_finished(
        self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult, now: float
    ) -> list[JobSchedulerAction]:
        """The user's function is done."""
        raise NotImplementedError

    def stage_failed(
        self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure, now: float
    ) -> list[JobSchedulerAction]:
        """The attempt failed."""
        raise NotImplementedError

    # time

    def restart_delay_over(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleRestart is over."""
        raise NotImplementedError

    # questions

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        raise NotImplementedError

    def details(self) -> JobDetails:
        """All that a client may want to know."""
        raise NotImplementedError

    def story(self) -> str:
        """What has happened to the job, a line per event."""
        raise NotImplementedError
