"""The life of a job: the decisions of a JobMaster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResourceID
from flinkray.scheduler.execution import Execution
from flinkray.scheduler.execution_graph import ExecutionGraph
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.job_archive import vertex_info
from flinkray.scheduler.job_graph import JobGraph, RestartStrategy
from flinkray.scheduler.job_graph_validation import validate
from flinkray.scheduler.job_info import JobDetails
from flinkray.scheduler.job_record import JobRecord
from flinkray.scheduler.job_scheduler_actions import (
    DeclareRequirements,
    JobEnded,
    JobSchedulerAction,
    ReleaseSlots,
    ScheduleRestart,
    ScheduleSlotRequestTimeout,
)
from flinkray.scheduler.job_slots import JobSlots
from flinkray.scheduler.restart_strategy import new_restart_strategy
from flinkray.scheduler.slot_assignment import required_slots
from flinkray.scheduler.slots import (
    AllocatedSlot,
    ResourceShortage,
)
from flinkray.scheduler.spark_stage import SparkStage, failure_of
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.scheduler.tasks import TaskExecutionState

if TYPE_CHECKING:
    from flinkray.spark.gateway import SparkExecutorInfo, SparkFailure, SparkProgress, SparkResult


class JobScheduler:
    """Runs the job's Spark vertices, one after another, in the slots of the job's worker group.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.  Events of an earlier attempt or generation, and all events after JobEnded,
    change nothing.
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
            JobSubmissionError: the graph cannot run (see
            :func:`flinkray.scheduler.job_graph.validate`).
        """
        validate(job_graph)
        self._job_graph = job_graph
        self._job_master_address = job_master_address
        self._slot_request_timeout = slot_request_timeout
        self._job = JobRecord(job_graph, epoch_offset, now)
        self._job.enter(JobStatus.CREATED, now)
        self._restart_strategy = new_restart_strategy(
            job_graph.restart_strategy or default_restart_strategy
        )
        self._graph = ExecutionGraph(job_graph, now)
        self._stages = tuple(SparkStage(job_graph, vertex) for vertex in self._graph.vertices)
        self._stage_index = 0
        self._slots = JobSlots()
        self._generation = 0
        """Grows with each wait for slots and each restart, so that old timers are known as such."""
        self._restart_delay_over = False

    # orders

    def start(self, now: float) -> list[JobSchedulerAction]:
        """Begin; once."""
        if self._job.is_ending:
            return []
        self._job.enter(JobStatus.RUNNING, now)
        return [self._declare(), *self._schedule(now)]

    def cancel(self, now: float) -> list[JobSchedulerAction]:
        """Cancel the job; a second time is fine, also after its end."""
        is_failing = self.status is JobStatus.FAILING and self._job.suspension is None
        if self._job.is_ending and not is_failing:
            return []
        self._job.enter(JobStatus.CANCELLING, now, "cancelled by its user")
        return self._cancel_everything(now)

    def suspend(self, reason: str, now: float) -> list[JobSchedulerAction]:
        """End this JobMaster's work on the job, whose result is SUSPENDED (EX-08)."""
        if self.status.is_terminal or self._job.suspension is not None:
            return []
        self._job.suspend(reason, now)
        return self._cancel_everything(now)

    def global_failure(self, cause: Failure, now: float) -> list[JobSchedulerAction]:
        """Something failed that concerns the whole job."""
        if self.status.is_terminal or self._job.suspension is not None:
            return []
        if self.status is JobStatus.CANCELLING:
            return self._fail_job(cause, now)
        return self._failed(cause, now)

    # slots

    def slots_changed(
        self, slots: tuple[AllocatedSlot, ...], now: float
    ) -> list[JobSchedulerAction]:
        """All slots the pool holds now; a used one that is missing is lost."""
        if self.status.is_terminal:
            return []
        self._slots.held = slots
        lost = self._slots.missing_of(self._used_slots())
        actions = self._slots_lost(lost, now)
        return actions + self._deploy_when_possible(now)

    def slot_failed(
        self, allocation_id: AllocationID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A slot is lost, with its cause (send it before the ``slots_changed`` that lacks the
        slot)."""
        self._slots.drop(allocation_id)
        return self._slots_lost({allocation_id: cause}, now)

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """All slots on that TaskExecutor are lost (send it before the ``slots_changed`` that lacks
        them)."""
        causes = self._slots.drop_task_executor(resource_id, self._used_slots(), cause)
        return self._slots_lost(causes, now)

    def slot_pool_lost(self, cause: str, now: float) -> list[JobSchedulerAction]:
        """The SlotPool is gone; the requirements are declared again, for the next one."""
        if self.status.is_terminal:
            return []
        self._slots.held = ()
        actions: list[JobSchedulerAction] = [self._declare()]
        failure = Failure(f"the slot pool of the job was lost: {cause}")
        if self.status is JobStatus.RUNNING and self._job.suspension is None:
            return actions + self._failed(failure, now)
        self._job.add_failure(failure, now)
        return actions

    def resources_short(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[JobSchedulerAction]:
        """Why slots are missing now (the whole list); an unfulfillable one fails the job."""
        self._slots.shortages = shortages
        return self._fail_when_unfulfillable(now)

    def slot_request_timed_out(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleSlotRequestTimeout is over (EX-18)."""
        if generation != self._generation or not self._waits_for_slots:
            return []
        text = "Could not allocate the required slot within slot request timeout."
        return self._failed(Failure(f"NoResourceAvailableError: {text} {self._why_pending()}"), now)

    # tasks

    def task_state_changed(self, state: TaskExecutionState, now: float) -> list[JobSchedulerAction]:
        """A TaskExecutor's report."""
        execution = self._graph.find(state.attempt_id)
        if execution is None or not state.state.is_terminal:
            return []
        if state.state is ExecutionState.FAILED:
            text = state.failure or f"{execution.task_name} failed without a cause"
        else:
            text = f"{execution.task_name} was ended by its TaskExecutor ({state.state.name})"
        return self._execution_ended(execution, text, state.traceback, now)

    def deploy_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A DeployTask could not be carried out (EX-02)."""
        execution = self._graph.find(attempt_id)
        if execution is None:
            return []
        text = f"{execution.task_name} could not be deployed: {cause}"
        return self._execution_ended(execution, text, None, now)

    def cancel_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A CancelTask could not be carried out: the attempt counts as canceled (EX-04)."""
        execution = self._graph.find(attempt_id)
        if execution is None or execution.state is not ExecutionState.CANCELING:
            return []
        text = f"its TaskExecutor could not be told to cancel it: {cause}"
        return self._execution_ended(execution, text, None, now)

    # coordinators

    def coordinator_started(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver's process is there."""
        stage = self._stage_of(vertex_id)
        if stage is not None and stage.is_current(attempt_number):
            stage.coordinator_started(now)
        return []

    def coordinator_stopped(
        self, vertex_id: JobVertexID, attempt_number: int, now: float
    ) -> list[JobSchedulerAction]:
        """A StopCoordinator is carried out."""
        return self.coordinator_lost(vertex_id, attempt_number, "it ended", now)

    def coordinator_lost(
        self, vertex_id: JobVertexID, attempt_number: int, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """The Spark driver died, or could not be started; while it is being stopped that is as
        good as stopped."""
        stage = self._stage_of(vertex_id)
        if stage is None or stage.attempt_number != attempt_number:
            return []
        if not stage.coordinator_gone(now):
            return self._proceed(now)
        text = f"the Spark driver of {stage.vertex.vertex.name} was lost: {cause}"
        return self._failed(Failure(text), now)

    def executors_changed(
        self,
        vertex_id: JobVertexID,
        attempt_number: int,
        registered: tuple[SparkExecutorInfo, ...],
        now: float,
    ) -> list[JobSchedulerAction]:
        """The Spark executors that are registered now (all of them)."""
        stage = self._stage_of(vertex_id)
        if stage is None or not stage.is_current(attempt_number):
            return []
        failures, actions = stage.executors_changed(registered, now)
        for failure in failures:
            self._job.add_failure(failure, now)
        return actions

    def stage_progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress, now: float
    ) -> list[JobSchedulerAction]:
        """Shown in :meth:`details`; never an action."""
        stage = self._stage_of(vertex_id)
        if stage is not None and stage.is_current(attempt_number):
            stage.progress = progress
        return []

    def stage_finished(
        self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult, now: float
    ) -> list[JobSchedulerAction]:
        """The user's function is done."""
        stage = self._stage_of(vertex_id)
        if stage is None or not stage.is_current(attempt_number):
            return []
        self._job.result = result
        return stage.finish(now) + self._proceed(now)

    def stage_failed(
        self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure, now: float
    ) -> list[JobSchedulerAction]:
        """The attempt failed."""
        stage = self._stage_of(vertex_id)
        if stage is None or not stage.is_current(attempt_number):
            return []
        cause = Failure(
            failure.text,
            failure.traceback,
            failure.suppress_restarts,
            task=stage.vertex.vertex.name,
        )
        return self._failed(cause, now)

    # time

    def restart_delay_over(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleRestart is over."""
        if generation != self._generation or self.status is not JobStatus.RESTARTING:
            return []
        self._restart_delay_over = True
        return self._proceed(now)

    # questions

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        return self._job.status

    def details(self) -> JobDetails:
        """All that a client may want to know."""
        groups = [slot.location.worker_group for slot in self._used_slots()]
        return self._job.details(
            tuple(vertex_info(stage, self._job.epoch_offset) for stage in self._stages),
            self._why_pending() if self._waits_for_slots else None,
            groups[0] if groups else None,
        )

    def story(self) -> str:
        """What has happened to the job, a line per event."""
        return self._job.story

    # --- scheduling -------------------------------------------------------------------------------

    @property
    def _stage(self) -> SparkStage:
        """The stage that runs, or is the next to."""
        return self._stages[self._stage_index]

    @property
    def _waits_for_slots(self) -> bool:
        return (
            self.status is JobStatus.RUNNING
            and self._job.suspension is None
            and self._stage.waits_for_slots
        )

    def _stage_of(self, vertex_id: JobVertexID) -> SparkStage | None:
        return self._stage if self._stage.vertex_id == vertex_id else None

    def _used_slots(self) -> list[AllocatedSlot]:
        slots = (execution.slot for execution in self._stage.vertex.executions)
        return [slot for slot in slots if slot is not None]

    def _declare(self) -> DeclareRequirements:
        return DeclareRequirements(required_slots(self._job_graph, self._job_master_address))

    def _schedule(self, now: float) -> list[JobSchedulerAction]:
        """The present stage wants its slots: it is deployed now, or when they are there."""
        self._stage.schedule(now)
        self._generation += 1
        actions = self._deploy_when_possible(now)
        if self._waits_for_slots:
            actions.append(ScheduleSlotRequestTimeout(self._slot_request_timeout, self._generation))
            actions += self._fail_when_unfulfillable(now)
        return actions

    def _deploy_when_possible(self, now: float) -> list[JobSchedulerAction]:
        if not self._waits_for_slots:
            return []
        assignment = self._slots.assign(self._stage.vertex.vertex)
        if assignment.slots is not None:
            return self._stage.deploy(assignment.slots, now)
        if assignment.useless:
            return [ReleaseSlots(assignment.useless, "not of the job's present worker group")]
        return []

    def _why_pending(self) -> str:
        return self._slots.why_pending(self._stage.vertex.vertex)

    def _fail_when_unfulfillable(self, now: float) -> list[JobSchedulerAction]:
        shortage = self._slots.unfulfillable
        if shortage is None or not self._waits_for_slots:
            return []
        text = f"UnfulfillableSlotRequestError: {shortage.reason}"
        return self._failed(Failure(text, suppress_restarts=True), now)

    # --- failures and ends ------------------------------------------------------------------------

    def _execution_ended(
        self, execution: Execution, text: str, traceback: str | None, now: float
    ) -> list[JobSchedulerAction]:
        failure = failure_of(execution, text, traceback)
        if execution.end(failure, now):
            return self._failed(failure, now)
        return self._proceed(now)

    def _slots_lost(self, causes: dict[AllocationID, str], now: float) -> list[JobSchedulerAction]:
        failed = self._stage.slots_lost(causes, now)
        if not failed:
            return self._proceed(now)
        for _, failure in failed[1:]:
            self._job.add_failure(failure, now)
        return self._failed(failed[0][1], now)

    def _failed(self, failure: Failure, now: float) -> list[JobSchedulerAction]:
        """The present stage failed: it is restarted, or the job fails."""
        if self._job.is_ending:
            self._job.add_failure(failure, now)
            return self._cancel_everything(now)
        if failure.suppress_restarts:
            return self._fail_job(failure, now)
        self._restart_strategy.notify_failure(now)
        if self.status is JobStatus.CREATED or not self._restart_strategy.can_restart():
            return self._fail_job(failure, now)
        self._job.add_failure(failure, now)
        if self.status is JobStatus.RUNNING:
            self._job.enter(JobStatus.RESTARTING, now, failure.text)
        self._job.restarts += 1
        self._generation += 1
        self._restart_delay_over = False
        delay = self._restart_strategy.backoff_time()
        actions = self._stage.cancel(now)
        return [*actions, ScheduleRestart(delay, self._generation), *self._proceed(now)]

    def _fail_job(self, failure: Failure, now: float) -> list[JobSchedulerAction]:
        self._job.fail(failure, now)
        return self._cancel_everything(now)

    def _cancel_everything(self, now: float) -> list[JobSchedulerAction]:
        actions = [action for stage in self._stages for action in stage.cancel(now)]
        return actions + self._proceed(now)

    def _proceed(self, now: float) -> list[JobSchedulerAction]:
        """What follows once nothing of the present stage runs any more."""
        if self.status.is_terminal or not self._stage.is_over:
            return []
        if self._job.suspension is not None:
            return self._end(JobStatus.SUSPENDED, now)
        if self.status is JobStatus.FAILING:
            return self._end(JobStatus.FAILED, now)
        if self.status is JobStatus.CANCELLING:
            return self._end(JobStatus.CANCELED, now)
        if self.status is JobStatus.RESTARTING and self._restart_delay_over:
            self._job.enter(JobStatus.RUNNING, now, f"restart {self._job.restarts}")
            return self._schedule(now)
        if self.status is JobStatus.RUNNING and self._stage.vertex.is_finished:
            if self._stage_index + 1 == len(self._stages):
                return self._end(JobStatus.FINISHED, now)
            self._stage_index += 1
            return self._schedule(now)
        return []

    def _end(self, status: JobStatus, now: float) -> list[JobSchedulerAction]:
        self._job.enter(status, now, self._job.suspension or "")
        return [JobEnded(self._job.job_result(now), self.details())]
