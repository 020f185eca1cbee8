"""Manages the operator coordinators of a job: user code of vertices that runs beside the JobMaster.
Each coordinator runs in its own process, in numbered attempts, one at a time.
:class:`OperatorCoordinator` has the states and decides which events count, for all kinds.  A
subclass for each kind decides what follows from a start, a loss and an event.

A kind, a vertex and an attempt number identify a coordinator, so that checkpoints can treat
coordinators like tasks.  The caller of a start decides with which state the attempt begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from flinkray.core.ids import ExecutionGraphID, JobVertexID, WorkerGroupId
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
    CoordinatorInput,
    CoordinatorKind,
    CoordinatorResult,
)
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator, StopCoordinator
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.shared.taking_over import CoordinatorAttempt


class CoordinatorState(Enum):
    """Life cycle of a coordinator's process. NONE: there is no process."""

    NONE = "none"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


_LEGAL = {
    CoordinatorState.NONE: (CoordinatorState.STARTING,),
    CoordinatorState.STARTING: (
        CoordinatorState.RUNNING,
        CoordinatorState.STOPPING,
        CoordinatorState.NONE,
    ),
    CoordinatorState.RUNNING: (CoordinatorState.STOPPING, CoordinatorState.NONE),
    CoordinatorState.STOPPING: (CoordinatorState.NONE,),
}


class OperatorCoordinator(ABC):
    """Tracks the state of one coordinator through its attempts, and decides when to start and stop
    it. Times are monotonic seconds."""

    def __init__(self, kind: CoordinatorKind, vertex_id: JobVertexID | None, name: str) -> None:
        """Make a coordinator without a process. *vertex_id* is None for a coordinator of the whole
        job. *name*: text that describes the coordinator, for users."""
        self.kind = kind
        self.vertex_id = vertex_id
        self.state = CoordinatorState.NONE
        self.attempt_number = -1
        self.story = Story(name)

    @property
    def coordinator_id(self) -> CoordinatorID:
        """Id of the current attempt, or of the last attempt."""
        return CoordinatorID(self.kind, self.vertex_id, self.attempt_number)

    @property
    def is_wanted(self) -> bool:
        """Whether the coordinator runs or is starting, and is not being stopped."""
        return self.state in (CoordinatorState.STARTING, CoordinatorState.RUNNING)

    # --- orders -----------------------------------------------------------------------------------

    def start(
        self,
        now: float,
        slots: tuple[AllocatedSlot, ...] = (),
        inputs: tuple[CoordinatorInput, ...] = (),
        results: tuple[CoordinatorResult, ...] = (),
        restores: int = 0,
        graph_id: ExecutionGraphID | None = None,
    ) -> Steps:
        """Start the coordinator's next attempt; :class:`StartCoordinator` describes the arguments.
        Raises IllegalTransitionError if the last attempt has not ended."""
        self.attempt_number += 1
        self._enter(CoordinatorState.STARTING, now)
        return (StartCoordinator(self.coordinator_id, slots, inputs, results, restores, graph_id),)

    def adopt(self, attempt_number: int, now: float) -> None:
        """Continue with a running attempt that an earlier JobMaster has started."""
        self.attempt_number = attempt_number
        self._enter(CoordinatorState.STARTING, now, "by an earlier JobMaster")
        self._enter(CoordinatorState.RUNNING, now)

    def stop(self, now: float) -> Steps:
        """Stop the coordinator's current attempt. A second call changes nothing."""
        if not self.is_wanted:
            return ()
        self._enter(CoordinatorState.STOPPING, now)
        return (StopCoordinator(self.coordinator_id),)

    # --- events of the current attempt ------------------------------------------------------------

    def started(self, now: float) -> Steps:
        """Change the state from STARTING to RUNNING, because the process of the current attempt has
        started. Returns what :meth:`_on_running` decides."""
        if self.state is not CoordinatorState.STARTING:
            return ()
        self._enter(CoordinatorState.RUNNING, now)
        return self._on_running(now)

    def gone(self, cause: str, now: float, *, goes_on: bool = False) -> Steps:
        """Change the state to NONE, because the coordinator's process no longer exists. If a stop
        was requested, the coordinator counts as stopped; otherwise as lost. *goes_on*: the next
        attempt is started at once and the loss counts as no failure."""
        if self.state is CoordinatorState.NONE:
            return ()
        was_wanted = self.is_wanted
        self._enter(CoordinatorState.NONE, now, cause)
        if not was_wanted:
            return self._on_stopped(now)
        return self.start(now) if goes_on else self._on_lost(cause, now)

    def told(self, event: CoordinatorEvent, now: float) -> Steps:
        """Apply an event that the coordinator has sent; ignored while the coordinator is being
        stopped."""
        return self._on_told(event, now) if self.is_wanted else ()

    def _enter(self, state: CoordinatorState, now: float, cause: str = "") -> None:
        text = f"attempt {self.attempt_number}: {self.state.value} -> {state.value}"
        if state not in _LEGAL[self.state]:
            raise self.story.illegal(f"go on: {text}")
        self.story.add(now, f"{text}: {cause}" if cause else text)
        self.state = state

    # --- decisions of each kind -------------------------------------------------------------------

    def _on_running(self, now: float) -> Steps:
        """Return what follows when the coordinator's process has started; by default nothing."""
        return ()

    @abstractmethod
    def _on_lost(self, cause: str, now: float) -> Steps:
        """Return what follows when the coordinator's process was lost although no stop was
        requested."""

    def _on_stopped(self, now: float) -> Steps:
        """Return what follows when the coordinator's process has stopped as requested; by default
        nothing."""
        return ()

    @abstractmethod
    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        """Apply an event that the coordinator has sent, and return what follows."""


