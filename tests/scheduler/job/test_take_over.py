"""The next JobMaster goes on with what the last one has deployed."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ExecutionGraphID
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.job_scheduler_actions import (
    AdoptSlots,
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
    NoteFinished,
    NoteJob,
    ReleasePartitions,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.slots.slot_requests import ReturnSlots, SlotRequests
from tests.scheduler.builders import only
from tests.scheduler.graphs import job
from tests.scheduler.job.taken_over_job import TakenOverJob

RUNNING = ExecutionState.RUNNING
RESTARTS = FixedDelayRestart(5, 1.0)


def taken_over(*, slots_each: int = 1, restarts: int = 5, **arguments: object) -> TakenOverJob:
    graph = job(restart_strategy=FixedDelayRestart(restarts, 1.0), **arguments)  # type: ignore[arg-type]
    return TakenOverJob(graph, slots_each=slots_each)


def work(actions: list[JobSchedulerAction]) -> list[JobSchedulerAction]:
    """What changes anything for tasks or slots."""
    kinds = (DeployTasks, CancelTasks, SlotRequests, ReturnSlots, ReleasePartitions)
    return [action for action in actions if isinstance(action, kinds)]


# --- what goes on


def test_tasks_that_run_go_on_and_nobody_tells_them_anything() -> None:
    tasks = taken_over(a=2, b=2, edges=["a -> b"])
    tasks.run()
    states = tasks.states()
    assert states == "a1:RUNNING#0 a2:RUNNING#0 b1:RUNNING#0 b2:RUNNING#0"
    actions = tasks.replace_job_master()
    assert work(actions) == []
    assert tasks.states() == states
    assert tasks.status is JobStatus.RUNNING
    assert tasks.scheduler.exceptions() == ()


def test_slots_stay_reserved_for_those_who_use_them() -> None:
    tasks = taken_over(a=2, b=2, edges=["a -> b"])
    tasks.run()
    before = set(tasks.reserved)
    (adopted,) = only(tasks.replace_job_master(), AdoptSlots)
    assert {restored.slot.allocation_id for restored in adopted.slots} == before
    assert tuple(tasks.ledger.restored()) == adopted.slots
    assert all(restored.request_id is not None for restored in adopted.slots)
    assert len({restored.request_id for restored in adopted.slots}) == 2
    returned = [a for r in only(tasks.finish("a1 a2 b1 b2"), ReturnSlots) for a in r.allocations]
    assert set(returned) == before
    assert tasks.status is JobStatus.FINISHED


def test_what_runs_after_a_take_over_fails_and_restarts_as_before() -> None:
    tasks = taken_over(a=1, b=1, edges=["a -> b"])
    tasks.run()
    tasks.replace_job_master()
    assert tasks.cancelled(tasks.fail("a1")) == "b1#0"
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"


def test_a_second_and_a_third_job_master_take_over() -> None:
    tasks = taken_over(a=1, b=1, edges=["a -> b"])
    tasks.run()
    assert work(tasks.replace_job_master()) == []
    tasks.fail("a1")
    tasks.restart()
    tasks.report("a1 b1", RUNNING)
    for _ in range(2):
        assert work(tasks.replace_job_master()) == []
        assert tasks.states() == "a1:RUNNING#1 b1:RUNNING#1"


def test_states_before_running_go_on_too() -> None:
    tasks = taken_over(a=3)
    tasks.tell("start")
    tasks.give()
    tasks.report("a2", ExecutionState.INITIALIZING)
    tasks.report("a3", RUNNING)
    tasks.replace_job_master()
    assert tasks.states() == "a1:DEPLOYING#0 a2:INITIALIZING#0 a3:RUNNING#0"


def test_regions_that_nobody_has_deployed_are_scheduled() -> None:
    tasks = taken_over(a=1, b=1, edges=["a => b"])
    tasks.run()
    tasks.replace_job_master()
    assert len(only(tasks.finish("a1"), SlotRequests)) == 1
    assert tasks.deployed(tasks.give()) == "b1#0"
    tasks.finish("b1")
    assert tasks.status is JobStatus.FINISHED


def test_what_has_finished_stays_finished_though_its_task_executor_has_forgotten_it() -> None:
    tasks = taken_over(a=2, b=1, edges=["a => b"])
    tasks.run()
    tasks.finish("a1")
    tasks.ends.clear()
    tasks.replace_job_master()
    assert tasks.states() == "a1:FINISHED#0 a2:RUNNING#0 b1:CREATED#0"


def test_an_end_that_nobody_was_told_of_counts() -> None:
    tasks = taken_over(a=1, b=1, edges=["a => b"])
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    actions = tasks.replace_job_master()
    assert tasks.states() == "a1:FINISHED#0 b1:SCHEDULED#0"
    assert len(only(actions, SlotRequests)) == 1
    assert len(only(actions, NoteFinished)) == 1


def test_a_job_whose_last_task_has_ended_meanwhile_ends() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    tasks.replace_job_master()
    assert tasks.status is JobStatus.FINISHED


# --- what does not


def test_what_is_missing_restarts_as_one_failure_with_new_numbers() -> None:
    tasks = taken_over(a=2, b=2, edges=["a --> b"])
    tasks.run()
    tasks.task_executor_dies("te0")
    actions = tasks.replace_job_master()
    assert tasks.status is JobStatus.RESTARTING
    assert len(tasks.scheduler.exceptions()) == 1
    assert "was lost with its JobMaster" in tasks.scheduler.exceptions()[0].text
    assert not only(actions, CancelTasks)  # the other region goes on
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"
    assert tasks.states().count("RUNNING#0") == 2


def test_the_rest_of_a_region_is_cancelled_when_a_part_is_missing() -> None:
    tasks = taken_over(a=2, b=2, edges=["a -> b"])
    tasks.run()
    tasks.task_executor_dies("te0")
    assert tasks.cancelled(tasks.replace_job_master()) == "a2#0 b2#0"
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1 a2#1 b2#1"


def test_a_failure_that_nobody_was_told_of_fails_the_job_if_it_may_not_restart() -> None:
    tasks = taken_over(a=1, restarts=0)
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FAILED, "it broke")
    tasks.replace_job_master()
    assert tasks.status is JobStatus.FAILED
    assert tasks.scheduler.exceptions()[0].text == "it broke"


def test_what_was_noted_and_never_came_is_missing_and_its_number_is_not_used_again() -> None:
    tasks = taken_over(a=1)
    tasks.tell("start")
    tasks.carried_out = 1  # the notes
    tasks.give()
    tasks.replace_job_master()
    tasks.give()
    tasks.tell("slot_events", ())
    assert tasks.states() == "a1:FAILED#0"
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_a_task_of_a_lower_number_is_cancelled() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    old = tasks.reports()
    tasks.fail("a1")
    tasks.restart()
    (now,) = tasks.reports()
    both = replace(now, slots=(*now.slots, *old[0].slots), graphs=(*old[0].graphs, *now.graphs))
    tasks.next_job_master()
    assert tasks.cancelled(tasks.take_over([both])) == "a1#0"
    assert tasks.states() == "a1:DEPLOYING#1"
    assert tasks.status is JobStatus.RUNNING


def test_a_task_of_another_execution_graph_is_cancelled() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    (report,) = tasks.reports()
    other = replace(report.graphs[0], graph_id=ExecutionGraphID.generate())
    tasks.next_job_master()
    actions = tasks.take_over([replace(report, graphs=(*report.graphs, other))])
    (cancelled,) = only(actions, CancelTasks)
    assert [a.graph_id for a in cancelled.attempts] == [other.graph_id]
    assert tasks.states() == "a1:RUNNING#0"


# --- what is noted


def test_notes_precede_the_deployments_that_they_name() -> None:
    tasks = taken_over(a=2)
    tasks.tell("start")
    tasks.give()
    kinds = [type(a) for a in tasks.log if isinstance(a, (NoteJob, DeployTasks))]
    assert kinds == [NoteJob, DeployTasks, DeployTasks]
    before = len(only(tasks.log, NoteJob))
    tasks.report("a1 a2", RUNNING)
    tasks.finish("a1")
    assert len(only(tasks.log, NoteJob)) == before


# --- when nothing goes on


def test_without_notes_all_is_cancelled_and_the_job_begins_anew() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    tasks.notes = None
    actions = tasks.replace_job_master()
    assert tasks.cancelled(actions) == "a1#0"
    assert tasks.states() == "a1:SCHEDULED#0"
    assert tasks.scheduler.exceptions()[0].text.endswith("its last JobMaster has left no notes")
    tasks.give()
    assert len({attempt_id.graph_id for attempt_id in tasks.where}) == 2


def test_without_notes_and_reports_it_is_a_start() -> None:
    tasks = taken_over(a=1)
    tasks.take_over()
    tasks.give()
    assert tasks.states() == "a1:DEPLOYING#0"
    assert tasks.scheduler.exceptions() == ()


def test_notes_that_are_not_the_last_ones_are_of_no_use() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    old = tasks.notes
    tasks.fail("a1")
    tasks.restart()
    tasks.notes = old
    assert tasks.cancelled(tasks.replace_job_master()) == "a1#1"
    assert "not the last ones" in tasks.scheduler.exceptions()[0].text
