"""Elastic jobs: executed with the slots that there are."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID
from flinkray.scheduler.elastic.elastic_job_scheduler import ElasticJobScheduler, new_job_scheduler
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    ParallelismBounds,
    SchedulerMode,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorID,
    CoordinatorKind,
    GlobalFormatsCall,
    GlobalFormatsCalled,
)
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CallGlobalFormats,
    DeployTasks,
    JobEnded,
    JobSchedulerAction,
    SetRequirements,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotRequests, SlotsLost
from tests.scheduler.builders import GRAPH, LARGE, SMALL, one, only
from tests.scheduler.graphs import job, python_vertex, stream_vertex, vertex_id
from tests.scheduler.tasks_under_test import TasksUnderTest


class ElasticUnderTest(TasksUnderTest):
    """``a -> b``, ``a`` from 1 to 2 and ``b`` from 2 to 4; requests are answered by what the pool
    holds."""

    def __init__(
        self,
        restarts: int = 5,
        edges: tuple[str, ...] = ("a -> b",),
        graph: JobGraph | None = None,
    ) -> None:
        vertices = (python_vertex("a", 2), python_vertex("b", 4, min_parallelism=2))
        graph = graph or job(
            vertices=vertices, edges=edges, restart_strategy=FixedDelayRestart(restarts)
        )
        graph = replace(graph, scheduler_mode=SchedulerMode.ADAPTIVE)
        super().__init__(graph, kind=ElasticJobScheduler)
        self.held: dict[str, AllocatedSlot] = {}

    def has(self, number: int) -> list[JobSchedulerAction]:
        """The pool holds so many slots; those that were lost take their tasks with them."""
        while len(self.held) < number:
            slot = self.new_slot()
            self.held[str(slot.location.resource_id)] = slot
        actions = []
        for name in list(self.held)[number:]:
            lost = self.held.pop(name)
            if self.reserved.pop(lost.allocation_id, None) is not None:
                on_it = ResourceID(name)
                self.tasks = {a: t for a, t in self.tasks.items() if self.where[a] != on_it}
                event = SlotsLost((lost.allocation_id,), "killed")
                actions += self.tell(t.SlotsTold((event,)))
        return actions + self.tell(t.PoolSlotsChanged(tuple(self.held.values()))) + self.answer()

    def answer(self) -> list[JobSchedulerAction]:
        free = [s for s in self.held.values() if s.allocation_id not in self.reserved]
        events = []
        for request_id, slot in zip(list(self.wanted), free, strict=False):
            del self.wanted[request_id]
            self.reserved[slot.allocation_id] = slot
            events.append(SlotAllocated(request_id, slot))
        return self.tell(t.SlotsTold(tuple(events))) if events else []

    def timer(self, actions: list[JobSchedulerAction]) -> list[JobSchedulerAction]:
        timers = [a for a in only(actions, StartTimer) if isinstance(a.event, t.ScalingDelayOver)]
        timer = timers[-1]
        self.now += timer.delay
        return self.tell(timer.event) + self.answer()

    def stopped(self) -> list[JobSchedulerAction]:
        return self.confirm_cancellations() + self.answer()

    def restarted(self) -> list[JobSchedulerAction]:
        actions = self.stopped()
        timers = [a for a in only(self.log, StartTimer) if isinstance(a.event, t.RestartDelayOver)]
        timer = timers[-1]
        return actions + self.tell(timer.event) + self.answer()

    def tasks_of(self, actions: list[JobSchedulerAction]) -> str:
        return " ".join(sorted(self.deployed(actions).split()))


def running(number: int, **arguments: object) -> ElasticUnderTest:
    elastic = ElasticUnderTest(**arguments)  # type: ignore[arg-type]
    elastic.tell(t.StartJob())
    actions = elastic.has(number)
    if number < 4:
        actions = elastic.timer(actions)
    assert only(actions, DeployTasks)
    elastic.report(list(elastic.tasks), ExecutionState.RUNNING)
    return elastic


def declared(actions: list[JobSchedulerAction]) -> int:
    requirements = only(actions, SetRequirements)[-1].requirements.requirements
    return sum(requirement.count for requirement in requirements)


def test_elastic_job_starts_at_once_with_slots_available_before_its_start() -> None:
    """An earlier JobMaster has left the slots, and this one has read checkpoints meanwhile."""
    elastic = ElasticUnderTest()
    assert only(elastic.has(4), DeployTasks) == []
    actions = elastic.tell(t.StartJob()) + elastic.answer()
    assert elastic.tasks_of(actions) == "a1#1 a2#1 b1#1 b2#1 b3#1 b4#1"


def test_scheduler_mode_of_the_job_decides_which_scheduler_class_runs_the_job() -> None:
    for mode, kind in (
        (SchedulerMode.DEFAULT, JobScheduler),
        (SchedulerMode.ADAPTIVE, ElasticJobScheduler),
    ):
        scheduler = new_job_scheduler(
            replace(job(a=1), scheduler_mode=mode),
            "JobMaster/jobmaster",
            new_graph_id=lambda: GRAPH,
            default_restart_strategy=FixedDelayRestart(0),
            epoch_offset=0.0,
            now=0.0,
        )
        assert type(scheduler) is kind


def test_job_declares_its_wanted_slots_and_runs_with_all_of_them() -> None:
    elastic = ElasticUnderTest()
    assert declared(elastic.tell(t.StartJob())) == 4
    assert elastic.scheduler.details().pending_reason == "too few slots have come yet."
    actions = elastic.has(4)
    assert only(actions, SetRequirements)[-1].requirements.requirements == ()
    assert elastic.tasks_of(actions) == "a1#1 a2#1 b1#1 b2#1 b3#1 b4#1"
    one(elastic.finish("a1 a2 b1 b2 b3 b4"), JobEnded)


def test_each_change_of_the_parallelism_makes_an_execution_graph_with_a_new_id() -> None:
    elastic = running(4)
    before = elastic.attempt("a1").graph_id
    elastic.fail("b1")
    elastic.restarted()
    assert elastic.attempt("a1").graph_id != before


def test_job_runs_with_fewer_slots_than_wanted_when_no_more_come() -> None:
    elastic = ElasticUnderTest()
    elastic.tell(t.StartJob())
    actions = elastic.timer(elastic.has(3))
    assert elastic.tasks_of(actions) == "a1#1 a2#1 b1#1 b2#1 b3#1"
    assert declared(actions) == 1
    assert [v.parallelism for v in elastic.scheduler.details().vertices] == [2, 3]
    assert {v.max_parallelism for v in elastic.scheduler.details().vertices} == {128}


def test_job_fails_if_its_minimum_of_slots_does_not_come() -> None:
    elastic = ElasticUnderTest()
    started = elastic.tell(t.StartJob())
    elastic.has(1)
    ended = one(elastic.timer(started), JobEnded)
    assert (ended.result.failure or "").startswith("NoResourceAvailableError: the 1 slots that")


def test_job_restarts_with_a_higher_parallelism_when_more_slots_have_come() -> None:
    elastic = running(2)
    elastic.now += 100.0
    actions = elastic.has(4)
    assert len(elastic.cancelled(actions).split()) == 4
    assert elastic.status is JobStatus.RESTARTING
    actions = elastic.stopped()
    assert elastic.tasks_of(actions) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    details = elastic.scheduler.details()
    assert (details.status, details.restarts, details.exceptions) == (JobStatus.RUNNING, 0, ())


def test_slot_requests_of_an_elastic_job_have_new_ids_after_a_change_of_parallelism() -> None:
    elastic = running(4)
    elastic.has(3)
    elastic.timer(elastic.restarted())
    asked = [r.request_id for action in only(elastic.log, SlotRequests) for r in action.requests]
    assert len(asked) == 4 + 3
    assert len(set(asked)) == len(asked)


def test_job_that_loses_a_slot_restarts_with_a_lower_parallelism() -> None:
    elastic = running(4)
    actions = elastic.has(3)
    assert elastic.status is JobStatus.RESTARTING
    assert elastic.scheduler.details().restarts == 1
    actions = elastic.restarted()
    assert only(actions, DeployTasks) == []
    assert declared(actions) == 4
    assert elastic.tasks_of(elastic.timer(actions)) == "a1#2 a2#2 b1#2 b2#2 b3#2"
    assert elastic.scheduler.details().status is JobStatus.RUNNING


def test_job_with_unchanged_slots_restarts_with_equal_parallelism() -> None:
    elastic = running(3)
    elastic.fail("b1")
    assert elastic.tasks_of(elastic.restarted()) == "a1#2 a2#2 b1#2 b2#2 b3#2"


def test_task_failure_of_an_elastic_job_restarts_also_unconnected_tasks() -> None:
    elastic = running(4, edges=())
    actions = elastic.fail("a1")
    assert sorted(elastic.cancelled(actions).split()) == ["a2#1", "b1#1", "b2#1", "b3#1", "b4#1"]


def test_task_reports_from_before_a_change_of_the_parallelism_are_ignored() -> None:
    elastic = running(4)
    old = elastic.attempt("b4")
    elastic.has(2)
    elastic.timer(elastic.restarted())
    assert elastic.report([old], ExecutionState.FAILED, "late") == []
    assert elastic.status is JobStatus.RUNNING


def test_cancel_ends_a_job_that_waits_for_slots_and_a_job_that_is_being_scaled() -> None:
    """EX-03, EX-10."""
    waiting = ElasticUnderTest()
    waiting.tell(t.StartJob())
    one(waiting.tell(t.CancelJob()), JobEnded)
    assert waiting.has(4) == []
    scaled = running(2)
    scaled.now += 100.0
    scaled.has(4)
    scaled.tell(t.CancelJob())
    one(scaled.confirm_cancellations(), JobEnded)
    assert scaled.status is JobStatus.CANCELED


def bounds_of(
    elastic: ElasticUnderTest, a: int, b: int, b_lower: int = 2
) -> tuple[ParallelismBounds, ...]:
    first, second = elastic.scheduler.details().vertices
    return (
        ParallelismBounds(first.vertex_id, 1, a),
        ParallelismBounds(second.vertex_id, b_lower, b),
    )


def parallelism(elastic: ElasticUnderTest) -> list[int]:
    return [vertex.parallelism for vertex in elastic.scheduler.details().vertices]


def test_next_parallelism_is_decided_from_bounds_and_slots_once_all_tasks_stopped() -> None:
    """DI-20. Otherwise the job would run with more subtasks than the bounds changed meanwhile
    allow."""
    elastic = ElasticUnderTest()
    elastic.tell(t.StartJob())
    elastic.has(4)
    elastic.tell(t.ResizeJob(bounds_of(elastic, 2, 3)))
    elastic.has(0)
    elastic.tell(t.ResizeJob(bounds_of(elastic, 1, 2)))

    elastic.has(4)

    assert parallelism(elastic) == [1, 2]
    assert elastic.status is JobStatus.RUNNING


def test_vertex_above_its_upper_bound_shrinks_once_other_vertices_have_enough_slots() -> None:
    """DI-20. Otherwise the job would stay above its bounds for ever."""
    elastic = ElasticUnderTest()
    elastic.tell(t.StartJob())
    elastic.has(4)
    elastic.tell(t.ResizeJob(bounds_of(elastic, 1, 6, b_lower=5)))
    assert parallelism(elastic) == [2, 4]

    elastic.has(6)
    elastic.stopped()

    assert parallelism(elastic) == [1, 6]


def bounds(elastic: ElasticUnderTest, lower: int, upper: int) -> tuple[ParallelismBounds, ...]:
    """Of ``b``."""
    return (ParallelismBounds(elastic.graph.vertices[1].vertex_id, lower, upper),)


def test_setting_the_same_bounds_again_changes_nothing() -> None:
    elastic = running(4)
    assert elastic.tell(t.ResizeJob(bounds(elastic, 1, 3))) != []
    assert elastic.tell(t.ResizeJob(bounds(elastic, 1, 3))) == []


def test_cancelled_job_ignores_new_bounds_and_changed_slots() -> None:
    elastic = running(4)
    elastic.tell(t.CancelJob())
    assert elastic.tell(t.ResizeJob(bounds(elastic, 1, 3))) == []
    assert elastic.tell(t.PoolSlotsChanged(())) == []
    assert elastic.scheduler.details().pending_reason is None


def test_bounds_changed_before_the_start_of_an_elastic_job_are_declared_at_its_start() -> None:
    elastic = ElasticUnderTest()
    assert elastic.tell(t.ResizeJob(bounds(elastic, 1, 3))) == []
    assert elastic.tell(t.PoolSlotsChanged(())) == []
    assert elastic.scheduler.details().pending_reason is None
    assert declared(elastic.tell(t.StartJob())) == 3


def test_bounds_changed_while_a_job_runs_change_the_total_of_slots_it_declares() -> None:
    elastic = running(4)
    assert declared(elastic.tell(t.ResizeJob(bounds(elastic, 1, 6)))) == 6


def test_waiting_job_shows_the_reported_shortages() -> None:
    elastic = ElasticUnderTest()
    elastic.tell(t.StartJob())
    shortages = tuple(
        ResourceShortage(1, SMALL, reason, False, LARGE, LARGE, LARGE)
        for reason in ("One slot is missing.", "So is another.")
    )
    elastic.tell(t.ResourcesShort(shortages))
    expected = "One slot is missing. So is another."
    assert elastic.scheduler.details().pending_reason == expected


def test_job_started_with_too_few_slots_shows_the_shortage_until_its_requests_end() -> None:
    elastic = ElasticUnderTest()
    elastic.tell(t.StartJob())
    actions = elastic.has(2)
    reason = "Two slots are missing."
    elastic.tell(
        t.ResourcesShort((ResourceShortage(2, SMALL, reason, False, LARGE, LARGE, LARGE),))
    )
    timer = only(actions, StartTimer)[-1]
    elastic.now += timer.delay
    elastic.tell(timer.event)
    assert elastic.scheduler.details().pending_reason == reason
    elastic.answer()
    assert elastic.scheduler.details().pending_reason is None


def test_cancelling_or_ended_job_is_not_scaled_and_awaits_no_slots() -> None:
    elastic = running(2)
    elastic.tell(t.CancelJob())
    assert elastic.has(4) == []
    elastic.confirm_cancellations()
    assert elastic.status is JobStatus.CANCELED
    waiting = ElasticUnderTest()
    waiting.tell(t.StartJob())
    assert waiting.scheduler.details().pending_reason == "too few slots have come yet."
    waiting.tell(t.CancelJob())
    assert waiting.status is JobStatus.CANCELED
    assert waiting.scheduler.details().pending_reason is None


def with_formats() -> ElasticUnderTest:
    """A running job whose outputs are prepared, and are to be finished at its end."""
    vertices = (
        stream_vertex("a", 2),
        stream_vertex("b", 4, min_parallelism=2, has_global_formats=True),
    )
    strategy = FixedDelayRestart(5)
    graph = job(vertices=vertices, edges=["a -> b"], restart_strategy=strategy)
    elastic = ElasticUnderTest(graph=graph)
    elastic.tell(t.StartJob())
    actions = elastic.timer(elastic.has(2))
    assert only(actions, DeployTasks) == []
    prepare = one(actions, CallGlobalFormats).call
    assert prepare.parallelism == ((vertex_id("b"), 2),), "that with which it runs"
    answered(elastic, prepare)
    elastic.report(list(elastic.tasks), ExecutionState.RUNNING)
    return elastic


def answered(elastic: ElasticUnderTest, call: GlobalFormatsCall) -> list[JobSchedulerAction]:
    coordinator = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
    return elastic.tell(t.CoordinatorTold(coordinator, GlobalFormatsCalled(call)))


def test_elastic_job_whose_outputs_are_being_finished_is_not_scaled() -> None:
    elastic = with_formats()
    finish = one(elastic.finish("a1 a2 b1 b2"), CallGlobalFormats).call
    actions = elastic.has(4)
    for timer in only(actions, StartTimer):
        elastic.now += timer.delay
        actions += elastic.tell(timer.event)
    assert only(actions, DeployTasks) == []
    assert one(answered(elastic, finish), JobEnded).result.status is JobStatus.FINISHED


def test_late_answer_about_finished_outputs_does_not_finish_a_restarting_elastic_job() -> None:
    elastic = with_formats()
    finish = one(elastic.finish("a1 a2 b1 b2"), CallGlobalFormats).call
    elastic.has(1)
    elastic.tell(t.GlobalFailure(Failure("it broke")))
    elastic.restarted()
    assert elastic.status is JobStatus.RESTARTING, "it waits for slots"
    assert only(answered(elastic, finish), JobEnded) == []
    elastic.has(4)
    again = one(elastic.finish("a1 a2 b1 b2 b3 b4"), CallGlobalFormats).call
    assert (again.is_end, again.restarts) == (True, 1)
    assert one(answered(elastic, again), JobEnded).result.status is JobStatus.FINISHED
