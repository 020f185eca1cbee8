"""Executes a job's regions: decides when each is scheduled (scheduling strategies), and deploys,
cancels, finishes and resets them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph, PartitionGroup
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.restarts import PendingRestarts
from flinkray.scheduler.graph.job_graph import JobGraph, JobType
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.transition_loop import Step, Steps, Transition
from flinkray.scheduler.job.transitions import (
    AttemptsAdopted,
    AttemptsFailed,
    AttemptsOver,
    CancelRegions,
    CoordinatorEnded,
    CoordinatorsBegan,
    DeployRegion,
    NothingRuns,
    RegionsFinished,
    RegionsOver,
    RegionsRestored,
    RegionsUnfinished,
    RequestSlots,
    ResetRegions,
    RestoreState,
    ResultsFinished,
    ResultsTakenBack,
    ScheduleRegions,
    SendCancellations,
    SendDeployments,
    StartScheduling,
    SubtasksFailed,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState, JobStatus


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
    ) -> None:
        """Execute the regions of *graph*. *restarts*: regions that wait for their restart, which
        are not scheduled.
        """
        self._graph = graph
        self._regions = regions
        self._record = record
        self._restarts = restarts
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

    def start_scheduling(self, transition: StartScheduling, now: float) -> Steps:
        """Schedule the regions that can run from the start."""
        return (ScheduleRegions(tuple(self._strategy.start())),)

    def schedule(self, transition: ScheduleRegions, now: float) -> Steps:
        """Schedule these regions, except those that have begun or wait for their restart."""
        scheduled = []
        for index in transition.regions:
            run = self._runs[index]
            if run.is_begun or index in self._restarts:
                continue
            run.is_begun = True
            for execution in self.executions_of(index):
                if execution.schedule(now):
                    self._began(index)
            scheduled.append(index)
        return (RequestSlots(tuple(scheduled)),) if scheduled else ()

    def deploy(self, transition: DeployRegion, now: float) -> Steps:
        """Deploy the attempts of a region in the slots that the region was given."""
        executions = self.executions_of(transition.region)
        for execution, slot in zip(executions, transition.slots, strict=True):
            execution.deploy(slot, now)
        return (SendDeployments(executions),)

    def attempts_adopted(self, transition: AttemptsAdopted, now: float) -> Steps:
        """Adopt attempts of an earlier JobMaster; their regions have begun."""
        for execution, slot, state, since in transition.running:
            self._adopt(execution, slot, state, since)
        for execution, slot, since in transition.ended:
            self._adopt(execution, slot, ExecutionState.RUNNING, since)
        for execution in transition.missing:
            execution.schedule(now)
            self._adopted(execution)
        return ()

    def _adopt(
        self, execution: Execution, slot: AllocatedSlot, state: ExecutionState, since: float
    ) -> None:
        execution.adopt(slot, state, since)
        self._adopted(execution)

    def _adopted(self, execution: Execution) -> None:
        index = self._regions.of[execution.vertex.ordinal]
        self._runs[index].is_begun = True
        self._began(index)

    def coordinators_began(self, transition: CoordinatorsBegan, now: float) -> Steps:
        self._began(transition.region, transition.number)
        return ()

    def _began(self, index: int, number: int = 1) -> None:
        self._runs[index].active += number
        self._active += number

    # --- ends -------------------------------------------------------------------------------------

    def attempts_failed(self, transition: AttemptsFailed, now: float) -> Steps:
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
            steps.append(SubtasksFailed(tuple(failures), tuple(concurrent)))
        steps.append(AttemptsOver(tuple(over)))
        return steps

    def attempts_over(self, transition: AttemptsOver, now: float) -> Steps:
        """Count that these attempts no longer run."""
        of = self._regions.of
        return self._ended(of[execution.vertex.ordinal] for execution in transition.executions)

    def coordinator_ended(self, transition: CoordinatorEnded, now: float) -> Steps:
        """Count that a coordinator of a region no longer runs."""
        return self._ended((transition.region,))

    def _ended(self, indices: Iterable[int]) -> Steps:
        over = []
        for index in indices:
            run = self._runs[index]
            if not run.active:
                raise IllegalTransitionError(f"something of region {index} has ended twice")
            run.active -= 1
            self._active -= 1
            if not run.active:
                over.append(index)
        steps: list[Transition] = []
        if over:
            steps.append(RegionsOver(tuple(over)))
        if not self._active:
            steps.append(NothingRuns())
        return steps

    def cancel(self, transition: CancelRegions, now: float) -> Steps:
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
        steps: list[Transition] = []
        if told:
            steps.append(SendCancellations(told))
        if over:
            steps.append(AttemptsOver(tuple(over)))
        return steps

    # --- results ----------------------------------------------------------------------------------

    def results_finished(self, transition: ResultsFinished, now: float) -> Steps:
        """Mark results as finished, and schedule the regions whose inputs are now complete."""
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
        steps: list[Transition] = []
        if finished:
            steps.append(RegionsFinished(tuple(finished)))
        if not self._record.is_ending:
            ready = self._strategy.groups_finished(groups)
            if ready:
                steps.append(ScheduleRegions(tuple(ready)))
        return steps

    def take_back_results(self, transition: ResultsTakenBack, now: float) -> Steps:
        """Mark all results of these regions as unfinished."""
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
        return (RegionsUnfinished(tuple(undone)),) if undone else ()

    # --- restarts ---------------------------------------------------------------------------------

    def reset(self, transition: ResetRegions, now: float) -> Steps:
        """Create new attempts.  They get their state before they are scheduled (EX-16)."""
        for vertex in transition.vertices:
            if vertex.current.state is not ExecutionState.CREATED:
                vertex.reset_for_new_execution(now)
        return (RestoreState(transition.vertices, (RegionsRestored(transition.regions),)),)

    def restored(self, transition: RegionsRestored, now: float) -> Steps:
        """Schedule restored regions whose inputs are finished."""
        indices = transition.regions
        for index in indices:
            self._runs[index].is_begun = False
        steps: list[Step] = [ScheduleRegions(tuple(self._strategy.restart(indices)))]
        if self._restarts:
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
        """Return the regions to schedule when the job begins."""

    @abstractmethod
    def restart(self, regions: Iterable[int]) -> list[int]:
        """Return those of the given regions that can be scheduled now.  The regions were reset for
        a restart."""

    @abstractmethod
    def groups_finished(self, groups: Iterable[PartitionGroup]) -> list[int]:
        """Return the regions to schedule now that all partitions of these groups are finished. The
        caller must skip regions that run already."""

    @abstractmethod
    def groups_unfinished(self, groups: Iterable[PartitionGroup]) -> None:
        """Note that partitions of these groups, which were finished, will be produced again."""


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
    """Create the scheduling strategy for the type of the job."""
    if job_graph.job_type is JobType.STREAMING and not job_graph.has_coordinated_vertices:
        return EagerSchedulingStrategy(regions)
    return PipelinedRegionSchedulingStrategy(regions)
