"""Decides when an elastic job starts, and when its parallelism changes as slots come and go.
As Flink's adaptive scheduler: the job waits until all desired slots are there, or, with fewer,
until the slots have not changed for a while.  The job scales up when more slots have come, but not
too often.  After a loss the job goes on with the remaining slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.elastic.parallelism import (
    NOT_KNOWN,
    Parallelism,
    parallelism_for,
    within,
)
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.story import Story


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Timeouts in seconds; defaults as Flink's ``jobmanager.adaptive-scheduler.*``."""

    resource_wait_timeout: float = 300.0
    """Time to wait for the slots that the job must have; then the job fails."""
    resource_stabilization_timeout: float = 10.0
    """Time that the slots must be unchanged before the job starts with fewer than it wants."""
    scaling_interval_min: float = 30.0
    """Minimum time that the job runs before it is restarted in order to scale up."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Call ``timer(generation)`` of the ElasticScaling after *delay* seconds."""

    delay: float
    generation: int


@dataclass(frozen=True, slots=True)
class Execute:
    """Build the execution graph with this parallelism and run it. If the job runs already, all its
    tasks are ended first. The new graph starts with the state of the latest checkpoint."""

    parallelism: Parallelism
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the job, because the slots that it must have did not come in time."""

    reason: str


ScalingAction = WaitFor | Execute | GiveUp


class _State(Enum):
    NEW = "not started"
    WAITING = "waiting for slots"
    EXECUTING = "executing"
    ENDED = "ended"


class ElasticScaling:
    """Decides with which parallelism an elastic job runs, and when it changes. Methods handle
    events and return actions; ``now`` is in monotonic seconds."""

    def __init__(
        self,
        job_graph: JobGraph,
        settings: ScalingSettings | None = None,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        snapshots: Callable[[], frozenset[int]] = frozenset,
        key_groups: Callable[[], Parallelism] = lambda: NOT_KNOWN,
    ) -> None:
        """Prepare decisions for a job, which :meth:`start` or :meth:`take_over` begins.

        Args:
            is_stopping: returns whether the job is being stopped with a savepoint. The job is not
                scaled then, because a restart would prevent the stop.
            snapshots: returns the numbers of the snapshots in progress that users asked for.
                Scaling waits until these are over, because a restart would abort them; snapshots
                that begin later do not count.
            key_groups: returns the number of key groups of the vertices with keyed state, in the
                checkpoint that a restore would use. The vertices get no more subtasks than that.
        """
        self._bounds = job_graph
        self._snapshots = snapshots
        self._key_groups = key_groups
        self._settings = settings or ScalingSettings()
        self._is_stopping = is_stopping
        self._state = _State.NEW
        self._slots: tuple[ResourceProfile, ...] = ()
        self._changed_at: float
        """When the slots last changed, or when the job began."""
        self._waiting_since: float
        self._executing_since: float
        self._parallelism: Parallelism | None = None
        self._awaited: frozenset[int] | None = None
        """Snapshots that must be over before the job is scaled.
        None: there is no reason to scale."""
        self._generation = 0
        self._deadline: float | None = None
        """When the last requested timer is due; None: it has fired."""
        self._story = Story(f"the scaling of job {job_graph.job_id}")

    @property
    def parallelism(self) -> Parallelism | None:
        """The parallelism with which the job is executed; None while the job waits."""
        return self._parallelism if self._state is _State.EXECUTING else None

    # events

    def start(self, now: float) -> list[ScalingAction]:
        """Begin to decide for a job that does not run yet. Called once."""
        self._state = _State.WAITING
        self._waiting_since = self._changed_at = now
        return self._decide(now)

    def take_over(self, parallelism: Parallelism, now: float) -> list[ScalingAction]:
        """Continue to decide for a job that an earlier JobMaster started and that runs with
        *parallelism*. Called in place of :meth:`start`."""
        self._state = _State.EXECUTING
        self._parallelism = dict(parallelism)
        self._waiting_since = self._changed_at = self._executing_since = now
        self._story.add(now, f"executed with {sum(parallelism.values())} subtasks")
        return self._decide(now)

    def slots_changed(self, slots: Sequence[ResourceProfile], now: float) -> list[ScalingAction]:
        """Decide again about the parallelism, because the job's slots have changed. *slots*: all
        slots that the job has, used or not. If used slots are gone, their tasks fail, and the
        caller calls :meth:`nothing_runs` when all tasks have ended."""
        if sorted(map(str, slots)) == sorted(map(str, self._slots)):
            return []
        self._slots = tuple(slots)
        self._changed_at = now
        self._story.add(now, f"{len(slots)} slots")
        return self._decide(now)

    def resize(self, job_graph: JobGraph, now: float) -> list[ScalingAction]:
        """Use the parallelism bounds of *job_graph* from now on. A job above its upper bounds is
        scaled down at once; scaling up waits as usual. A job below its lower bounds keeps running
        until there are more slots."""
        self._bounds = job_graph
        self._story.add(now, "other bounds")
        return self._decide(now)

    def nothing_runs(self, now: float) -> list[ScalingAction]:
        """Run the job again or wait for slots, because all tasks have ended: for scaling, or by a
        failure whose restart delay is over. The job starts at once if there are slots for the
        desired parallelism, for the previous one, or for the one to which it is being scaled."""
        if self._state is not _State.EXECUTING:
            return []
        self._state = _State.WAITING
        self._waiting_since = now
        self._story.add(now, "nothing runs any more")
        return self._decide(now)

    def timer(self, generation: int, now: float) -> list[ScalingAction]:
        """Decide again, because the delay of a WaitFor is over. Only the newest *generation*
        counts."""
        if generation != self._generation:
            return []
        self._deadline = None
        return self._decide(now)

    def snapshot_is_over(self, now: float) -> list[ScalingAction]:
        """Decide again, because a snapshot that a user asked for is complete or aborted (perhaps
        the savepoint that was to stop the job). Slots and bounds may have changed since the last
        decision."""
        return self._decide(now)

    def end(self, now: float) -> list[ScalingAction]:
        """Make no further decisions, because the job has ended or is going to end."""
        self._state = _State.ENDED
        self._story.add(now, "ended")
        return []

    def story(self) -> str:
        """Return the history of the scaling, one line per event."""
        return str(self._story)

    # decisions

    def _decide(self, now: float) -> list[ScalingAction]:
        if self._state in (_State.NEW, _State.ENDED):
            return []
        if self._state is _State.EXECUTING and self._is_stopping():
            return []
        job_graph = within(self._bounds, self._key_groups())
        possible = parallelism_for(job_graph, self._slots)
        desired = {v.vertex_id: v.parallelism for v in job_graph.vertices}
        if self._state is _State.WAITING:
            return self._decide_waiting(possible, desired, now)
        return self._decide_executing(possible, desired, now)

    def _decide_waiting(
        self, possible: Parallelism | None, desired: Parallelism, now: float
    ) -> list[ScalingAction]:
        gives_up_at = self._waiting_since + self._settings.resource_wait_timeout
        if possible is None:
            if now < gives_up_at:
                return self._wait_until(gives_up_at, now)
            self._state = _State.ENDED
            reason = (
                f"the {len(self._slots)} slots that are there do not suffice for the lowest "
                f"parallelism, and none came for {self._settings.resource_wait_timeout:g} s"
            )
            self._story.add(now, reason)
            return [GiveUp(reason)]
        is_stable_at = self._changed_at + self._settings.resource_stabilization_timeout
        due = min(is_stable_at, gives_up_at)
        if possible in (desired, self._parallelism) or now >= due:
            return self._execute(possible, f"{len(self._slots)} slots are there", now)
        return self._wait_until(due, now)

    def _decide_executing(
        self, possible: Parallelism | None, desired: Parallelism, now: float
    ) -> list[ScalingAction]:
        """Decide whether a running job is scaled: down if it exceeds its upper bounds, or up if
        there are more slots. Lost slots have an effect only when their tasks have failed."""
        assert self._parallelism is not None
        is_too_much = any(self._parallelism[v] > upper for v, upper in desired.items())
        if possible is not None and is_too_much:
            return self._execute_again(possible, "its upper bounds are lower", now)
        if possible is None or not _is_more(possible, self._parallelism):
            self._awaited = None
            return []
        due = self._executing_since + self._settings.scaling_interval_min
        if possible != desired:
            due = max(due, self._changed_at + self._settings.resource_stabilization_timeout)
        if now >= due:
            return self._execute_again(possible, f"{len(self._slots)} slots are there now", now)
        self._awaited = None
        return self._wait_until(due, now)

    def _execute_again(
        self, parallelism: Parallelism, reason: str, now: float
    ) -> list[ScalingAction]:
        """Run the job with another parallelism now, or when the snapshots are over that users had
        asked for before scaling was first due."""
        under_way = self._snapshots()
        if self._awaited is None and under_way:
            self._story.add(now, f"waits for {len(under_way)} snapshots: {reason}")
        self._awaited = under_way if self._awaited is None else self._awaited & under_way
        return [] if self._awaited else self._execute(parallelism, reason, now)

    def _execute(self, parallelism: Parallelism, reason: str, now: float) -> list[ScalingAction]:
        self._state = _State.EXECUTING
        self._parallelism = dict(parallelism)
        self._executing_since = now
        self._awaited = None
        total = sum(parallelism.values())
        self._story.add(now, f"execute with {total} subtasks: {reason}")
        return [Execute(self._parallelism, reason)]

    def _wait_until(self, deadline: float, now: float) -> list[ScalingAction]:
        if self._deadline == deadline:
            return []
        self._deadline = deadline
        self._generation += 1
        return [WaitFor(deadline - now, self._generation)]


def _is_more(parallelism: Parallelism, than: Parallelism) -> bool:
    return parallelism != than and all(parallelism[v] >= number for v, number in than.items())
