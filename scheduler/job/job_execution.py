"""A job's regions in execution: what is scheduled, deployed, cancelled and restarted when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionVertex
from flinkray.scheduler.execution.failover_strategy import (
    RestartAllFailoverStrategy,
    RestartPipelinedRegionFailoverStrategy,
)
from flinkray.scheduler.execution.partition_tracker import PartitionTracker
from flinkray.scheduler.execution.pending_restarts import PendingRestart, PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.restart_strategy import RestartBackoffTimeStrategy
from flinkray.scheduler.execution.scheduling_strategy import new_scheduling_strategy
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTask,
    JobStatusChanged,
    ScheduleRestart,
)
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.placement import Placement
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState, JobStatus


class StateRestorer(Protocol):
    """The seam to checkpoints: asked when regions are restarted, before they are scheduled."""

    def abort_pending(self, cause: str) -> None:
        """What is not complete is given up: tasks that it needs are gone."""

    def restore(self, executions: Sequence[Execution], *, is_global: bool) -> Failure | None:
        """Set ``restored_state`` of these new attempts; master state too when *is_global*.

        A failure makes the restart a global failure (EX-16).
        """


class NoState:
    """For jobs without checkpoints."""

    def abort_pending(self, cause: str) -> None:
        pass

    def restore(self, executions: Sequence[Execution], *, is_global: bool) -> Failure | None:
        return None


class _RegionRun:
    __slots__ = ("active", "finished", "is_begun")

    def __init__(self) -> None:
        self.active = 0
        """Attempts from SCHEDULED to their end, and coordinators that are there."""
        self.finished = 0
        self.is_begun = False
        """Whether it was scheduled, and so must be restarted when it fails."""


class JobExecution:
    """Works on regions, by their indices.  Decisions go to the outbox; what concerns the whole job
    goes through the record."""

    def __init__(
        self,
        graph: ExecutionGraph,
        record: JobRecord,
        outbox: Outbox,
        restart_strategy: RestartBackoffTimeStrategy,
        state: StateRestorer,
        *,
        first_generation: int = 0,
        on_finished: Callable[[float], None],
        on_ended: Callable[[JobStatus, float], None],
        on_reset: Callable[[Sequence[ExecutionVertex], bool], None],
    ) -> None:
        """*on_finished*: every task is FINISHED.  *on_ended*: nothing runs any more and the job's
        end was decided before.  *on_reset*: these are going to be executed again, after a global
        failure or not."""
        self.graph = graph
        self.record = record
        self.regions = PipelinedRegions(graph)
        self.outbox = outbox
        outbox.open(graph)
        self.placement: Placement
        """To be set before anything is scheduled."""
        self.stop_coordinators: Callable[[int, float], None] = lambda region, now: None
        """Called when a region is cancelled."""
        self.instead_of_restart: Callable[[float], None] | None = None
        """For elastic jobs, which are not restarted as they were: called when nothing runs any more
        and the delay is over."""
        self.tracker = PartitionTracker(
            graph, self.regions, self.outbox.bulk.release, self.outbox.bulk.promote
        )
        self._restart_strategy = restart_strategy
        self._state = state
        self._on_finished = on_finished
        self._on_ended = on_ended
        self._on_reset = on_reset
        self._strategy = new_scheduling_strategy(graph.job_graph, self.regions)
        failover = (
            RestartAllFailoverStrategy
            if graph.job_graph.restart_all
            else RestartPipelinedRegionFailoverStrategy
        )
        self._failover = failover(graph, self.regions)
        self._runs = [_RegionRun() for _ in self.regions.regions]
        self._active = 0
        self._restarts = PendingRestarts()
        self._generation = first_generation
        self._lost_producers: list[int] = []

    # --- scheduling -------------------------------------------------------------------------------

    def next_generation(self) -> int:
        """For a timer: old ones are known as such by it."""
        self._generation += 1
        return self._generation

    def begin(self, now: float) -> None:
        """Schedule what can run from the start."""
        self._schedule(self._strategy.start(), now)

    def _schedule(self, indices: Iterable[int], now: float) -> None:
        scheduled = []
        for index in indices:
            run = self._runs[index]
            if run.active or run.finished or index in self._restarts:
                continue
            run.is_begun = True
            for execution in self.executions_of(index):
                if execution.schedule(now):
                    self.began(index)
            scheduled.append(index)
        if scheduled:
            self.placement.request(scheduled, now)

    def executions_of(self, index: int) -> list[Execution]:
        """The current attempts of a region, in the order of its vertices."""
        subtasks = self.graph.subtasks
        return [subtasks[ordinal].current for ordinal in self.regions.regions[index].vertices]

    def deploy(self, index: int, slots: Sequence[AllocatedSlot], now: float) -> None:
        """A region has its slots."""
        for execution, slot in zip(self.executions_of(index), slots, strict=True):
            execution.deploy(slot, now)
            self.outbox.bulk.deploy(execution)

    def began(self, index: int) -> None:
        """Something of a region runs that must end before the region is over."""
        self._runs[index].active += 1
        self._active += 1

    def ended(self, index: int, now: float) -> None:
        """One of those has ended."""
        run = self._runs[index]
        run.active -= 1
        self._active -= 1
        if not run.active:
            restart = self._restarts.region_ended(index)
            if restart is not None:
                self._restart_when_due(restart, now)
        self._end_when_nothing_runs(now)

    # --- ends of executions -----------------------------------------------------------------------

    def is_restarting(self, index: int) -> bool:
        """Whether a region is to be executed again, whatever becomes of what runs of it now."""
        return index in self._restarts

    def execution_ended(self, execution: Execution, now: float) -> None:
        """It has reached a terminal state."""
        self.placement.execution_ended(execution)
        self.ended(self.regions.of[execution.vertex.ordinal], now)

    def finished(self, executions: Iterable[Execution], now: float) -> None:
        """They are FINISHED, and ``execution_ended`` was told."""
        groups = []
        for execution in executions:
            vertex = execution.vertex
            self.tracker.finished(vertex)
            for result in vertex.job_vertex.results:
                groups += result.finish(vertex.subtask_index)
            index = self.regions.of[vertex.ordinal]
            run = self._runs[index]
            run.finished += 1
            if run.finished == len(self.regions.regions[index].vertices):
                self.tracker.region_finished(index)
        if self.record.is_ending:
            return
        self._schedule(self._strategy.groups_finished(groups), now)
        if self.graph.is_finished and not self._restarts:
            self._on_finished(now)

    def failed(self, ends: Sequence[tuple[Execution, Failure]], now: float) -> None:
        """Attempts ended otherwise than by finishing: one failure, whatever their number."""
        failures: list[tuple[int, Failure]] = []
        concurrent = []
        ended = []
        for execution, failure in ends:
            if execution.state.is_terminal:
                continue
            if execution.end(failure, now):
                failures.append((execution.vertex.ordinal, failure))
            elif failure.text:
                concurrent.append(failure)
            ended.append(execution)
        if failures:
            root = next((f for _, f in failures if f.is_unrecoverable), failures[0][1])
            failed = [ordinal for ordinal, _ in failures] + self._lost_producers
            self._lost_producers = []
            self.fail(root, failed, now)
            concurrent = [f for _, f in failures if f is not root] + concurrent
        for failure in concurrent:
            self.record.add_concurrent_failure(failure, now)
        for execution in ended:
            self.execution_ended(execution, now)

    def task_executor_lost(
        self, producers: Sequence[ExecutionVertex], cause: str, now: float, fail: Callable[[], None]
    ) -> None:
        """Finished partitions of *producers* are lost that have yet to be read, and *fail* ends
        what ran there: one failure, whatever was lost."""
        self._lost_producers = [
            vertex.ordinal
            for vertex in producers
            if self.regions.of[vertex.ordinal] not in self._restarts
        ]
        fail()
        lost, self._lost_producers = self._lost_producers, []
        if lost and not self.record.is_ending:
            task_name = self.graph.subtasks[lost[0]].task_name
            more = f" and {len(lost) - 1} more tasks" if len(lost) > 1 else ""
            text = f"the results of {task_name}{more} were lost: {cause}"
            self.fail(Failure(text, task=task_name), lost, now)

    # --- failures ---------------------------------------------------------------------------------

    def fail(
        self, failure: Failure, failed: Sequence[int], now: float, *, is_global: bool = False
    ) -> None:
        """Vertices failed (or something that concerns the whole job): regions are restarted, or the
        job fails."""
        if self.record.is_ending:
            self.record.add_failure(failure, now)
            return
        if failure.is_unrecoverable:
            self.fail_job(failure, now)
            return
        is_new_attempt = self._restart_strategy.notify_failure(now)
        is_started = self.record.status is not JobStatus.CREATED
        if not is_started or not self._restart_strategy.can_restart():
            self.fail_job(failure, now)
            return
        if is_new_attempt:
            self.record.restarts += 1
            self.record.add_failure(failure, now)
        else:
            self.record.add_concurrent_failure(failure, now)
        if self.record.status is JobStatus.RUNNING:
            self.enter(JobStatus.RESTARTING, now, failure.text)
        self._restart_later(self._regions_to_restart(failed, is_global), now, is_global)

    def _regions_to_restart(self, failed: Sequence[int], is_global: bool) -> list[int]:
        indices: Iterable[int] = range(len(self._runs))
        if not is_global:
            indices = self._failover.regions_to_restart(failed)
        return [index for index in indices if self._runs[index].is_begun]

    def _restart_later(self, indices: list[int], now: float, is_global: bool) -> None:
        generation = self.next_generation()
        delay = self._restart_strategy.backoff_time(now)
        unended = {index for index in indices if self._runs[index].active}
        _, due = self._restarts.add(generation, indices, unended, is_global=is_global)
        self._take_back_results(indices)
        self._state.abort_pending("tasks are restarted")
        self._cancel(indices, now, but=ExecutionState.CREATED)
        self.outbox.add(ScheduleRestart(delay, generation))
        for earlier in due:
            if earlier.regions:  # else a failure while another one was carried out has taken them
                self._restart_when_due(earlier, now)

    def restart_everything(self, now: float, cause: str) -> None:
        """Stop all and restart as soon as nothing runs any more, though nothing has failed."""
        if self.record.status is JobStatus.RUNNING:
            self.enter(JobStatus.RESTARTING, now, cause)
        indices = self._regions_to_restart((), is_global=True)
        unended = {index for index in indices if self._runs[index].active}
        restart, _ = self._restarts.add(self.next_generation(), indices, unended, is_global=True)
        self._take_back_results(indices)
        self._state.abort_pending(cause)
        self._cancel(indices, now, but=ExecutionState.CREATED)
        self.delay_is_over(restart.generation, now)

    def _take_back_results(self, indices: list[int]) -> None:
        """From now on nobody may begin to read them; at the restart would be too late."""
        unfinished = []
        for index in indices:
            run = self._runs[index]
            if run.finished == len(self.regions.regions[index].vertices):
                self.tracker.region_unfinished(index)
            run.finished = 0
            for execution in self.executions_of(index):
                self.tracker.reset(execution.vertex)
                for result in execution.vertex.job_vertex.results:
                    unfinished += result.reset(execution.vertex.subtask_index)
        self._strategy.groups_unfinished(unfinished)

    def _cancel(
        self, indices: Iterable[int], now: float, but: ExecutionState | None = None
    ) -> None:
        indices = tuple(indices)
        self.placement.cancel(indices)
        for index in indices:
            self.stop_coordinators(index, now)
            for execution in self.executions_of(index):
                before = execution.state
                if before is but:
                    continue
                if execution.begin_cancel(now):
                    self.cancel_task(execution)
                elif before is ExecutionState.SCHEDULED:
                    self.execution_ended(execution, now)

    def cancel_task(self, execution: Execution) -> None:
        """Have its TaskExecutor told."""
        if execution.vertex.job_vertex.is_spark_stage:
            assert execution.slot is not None
            self.outbox.add(CancelTask(execution.attempt_id, execution.slot))
        else:
            self.outbox.bulk.cancel(execution)

    def delay_is_over(self, generation: int, now: float) -> None:
        """The delay of a ScheduleRestart is over."""
        restart = self._restarts.delay_is_over(generation)
        if restart is not None:
            self._restart_when_due(restart, now)

    def _restart_when_due(self, restart: PendingRestart, now: float) -> None:
        """Reset the vertices, restore, and only then schedule (EX-16)."""
        if not restart.is_due or self.record.is_ending:
            return
        indices = self._restarts.take(restart)
        if self.instead_of_restart is not None:
            self.instead_of_restart(now)
            return
        vertices = []
        for index in indices:
            for execution in self.executions_of(index):
                if execution.state is not ExecutionState.CREATED:
                    execution.vertex.reset_for_new_execution(now)
                vertices.append(execution.vertex)
        self._on_reset(vertices, restart.is_global)
        failure = self._state.restore([v.current for v in vertices], is_global=restart.is_global)
        if failure is not None:
            self.fail(failure, (), now, is_global=True)
            return
        for index in indices:
            self._runs[index].is_begun = False
        if not self._restarts:
            self.enter(JobStatus.RUNNING, now, f"restart {self.record.restarts}")
        self._schedule(self._strategy.restart(indices), now)

    # --- ends of the job --------------------------------------------------------------------------

    def enter(self, status: JobStatus, now: float, cause: str = "") -> None:
        """The job's status changes."""
        self.record.enter(status, now, cause)
        self.outbox.add(JobStatusChanged(status))

    def fail_job(self, failure: Failure, now: float) -> None:
        """No restart is allowed."""
        self.record.fail(failure, now)
        self.outbox.add(JobStatusChanged(JobStatus.FAILING))
        self.cancel_everything(now)

    def cancel_everything(self, now: float) -> None:
        """The job's end is decided: nothing is restarted any more."""
        self._restarts.clear()
        self._active += 1  # it ends when all are cancelled, not with the first
        self._cancel(range(len(self._runs)), now)
        self._active -= 1
        self._end_when_nothing_runs(now)

    def _end_when_nothing_runs(self, now: float) -> None:
        record = self.record
        if self._active or not record.is_ending or record.status.is_terminal:
            return
        if record.suspension is not None:
            self._on_ended(JobStatus.SUSPENDED, now)
        elif record.status is JobStatus.FAILING:
            self._on_ended(JobStatus.FAILED, now)
        elif record.status is JobStatus.CANCELLING:
            self._on_ended(JobStatus.CANCELED, now)
