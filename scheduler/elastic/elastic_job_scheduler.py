"""Defines the scheduler of elastic jobs, whose parallelism depends on the available slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import ExecutionGraphID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.elastic.parallelism import (
    Parallelism,
    desired_slots,
    with_bounds,
    within,
)
from flinkray.scheduler.elastic.scaling import (
    ElasticScaling,
    Execute,
    ScalingAction,
    ScalingSettings,
    WaitFor,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.repeated_errors import DEFAULT_LIMITS, RepetitionLimits
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    RestartStrategy,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import topological_order
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import SetRequirements
from flinkray.scheduler.job.take_over import CannotTakeOverError
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import NOT_DEPLOYED, JobNotes
from flinkray.scheduler.shared.tasks import unpack_numbers
from flinkray.scheduler.shared.transition import Phase, StartTimer, Transition


@dataclass(frozen=True, slots=True)
class ExecuteWith(Transition):
    """Build the execution graph with this parallelism and run it. This transition is applied when
    no task runs, and after all transitions of the previous graph."""

    parallelism: Parallelism
    reason: str
    phase = Phase.RESTART


class ElasticJobScheduler(JobScheduler):
    """Schedules an elastic job: asks the SlotPool for all slots that the job can use, and runs the
    job with the slots it gets. Each change of the parallelism needs a new execution graph; every
    failure restarts the whole job."""

    wants_all_slots = True

    def __init__(
        self,
        job_graph: JobGraph,
        job_master_address: str,
        *,
        new_graph_id: Callable[[], ExecutionGraphID],
        default_restart_strategy: RestartStrategy,
        same_error: RepetitionLimits = DEFAULT_LIMITS,
        epoch_offset: float,
        now: float,
        random: Callable[[], float] = lambda: 0.5,
        scaling: ScalingSettings | None = None,
    ) -> None:
        """Make the scheduler of an elastic job. *scaling*: timeouts of the scaling; None means the
        defaults. For the other parameters see
        :class:`~flinkray.scheduler.job.job_scheduler.JobScheduler`."""
        self._scaling = ElasticScaling(
            job_graph,
            scaling,
            is_stopping=lambda: self._checkpoints.is_stopping,
            snapshots=lambda: self._checkpoints.requested_under_way,
            key_groups=lambda: self._checkpoints.key_groups,
        )
        self._is_executing = False
        self._used: Counter[ResourceProfile] = Counter()
        """Slots that have been requested and so need not be declared."""
        super().__init__(
            replace(job_graph, restart_all=True),
            job_master_address,
            new_graph_id=new_graph_id,
            default_restart_strategy=default_restart_strategy,
            same_error=same_error,
            epoch_offset=epoch_offset,
            now=now,
            random=random,
        )

    def _wire(self) -> None:
        super()._wire()
        wire = self._loop.wire
        wire(t.PoolSlotsChanged, self._slots_changed)
        wire(ExecuteWith, self._execute)
        wire(t.ScalingDelayOver, self._scaling_delay_over)
        wire(t.SnapshotIsOver, self._snapshot_is_over)
        wire(t.RestartDue, self._restart_due)

    @property
    def _warnings(self) -> tuple[str, ...]:
        limited = within(self._job_graph, self._checkpoints.key_groups)
        pairs = zip(self._job_graph.vertices, limited.vertices, strict=True)
        return (
            *super()._warnings,
            *(
                f"vertex {wanted.name!r} may have {wanted.parallelism} subtasks, and gets "
                f"{possible.parallelism} at most: its state has so many key groups"
                for wanted, possible in pairs
                if possible.parallelism < wanted.parallelism
            ),
        )

    def _why_pending(self) -> str | None:
        if self._is_executing or self._job.is_ending or not self._job.has_begun:
            return super()._why_pending()
        shortages = self._region_slots.shortages
        return " ".join(s.reason for s in shortages) or "too few slots have come yet."

    # transitions

    def _begin(self, transition: t.StartJob, now: float) -> Steps:
        """Start the job's coordinators and declare the slots that the job wants. Tasks begin when
        slots arrive."""
        steps: list[Step] = [*self._job.change(JobStatus.RUNNING, now), t.StartJobCoordinators()]
        return [*steps, *self._declare(), *self._scale(self._scaling.start(now), now)]

    def _slots_changed(self, event: t.PoolSlotsChanged, now: float) -> Steps:
        """Decide whether the job starts or is scaled with the slots that the pool has now. Slots
        reported before the job starts count, too: after a take-over the pool already has them, and
        may not report them again. (SlotsTold reports the loss of slots in which tasks run.)"""
        if self._job.is_ending:
            return ()
        profiles = tuple(slot.profile for slot in event.slots)
        return self._scale(self._scaling.slots_changed(profiles, now), now)

    def _scaling_delay_over(self, transition: t.ScalingDelayOver, now: float) -> Steps:
        if self._job.is_ending:
            return ()
        return self._scale(self._scaling.timer(transition.generation, now), now)

    def _resize(self, event: t.ResizeJob, now: float) -> Steps:
        """Change the parallelism bounds.  Bounds that are too high for the state, but not for the
        graph, are accepted if the state was not known yet; then the parallelism is limited to what
        the state allows.

        Raises:
            JobStateError: see :func:`~flinkray.scheduler.elastic.parallelism.with_bounds`.
        """
        most = {
            vertex.vertex_id: max(vertex.key_groups, self.max_parallelism[vertex.vertex_id])
            for vertex in self._job_graph.vertices
        }
        changed = with_bounds(self._job_graph, event.bounds, most)
        if changed == self._job_graph or self._job.is_ending:
            return ()
        self._job_graph = changed
        actions = self._scaling.resize(changed, now)
        if not self._job.has_begun:
            return ()
        return [*self._declare(is_total=True), *self._scale(actions, now)]

    def _snapshot_is_over(self, transition: t.SnapshotIsOver, now: float) -> Steps:
        """Decide about scaling that has waited for the snapshot, unless the job is restarting."""
        if self._job.is_ending or self.status is not JobStatus.RUNNING:
            return ()
        return self._scale(self._scaling.snapshot_is_over(now), now)

    def _restart_due(self, transition: t.RestartDue, now: float) -> Steps:
        """Run the job with the slots available now, in a new execution graph, instead of restarting
        the regions of the current graph."""
        if self._failover.take_due(transition.generation) is None:
            return ()
        self._is_executing = False
        self._used.clear()
        return [*self._declare(), *self._scale(self._scaling.nothing_runs(now), now)]

    def _noted_graph(self, notes: JobNotes, now: float) -> ExecutionGraph:
        """Build the execution graph with the parallelisms from the last JobMaster's notes. Subtasks
        that were never deployed get attempt numbers as high as the others.

        Raises:
            CannotTakeOverError: nothing was deployed yet; the sources were restored since the notes
                were stored; or the bounds no longer allow the noted parallelisms.
        """
        order = topological_order(self._job_graph)
        ids = (vertex.vertex_id for vertex in order)
        noted = [number & ~NOT_DEPLOYED for number in unpack_numbers(notes.attempts)]
        if not any(noted):
            raise CannotTakeOverError("it was not executed yet")
        place = notes.source_coordinator
        if place is not None and place.restores not in (None, notes.restores):
            raise CannotTakeOverError(  # scaling restores the sources, too, and is no failure
                f"its sources were restored {place.restores} times, and its tasks "
                f"{notes.restores} times"
            )
        try:
            return ExecutionGraph(
                self._job_graph,
                notes.graph_id,
                now,
                parallelism=dict(zip(ids, notes.parallelisms, strict=True)),
                first_attempt=max([0, *(number - 1 for number in noted)]),
            )
        except JobSubmissionError as error:
            raise CannotTakeOverError(f"its parallelism bounds have changed: {error}") from error

    def _adopted(self, now: float) -> Steps:
        """Declare the job's slots after an earlier JobMaster's tasks were adopted, and keep the
        tasks' parallelism until there is a reason for another one."""
        self._is_executing = True
        self._used = Counter(group.profile for group in self._region_slots.groups)
        parallelism = {v.vertex.vertex_id: v.parallelism for v in self._graph.vertices}
        declared = self._declare(is_total=True)
        scaled = self._scale(self._scaling.take_over(parallelism, now), now)
        return [*declared, *scaled, *super()._adopted(now)]

    def _execute(self, transition: ExecuteWith, now: float) -> Steps:
        if self._job.is_ending:
            return ()
        attempts = [subtask.current.attempt_number for subtask in self._graph.subtasks]
        graph = ExecutionGraph(
            self._job_graph,
            self._new_graph_id(),
            now,
            parallelism=transition.parallelism,
            first_attempt=max(attempts) + 1,
        )
        shortages = self._region_slots.shortages
        self._build(
            graph,
            first_generation=self._failover.next_generation(),
            requests_made=self._region_slots.requests_made,
        )
        self._region_slots.shortages = shortages
        self._is_executing = True
        steps: list[Step] = []
        if self.status is JobStatus.RESTARTING:
            steps += self._job.change(JobStatus.RUNNING, now, transition.reason)
        self._used = Counter(group.profile for group in self._region_slots.groups)
        then = (t.StartJobCoordinators(), t.StartScheduling())
        return [*steps, *self._declare(), t.RestoreState(tuple(graph.subtasks), then, is_all=True)]

    # decisions

    def _declare(self, is_total: bool = False) -> Steps:
        """Declare to the SlotPool how many slots the job can use. By default, slots for which
        requests will follow are left out, because each request raises the declared number itself.
        *is_total*: all slots are declared, because the requests were made before."""
        wanted: Counter[ResourceProfile] = Counter()
        for requirement in desired_slots(within(self._job_graph, self._checkpoints.key_groups)):
            wanted[requirement.profile] += requirement.count
        if not is_total:
            wanted.subtract(self._used)
        declared = ResourceRequirements(
            self._job_graph.job_id,
            self._job_master_address,
            tuple(ResourceRequirement(p, n) for p, n in wanted.items() if n > 0),
        )
        return (SetRequirements(declared),)

    def _scale(self, actions: Sequence[ScalingAction], now: float) -> Steps:
        steps: list[Step] = []
        for action in actions:
            match action:
                case WaitFor(delay, generation):
                    due = t.ScalingDelayOver(generation)
                    # slots that were offered in time count
                    steps.append(StartTimer(due, delay, is_deadline=True))
                case Execute(_, reason) if self._is_executing:
                    if not self._graph.is_finished:  # its outputs may still have to be finished
                        steps.append(t.StopEverything(f"to be scaled: {reason}"))
                case Execute(parallelism, reason):
                    steps.append(ExecuteWith(parallelism, reason))
                case _:
                    failure = Failure(f"NoResourceAvailableError: {action.reason}")
                    steps += self._failover.fail(failure, now)
        return steps


def new_job_scheduler(
    job_graph: JobGraph,
    job_master_address: str,
    *,
    new_graph_id: Callable[[], ExecutionGraphID],
    default_restart_strategy: RestartStrategy,
    same_error: RepetitionLimits = DEFAULT_LIMITS,
    epoch_offset: float,
    now: float,
    random: Callable[[], float] = lambda: 0.5,
    scaling: ScalingSettings | None = None,
) -> JobScheduler:
    """Create the scheduler that fits the job's scheduler mode. *scaling* is for elastic jobs
    only."""
    kind: Callable[..., JobScheduler] = JobScheduler
    if job_graph.scheduler_mode is SchedulerMode.ADAPTIVE:
        kind = partial(ElasticJobScheduler, scaling=scaling)
    return kind(
        job_graph,
        job_master_address,
        new_graph_id=new_graph_id,
        default_restart_strategy=default_restart_strategy,
        same_error=same_error,
        epoch_offset=epoch_offset,
        now=now,
        random=random,
    )
