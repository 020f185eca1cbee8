"""Decides which regions of a job are restarted after a failure (failover strategies), and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flinkray.core.job_options import RESTART_ATTEMPTS_WITH_SAME_ERROR
from flinkray.scheduler.checkpoints.events import CheckpointsFailJob, ReadyToRestore
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.repeated_errors import RepeatedErrors
from flinkray.scheduler.execution.restart_strategy import RestartBackoffTimeStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.checkpoints import NoCheckpoints
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobRestarts
from flinkray.scheduler.job.result_partitions import PartitionTracker
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer


class _Noted:
    """The failures that one event has caused, collected until the decision about them."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        """Failures in the order in which they were noted; each may become the root cause."""
        self.concurrent: list[Failure] = []
        """Errors of attempts that were being canceled; they do not count as failures."""
        self.failed: list[int] = []
        """Ordinals of the failed subtasks."""
        self.first_failed: dict[int, int] = {}
        """Index in ``failures`` -> ordinal of one of the failure's subtasks."""
        self.lost: list[tuple[Execution, str]] = []
        """(producer of lost results, cause)"""
        self.is_global = False

    @property
    def root(self) -> Failure:
        """The failure that counts as the cause of all: the first one that allows no restart, else
        the first."""
        first = self.failures[0]
        return next((f for f in self.failures if f.is_unrecoverable), first)


