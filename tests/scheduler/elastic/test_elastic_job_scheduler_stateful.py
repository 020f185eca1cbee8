"""ElasticJobScheduler while slots come and go, tasks fail and timers are late."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.scheduler.graph.job_graph import ParallelismBounds
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    JobSchedulerAction,
)
from flinkray.scheduler.reports.job_info import JobOverview
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from tests.scheduler.builders import only
from tests.scheduler.elastic.test_elastic_job_scheduler import ElasticUnderTest


class ElasticMachine(RuleBasedStateMachine):
    """``a -> b``, ``a`` from 1 to 2 and ``b`` from 2 to 4, with 0 to 6 slots."""

    @initialize(restarts=st.integers(0, 8))
    def submit(self, restarts: int) -> None:
        self.elastic = ElasticUnderTest(restarts=restarts)
        self.seen = 0
        self.overviews: dict[Hashable, JobOverview] = {}
        self.upper: dict[JobVertexID, int] = {}
        """Since the first resize."""
        self.restarts: list[JobEvent] = []
        self.scalings: dict[t.ScalingDelayOver, float] = {}
        self.elastic.tell(t.StartJob())
        self.note()

    def note(self) -> None:
        """Timers that were asked for since the last time."""
        log: list[JobSchedulerAction] = self.elastic.log[self.seen :]
        self.seen = len(self.elastic.log)
        for timer in only(log, StartTimer):
            if isinstance(timer.event, t.RestartDelayOver):
                self.restarts.append(timer.event)
            elif isinstance(timer.event, t.ScalingDelayOver):
                self.scalings[timer.event] = self.elastic.now + timer.delay

    @rule(number=st.integers(0, 6))
    def slots_change(self, number: int) -> None:
        self.elastic.has(number)
        self.note()

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.elastic.now + seconds
        for key, due in sorted(self.scalings.items(), key=lambda item: item[0].generation):
            if due <= until:
                del self.scalings[key]
                self.elastic.now = max(self.elastic.now, due)
                self.elastic.tell(key)
                self.elastic.answer()
                self.note()
        self.elastic.now = max(self.elastic.now, until)

    @precondition(lambda self: self.restarts)
    @rule(data=st.data())
    def restart_delay_is_over(self, data: st.DataObject) -> None:
        self.elastic.tell(data.draw(st.sampled_from(self.restarts)))
        self.elastic.answer()
        self.note()

    def cancelled(self) -> list[ExecutionAttemptID]:
        asked = {x for a in only(self.elastic.log, CancelTasks) for x in a.attempts}
        return [a for a in sorted(self.elastic.tasks, key=str) if a in asked]

    @precondition(lambda self: self.elastic.tasks)
    @rule(data=st.data(), rare=st.integers(0, 3))
    def task_fails(self, data: st.DataObject, rare: int) -> None:
        if rare == 0:
            chosen = data.draw(st.sampled_from(sorted(self.elastic.tasks, key=str)))
            self.elastic.report([chosen], ExecutionState.FAILED, "it broke")
            self.elastic.answer()
            self.note()

    @precondition(lambda self: self.cancelled())
    @rule()
    def cancellations_are_confirmed(self) -> None:
        self.elastic.stopped()
        self.note()

    @rule(rare=st.integers(0, 30))
    def cancel(self, rare: int) -> None:
        if rare == 0:
            self.elastic.tell(t.CancelJob())

    @rule(
        a=st.tuples(st.integers(1, 2), st.integers(0, 1)), b=st.integers(2, 4), rare=st.booleans()
    )
    def resize(self, a: tuple[int, int], b: int, rare: bool) -> None:
        """Within what the job was submitted with."""
        if not rare:
            return
        first, second = self.elastic.scheduler.details().vertices
        bounds = (
            ParallelismBounds(first.vertex_id, min(a[0], 1 + a[1]), 1 + a[1]),
            ParallelismBounds(second.vertex_id, 2, b),
        )
        self.elastic.tell(t.ResizeJob(bounds))
        self.elastic.answer()
        self.upper = {first.vertex_id: 1 + a[1], second.vertex_id: b}
        self.note()

    @invariant()
    def no_overview_changes_unnoticed(self) -> None:
        if hasattr(self, "elastic"):
            scheduler = self.elastic.scheduler
            overview = scheduler.overview()
            assert self.overviews.setdefault(scheduler.overview_state, overview) == overview

    @invariant()
    def nothing_runs_with_more_than_it_may(self) -> None:
        """What does is being stopped, or its slots were lost."""
        if hasattr(self, "elastic") and self.upper and not self.elastic.status.is_terminal:
            asked = set(self.cancelled())
            live: dict[JobVertexID, int] = {}
            for attempt_id in self.elastic.tasks:
                if attempt_id not in asked:
                    vertex_id = attempt_id.vertex.job_vertex_id
                    live[vertex_id] = live.get(vertex_id, 0) + 1
            if len(self.elastic.held) >= 2:
                assert all(number <= self.upper[v] for v, number in live.items()), (
                    self.elastic.scheduler.story()
                )

    @invariant()
    def what_runs_fits_the_graph_and_its_bounds(self) -> None:
        if not hasattr(self, "elastic"):
            return
        a, b = self.elastic.scheduler.details().vertices
        assert 1 <= a.parallelism <= 2 <= b.parallelism <= 4
        current = {(v.vertex_id, e.subtask_index): e for v in (a, b) for e in v.executions}
        asked = set(self.cancelled())
        for attempt_id, task in self.elastic.tasks.items():
            if attempt_id not in asked:
                execution = current[
                    attempt_id.vertex.job_vertex_id, attempt_id.vertex.subtask_index
                ]
                assert execution.attempt_number == attempt_id.attempt_number
                assert task.allocation_id in self.elastic.reserved

    @invariant()
    def terminal_status_and_end_come_together(self) -> None:
        if hasattr(self, "elastic"):
            assert self.elastic.status.is_terminal == (self.elastic.ended is not None)

    def teardown(self) -> None:
        """With all slots and time enough the job finishes, unless it has ended."""
        if not hasattr(self, "elastic"):
            return
        for _ in range(40):
            if self.elastic.ended is not None:
                break
            self.slots_change(4)
            self.cancellations_are_confirmed()
            for key in self.restarts:
                self.elastic.tell(key)
            self.note()
            self.elastic.answer()
            self.time_passes(400.0)
            live = [a for a in self.elastic.tasks if a not in self.cancelled()]
            self.elastic.report(live, ExecutionState.FINISHED)
            self.note()
        ended = self.elastic.ended
        assert ended is not None, self.elastic.scheduler.story()
        assert ended.result.status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)
        assert not self.elastic.tasks.keys() - set(self.cancelled())


TestElastic = ElasticMachine.TestCase
TestElastic.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
