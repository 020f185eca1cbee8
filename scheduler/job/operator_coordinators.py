"""The operator coordinators of a job: user code of its vertices that runs beside the JobMaster.

Each runs in a process of its own, in numbered attempts, one at a time.  What its states are and
which of its events count is the same for all kinds (:class:`OperatorCoordinator`); what a kind adds
is what follows from its start, its loss, and what it tells.

Checkpoints will ask coordinators as they ask tasks: a coordinator is known by kind, vertex and
attempt, and what an attempt is to begin with is to be decided where it is started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum

from flinkray.core.ids import ExecutionGraphID, JobVertexID, WorkerGroupId
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
    CoordinatorInput,
    CoordinatorKind,
    CoordinatorResult,
)
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator, StopCoordinator
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.job.transitions import (
    CancelRegions,
    CoordinatorGone,
    CoordinatorsAdopted,
    CoordinatorStarted,
    CoordinatorTold,
    DeployRegion,
    ResetRegions,
    StartJobCoordinators,
)
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.shared.taking_over import CoordinatorAttempt


class CoordinatorState(Enum):
    """NONE: no process of its is there (any more)."""

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
    """One coordinator: its attempts, one after another.  Times are monotonic seconds."""

    def __init__(self, kind: CoordinatorKind, vertex_id: JobVertexID | None, name: str) -> None:
        """*name*: for people."""
        self.kind = kind
        self.vertex_id = vertex_id
        self.state = CoordinatorState.NONE
        self.attempt_number = -1
        self.story = Story(name)

    @property
    def coordinator_id(self) -> CoordinatorID:
        """Of the attempt that is there, or was there last."""
        return CoordinatorID(self.kind, self.vertex_id, self.attempt_number)

    @property
    def is_wanted(self) -> bool:
        """Whether it is there, or coming, and not being stopped."""
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
        """Begin the next attempt; raises IllegalTransitionError when one is there."""
        self.attempt_number += 1
        self._enter(CoordinatorState.STARTING, now)
        return (StartCoordinator(self.coordinator_id, slots, inputs, results, restores, graph_id),)

    def adopt(self, attempt_number: int, now: float) -> None:
        """That attempt, which an earlier JobMaster has started, is there and runs."""
        self.attempt_number = attempt_number
        self._enter(CoordinatorState.STARTING, now, "by an earlier JobMaster")
        self._enter(CoordinatorState.RUNNING, now)

    def stop(self, now: float) -> Steps:
        """End the attempt that is there; again: nothing."""
        if not self.is_wanted:
            return ()
        self._enter(CoordinatorState.STOPPING, now)
        return (StopCoordinator(self.coordinator_id),)

    # --- events, of the attempt that is there -----------------------------------------------------

    def started(self, now: float) -> Steps:
        """Its process is there."""
        if self.state is not CoordinatorState.STARTING:
            return ()
        self._enter(CoordinatorState.RUNNING, now)
        return self._on_running(now)

    def gone(self, cause: str, now: float, *, goes_on: bool = False) -> Steps:
        """Its process is there no more; while it is being stopped that is as good as stopped.
        *goes_on*: another one can take its place."""
        if self.state is CoordinatorState.NONE:
            return ()
        was_wanted = self.is_wanted
        self._enter(CoordinatorState.NONE, now, cause)
        if not was_wanted:
            return self._on_stopped(now)
        return self.start(now) if goes_on else self._on_lost(cause, now)

    def told(self, event: CoordinatorEvent, now: float) -> Steps:
        """It has something to say."""
        return self._on_told(event, now) if self.is_wanted else ()

    def _enter(self, state: CoordinatorState, now: float, cause: str = "") -> None:
        text = f"attempt {self.attempt_number}: {self.state.value} -> {state.value}"
        if state not in _LEGAL[self.state]:
            raise self.story.illegal(f"go on: {text}")
        self.story.add(now, f"{text}: {cause}" if cause else text)
        self.state = state

    # --- what a kind decides ----------------------------------------------------------------------

    def _on_running(self, now: float) -> Steps:
        """Its process is there."""
        return ()

    @abstractmethod
    def _on_lost(self, cause: str, now: float) -> Steps:
        """It is gone, and was not asked to go."""

    def _on_stopped(self, now: float) -> Steps:
        """It is gone as it was asked to."""
        return ()

    @abstractmethod
    def _on_told(self, event: CoordinatorEvent, now: float) -> Steps:
        """It is wanted, and has something to say."""


class RegionCoordinator(OperatorCoordinator):
    """Belongs to a vertex, and so to a region: each deployment of that has an attempt of its own,
    which must end before the region is over."""

    region: int
    progress: SparkProgress | None = None
    """Of the attempt that runs, or ran last."""

    @property
    @abstractmethod
    def worker_group(self) -> WorkerGroupId | None:
        """Of the slots that are used, or were last."""

    @abstractmethod
    def deployed(self, slots: tuple[AllocatedSlot, ...], now: float) -> Steps:
        """The vertex has its slots, in the order of its subtasks."""

    @abstractmethod
    def adopted(
        self, attempt_number: int, now: float, *, is_there: bool, finished_at: float | None
    ) -> Steps:
        """Attempts up to that one were an earlier JobMaster's; the last one is this one's if it
        *is_there*.  *finished_at*: None if it has not."""

    @abstractmethod
    def slots_of(self, slots: tuple[AllocatedSlot, ...]) -> tuple[AllocatedSlot, ...]:
        """Those of its vertex among the slots of the region."""


class JobCoordinator(OperatorCoordinator):
    """Belongs to the job: one that is lost, or was stopped since it failed, is there again when the
    job begins anew."""

    def __init__(self, kind: CoordinatorKind, name: str) -> None:
        super().__init__(kind, None, name)
        self._is_awaited = False
        """Whether the next attempt is to begin as soon as the present one has ended."""

    def ensure(self, now: float) -> Steps:
        """It is to be there."""
        if self.state is CoordinatorState.NONE:
            return self.start(now)
        self._is_awaited = self.state is CoordinatorState.STOPPING
        return ()

    def give_up(self, now: float) -> Steps:
        """The job ends: it is not to be there any more."""
        self._is_awaited = False
        return self.stop(now)

    def _on_stopped(self, now: float) -> Steps:
        if not self._is_awaited:
            return ()
        self._is_awaited = False
        return self.start(now)

    def job_begins(self, now: float) -> Steps:
        """The job begins, or begins anew: all that is to be there while it runs."""
        return ()

    def regions_reset(self, transition: ResetRegions, now: float) -> Steps:
        """These are going to be executed again."""
        return ()


class OperatorCoordinators:
    """All coordinators of a job.  Events of attempts that are not the present ones change nothing
    (EX-11)."""

    def __init__(
        self, of_regions: Iterable[RegionCoordinator], of_job: Iterable[JobCoordinator]
    ) -> None:
        self._of_regions = tuple(of_regions)
        self._by_region: dict[int, list[RegionCoordinator]] = {}
        for coordinator in self._of_regions:
            self._by_region.setdefault(coordinator.region, []).append(coordinator)
        self._of_job = tuple(of_job)
        everyone: tuple[OperatorCoordinator, ...] = (*self._of_regions, *self._of_job)
        self._all = {(c.kind, c.vertex_id): c for c in everyone}
        self._by_vertex = {c.vertex_id: c for c in self._of_regions}

    # --- taking over ------------------------------------------------------------------------------

    def adopt(self, kind: CoordinatorKind, attempt_number: int, now: float) -> None:
        """That attempt of a coordinator of the job runs since an earlier JobMaster."""
        self._all[kind, None].adopt(attempt_number, now)

    def replace_adopted(self, kind: CoordinatorKind, attempt_number: int, now: float) -> Steps:
        """The same, and it is to end: the next attempt begins when it has."""
        self.adopt(kind, attempt_number, now)
        return self._all[kind, None].stop(now)

    def adopted(self, transition: CoordinatorsAdopted, now: float) -> Steps:
        """Those of regions."""
        steps: list[Step] = []
        for attempt in transition.attempts:
            steps += self._by_vertex[attempt.vertex_id].adopted(
                attempt.attempt_number,
                now,
                is_there=attempt.is_present and attempt.vertex_id in transition.there,
                finished_at=transition.finished.get(attempt.vertex_id),
            )
        return steps

    def count_on(self, attempts: Iterable[CoordinatorAttempt]) -> None:
        """From those that an earlier JobMaster has started in another execution graph: what one of
        them may still tell is of no attempt of this one."""
        for attempt in attempts:
            self._by_vertex[attempt.vertex_id].attempt_number = attempt.attempt_number

    # --- what people ask --------------------------------------------------------------------------

    def progress_of(self, vertex_id: JobVertexID) -> SparkProgress | None:
        """What the coordinator of a vertex has told of its work."""
        coordinator = self._by_vertex.get(vertex_id)
        return None if coordinator is None else coordinator.progress

    @property
    def worker_group(self) -> WorkerGroupId | None:
        """The one that is used, or was last; of the last vertex that has had one."""
        groups = (coordinator.worker_group for coordinator in reversed(self._of_regions))
        return next((group for group in groups if group is not None), None)

    # --- events of coordinators -------------------------------------------------------------------

    def started(self, transition: CoordinatorStarted, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        return () if coordinator is None else coordinator.started(now)

    def gone(self, transition: CoordinatorGone, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        if coordinator is None:
            return ()
        return coordinator.gone(transition.cause, now, goes_on=transition.goes_on)

    def told(self, transition: CoordinatorTold, now: float) -> Steps:
        coordinator = self._current(transition.coordinator)
        return () if coordinator is None else coordinator.told(transition.event, now)

    def _current(self, coordinator_id: CoordinatorID) -> OperatorCoordinator | None:
        coordinator = self._all.get((coordinator_id.kind, coordinator_id.vertex_id))
        if coordinator is None or coordinator.attempt_number != coordinator_id.attempt_number:
            return None
        return coordinator

    # --- what happens to regions and to the job ---------------------------------------------------

    def region_deployed(self, transition: DeployRegion, now: float) -> Steps:
        """Before its executions are."""
        steps: list[Step] = []
        for coordinator in self._by_region.get(transition.region, ()):
            steps += coordinator.deployed(coordinator.slots_of(transition.slots), now)
        return steps

    def regions_cancelled(self, transition: CancelRegions, now: float) -> Steps:
        if not self._by_region:
            return ()
        steps: list[Step] = []
        for index in transition.regions:
            for coordinator in self._by_region.get(index, ()):
                steps += coordinator.stop(now)
        return steps

    def regions_reset(self, transition: ResetRegions, now: float) -> Steps:
        steps: list[Step] = [StartJobCoordinators()]
        for coordinator in self._of_job:
            steps += coordinator.regions_reset(transition, now)
        return steps

    def job_begins(self, transition: StartJobCoordinators, now: float) -> Steps:
        return [step for c in self._of_job for step in c.job_begins(now)]

    def job_ends(self, now: float) -> Steps:
        """Nothing of the job runs any more, but for its own coordinators."""
        return [step for c in self._of_job for step in c.give_up(now)]