class Failover:
    """Collects the failures of an event, and decides about them together when all are known. One
    event counts as one failure and costs one restart.  A region restarts when none of its tasks
    runs, the delay is over, and the latest checkpoint is known."""

    def __init__(
        self,
        graph: ExecutionGraph,
        regions: PipelinedRegions,
        record: JobRecord,
        restarts: PendingRestarts,
        execution: JobExecution,
        tracker: PartitionTracker,
        restart_strategy: RestartBackoffTimeStrategy,
        repeated_errors: RepeatedErrors,
        checkpoints: NoCheckpoints,
        *,
        first_generation: int = 0,
    ) -> None:
        self._graph = graph
        self._regions = regions
        self._record = record
        self._restarts = restarts
        self._execution = execution
        self._tracker = tracker
        self._restart_strategy = restart_strategy
        self._repeated_errors = repeated_errors
        self._checkpoints = checkpoints
        strategy = (
            RestartAllFailoverStrategy
            if graph.job_graph.restart_all
            else RestartPipelinedRegionFailoverStrategy
        )
        self._strategy = strategy(graph, regions)
        self._has_master_hook = graph.job_graph.has_master_hook
        self._generation = first_generation
        self._noted = _Noted()
        self._is_new_attempt = False
        """Whether the current failure counts as one more restart for the restart strategy."""
        self._is_restore_possible = True

    def next_generation(self) -> int:
        """Return a new number for a timer, by which its event is told apart from events of older
        timers."""
        self._generation += 1
        return self._generation

    # --- failures ---------------------------------------------------------------------------------

    def subtasks_failed(self, transition: t.SubtasksFailed, now: float) -> Steps:
        for ordinals, failure in transition.failures:
            if ordinals:
                self._noted.first_failed[len(self._noted.failures)] = ordinals[0]
            self._noted.failed += ordinals
            self._noted.failures.append(failure)
        self._noted.concurrent += transition.concurrent
        return (t.DecideFailover(),)

    def task_executor_lost(self, transition: t.TaskExecutorLost, now: float) -> Steps:
        """Collect for the decision the lost results that a region still has to read, because they
        must be produced again."""
        producers = self._tracker.task_executor_lost(transition.resource_id)
        self._noted.lost += [(vertex.current, transition.cause) for vertex in producers]
        return (t.DecideFailover(),) if producers else ()

    def checkpoints_fail_job(self, transition: CheckpointsFailJob, now: float) -> Steps:
        return self.global_failure(t.GlobalFailure(Failure(transition.text)), now)

    def global_failure(self, transition: t.GlobalFailure, now: float) -> Steps:
        """Collect a failure of the whole job for the decision. A suspended job has none, because
        this JobMaster gives the job up and the next one runs it."""
        if self._record.suspension is not None:
            return ()
        self._noted.failures.append(transition.failure)
        self._noted.is_global = True
        return (t.DecideFailover(),)

    # --- the decision -----------------------------------------------------------------------------

    def decide(self, transition: t.DecideFailover, now: float) -> Steps:
        """Restart the regions that the collected failures concern, or fail the job if no restart is
        allowed. While the job is ending, failures are only recorded, except that a failure of the
        whole job turns a cancellation into a failure."""
        noted, self._noted = self._noted, _Noted()
        self._add_lost_results(noted)
        if not noted.failures:
            for failure in noted.concurrent:
                self._record.add_concurrent_failure(failure, now)
            return ()
        root = noted.root
        concurrent = [f for f in noted.failures if f is not root] + noted.concurrent
        if self._record.is_ending:
            is_cancelling = self._record.status is JobStatus.CANCELLING
            if noted.is_global and is_cancelling and self._record.suspension is None:
                return self.fail(root, now, concurrent)
            self._add_to_history(root, concurrent, now, is_new=True)
            return ()
        repeated = self._repeated(noted, now)
        if repeated is not None and not root.is_unrecoverable:
            last, attempts = repeated
            others = [f for f in (*noted.failures, *noted.concurrent) if f is not last]
            return self.fail(_given_up(last, attempts), now, others)
        if not self._may_restart(root, now):
            return self.fail(root, now, concurrent)
        # master hooks belong to the whole job, and are restored only with all tasks
        noted.is_global |= self._has_master_hook
        steps: list[Step] = []
        if self._is_new_attempt:
            cause = self._record.count_restart(root)
            delay = self._restart_strategy.backoff_time(now)
            steps.append(JobRestarts(self._record.restarts, cause, delay))
        self._add_to_history(root, concurrent, now, is_new=self._is_new_attempt)
        steps += self._prepare_restore(root.text, now, is_global=noted.is_global)
        if self._record.status is JobStatus.RUNNING:
            steps += self._record.change(JobStatus.RESTARTING, now, root.text)
        return [*steps, *self._restart_later(noted, now)]

    def _add_lost_results(self, noted: _Noted) -> None:
        """Count the collected lost results as failures, except those whose producers run again
        anyway."""
        of = self._regions.of
        lost = [e for e in noted.lost if of[e[0].vertex.ordinal] not in self._restarts]
        if not lost:
            return
        noted.failed += [execution.vertex.ordinal for execution, _ in lost]
        if not noted.failures and not self._record.is_ending:
            (first, cause), *others = lost
            more = f" and {len(others)} more tasks" if others else ""
            text = f"the results of {first.task_name}{more} were lost: {cause}"
            noted.failures.append(Failure(text, task=first.task_name))

    def _repeated(self, noted: _Noted, now: float) -> tuple[Failure, int] | None:
        """Count the errors of the failures. If an error has ended too many attempts, return the
        first failure with such an error, and the number of attempts; otherwise None."""
        repeated = None
        for place, failure in enumerate(noted.failures):
            if failure.program_error is None:
                continue
            vertex, begun = "", None
            if place in noted.first_failed:
                subtask = self._graph.subtasks[noted.first_failed[place]]
                vertex = subtask.job_vertex.vertex.vertex_id.hex()
                begun = subtask.current.entered.get(ExecutionState.DEPLOYING)
            if self._repeated_errors.notify_failure(
                failure.program_error, vertex, begun, self._checkpoints.completed, now
            ):
                attempts = self._repeated_errors.attempts(failure.program_error, vertex)
                repeated = repeated or (failure, attempts)
        return repeated

    def _may_restart(self, failure: Failure, now: float) -> bool:
        if failure.is_unrecoverable:
            return False
        self._is_new_attempt = self._restart_strategy.notify_failure(now)
        return self._record.has_begun and self._restart_strategy.can_restart()

    def _add_to_history(
        self, root: Failure, concurrent: Iterable[Failure], now: float, *, is_new: bool
    ) -> None:
        if is_new:
            self._record.add_failure(root, now)
        else:
            self._record.add_concurrent_failure(root, now)
        for failure in concurrent:
            self._record.add_concurrent_failure(failure, now)

    def _restart_later(self, noted: _Noted, now: float) -> Steps:
        execution = self._execution
        concerned: Iterable[int] = execution.all_regions
        if not noted.is_global:
            concerned = self._strategy.regions_to_restart(noted.failed)
        indices = execution.begun_regions(concerned)
        delay = self._restart_strategy.backoff_time(now)
        generation = self.next_generation()
        steps = self._stop(indices, generation, is_global=noted.is_global)
        return [*steps, StartTimer(t.RestartDelayOver(generation), delay)]

    def _stop(
        self, indices: tuple[int, ...], generation: int, *, is_global: bool
    ) -> Sequence[Step]:
        """Cancel the tasks of these regions, and add the regions to the pending restarts under the
        number *generation*."""
        unended = self._execution.active_regions(indices)
        _, due = self._restarts.add(generation, indices, unended, is_global=is_global)
        cancelled = t.CancelRegions(indices, keep_created=True)
        earlier = (t.RestartDue(restart.generation) for restart in due)
        return [t.ResultsTakenBack(indices), cancelled, *earlier]

    def stop_regions(self, transition: t.StopRegions, now: float) -> Steps:
        """Cancel the tasks of these regions, and reset the regions when the tasks have ended."""
        generation = self.next_generation()
        steps = self._stop(transition.regions, generation, is_global=False)
        return [*steps, t.RestartDelayOver(generation)]

    def stop_everything(self, transition: t.StopEverything, now: float) -> Steps:
        """Cancel all tasks, although nothing has failed, and restart all regions when the tasks
        have ended."""
        steps = [*self._prepare_restore(transition.cause, now, is_global=True)]
        if self._record.status is JobStatus.RUNNING:
            steps += self._record.change(JobStatus.RESTARTING, now, transition.cause)
        indices = self._execution.begun_regions(self._execution.all_regions)
        generation = self.next_generation()
        steps += self._stop(indices, generation, is_global=True)
        return [*steps, t.RestartDelayOver(generation)]

    def fail(self, failure: Failure, now: float, concurrent: Iterable[Failure] = ()) -> Steps:
        """Fail the job, because no restart is allowed. *concurrent*: the event's other failures."""
        steps = self._record.fail(failure, now)
        for other in concurrent:
            self._record.add_concurrent_failure(other, now)
        return [*steps, t.CancelEverything()]

    def cancel_everything(self, transition: t.CancelEverything, now: float) -> Steps:
        """Cancel all regions and forget restarts, because the job's end is decided."""
        self._restarts.clear()
        indices = tuple(self._execution.all_regions)
        return (t.CancelRegions(indices, keep_created=False), t.NothingRuns())

    # --- restarts ---------------------------------------------------------------------------------

    def delay_is_over(self, transition: t.RestartDelayOver, now: float) -> Steps:
        """Return the transition RestartDue for the restart whose delay is over; none if the restart
        no longer exists."""
        restart = self._restarts.delay_is_over(transition.generation)
        return () if restart is None else (t.RestartDue(restart.generation),)

    def _prepare_restore(self, cause: str, now: float, *, is_global: bool) -> Steps:
        """Abort checkpoints in progress, and delay all restarts until it is certain which
        checkpoint is the latest complete one. *is_global*: all tasks restart."""
        self._is_restore_possible = False
        return self._checkpoints.prepare_restore(cause, now, is_global=is_global)

    def restore_possible(self, transition: ReadyToRestore, now: float) -> Steps:
        self._is_restore_possible = True
        return [t.RestartDue(restart.generation) for restart in self._restarts.due()]

    def restart(self, transition: t.RestartDue, now: float) -> Steps:
        """Return the transition that resets the regions of a due restart, so that they run again.
        Returns none while state cannot be restored, when the job is ending, or if later failures
        have taken over all regions of the restart."""
        taken = self.take_due(transition.generation)
        return () if taken is None else (taken,)

    def take_due(self, generation: int) -> t.ResetRegions | None:
        """Take a pending restart that can begin now.  Returns the transition that carries it out.
        None if the restart is not due, or no longer exists."""
        restart = self._restarts.find(generation)
        if restart is None or not restart.is_due or self._record.is_ending:
            return None
        if not self._is_restore_possible:
            return None
        is_global = restart.is_global
        indices = tuple(self._restarts.take(restart))
        subtasks, regions = self._graph.subtasks, self._regions.regions
        vertices = tuple(subtasks[ordinal] for i in indices for ordinal in regions[i].vertices)
        return t.ResetRegions(indices, is_global, vertices)


