"""Executes a job's regions: decides when each is scheduled (scheduling strategies), and deploys,
cancels, finishes and resets them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph, PartitionGroup
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobGraph, JobType
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.result_partitions import PartitionTracker
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import Transition


class _RegionRun:
    __slots__ = ("active", "finished", "is_begun")

    def __init__(self) -> None:
        self.active = 0
        """Number of attempts from SCHEDULED until their end, and of running coordinators."""
        self.finished = 0
        """Number of subtasks whose results are finished."""
        self.is_begun = False
        """Whether the region was scheduled, and so must be restarted when it fails."""


class JobExecution:
    """Changes the states of an execution graph's attempts, and counts what runs in each region. Its
    methods apply transitions and return the transitions that follow."""

    def __init__(
        self,
        graph: ExecutionGraph,
        regions: PipelinedRegions,
        record: JobRecord,
        restarts: PendingRestarts,
        region_slots: RegionSlots,
        tracker: PartitionTracker,
        outbox: Outbox,
    ) -> None:
        """Execute the regions of *graph*. *restarts*: regions that wait for their restart, which
        are not scheduled."""
        self._graph = graph
        self._regions = regions
        self._record = record
        self._restarts = restarts
        self._region_slots = region_slots
        self._tracker = tracker
        self._outbox = outbox
        self._strategy = new_scheduling_strategy(graph.job_graph, regions)
        self._runs = [_RegionRun() for _ in regions.regions]
        self._active = 0

    # --- questions --------------------------------------------------------------------------------

    @property
    def anything_runs(self) -> bool:
        """Whether any region has an attempt or coordinator that has begun and not ended."""
        return self._active > 0

    def active_regions(self, indices: Iterable[int]) -> set[int]:
        """Return those of these regions in which an attempt or a coordinator runs."""
        return {index for index in indices if self._runs[index].active}

    def begun_regions(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return those of these regions that were scheduled since their last restart."""
        return tuple(index for index in indices if self._runs[index].is_begun)

    @property
    def all_regions(self) -> range:
        return range(len(self._runs))

    def executions_of(self, index: int) -> list[Execution]:
        """Return the current attempts of a region, in the order of its vertices."""
        subtasks = self._graph.subtasks
        return [subtasks[ordinal].current for ordinal in self._regions.regions[index].vertices]

    # --- starts -----------------------------------------------------------------------------------

    def start_scheduling(self, transition: t.StartScheduling, now: float) -> Steps:
        """Schedule the regions that need not wait for results of other regions."""
        return (t.ScheduleRegions(tuple(self._strategy.start())),)

    def schedule(self, transition: t.ScheduleRegions, now: float) -> Steps:
        """Schedule these regions, except those that have begun or wait for their restart, and
        replicas that the load does not need."""
        scheduled = []
        for index in transition.regions:
            run = self._runs[index]
            if run.is_begun or index in self._restarts or not self._is_active(index):
                continue
            run.is_begun = True
            for execution in self.executions_of(index):
                if execution.schedule(now):
                    self._began(index)
            scheduled.append(index)
        return self._region_slots.request(scheduled) if scheduled else ()

    def _is_active(self, index: int) -> bool:
        subtask = self._graph.subtasks[self._regions.regions[index].vertices[0]]
        return subtask.subtask_index < subtask.job_vertex.active

    def scale(self, transition: t.ScaleReplicas, now: float) -> Steps:
        """Change the number of a model's replicas that are to run: start the missing ones, or stop
        the last ones."""
        vertex, number = transition.vertex, transition.number
        before, vertex.active = vertex.active, number
        regions = [self._regions.of[vertex.first + i] for i in range(*sorted((before, number)))]
        if number > before:
            return (t.ScheduleRegions(tuple(regions)),)
        return (t.StopRegions(self.begun_regions(regions)),)

    def deploy(self, transition: t.DeployRegion, now: float) -> Steps:
        """Deploy the attempts of a region in the slots that the region was given."""
        executions = self.executions_of(transition.region)
        for execution, slot in zip(executions, transition.slots, strict=True):
            execution.deploy(slot, now)
        self._outbox.deploy(executions)
        return ()

    def adopt(
        self, execution: Execution, slot: AllocatedSlot, state: ExecutionState, since: float
    ) -> None:
        """Continue an attempt that an earlier JobMaster deployed at *since* (monotonic seconds).
        Its region counts as begun."""
        execution.adopt(slot, state, since)
        self._adopted(execution)

    def adopt_missing(self, execution: Execution, now: float) -> None:
        """Count an attempt as begun that an earlier JobMaster deployed and that no longer exists.
        The caller then lets the attempt fail."""
        execution.schedule(now)
        self._adopted(execution)

    def _adopted(self, execution: Execution) -> None:
        vertex = execution.vertex.job_vertex
        vertex.active = max(vertex.active, execution.vertex.subtask_index + 1)
        index = self._regions.of[execution.vertex.ordinal]
        self._runs[index].is_begun = True
        self._began(index)

    def coordinator_began(self, index: int) -> None:
        """Count a coordinator that has begun in the region. The region is over only when the
        coordinator has ended, too."""
        self._began(index)

    def _began(self, index: int) -> None:
        self._runs[index].active += 1
        self._active += 1

    # --- ends -------------------------------------------------------------------------------------

    def attempts_failed(self, transition: t.AttemptsFailed, now: float) -> Steps:
        """End attempts that have failed or were canceled; attempts that have ended before are
        ignored."""
        failures: list[tuple[Sequence[int], Failure]] = []
        concurrent = []
        over = []
        for execution, failure in transition.ends:
            if execution.state.is_terminal:
                continue
            if execution.end(failure, now):
                failures.append(((execution.vertex.ordinal,), failure))
            elif failure.text:
                concurrent.append(failure)
            over.append(execution)
        if not over:
            return ()
        steps: list[Transition] = []
        if failures or concurrent:
            steps.append(t.SubtasksFailed(tuple(failures), tuple(concurrent)))
        steps.append(t.AttemptsOver(tuple(over)))
        return steps

    def attempts_over(self, transition: t.AttemptsOver, now: float) -> Steps:
        """Count these attempts as ended. If nothing runs in a region any more, the consequences
        follow."""
        of = self._regions.of
        return self._ended(of[execution.vertex.ordinal] for execution in transition.executions)

    def coordinator_ended(self, transition: t.CoordinatorEnded, now: float) -> Steps:
        """Count that a coordinator of a region no longer runs."""
        return self._ended((transition.region,))

    def _ended(self, indices: Iterable[int]) -> Steps:
        due: dict[int, None] = {}
        """Generations of the restarts that have waited for these regions."""
        for index in indices:
            run = self._runs[index]
            if not run.active:
                raise IllegalTransitionError(f"something of region {index} has ended twice")
            run.active -= 1
            self._active -= 1
            if not run.active:
                restart = self._restarts.region_ended(index)
                if restart is not None and restart.is_due:
                    due[restart.generation] = None
        steps: list[Transition] = [t.RestartDue(generation) for generation in due]
        if not self._active:
            steps.append(t.NothingRuns())
        return steps

    def cancel(self, transition: t.CancelRegions, now: float) -> Steps:
        """Cancel regions: tell deployed attempts to end, and end the others at once."""
        told: list[Execution] = []
        over: list[Execution] = []
        keep = ExecutionState.CREATED if transition.keep_created else None
        for index in transition.regions:
            for execution in self.executions_of(index):
                before = execution.state
                if before is keep:
                    continue
                if execution.begin_cancel(now):
                    told.append(execution)
                elif before is ExecutionState.SCHEDULED:
                    over.append(execution)
        self._outbox.bulk.cancel(told)
        return (t.AttemptsOver(tuple(over)),) if over else ()

    # --- results ----------------------------------------------------------------------------------

    def results_finished(self, transition: t.ResultsFinished, now: float) -> Steps:
        """Mark results as finished. Then release the partitions that no unfinished region has to
        read, and schedule the regions whose inputs are now complete."""
        for execution in transition.executions:
            self._tracker.finished(execution.vertex)
        groups = []
        finished = []
        for execution in transition.executions:
            vertex = execution.vertex
            for result in vertex.job_vertex.results:
                groups += result.finish(vertex.subtask_index)
            index = self._regions.of[vertex.ordinal]
            run = self._runs[index]
            run.finished += 1
            if run.finished == len(self._regions.regions[index].vertices):
                finished.append(index)
        for index in finished:
            self._outbox.bulk.release(self._tracker.region_finished(index))
        ready = [] if self._record.is_ending else self._strategy.groups_finished(groups)
        return (t.ScheduleRegions(tuple(ready)),) if ready else ()

    def take_back_results(self, transition: t.ResultsTakenBack, now: float) -> Steps:
        """Mark all results of these regions as unfinished, and release their partitions, because
        the regions are going to run again."""
        for index in transition.regions:
            for execution in self.executions_of(index):
                self._outbox.bulk.release(self._tracker.reset(execution.vertex))
        unfinished = []
        undone = []
        for index in transition.regions:
            run = self._runs[index]
            if run.finished == len(self._regions.regions[index].vertices):
                undone.append(index)
            run.finished = 0
            for execution in self.executions_of(index):
                for result in execution.vertex.job_vertex.results:
                    unfinished += result.reset(execution.vertex.subtask_index)
        self._strategy.groups_unfinished(unfinished)
        for index in undone:
            self._tracker.region_unfinished(index)
        return ()

    # --- restarts ---------------------------------------------------------------------------------

    def reset(self, transition: t.ResetRegions, now: float) -> Steps:
        """Create new attempts for the subtasks of these regions. What follows gives them their
        state and then schedules them (EX-16)."""
        for vertex in transition.vertices:
            if vertex.current.state is not ExecutionState.CREATED:
                vertex.reset_for_new_execution(now)
        return (t.RestoreState(transition.vertices, (t.RegionsRestored(transition.regions),)),)

    def restored(self, transition: t.RegionsRestored, now: float) -> Steps:
        """Schedule those regions whose inputs are finished, because the regions' new attempts have
        their state. If no other restart is pending, the job becomes RUNNING."""
        indices = transition.regions
        for index in indices:
            self._runs[index].is_begun = False
        steps: list[Step] = [t.ScheduleRegions(tuple(self._strategy.restart(indices)))]
        if self._restarts or self._record.status is JobStatus.RUNNING:
            return steps
        cause = f"restart {self._record.restarts}"
        return [*self._record.change(JobStatus.RUNNING, now, cause), *steps]