class RegionCoordinator(OperatorCoordinator):
    """A coordinator of one vertex, and so of the vertex's region. Each deployment of the region has
    a new attempt, which must end before the region is over."""

    region: int
    progress: SparkProgress | None = None
    """Spark progress of the current or last attempt; None before the first report."""

    @property
    @abstractmethod
    def worker_group(self) -> WorkerGroupId | None:
        """Worker group of the current or last slots; None before the first deployment."""

    @abstractmethod
    def deployed(self, slots: tuple[AllocatedSlot, ...], now: float) -> Steps:
        """Start an attempt in the vertex's slots, which are in the order of the subtasks."""

    @abstractmethod
    def adopted(
        self, attempt_number: int, now: float, *, is_there: bool, finished_at: float | None
    ) -> Steps:
        """Continue the attempt numbers that an earlier JobMaster used, up to *attempt_number*, and
        continue with the last of these attempts if it exists.

        Args:
            is_there: whether the last attempt exists and accepts this JobMaster's calls.
            finished_at: monotonic seconds when the vertex finished; None if it has not.
        """

    @abstractmethod
    def slots_of(self, slots: tuple[AllocatedSlot, ...]) -> tuple[AllocatedSlot, ...]:
        """Return the slots of the coordinator's vertex, out of the slots of the region."""