def _given_up(failure: Failure, attempts: int) -> Failure:
    """Return *failure*, extended by a text that says why the job is not restarted: *attempts*
    attempts have ended with the same error."""
    return replace(
        failure,
        text=f"{failure.text}\nThe job is not restarted any more: {attempts} attempts have ended "
        "with this error, without a completed checkpoint between them "
        f"({RESTART_ATTEMPTS_WITH_SAME_ERROR.key}).",
    )


class FailoverStrategy(ABC):
    """Decides which regions to restart. Stateless. Subtasks are given by their ordinals in the
    graph."""

    def __init__(self, graph: ExecutionGraph, regions: PipelinedRegions) -> None:
        self._graph = graph
        self._regions = regions

    @abstractmethod
    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        """Return the indices of the regions to restart, in ascending order, because the subtasks
        with the ordinals *failed* have failed. The caller must have marked as gone the partitions
        that a failed subtask could not read."""

    def tasks_to_restart(self, failed: Iterable[int]) -> list[int]:
        """Return the ordinals of the subtasks to restart, in ascending order, because the subtasks
        with the ordinals *failed* have failed. Subtasks that are still CREATED are left out
        (FO-06)."""
        subtasks = self._graph.subtasks
        return sorted(
            ordinal
            for index in self.regions_to_restart(failed)
            for ordinal in self._regions.regions[index].vertices
            if subtasks[ordinal].current.state is not ExecutionState.CREATED
        )