class SchedulingStrategy(ABC):
    """Decides which regions to schedule, and when. Methods return indices of regions, in the order
    in which to schedule them."""

    def __init__(self, regions: PipelinedRegions) -> None:
        self._regions = regions

    @abstractmethod
    def start(self) -> list[int]:
        """Return the regions to schedule when the job begins: those that need not wait for
        others."""

    @abstractmethod
    def restart(self, regions: Iterable[int]) -> list[int]:
        """Return those of *regions*, which were reset for a restart, that can be scheduled now."""

    @abstractmethod
    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        """Return the regions to schedule now that all partitions of these partition groups are
        finished. The caller must skip regions that run already."""

    @abstractmethod
    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        """Count these partition groups as unfinished again, because their partitions will be
        produced again."""


class EagerSchedulingStrategy(SchedulingStrategy):
    """Schedules all regions at once, for streaming jobs."""

    def start(self) -> list[int]:
        return list(range(len(self._regions.regions)))

    def restart(self, regions: Iterable[int]) -> list[int]:
        return sorted(regions)

    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        return []

    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        pass


class PipelinedRegionSchedulingStrategy(SchedulingStrategy):
    """Schedules a region when all blocking partitions that it reads are finished."""

    def __init__(self, regions: PipelinedRegions) -> None:
        super().__init__(regions)
        self._unfinished = [len(region.inputs) for region in regions.regions]
        """Region -> number of its input groups that are not finished."""

    def start(self) -> list[int]:
        return self.restart(range(len(self._unfinished)))

    def restart(self, regions: Iterable[int]) -> list[int]:
        return [index for index in sorted(regions) if not self._unfinished[index]]

    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        ready = []
        for group in groups:
            for index in self._regions.consumers(group):
                self._unfinished[index] -= 1
                if not self._unfinished[index]:
                    ready.append(index)
        return sorted(ready)

    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        for group in groups:
            for index in self._regions.consumers(group):
                self._unfinished[index] += 1


def new_scheduling_strategy(job_graph: JobGraph, regions: PipelinedRegions) -> SchedulingStrategy:
    """Create the scheduling strategy of the job: eager for streaming jobs without Spark stages,
    otherwise region by region."""
    if job_graph.job_type is JobType.STREAMING and not job_graph.has_coordinated_vertices:
        return EagerSchedulingStrategy(regions)
    return PipelinedRegionSchedulingStrategy(regions)