class JobCoordinator(OperatorCoordinator):
    """A coordinator that belongs to the whole job. If it is lost, or was stopped after a failure,
    it is started again when the job restarts."""

    def __init__(self, kind: CoordinatorKind, name: str) -> None:
        super().__init__(kind, None, name)
        self._is_awaited = False
        """Whether the next attempt starts as soon as the current attempt has ended."""

    def ensure(self, now: float) -> Steps:
        """Make sure that the coordinator runs: start it now, or, if it is being stopped, as soon as
        it has stopped. Nothing changes if it runs already."""
        if self.state is CoordinatorState.NONE:
            return self.start(now)
        self._is_awaited = self.state is CoordinatorState.STOPPING
        return ()

    def give_up(self, now: float) -> Steps:
        """Stop the coordinator and do not start it again, because the job ends."""
        self._is_awaited = False
        return self.stop(now)

    def _on_stopped(self, now: float) -> Steps:
        if not self._is_awaited:
            return ()
        self._is_awaited = False
        return self.start(now)

    def job_begins(self, now: float) -> Steps:
        """Start the coordinator if it must run while the job runs. Called when the job begins, and
        when some of its subtasks will be executed again."""
        return ()

    # --- work before the first task, and after the last task --------------------------------------

    @property
    def tasks_wait(self) -> bool:
        """Whether no task may be deployed yet, because the coordinator is starting or has to
        prepare something."""
        return False

    def prepare(self, graph: ExecutionGraph, now: float) -> Steps:
        """Begin the work that must be done before tasks are deployed (see :attr:`tasks_wait`), such
        as preparing outputs. Called when the first regions have their slots."""
        return ()

    def tasks_were_deployed(self) -> None:
        """Skip :meth:`prepare`, because an earlier JobMaster has deployed tasks already."""

    has_finished = True
    """Whether the work that follows the end of all tasks is done, so that the job may finish."""

    def finish(self, graph: ExecutionGraph, now: float) -> Steps:
        """Begin the work that follows the end of all tasks, such as finishing outputs. May be
        called again until :attr:`has_finished` is True."""
        return ()


