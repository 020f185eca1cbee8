"""What becomes of a job of which something has failed: which regions are restarted, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph
from flinkray.scheduler.execution.failover_strategy import (
    RestartAllFailoverStrategy,
    RestartPipelinedRegionFailoverStrategy,
)
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.restart_strategy import RestartBackoffTimeStrategy
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import StartTimer, TimerKey, TimerPurpose
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.job.transitions import (
    CancelEverything,
    CancelRegions,
    DecideFailover,
    FailJob,
    GlobalFailure,
    NothingRuns,
    PrepareRestore,
    RegionsOver,
    ResetRegions,
    RestartDelayOver,
    RestartDue,
    RestorePossible,
    ResultsLost,
    ResultsTakenBack,
    StopEverything,
    SubtasksFailed,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import JobStatus


class _Noted:
    """All that has failed by one event."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        """In the order in which they were noted; each may be the one that all are told by."""
        self.concurrent: list[Failure] = []
        """What ended with a cause while it was being cancelled: never a failure of its own."""
        self.failed: list[int] = []
        """Ordinals of the subtasks that the failures concern."""
        self.lost: list[tuple[Execution, str]] = []
        """Producers of lost results, with the cause."""
        self.is_global = False

    @property
    def root(self) -> Failure:
        """The first, but one after which no restart is allowed goes before all others."""
        first = self.failures[0]
        return next((f for f in self.failures if f.is_unrecoverable), first)


class Failover:
    """Notes what fails by an event, and decides when all of it is known: one event is one failure,
    and costs one restart, however many tasks and results it took.

    A region that waits for its restart waits until nothing of it runs, the delay is over, and it
    is known which checkpoint is the latest.
    """

    def __init__(
        self,
        graph: ExecutionGraph,
        regions: PipelinedRegions,
        record: JobRecord,
        restarts: PendingRestarts,
        execution: JobExecution,
        restart_strategy: RestartBackoffTimeStrategy,
        *,
        first_generation: int = 0,
    ) -> None:
        self._graph = graph
        self._regions = regions
        self._record = record
        self._restarts = restarts
        self._execution = execution
        self._restart_strategy = restart_strategy
        strategy = (
            RestartAllFailoverStrategy
            if graph.job_graph.restart_all
            else RestartPipelinedRegionFailoverStrategy
        )
        self._strategy = strategy(graph, regions)
        self._generation = first_generation
        self._noted = _Noted()
        self._is_new_attempt = False
        """Whether the failure that is decided upon is one more for the restart strategy."""
        self._is_restore_possible = True

    def next_generation(self) -> int:
        """For a timer: old ones are known as such by it."""
        self._generation += 1
        return self._generation

    # --- what has failed --------------------------------------------------------------------------

    def subtasks_failed(self, transition: SubtasksFailed, now: float) -> Steps:
        for ordinals, failure in transition.failures:
            self._noted.failed += ordinals
            self._noted.failures.append(failure)
        self._noted.concurrent += transition.concurrent
        return (DecideFailover(),)

    def results_lost(self, transition: ResultsLost, now: float) -> Steps:
        self._noted.lost += [(producer, transition.cause) for producer in transition.producers]
        return (DecideFailover(),)

    def global_failure(self, transition: GlobalFailure, now: float) -> Steps:
        self._noted.failures.append(transition.failure)
        self._noted.is_global = True
        return (DecideFailover(),)

    # --- the decision -----------------------------------------------------------------------------

    def decide(self, transition: DecideFailover, now: float) -> Steps:
        """Restart what the failure concerns, or fail the job."""
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
                return (FailJob(root, tuple(concurrent)),)
            self._add_to_history(root, concurrent, now, is_new=True)
            return ()
        if not self._may_restart(root, now):
            return (FailJob(root, tuple(concurrent)),)
        if self._is_new_attempt:
            self._record.restarts += 1
        self._add_to_history(root, concurrent, now, is_new=self._is_new_attempt)
        steps: list[Step] = [PrepareRestore(root.text, noted.is_global)]
        if self._record.status is JobStatus.RUNNING:
            steps += self._record.change(JobStatus.RESTARTING, now, root.text)
        return [*steps, *self._restart_later(noted, now)]

    def _add_lost_results(self, noted: _Noted) -> None:
        """Results whose producers are going to run again anyhow are not missed."""
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
        return [*steps, StartTimer(TimerKey(TimerPurpose.RESTART, generation), delay)]

    def _stop(
        self, indices: tuple[int, ...], generation: int, *, is_global: bool
    ) -> Sequence[Step]:
        """From now on these regions wait for their restart."""
        unended = self._execution.active_regions(indices)
        _, due = self._restarts.add(generation, indices, unended, is_global=is_global)
        steps: list[Step] = [ResultsTakenBack(indices), CancelRegions(indices, keep_created=True)]
        return [*steps, *(RestartDue(earlier.generation) for earlier in due)]

    def stop_everything(self, transition: StopEverything, now: float) -> Steps:
        """Restart all as soon as nothing runs any more, though nothing has failed."""
        steps: list[Step] = [PrepareRestore(transition.cause, is_global=True)]
        if self._record.status is JobStatus.RUNNING:
            steps += self._record.change(JobStatus.RESTARTING, now, transition.cause)
        indices = self._execution.begun_regions(self._execution.all_regions)
        generation = self.next_generation()
        steps += self._stop(indices, generation, is_global=True)
        return [*steps, RestartDelayOver(generation)]

    def cancel_everything(self, transition: CancelEverything, now: float) -> Steps:
        """The job's end is decided."""
        self._restarts.clear()
        indices = tuple(self._execution.all_regions)
        return (CancelRegions(indices, keep_created=False), NothingRuns())

    # --- restarts ---------------------------------------------------------------------------------

    def delay_is_over(self, transition: RestartDelayOver, now: float) -> Steps:
        """A timer's time has come."""
        restart = self._restarts.delay_is_over(transition.generation)
        return () if restart is None else (RestartDue(restart.generation),)

    def regions_over(self, transition: RegionsOver, now: float) -> Steps:
        """Nothing of these regions runs any more."""
        due: dict[int, None] = {}
        for index in transition.regions:
            restart = self._restarts.region_ended(index)
            if restart is not None and restart.is_due:
                due[restart.generation] = None
        return [RestartDue(generation) for generation in due]

    def restore_awaited(self, transition: PrepareRestore, now: float) -> Steps:
        """Nothing is restarted until that is possible."""
        self._is_restore_possible = False
        return ()

    def restore_possible(self, transition: RestorePossible, now: float) -> Steps:
        self._is_restore_possible = True
        return [RestartDue(restart.generation) for restart in self._restarts.due()]

    def restart(self, transition: RestartDue, now: float) -> Steps:
        """Reset the regions, unless a later failure has taken them all over by now."""
        taken = self.take_due(transition.generation)
        return () if taken is None else (taken,)

    def take_due(self, generation: int) -> ResetRegions | None:
        """The restart that is to be carried out now; None: it is not due, or not any more."""
        restart = self._restarts.find(generation)
        if restart is None or not restart.is_due or self._record.is_ending:
            return None
        if not self._is_restore_possible:
            return None
        is_global = restart.is_global
        indices = tuple(self._restarts.take(restart))
        subtasks, regions = self._graph.subtasks, self._regions.regions
        vertices = tuple(subtasks[ordinal] for i in indices for ordinal in regions[i].vertices)
        return ResetRegions(indices, is_global, vertices)
