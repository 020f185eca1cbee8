"""When an elastic job starts, and with which parallelism it goes on as slots come and go.

As Flink's adaptive scheduler: it waits until all that it would like is there, or, with less, until
nothing has changed for a while; it takes more when more has come, but not too often; and after a
loss it goes on with what there is.
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
    """All in seconds; the defaults are those of Flink's ``jobmanager.adaptive-scheduler.*``."""

    resource_wait_timeout: float = 300.0
    """So long the job waits for the slots that it must have, then it fails."""
    resource_stabilization_timeout: float = 10.0
    """So long the slots must have been the same before the job starts with less than it wants."""
    scaling_interval_min: float = 30.0
    """So long it runs at least before it is restarted in order to be larger."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Call ``timer(generation)`` after *delay* seconds."""

    delay: float
    generation: int


@dataclass(frozen=True, slots=True)
class Execute:
    """Build the execution graph with this parallelism and run it.

    Also after the first time: what runs then must be stopped first.  The new graph gets the state
    of the latest checkpoint.
    """

    parallelism: Parallelism
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The slots that the job must have did not come in time."""

    reason: str


ScalingAction = WaitFor | Execute | GiveUp


class _State(Enum):
    NEW = "not started"
    WAITING = "waiting for slots"
    EXECUTING = "executing"
    ENDED = "ended"


class ElasticScaling:
    """Events in, actions out; ``now`` is in monotonic seconds."""

    def __init__(
        self,
        job_graph: JobGraph,
        settings: ScalingSettings | None = None,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        snapshots: Callable[[], frozenset[int]] = frozenset,
        key_groups: Callable[[], Parallelism] = lambda: NOT_KNOWN,
    ) -> None:
        """*is_stopping*: whether the job is being stopped with a savepoint.  What runs then is left
        alone: another parallelism would restart it in place of the stop.  *snapshots*: the numbers
        of those under way that users have asked for.  What runs then is left alone until they are
        over, as a restart would give them up; those that begin meanwhile do not count.
        *key_groups*: of the vertices with keyed state in what the job goes on from; they have no
        more subtasks."""
        self._bounds = job_graph
        self._snapshots = snapshots
        self._key_groups = key_groups
        self._settings = settings or ScalingSettings()
        self._is_stopping = is_stopping
        self._state = _State.NEW
        self._slots: tuple[ResourceProfile, ...] = ()
        self._changed_at: float
        """When the slots were others last, or the job began."""
        self._waiting_since: float
        self._executing_since: float
        self._parallelism: Parallelism | None = None
        self._awaited: frozenset[int] | None = None
        """The snapshots that another parallelism waits for; None: there is no reason for one."""
        self._generation = 0
        self._deadline: float | None = None
        """For when the last timer was asked for; None: it was over."""
        self._story = Story(f"the scaling of job {job_graph.job_id}")

    @property
    def parallelism(self) -> Parallelism | None:
        """With which the job is executed; None: it waits."""
        return self._parallelism if self._state is _State.EXECUTING else None

    # events

    def start(self, now: float) -> list[ScalingAction]:
        """The job begins; once."""
        self._state = _State.WAITING
        self._waiting_since = self._changed_at = now
        return self._decide(now)

    def take_over(self, parallelism: Parallelism, now: float) -> list[ScalingAction]:
        """In place of :meth:`start`: it is executed with that, since an earlier JobMaster."""
        self._state = _State.EXECUTING
        self._parallelism = dict(parallelism)
        self._waiting_since = self._changed_at = self._executing_since = now
        self._story.add(now, f"executed with {sum(parallelism.values())} subtasks")
        return self._decide(now)

    def slots_changed(self, slots: Sequence[ResourceProfile], now: float) -> list[ScalingAction]:
        """All slots that the job has, used or not.

        When used ones are gone, tell :meth:`nothing_runs` too, after this.
        """
        if sorted(map(str, slots)) == sorted(map(str, self._slots)):
            return []
        self._slots = tuple(slots)
        self._changed_at = now
        self._story.add(now, f"{len(slots)} slots")
        return self._decide(now)

    def resize(self, job_graph: JobGraph, now: float) -> list[ScalingAction]:
        """The bounds are others.  What runs with more than it may is made smaller at once; to grow
        waits as ever, and what runs with less than it must runs on until there is more."""
        self._bounds = job_graph
        self._story.add(now, "other bounds")
        return self._decide(now)

    def nothing_runs(self, now: float) -> list[ScalingAction]:
        """After a failure and its delay, or in order to be scaled: the job goes on with what there
        is by now, at once when that is all that it had, wants, or was to be scaled to."""
        if self._state is not _State.EXECUTING:
            return []
        self._state = _State.WAITING
        self._waiting_since = now
        self._story.add(now, "nothing runs any more")
        return self._decide(now)

    def timer(self, generation: int, now: float) -> list[ScalingAction]:
        """The delay of a WaitFor is over."""
        if generation != self._generation:
            return []
        self._deadline = None
        return self._decide(now)

    def snapshot_is_over(self, now: float) -> list[ScalingAction]:
        """The job was being stopped with a savepoint and goes on, or a snapshot is over that a user
        had asked for: slots and bounds may have become others meanwhile."""
        return self._decide(now)

    def end(self, now: float) -> list[ScalingAction]:
        """The job has ended, or is going to: nothing is decided any more."""
        self._state = _State.ENDED
        self._story.add(now, "ended")
        return []

    def story(self) -> str:
        """What has happened, a line per event."""
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
        """Fewer slots matter only once what runs in them has failed."""
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
        """When the snapshots are over that were under way as there was a reason first."""
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
    """No vertex has less, and one has more: a restart must be worth it."""
    return parallelism != than and all(parallelism[v] >= number for v, number in than.items())