class OperatorCoordinators:
    """Passes events on to the coordinators of a job. Events of attempts that are not current change
    nothing (EX-11)."""

    def __init__(
        self,
        graph: ExecutionGraph,
        of_regions: Iterable[RegionCoordinator],
        of_job: Iterable[JobCoordinator],
        region_slots: RegionSlots,
    ) -> None:
        self._graph = graph
        self._region_slots = region_slots
        self._of_regions = tuple(of_regions)
        self._by_region: dict[int, list[RegionCoordinator]] = {}
        for coordinator in self._of_regions:
            self._by_region.setdefault(coordinator.region, []).append(coordinator)
        self._of_job = tuple(of_job)
        everyone: tuple[OperatorCoordinator, ...] = (*self._of_regions, *self._of_job)
        self._all = {(c.kind, c.vertex_id): c for c in everyone}
        self._by_vertex = {c.vertex_id: c for c in self._of_regions}
        self._held: dict[int, None] = {}
        """Regions that have their slots and wait for a coordinator of the job."""

    # --- taking over ------------------------------------------------------------------------------

    def adopt(self, kind: CoordinatorKind, attempt_number: int, now: float) -> None:
        """Continue with the running attempt of the job's coordinator of this kind, which an earlier
        JobMaster started."""
        self._all[kind, None].adopt(attempt_number, now)

    def tasks_were_deployed(self) -> None:
        """Make the job's coordinators skip their preparations, because an earlier JobMaster has
        deployed tasks already."""
        for coordinator in self._of_job:
            coordinator.tasks_were_deployed()

    def replace_adopted(self, kind: CoordinatorKind, attempt_number: int, now: float) -> Steps:
        """Stop the attempt of the job's coordinator of this kind that an earlier JobMaster started.
        The next attempt starts when this one has ended."""
        self.adopt(kind, attempt_number, now)
        return self._all[kind, None].stop(now)

    def adopt_of_regions(
        self,
        attempts: Iterable[CoordinatorAttempt],
        there: Collection[JobVertexID],
        finished: Mapping[JobVertexID, float],
        now: float,
    ) -> Steps:
        """Continue with the coordinators of Spark stages that an earlier JobMaster has started.

        Args:
            attempts: the last attempt of each coordinator.
            there: vertices whose coordinators accept this JobMaster's calls; others are gone.
            finished: vertex -> monotonic seconds when all its subtasks had finished, although they
                were adopted as running.
        """
        steps: list[Step] = []
        for attempt in attempts:
            steps += self._by_vertex[attempt.vertex_id].adopted(
                attempt.attempt_number,
                now,
                is_there=attempt.is_present and attempt.vertex_id in there,
                finished_at=finished.get(attempt.vertex_id),
            )
        return steps

    def count_on(self, attempts: Iterable[CoordinatorAttempt]) -> None:
        """Continue the attempt numbers that an earlier JobMaster used for another execution graph,
        so that late events of its attempts are not taken for events of this graph's attempts."""
        for attempt in attempts:
            self._by_vertex[attempt.vertex_id].attempt_number = attempt.attempt_number

    # --- questions of users -----------------------------------------------------------------------

    def progress_of(self, vertex_id: JobVertexID) -> SparkProgress | None:
        """Return the last progress report of the vertex's coordinator; None if there is none."""
        coordinator = self._by_vertex.get(vertex_id)
        return None if coordinator is None else coordinator.progress

    @property
    def worker_group(self) -> WorkerGroupId | None:
        """The worker group that a Spark stage uses or last used; None if no stage has used one. If
        there are several, that of the stage that comes last in the order of the vertices."""
        groups = (coordinator.worker_group for coordinator in reversed(self._of_regions))
        return next((group for group in groups if group is not None), None)

    # --- events of coordinators -------------------------------------------------------------------

    def started(self, transition: t.CoordinatorStarted, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        if coordinator is None:
            return ()
        return [*coordinator.started(now), *self._use_held()]

    def gone(self, transition: t.CoordinatorGone, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        if coordinator is None:
            return ()
        return coordinator.gone(transition.cause, now, goes_on=transition.goes_on)

    def told(self, transition: t.CoordinatorTold, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        if coordinator is None:
            return ()
        return [*coordinator.told(transition.event, now), *self._use_held()]

    def _current(self, coordinator_id: CoordinatorID) -> OperatorCoordinator | None:
        coordinator = self._all.get((coordinator_id.kind, coordinator_id.vertex_id))
        if coordinator is None or coordinator.attempt_number != coordinator_id.attempt_number:
            return None
        return coordinator

    # --- events of regions and of the job ---------------------------------------------------------

    def regions_ready(self, transition: t.RegionsReady, now: float) -> Steps:
        """Deploy the regions now, or later when all coordinators of the job have started and have
        prepared the outputs. If the JobMaster dies before, nothing was deployed, and the next
        JobMaster begins the job without counting a restart."""
        self._held.update(dict.fromkeys(transition.regions))
        steps = [step for c in self._of_job for step in c.prepare(self._graph, now)]
        if any(coordinator.tasks_wait for coordinator in self._of_job):
            return steps
        regions, self._held = tuple(self._held), {}
        return [*steps, *self._region_slots.use(regions)]

    def _use_held(self) -> Steps:
        return (t.RegionsReady(tuple(self._held)),) if self._held else ()

    def region_deployed(self, transition: t.DeployRegion, now: float) -> Steps:
        """Start the region's coordinators.  Called before the executions are deployed."""
        steps: list[Step] = []
        for coordinator in self._by_region.get(transition.region, ()):
            steps += coordinator.deployed(coordinator.slots_of(transition.slots), now)
        return steps

    def regions_cancelled(self, transition: t.CancelRegions, now: float) -> Steps:
        if not self._by_region:
            return ()
        steps: list[Step] = []
        for index in transition.regions:
            for coordinator in self._by_region.get(index, ()):
                steps += coordinator.stop(now)
        return steps

    def regions_reset(self, transition: t.ResetRegions, now: float) -> Steps:
        return (t.StartJobCoordinators(),)

    def job_begins(self, transition: t.StartJobCoordinators, now: float) -> Steps:
        return [step for c in self._of_job for step in c.job_begins(now)]

    @property
    def have_finished(self) -> bool:
        """Whether all coordinators have done the work that follows the end of all tasks, such as
        finishing outputs."""
        return all(coordinator.has_finished for coordinator in self._of_job)

    def finish(self, now: float) -> Steps:
        """Begin the work that follows the end of all tasks, such as finishing outputs."""
        return [step for c in self._of_job for step in c.finish(self._graph, now)]

    def job_ends(self, now: float) -> Steps:
        """Stop the coordinators that belong to the whole job, because nothing else of the job
        runs."""
        return [step for c in self._of_job for step in c.give_up(now)]
