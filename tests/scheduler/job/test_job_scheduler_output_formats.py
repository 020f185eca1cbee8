"""JobScheduler: output formats that prepare and finish their outputs once for all subtasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from flinkray.core.errors import AttemptDisposedError
from flinkray.core.ids import JobMasterId
from flinkray.core.recurring_errors import ProgramError
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    JobGraph,
    NoRestart,
    RestartStrategy,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorFailure,
    CoordinatorID,
    CoordinatorKind,
    GlobalFormatsCall,
    GlobalFormatsCalled,
)
from flinkray.scheduler.job.job_scheduler_actions import (
    CallGlobalFormats,
    DeployTasks,
    JobEnded,
    JobSchedulerAction,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import SourceCoordinatorPlace
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import SlotRequests
from tests.scheduler.builders import OTHER_GRAPH, id_of, one, only
from tests.scheduler.graphs import job, stream_vertex, vertex_id
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.tasks_under_test import TasksUnderTest

ERROR = CoordinatorFailure("OperatorError", "disk full", "Traceback ...", is_user_error=True)


def coordinator(number: int = 0) -> CoordinatorID:
    return CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, number)


def graph(strategy: RestartStrategy | None = None) -> JobGraph:
    """A source of two subtasks, which also writes, and tasks that read it."""
    source = stream_vertex("a", 2, has_global_formats=True)
    return job(
        vertices=(source, stream_vertex("b", 2)),
        edges=["a -> b"],
        restart_strategy=strategy or FixedDelayRestart(5, 1.0),
    )


def call(*, is_end: bool, restarts: int = 0) -> GlobalFormatsCall:
    return GlobalFormatsCall(is_end, restarts, ((vertex_id("a"), 2),))


PREPARE, FINISH = call(is_end=False), call(is_end=True)


def carried_out(
    tasks: TasksUnderTest, done: GlobalFormatsCall, number: int = 0
) -> list[JobSchedulerAction]:
    return tasks.tell(t.CoordinatorTold(coordinator(number), GlobalFormatsCalled(done)))


def prepared(strategy: RestartStrategy | None = None) -> TasksUnderTest:
    tasks = TasksUnderTest(graph(strategy))
    tasks.tell(t.StartJob())
    assert only(tasks.give(), CallGlobalFormats) == [CallGlobalFormats(PREPARE)]
    carried_out(tasks, PREPARE)
    return tasks


def deployed(tasks: TasksUnderTest, actions: Iterable[object]) -> str:
    return " ".join(sorted(tasks.deployed(actions).split()))


def calls(actions: Iterable[object]) -> list[GlobalFormatsCall]:
    return [action.call for action in only(actions, CallGlobalFormats)]


# --- before the first task


def test_tasks_are_deployed_only_once_the_output_formats_are_prepared() -> None:
    tasks = TasksUnderTest(graph())
    tasks.tell(t.StartJob())
    assert only(tasks.give(), DeployTasks) == []
    assert tasks.status is JobStatus.RUNNING
    assert deployed(tasks, carried_out(tasks, PREPARE)) == "a1#0 a2#0 b1#0 b2#0"
    assert carried_out(tasks, PREPARE) == []


def test_outputs_are_prepared_as_soon_as_a_slow_coordinator_has_started() -> None:
    tasks = TasksUnderTest(graph())
    tasks.sources_start = False
    tasks.tell(t.StartJob())
    assert tasks.give() == []
    assert tasks.tell(t.CoordinatorStarted(coordinator())) == [CallGlobalFormats(PREPARE)]
    assert deployed(tasks, carried_out(tasks, PREPARE)) == "a1#0 a2#0 b1#0 b2#0"


def test_job_without_output_formats_that_need_preparation_is_deployed_at_once() -> None:
    tasks = TasksUnderTest(job(vertices=[stream_vertex("a", 2)]))
    tasks.tell(t.StartJob())
    assert tasks.deployed(tasks.give()) == "a1#0 a2#0"
    one(tasks.finish("a1 a2"), JobEnded)
    assert calls(tasks.log) == []


def test_job_with_output_formats_and_no_stream_sources_has_a_coordinator() -> None:
    vertices = [stream_vertex("a"), stream_vertex("b", has_global_formats=True)]
    of_files = job(vertices=vertices, edges=["a ~> b"])
    reads_files = replace(of_files, vertices=of_files.vertices[1:])
    assert not reads_files.has_stream_sources
    assert reads_files.has_stream_coordinator
    plain = job(a=1)
    assert not plain.has_stream_coordinator


def test_failed_preparation_of_the_outputs_fails_the_job_without_a_restart() -> None:
    """DI-07."""
    tasks = TasksUnderTest(graph())
    tasks.tell(t.StartJob())
    tasks.give()
    actions = tasks.tell(t.CoordinatorTold(coordinator(), ERROR))
    assert one(actions, StopCoordinator).coordinator == coordinator()
    ended = one(actions, JobEnded)
    assert (ended.result.failure, ended.details.restarts) == ("disk full", 0)
    assert carried_out(tasks, PREPARE) == []


def test_coordinator_lost_while_it_prepares_outputs_is_replaced_and_prepares_again() -> None:
    """Otherwise the job fails although nothing ran yet (seed 2 of the whole cluster)."""
    tasks = TasksUnderTest(graph(NoRestart()))
    tasks.tell(t.StartJob())
    tasks.give()
    actions = tasks.scheduler.handle(
        t.CoordinatorGone(coordinator(), "killed", goes_on=True), tasks.now
    )
    assert one(actions, StartCoordinator) == StartCoordinator(coordinator(1))
    assert tasks.tell(t.CoordinatorStarted(coordinator(1))) == [CallGlobalFormats(PREPARE)]
    assert carried_out(tasks, PREPARE) == [], "it was carried out by the lost one"
    assert deployed(tasks, carried_out(tasks, PREPARE, 1)) == "a1#0 a2#0 b1#0 b2#0"


def test_restart_while_outputs_are_prepared_deploys_tasks_only_once_prepared_again() -> None:
    """Nobody knows what the lost coordinator has done."""
    tasks = TasksUnderTest(graph())
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.tell(t.CoordinatorGone(coordinator(), "killed"))
    actions = tasks.restart()
    assert one(actions, StartCoordinator) == StartCoordinator(coordinator(1))
    assert set(calls(actions)) == {PREPARE}
    assert only(actions, DeployTasks) == []
    assert deployed(tasks, carried_out(tasks, PREPARE, 1)) == "a1#1 a2#1 b1#1 b2#1"


def test_restart_after_the_outputs_were_prepared_does_not_prepare_them_again() -> None:
    tasks = prepared()
    tasks.fail("a1")
    assert deployed(tasks, tasks.restart()) == "a1#1 a2#1 b1#1 b2#1"
    assert calls(tasks.log) == [PREPARE]


def test_slot_lost_while_outputs_are_prepared_is_requested_again_before_deployment() -> None:
    tasks = TasksUnderTest(graph())
    tasks.tell(t.StartJob())
    tasks.give()
    assert len(one(tasks.lose_task_executor("te0"), SlotRequests).requests) == 1
    assert only(carried_out(tasks, PREPARE), DeployTasks) == []
    assert deployed(tasks, tasks.give()) == "a1#0 a2#0 b1#0 b2#0"


def test_job_cancelled_while_its_outputs_are_prepared_deploys_no_task_afterwards() -> None:
    tasks = TasksUnderTest(graph())
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.tell(t.CancelJob())
    assert tasks.status is JobStatus.CANCELED
    assert carried_out(tasks, PREPARE) == []


# --- after the last task


def test_job_finishes_after_its_outputs_are_finished_which_happens_only_once() -> None:
    """EG-11."""
    tasks = prepared()
    assert calls(tasks.finish("a1 a2 b1 b2")) == [FINISH]
    assert tasks.ended is None
    actions = carried_out(tasks, FINISH)
    assert one(actions, StopCoordinator).coordinator == coordinator()
    assert one(actions, JobEnded).result.status is JobStatus.FINISHED
    assert carried_out(tasks, FINISH) == []
    assert calls(tasks.log).count(FINISH) == 1


def test_outputs_of_a_failed_job_are_not_finished() -> None:
    """EG-11."""
    tasks = prepared()
    tasks.finish("a1 a2 b1")
    tasks.fail("b2", suppress_restarts=True)
    assert tasks.status is JobStatus.FAILED
    assert calls(tasks.log) == [PREPARE]


def test_outputs_of_a_cancelled_job_are_not_finished() -> None:
    tasks = prepared()
    tasks.finish("a1 a2 b1")
    tasks.tell(t.CancelJob())
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.CANCELED
    assert calls(tasks.log) == [PREPARE]


def test_job_cancelled_while_its_outputs_are_finished_is_cancelled() -> None:
    tasks = prepared()
    tasks.finish("a1 a2 b1 b2")
    tasks.tell(t.CancelJob())
    assert tasks.status is JobStatus.CANCELED
    assert carried_out(tasks, FINISH) == []


def test_failure_to_finish_the_outputs_restarts_all_tasks() -> None:
    """EG-11."""
    tasks = prepared()
    tasks.finish("a1 a2 b1 b2")
    actions = tasks.tell(t.CoordinatorTold(coordinator(), ERROR))
    assert one(actions, StopCoordinator), "the user's code may have left it in any state"
    assert tasks.status is JobStatus.RESTARTING
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_outputs_are_finished_again_by_another_process_after_a_failure() -> None:
    tasks = prepared()
    tasks.finish("a1 a2 b1 b2")
    tasks.tell(t.CoordinatorTold(coordinator(), ERROR))
    tasks.restart()
    assert calls(tasks.finish("a1 a2 b1 b2")) == [], "the process before is there yet"
    again = call(is_end=True, restarts=1)
    assert calls(tasks.tell(t.CoordinatorGone(coordinator()))) == [again]
    assert carried_out(tasks, FINISH, 1) == [], "an answer to the call before the restart"
    assert one(carried_out(tasks, again, 1), JobEnded).result.status is JobStatus.FINISHED


def test_coordinator_lost_while_it_finishes_the_outputs_is_replaced_to_finish_them() -> None:
    tasks = prepared(NoRestart())
    tasks.finish("a1 a2 b1 b2")
    actions = tasks.scheduler.handle(
        t.CoordinatorGone(coordinator(), "killed", goes_on=True), tasks.now
    )
    assert one(actions, StartCoordinator) == StartCoordinator(coordinator(1))
    assert tasks.tell(t.CoordinatorStarted(coordinator(1))) == [CallGlobalFormats(FINISH)]
    assert one(carried_out(tasks, FINISH, 1), JobEnded).result.status is JobStatus.FINISHED


def test_coordinator_lost_for_good_while_it_finishes_the_outputs_restarts_all_tasks() -> None:
    tasks = prepared()
    tasks.finish("a1 a2 b1 b2")
    one(tasks.tell(t.CoordinatorGone(coordinator(), "killed")), StartTimer)
    text = "the coordinator of the job's sources died: killed"
    assert tasks.scheduler.exceptions()[-1].text == text
    assert deployed(tasks, tasks.restart()) == "a1#1 a2#1 b1#1 b2#1"
    again = call(is_end=True, restarts=1)
    assert calls(tasks.finish("a1 a2 b1 b2")) == [again]


def test_late_answer_about_finished_outputs_does_not_finish_a_restarting_job() -> None:
    tasks = prepared()
    tasks.finish("a1 a2 b1 b2")
    tasks.tell(t.GlobalFailure(Failure("it broke")))
    assert tasks.status is JobStatus.RESTARTING
    assert carried_out(tasks, FINISH) == []
    assert deployed(tasks, tasks.restart()) == "a1#1 a2#1 b1#1 b2#1"
    assert calls(tasks.finish("a1 a2 b1 b2")) == [call(is_end=True, restarts=1)]


def test_error_that_finishing_the_outputs_raises_again_and_again_fails_the_job() -> None:
    tasks = prepared(ExponentialDelayRestart(0.1, jitter_factor=0.0))
    error = replace(ERROR, program_error=ProgramError("KeyError at a.py:1: 'x'"))
    for number in range(3):
        tasks.finish("a1 a2 b1 b2")
        tasks.tell(t.CoordinatorTold(coordinator(number), error))
        tasks.tell(t.CoordinatorGone(coordinator(number)))
        if number < 2:
            assert (tasks.status, tasks.scheduler.restarts) == (JobStatus.RESTARTING, number + 1)
            tasks.restart()
    assert tasks.ended is not None
    assert "3 attempts have ended with this error" in str(tasks.ended.result.failure)


def test_check_for_the_current_attempt_refuses_a_past_unknown_or_ended_attempt() -> None:
    tasks = prepared()
    current = tasks.attempt("a1")
    for other in (replace(current, graph_id=OTHER_GRAPH), replace(current, attempt_number=1)):
        with pytest.raises(AttemptDisposedError):
            tasks.scheduler.check_current(other)
    tasks.scheduler.check_current(current)
    tasks.finish("a1")
    with pytest.raises(AttemptDisposedError):
        tasks.scheduler.check_current(current)


# --- another JobMaster


class TakenOverFormats(TakenOverJob):
    """The coordinator lives on without its JobMaster, unless it is made to die."""

    coordinator_lives = True

    def _started(self, coordinator: CoordinatorID) -> list[JobSchedulerAction]:
        owner = id_of(JobMasterId, self.masters)
        self.place = SourceCoordinatorPlace(coordinator.attempt_number, owner, "sources", 0)
        noted = self.scheduler.handle(t.SourceCoordinatorIsAt(self.place), self.now)
        return [*noted, *super()._started(coordinator)]

    def replace_job_master(self) -> list[JobSchedulerAction]:
        if self.notes is not None and not self.coordinator_lives:
            self.notes = replace(self.notes, source_coordinator=None)
        return super().replace_job_master()


def taken_over() -> TakenOverFormats:
    tasks = TakenOverFormats(graph())
    tasks.tell(t.StartJob())
    for action in tasks.log:
        tasks._carry_out(action)
    tasks.give()
    return tasks


def test_next_job_master_repeats_a_preparation_of_outputs_that_was_not_answered() -> None:
    tasks = taken_over()
    actions = tasks.replace_job_master()
    assert tasks.status is JobStatus.RUNNING
    assert only(actions, DeployTasks) == []
    assert calls(tasks.give()) == [PREPARE]
    assert deployed(tasks, carried_out(tasks, PREPARE)) == "a1#0 a2#0 b1#0 b2#0"
    assert tasks.scheduler.restarts == 0


def test_next_job_master_does_not_prepare_the_outputs_again_if_tasks_are_running() -> None:
    tasks = taken_over()
    carried_out(tasks, PREPARE)
    assert calls(tasks.replace_job_master()) == []
    tasks.fail("a1")
    assert deployed(tasks, tasks.restart()) == "a1#1 a2#1 b1#1 b2#1"
    assert calls(tasks.log) == [PREPARE]


def test_next_job_master_repeats_the_call_that_finishes_the_outputs() -> None:
    """The coordinator knows the call, and carries it out once."""
    tasks = taken_over()
    carried_out(tasks, PREPARE)
    tasks.fail("a1")
    tasks.restart()
    finish = call(is_end=True, restarts=1)
    assert calls(tasks.finish("a1 a2 b1 b2")) == [finish]
    assert calls(tasks.replace_job_master()) == [finish]
    assert one(carried_out(tasks, finish), JobEnded).result.status is JobStatus.FINISHED


def test_job_that_begins_anew_under_the_next_job_master_prepares_its_outputs_again() -> None:
    tasks = taken_over()
    carried_out(tasks, PREPARE)
    tasks.coordinator_lives = False
    tasks.replace_job_master()
    tasks.confirm_cancellations()
    actions = tasks.tell(t.CoordinatorStarted(coordinator())) + tasks.give()
    assert set(calls(actions)) == {call(is_end=False, restarts=1)}
    assert only(actions, DeployTasks) == []
