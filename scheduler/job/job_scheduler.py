"""The life of a job: the decisions of a JobMaster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flinkray.core.errors import AttemptDisposedError, PartitionProducerDisposedError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import JobGraph, RestartStrategy
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.job.job_answers import JobAnswers
from flinkray.scheduler.job.job_execution import JobExecution, NoState, StateRestorer
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, JobSchedulerAction
from flinkray.scheduler.job.master_formats import MasterFormats
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.placement import SharedPlacement
from flinkray.scheduler.job.spark_driver_events import SparkDriverEvents
from flinkray.scheduler.job.spark_stages import SparkStages
from flinkray.scheduler.job.task_reports import TaskReports
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.slots.slot_requests import SlotEvent


class JobScheduler(SparkDriverEvents, JobAnswers):
    """Runs a job: its tasks in slots of the SlotPool, or its Spark stages in workers of their own.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.  Events of an earlier attempt or generation, and all events after JobEnded,
    change nothing.
    """

    def __init__(
        self,
        job_graph: JobGraph,
        job_master_address: str,
        *,
        new_graph_id: Callable[[], ExecutionGraphID],
        default_restart_strategy: RestartStrategy,
        epoch_offset: float,
        now: float,
        slot_request_timeout: float = 300.0,
        random: Callable[[], float] = lambda: 0.5,
        state: StateRestorer | None = None,
    ) -> None:
        """*new_graph_id*: another one with each call, for the execution graphs of the job.
        *epoch_offset*: ``clock.time() - clock.monotonic()``, for the timestamps that people see.
        *random*: numbers in [0, 1), for the jitter of restart delays.

        Raises:
            JobSubmissionError: the graph cannot run (see
            :mod:`flinkray.scheduler.graph.validation`).
        """
        validate(job_graph)
        self._job = JobRecord(job_graph, epoch_offset, now)
        self._job.enter(JobStatus.CREATED, now)
        self._job_graph = job_graph
        self._new_graph_id = new_graph_id
        self._restart_strategy = new_restart_strategy(
            job_graph.restart_strategy or default_restart_strategy, random
        )
        self._state = state or NoState()
        self._outbox = Outbox()
        self._now = now
        self._shortages: tuple[ResourceShortage, ...] = ()
        self._spark: SparkStages | None = None
        self._shared: SharedPlacement | None = None
        self._build(ExecutionGraph(job_graph, new_graph_id(), now))
        self._formats = MasterFormats(self._graph, self._outbox)
        if job_graph.needs_dedicated_workers:
            self._spark = SparkStages(self._execution, job_master_address, slot_request_timeout)
        else:
            self._place()

    def _build(self, graph: ExecutionGraph, first_generation: int = 0) -> None:
        """What works on an execution graph."""
        self._graph = graph
        self._execution = JobExecution(
            graph,
            self._job,
            self._outbox,
            self._restart_strategy,
            self._state,
            first_generation=first_generation,
            on_finished=self._all_finished,
            on_ended=self._end,
            on_reset=lambda vertices, is_global: self._formats.reset(vertices, is_global),
        )
        self._reports = TaskReports(self._execution)

    def _place(self, requests_made: int = 0) -> None:
        execution = self._execution
        self._shared = execution.placement = SharedPlacement(
            self._graph,
            execution.regions,
            self._outbox,
            requests_made=requests_made,
            on_ready=lambda index, slots: execution.deploy(index, slots, self._now),
            on_failed=lambda ends: execution.failed(ends, self._now),
            why_short=lambda: " ".join(shortage.reason for shortage in self._shortages),
        )

    # orders

    def start(self, now: float) -> list[JobSchedulerAction]:
        """Begin; once."""
        self._now = now
        if self._job.is_ending:
            return []
        if self._formats.initialize():
            return self._outbox.take()
        return self._begin(now)

    def _begin(self, now: float) -> list[JobSchedulerAction]:
        self._execution.enter(JobStatus.RUNNING, now)
        if self._spark is not None:
            self._spark.at(now).placement.declare()
        self._execution.begin(now)
        return self._outbox.take()

    def cancel(self, now: float) -> list[JobSchedulerAction]:
        """Cancel the job; a second time is fine, also after its end."""
        is_failing = self.status is JobStatus.FAILING and self._job.suspension is None
        if self._job.is_ending and not is_failing:
            return []
        self._execution.enter(JobStatus.CANCELLING, now, "cancelled by its user")
        self._at(now).cancel_everything(now)
        return self._outbox.take()

    def suspend(self, reason: str, now: float) -> list[JobSchedulerAction]:
        """End this JobMaster's work on the job, whose result is SUSPENDED (EX-08)."""
        if self.status.is_terminal or self._job.suspension is not None:
            return []
        self._job.suspend(reason, now)
        self._at(now).cancel_everything(now)
        return self._outbox.take()

    def global_failure(self, cause: Failure, now: float) -> list[JobSchedulerAction]:
        """Something failed that concerns the whole job."""
        if self.status.is_terminal or self._job.suspension is not None:
            return []
        if self.status is JobStatus.CANCELLING:
            self._at(now).fail_job(cause, now)
        else:
            self._at(now).fail(cause, (), now, is_global=True)
        return self._outbox.take()

    # work outside the tasks

    def master_initialized(
        self, vertex_id: JobVertexID, splits: Sequence[InputSplit], now: float
    ) -> list[JobSchedulerAction]:
        """An InitializeOnMaster is carried out."""
        is_last = self._formats.initialized(vertex_id, splits)
        self._now = now
        return self._begin(now) if is_last and not self._job.is_ending else []

    def master_finalized(
        self, vertex_id: JobVertexID, generation: int, now: float
    ) -> list[JobSchedulerAction]:
        """A FinalizeOnMaster is carried out."""
        is_last = self._formats.finalized(vertex_id, generation)
        if is_last and self.status is JobStatus.RUNNING and not self._job.is_ending:
            self._end(JobStatus.FINISHED, now)
        return self._outbox.take()

    def master_failed(
        self, vertex_id: JobVertexID, cause: Failure, now: float, generation: int = 0
    ) -> list[JobSchedulerAction]:
        """An InitializeOnMaster, or the FinalizeOnMaster of that generation, failed."""
        if not self._formats.failed(vertex_id, generation):
            return []
        return self.global_failure(cause, now)

    def request_next_input_split(
        self, attempt_id: ExecutionAttemptID, number: int, host: str = ""
    ) -> InputSplit | None:
        """The *number*-th input of a task, from 0; None: there is no more.  What was given once for
        a number is given again (JM-12).

        Raises:
            AttemptDisposedError: as :meth:`check_current`.
        """
        return self._formats.next_split(self._current(attempt_id).vertex, number, host)

    def check_current(self, attempt_id: ExecutionAttemptID) -> None:
        """Nothing happens for what an earlier attempt asks, or one of another execution graph.

        Raises:
            AttemptDisposedError: it is not the current one of its subtask, or has ended.
        """
        self._current(attempt_id)

    def _current(self, attempt_id: ExecutionAttemptID) -> Execution:
        execution = self._graph.find(attempt_id)
        if execution is None or execution.state.is_terminal:
            raise AttemptDisposedError(str(attempt_id))
        return execution

    # slots

    def slot_events(self, events: Iterable[SlotEvent], now: float) -> list[JobSchedulerAction]:
        """What the SlotPool says, in its order."""
        if self._shared is not None:
            self._at(now)
            self._shared.slot_events(events)
        return self._outbox.take()

    def slots_changed(
        self, slots: tuple[AllocatedSlot, ...], now: float
    ) -> list[JobSchedulerAction]:
        """All slots the pool holds for Spark stages; a used one that is missing is lost."""
        if self._spark is not None and not self.status.is_terminal:
            self._at(now)
            self._spark.slots_changed(slots)
        return self._outbox.take()

    def slot_failed(
        self, allocation_id: AllocationID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A slot is lost, with its cause (send it before the pool's word that says so)."""
        self._at(now)
        if self._spark is not None:
            self._spark.slot_failed(allocation_id, cause)
        elif self._shared is not None:
            self._shared.slot_lost(allocation_id, cause)
        return self._outbox.take()

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """All slots and partitions on that TaskExecutor are lost (send it before the pool's word
        that says so)."""
        self._at(now)
        self._outbox.bulk.forget(resource_id)
        if self._spark is not None:
            self._spark.task_executor_lost(resource_id, cause)
        elif self._shared is not None:
            shared = self._shared
            self._execution.task_executor_lost(
                self._execution.tracker.task_executor_lost(resource_id),
                cause,
                now,
                lambda: shared.task_executor_lost(resource_id, cause),
            )
        return self._outbox.take()

    def task_executor_registered(self, resource_id: ResourceID) -> None:
        """It has connected (again), and may not know what it was sent before."""
        self._outbox.bulk.forget(resource_id)

    def slot_pool_lost(self, cause: str, now: float) -> list[JobSchedulerAction]:
        """The SlotPool is gone with all slots, and so are the results that were kept with them;
        requests are made again, to the next one."""
        if self.status.is_terminal:
            return []
        self._at(now)
        failure = Failure(f"the slot pool of the job was lost: {cause}")
        if self._spark is not None:
            self._spark.pool_lost(failure)
        elif self._shared is not None:
            shared = self._shared
            self._execution.task_executor_lost(
                self._execution.tracker.all_lost(),
                cause,
                now,
                lambda: shared.pool_lost(failure.text),
            )
        return self._outbox.take()

    def resources_short(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[JobSchedulerAction]:
        """Why slots are missing now (the whole list); an unfulfillable one fails the job."""
        self._at(now)
        self._shortages = shortages
        if self._spark is not None:
            self._spark.placement.resources_short(shortages)
        return self._outbox.take()

    def slot_request_timed_out(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleSlotRequestTimeout is over (EX-18)."""
        self._at(now)
        if self._spark is not None:
            self._spark.placement.timed_out(generation)
        return self._outbox.take()

    # tasks

    def task_state_changed(self, state: TaskExecutionState, now: float) -> list[JobSchedulerAction]:
        """A TaskExecutor's report."""
        return self.task_states_changed((state,), now)

    def task_states_changed(
        self, states: Iterable[TaskExecutionState], now: float
    ) -> list[JobSchedulerAction]:
        """Reports of TaskExecutors, in their order; failures among them are one failure."""
        self._at(now)
        self._reports.states_changed(states, now)
        return self._outbox.take()

    def deploy_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A DeployTask could not be carried out (EX-02)."""
        self._at(now)
        self._reports.deployments_failed((attempt_id,), cause, now)
        return self._outbox.take()

    def deployments_failed(
        self,
        resource_id: ResourceID,
        attempts: Iterable[ExecutionAttemptID],
        cause: str,
        now: float,
    ) -> list[JobSchedulerAction]:
        """A DeployTasks to that TaskExecutor could not be carried out, for these attempts, whether
        they are current or not: what was shared in it has not come either (EX-02)."""
        self._at(now)
        self._outbox.bulk.forget(resource_id)
        self._reports.deployments_failed(attempts, cause, now)
        return self._outbox.take()

    def cancel_failed(
        self, attempt_id: ExecutionAttemptID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """A CancelTask or CancelTasks could not be carried out: the attempt counts as canceled
        (EX-04)."""
        self._at(now)
        self._reports.cancel_failed(attempt_id, cause, now)
        return self._outbox.take()

    # time

    def restart_delay_over(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleRestart is over."""
        self._at(now).delay_is_over(generation, now)
        return self._outbox.take()

    # questions

    @property
    def job_id(self) -> JobID:
        return self._job_graph.job_id

    def partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        """The state of a partition's producer (JM-13).

        Raises:
            ValueError: the job has no such partition.
            PartitionProducerDisposedError: it is of an attempt that is not the current one.
        """
        result = self._graph.result(partition.data_set_id)
        if result is None or not 0 <= partition.partition < result.producer.parallelism:
            raise ValueError(f"the job produces no partition {partition}")
        current = result.producer.subtasks[partition.partition].current
        if (partition.graph_id, partition.attempt_number) != (
            self._graph.graph_id,
            current.attempt_number,
        ):
            raise PartitionProducerDisposedError(str(partition), str(current.attempt_id))
        return current.state

    def holds_partitions_on(self, resource_id: ResourceID) -> bool:
        """Whether a TaskExecutor keeps finished partitions of the job (JM-15)."""
        return self._execution.tracker.holds_partitions_on(resource_id)

    def story(self) -> str:
        """What has happened to the job, a line per event."""
        return self._job.story

    # --- ends -------------------------------------------------------------------------------------

    def _all_finished(self, now: float) -> None:
        if not self._formats.finalize():
            self._end(JobStatus.FINISHED, now)

    def _end(self, status: JobStatus, now: float) -> None:
        self._execution.tracker.release_all(is_finished=status is JobStatus.FINISHED)
        self._execution.enter(status, now, self._job.suspension or "")
        self._outbox.add(JobEnded(self._job.job_result(now), self.details()))