class RestartAllFailoverStrategy(FailoverStrategy):
    """Restarts all regions after every failure."""

    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        return list(range(len(self._regions.regions)))


class RestartPipelinedRegionFailoverStrategy(FailoverStrategy):
    """Restarts the failed regions, and the regions that depend on their restart. The default. With
    each region it restarts the producers of input partitions that are gone (FO-04, FO-05), and all
    readers of the region's results, because the results may differ the next time (FO-03).

    The time is proportional to the concerned subtasks and partition groups."""

    def regions_to_restart(self, failed: Iterable[int]) -> list[int]:
        regions = self._regions
        wanted = dict.fromkeys(regions.of[ordinal] for ordinal in failed)
        queue = list(wanted)
        inputs_seen: set[int] = set()
        outputs_seen: set[int] = set()

        def want(indices: Iterable[int]) -> None:
            for index in indices:
                if index not in wanted:
                    wanted[index] = None
                    queue.append(index)

        while queue:
            region = regions.regions[queue.pop()]
            for group in region.inputs:
                if id(group) in inputs_seen:
                    continue
                inputs_seen.add(id(group))
                result, first = group.edge.result, group.edge.result.producer.first
                want(
                    regions.of[first + partition]
                    for partition in group.partitions
                    if not result.is_available(partition)
                )
            for group in region.outputs:
                if id(group) not in outputs_seen:
                    outputs_seen.add(id(group))
                    want(regions.consumers(group))
        return sorted(wanted)
