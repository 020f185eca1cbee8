"""The next JobMaster goes on with what the last one has deployed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.ids import ExecutionGraphID, JobMasterId
from flinkray.scheduler.checkpoints.actions import (
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import CheckpointTimerPurpose
from flinkray.scheduler.elastic.elastic_job_scheduler import ElasticJobScheduler
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    SchedulerMode,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    AdoptSlots,
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
    NoteFinished,
    NoteJob,
    ReleasePartitions,
    StartCoordinator,
)
from flinkray.scheduler.job.take_over import why_not
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import (
    JobNotes,
    ReportedGraph,
    SourceCoordinatorPlace,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import PartitionLocations, pack_numbers
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import ReturnSlots, SlotRequests
from tests.scheduler.builders import GRAPH, id_of, one, only
from tests.scheduler.checkpoints.job_with_checkpoints import fires
from tests.scheduler.graphs import job, stream_vertex
from tests.scheduler.job.checkpointed_job import checkpointed_graph
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.job.test_take_over_checkpoints_stateful import TakenOverCheckpointedJob

TRIGGER, FINAL = CheckpointTimerPurpose.TRIGGER, CheckpointTimerPurpose.FINAL
RUNNING = ExecutionState.RUNNING
RESTARTS = FixedDelayRestart(5, 1.0)
EPOCH_OFFSET = 1_000_000.0


def taken_over(*, slots_each: int = 1, restarts: int = 5, **arguments: object) -> TakenOverJob:
    graph = job(restart_strategy=FixedDelayRestart(restarts, 1.0), **arguments)  # type: ignore[arg-type]
    return TakenOverJob(graph, slots_each=slots_each)


def notes_of(graph: JobGraph) -> JobNotes:
    """Of a job of which nothing was deployed."""
    parallelisms = tuple(vertex.parallelism for vertex in graph.vertices)
    return JobNotes(GRAPH, parallelisms, bytes(4 * sum(parallelisms)), 0)


def work(actions: list[JobSchedulerAction]) -> list[JobSchedulerAction]:
    """What changes anything for tasks or slots."""
    kinds = (DeployTasks, CancelTasks, SlotRequests, ReturnSlots, ReleasePartitions)
    return [action for action in actions if isinstance(action, kinds)]


def starts_of(tasks: TakenOverJob) -> list[float | None]:
    vertices = tasks.scheduler.details().vertices
    return [execution.start_time for vertex in vertices for execution in vertex.executions]


# --- what goes on


def test_running_tasks_get_no_messages_and_continue_after_a_take_over() -> None:
    tasks = taken_over(a=2, b=2, edges=["a -> b"])
    tasks.run()
    states = tasks.states()
    assert states == "a1:RUNNING#0 a2:RUNNING#0 b1:RUNNING#0 b2:RUNNING#0"
    actions = tasks.replace_job_master()
    assert work(actions) == []
    assert tasks.states() == states
    assert tasks.status is JobStatus.RUNNING
    assert tasks.scheduler.exceptions() == ()


def test_slots_in_use_stay_reserved_after_a_take_over() -> None:
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


def test_task_failure_after_a_take_over_restarts_its_region() -> None:
    tasks = taken_over(a=1, b=1, edges=["a -> b"])
    tasks.run()
    tasks.replace_job_master()
    assert tasks.cancelled(tasks.fail("a1")) == "b1#0"
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"


def test_tasks_keep_running_when_a_second_and_a_third_job_master_take_over() -> None:
    tasks = taken_over(a=1, b=1, edges=["a -> b"])
    tasks.run()
    assert work(tasks.replace_job_master()) == []
    tasks.fail("a1")
    tasks.restart()
    tasks.report("a1 b1", RUNNING)
    for _ in range(2):
        assert work(tasks.replace_job_master()) == []
        assert tasks.states() == "a1:RUNNING#1 b1:RUNNING#1"


def test_restarts_and_failovers_are_counted_across_all_job_masters_of_a_job() -> None:
    tasks = taken_over(a=1, b=1, edges=["a -> b"])
    tasks.run()
    for n in range(3):
        tasks.fail("a1")
        tasks.restart()
        tasks.report("a1 b1", RUNNING)
        assert (tasks.scheduler.restarts, tasks.scheduler.details().failovers) == (n + 1, n)
        tasks.replace_job_master()
        progress = tasks.scheduler.progress()
        assert (progress.restarts, progress.failovers) == (n + 1, n + 1)


def test_take_over_keeps_the_start_times_of_job_and_tasks() -> None:
    tasks = taken_over(a=1, b=2, edges=["a -> b"])
    tasks.run()
    tasks.fail("a1")
    tasks.restart()
    tasks.report("a1 b1 b2", RUNNING)
    job_runs = tasks.scheduler.details().status_timestamps["RUNNING"]
    began = starts_of(tasks)
    for _ in range(2):
        tasks.replace_job_master()
        assert tasks.scheduler.details().status_timestamps["RUNNING"] == job_runs
        assert tasks.scheduler.running_since == job_runs
        assert starts_of(tasks) == began
    (vertex, _) = tasks.scheduler.details().vertices
    (execution,) = vertex.executions
    assert execution.state_timestamps == dict.fromkeys(
        ("CREATED", "SCHEDULED", "DEPLOYING", "RUNNING"), execution.start_time
    )


def test_job_restarting_at_a_take_over_is_shown_as_running_since_the_take_over() -> None:
    """Its last JobMaster had deployed one of two regions again."""
    tasks = taken_over(a=1, b=1)
    tasks.run()
    first = one(tasks.fail("a1"), StartTimer)
    tasks.fail("b1")
    assert tasks.deployed(tasks.tell(first.event) + tasks.give()) == "a1#1"
    assert tasks.status is JobStatus.RESTARTING
    tasks.next_job_master()
    tasks.take_over()
    now = tasks.now + EPOCH_OFFSET
    assert tasks.scheduler.details().status_timestamps["RUNNING"] == now


@pytest.mark.parametrize("said", [0.0, 2 * EPOCH_OFFSET])
def test_start_times_unknown_or_in_the_future_become_the_time_of_the_take_over(said: float) -> None:
    """Clocks of nodes differ."""
    tasks = taken_over(a=1)
    tasks.run()
    assert tasks.notes is not None
    tasks.notes = replace(tasks.notes, running_since=said)
    for attempt_id, deployment in tasks.deployments.items():
        tasks.deployments[attempt_id] = replace(deployment, deployed_at=said)
    tasks.replace_job_master()
    now = tasks.now + EPOCH_OFFSET
    assert tasks.scheduler.details().status_timestamps["RUNNING"] == now
    assert starts_of(tasks) == [now]


def test_tasks_that_are_still_deploying_keep_their_state_after_a_take_over() -> None:
    tasks = taken_over(a=3)
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.report("a2", ExecutionState.INITIALIZING)
    tasks.report("a3", RUNNING)
    tasks.replace_job_master()
    assert tasks.states() == "a1:DEPLOYING#0 a2:INITIALIZING#0 a3:RUNNING#0"


def test_regions_not_deployed_before_a_take_over_are_scheduled_after_it() -> None:
    tasks = taken_over(a=1, b=1, edges=["a => b"])
    tasks.run()
    tasks.replace_job_master()
    assert len(only(tasks.finish("a1"), SlotRequests)) == 1
    assert tasks.deployed(tasks.give()) == "b1#0"
    tasks.finish("b1")
    assert tasks.status is JobStatus.FINISHED


def test_finished_task_stays_finished_although_its_task_executor_forgot_it() -> None:
    tasks = taken_over(a=2, b=1, edges=["a => b"])
    tasks.run()
    tasks.finish("a1")
    tasks.ends.clear()
    tasks.replace_job_master()
    assert tasks.states() == "a1:FINISHED#0 a2:RUNNING#0 b1:CREATED#0"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_finished_task_keeps_its_times_after_a_take_over(
    is_forgotten: bool,
) -> None:
    """Whether or not its TaskExecutor remembers the task; also with further JobMasters."""
    tasks = taken_over(a=2, b=1, edges=["a => b"])
    tasks.run()
    tasks.finish("a1")
    before = tasks.scheduler.details().vertices[0].executions[0].state_timestamps
    for _ in range(2):
        if is_forgotten:
            tasks.ends.clear()
        tasks.replace_job_master()
        times = tasks.scheduler.details().vertices[0].executions[0].state_timestamps
        assert times["FINISHED"] == before["FINISHED"]
        assert times["DEPLOYING"] == before["DEPLOYING"]
        assert times["RUNNING"] == before["DEPLOYING"], "when it began to run is not kept"


def test_task_that_finished_between_two_job_masters_gets_the_time_of_the_take_over() -> None:
    tasks = taken_over(a=2)
    tasks.run()
    deployed = tasks.scheduler.details().vertices[0].executions[0].state_timestamps["DEPLOYING"]
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    tasks.replace_job_master()
    times = tasks.scheduler.details().vertices[0].executions[0].state_timestamps
    assert (times["DEPLOYING"], times["FINISHED"]) == (deployed, tasks.now + EPOCH_OFFSET)


def test_consumer_of_a_task_that_finished_between_two_job_masters_is_scheduled() -> None:
    tasks = taken_over(a=1, b=1, edges=["a => b"])
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    actions = tasks.replace_job_master()
    assert tasks.states() == "a1:FINISHED#0 b1:SCHEDULED#0"
    assert len(only(actions, SlotRequests)) == 1
    assert len(only(actions, NoteFinished)) == 1


def test_job_finishes_if_its_last_task_ended_before_the_take_over() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    tasks.replace_job_master()
    assert tasks.status is JobStatus.FINISHED


# --- what does not


def test_tasks_missing_after_a_take_over_are_restarted_as_one_failure() -> None:
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


def test_other_tasks_of_a_region_with_missing_tasks_are_cancelled() -> None:
    tasks = taken_over(a=2, b=2, edges=["a -> b"])
    tasks.run()
    tasks.task_executor_dies("te0")
    assert tasks.cancelled(tasks.replace_job_master()) == "a2#0 b2#0"
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1 a2#1 b2#1"


def test_unreported_task_failure_fails_a_job_without_restarts_at_the_take_over() -> None:
    tasks = taken_over(a=1, restarts=0)
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FAILED, "it broke")
    tasks.replace_job_master()
    assert tasks.status is JobStatus.FAILED
    assert tasks.scheduler.exceptions()[0].text == "it broke"


def test_task_in_the_recovery_notes_that_was_not_deployed_gets_a_new_attempt() -> None:
    tasks = taken_over(a=1)
    tasks.tell(t.StartJob())
    tasks.carried_out = 1  # the notes
    tasks.give()
    tasks.replace_job_master()
    tasks.give()
    tasks.tell(t.SlotsTold(()))
    assert tasks.states() == "a1:FAILED#0"
    assert tasks.deployed(tasks.restart()) == "a1#1"


def noted_and_not_sent(**says: object) -> TakenOverJob:
    """A stream job whose JobMaster has died then; *says*: what the coordinator of its sources says
    otherwise than that it is as it was noted, and that no task has asked it for anything."""
    place = SourceCoordinatorPlace(0, JobMasterId.generate(), "sources", 0, has_readers=False)
    graph = job(vertices=[stream_vertex("a", 2)], restart_strategy=RESTARTS)
    tasks = TakenOverJob(graph)
    tasks.tell(t.StartJob())
    tasks.carried_out = 1  # the notes
    tasks.give()
    assert tasks.notes is not None
    tasks.notes = replace(tasks.notes, source_coordinator=replace(place, **says))  # type: ignore[arg-type]
    return tasks


def test_undeployed_tasks_are_deployed_by_the_recovery_notes_if_no_source_has_begun() -> None:
    """Every TaskExecutor reports, and none has any task."""
    tasks = noted_and_not_sent()
    tasks.next_job_master()
    deployed = tasks.deployed(tasks.take_over()) or tasks.deployed(tasks.give())
    assert deployed == "a1#0 a2#0"
    assert tasks.scheduler.exceptions() == ()


def test_undeployed_tasks_are_deployed_by_the_recovery_notes_after_two_take_overs() -> None:
    """The second JobMaster died before it had slots for them (seed 457 of elastic jobs)."""
    tasks = noted_and_not_sent()
    tasks.replace_job_master()
    tasks.next_job_master()
    deployed = tasks.deployed(tasks.take_over()) or tasks.deployed(tasks.give())
    assert deployed == "a1#0 a2#0"
    assert tasks.scheduler.exceptions() == ()


@pytest.mark.parametrize("is_sent", [True, False])
def test_undeployed_tasks_are_not_lost_if_the_next_job_master_dies_deploying_them(
    is_sent: bool,
) -> None:
    """The recovery notes of the first JobMaster said that all tasks were deployed."""
    tasks = noted_and_not_sent()
    tasks.next_job_master()
    tasks.take_over()
    assert tasks.notes is not None
    place = tasks.notes.source_coordinator
    tasks.carried_out = None if is_sent else 1  # the notes
    tasks.give(1)
    tasks.notes = replace(tasks.notes, source_coordinator=place)
    tasks.next_job_master()
    actions = tasks.take_over() + tasks.give()
    assert tasks.deployed(actions) == ("a2#0" if is_sent else "a1#0 a2#0")
    assert tasks.scheduler.exceptions() == ()


@pytest.mark.parametrize("says", [{"has_readers": True}, {"restores": 1}])
def test_undeployed_task_fails_at_a_take_over_if_a_source_has_begun(
    says: dict[str, object],
) -> None:
    tasks = noted_and_not_sent(**says)
    tasks.replace_job_master()
    assert "no TaskExecutor has reported it" in tasks.scheduler.exceptions()[0].text


@pytest.mark.parametrize(("noted", "says"), [(1, 0), (0, 1)])
def test_take_over_restarts_a_job_whose_sources_and_tasks_count_different_restores(
    noted: int, says: int
) -> None:
    """Otherwise tasks deployed from the notes would wait for ever for sources that were not
    restored (seed 43685)."""
    tasks = noted_and_not_sent(restores=says)
    assert tasks.notes is not None
    tasks.notes = replace(tasks.notes, restores=noted)
    tasks.replace_job_master()
    told = f"restored {says} times, and tasks {noted} times"
    assert any(told in str(entry) for entry in tasks.scheduler.exceptions())


def test_undeployed_task_fails_at_a_take_over_if_a_task_executor_does_not_report() -> None:
    tasks = noted_and_not_sent()
    tasks.next_job_master()
    tasks.take_over(tasks.reports()[1:])
    assert "no TaskExecutor has reported it" in tasks.scheduler.exceptions()[0].text


def test_tasks_whose_attempts_a_task_executor_has_dropped_count_as_deployed() -> None:
    """The tasks had ended, and a JobMaster that left no notes had told the TaskExecutor that the
    job begins anew. The next JobMaster deployed the same attempts again (seed 3722314)."""
    tasks = noted_and_not_sent()
    assert tasks.notes is not None
    dropped = ReportedGraph(tasks.notes.graph_id, (), ())
    tasks.next_job_master()
    first, *others = tasks.reports()
    tasks.take_over([replace(first, graphs=(dropped,)), *others])
    assert "no TaskExecutor has reported it" in tasks.scheduler.exceptions()[0].text


def test_earlier_attempt_of_a_task_that_still_runs_is_cancelled_by_a_take_over() -> None:
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


def test_task_of_another_execution_graph_is_cancelled_by_the_take_over() -> None:
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


def test_recovery_notes_of_a_job_are_written_before_its_tasks_are_deployed() -> None:
    tasks = taken_over(a=2)
    tasks.tell(t.StartJob())
    tasks.give()
    kinds = [type(a) for a in tasks.log if isinstance(a, (NoteJob, DeployTasks))]
    assert kinds == [NoteJob, DeployTasks, DeployTasks]
    before = len(only(tasks.log, NoteJob))
    tasks.report("a1 a2", RUNNING)
    tasks.finish("a1")
    assert len(only(tasks.log, NoteJob)) == before


# --- when nothing goes on


def test_take_over_without_recovery_notes_cancels_all_tasks_and_restarts_the_job() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    tasks.notes = None
    actions = tasks.replace_job_master()
    assert tasks.cancelled(actions) == "a1#0"
    assert tasks.states() == "a1:SCHEDULED#1"
    assert tasks.scheduler.restarts == 1
    assert tasks.scheduler.exceptions()[0].text.endswith("its last JobMaster has left no notes")
    tasks.give()
    assert len({attempt_id.graph_id for attempt_id in tasks.where}) == 2


def test_take_over_with_neither_recovery_notes_nor_task_reports_starts_the_job_anew() -> None:
    tasks = taken_over(a=1)
    tasks.take_over()
    tasks.give()
    assert tasks.states() == "a1:DEPLOYING#0"
    assert tasks.scheduler.restarts == 0
    assert tasks.scheduler.exceptions() == ()


def test_take_over_without_recovery_notes_counts_a_restart_if_a_checkpoint_had_begun() -> None:
    """All masters were away for a minute, and the TaskExecutors had ended the tasks. Without this
    rule the job starts again as attempt 0 without a counted restart."""
    tasks = taken_over(a=1)
    tasks.take_over(begun_checkpoints={1: "/chk-1"})
    tasks.give()
    assert tasks.states() == "a1:DEPLOYING#1"
    assert tasks.scheduler.restarts == 1
    assert tasks.scheduler.exceptions()[0].text.endswith("its last JobMaster has left no notes")


def test_take_over_without_recovery_notes_counts_a_restart_if_the_job_has_run() -> None:
    """The job takes no checkpoints: only the Dispatcher knows that it has run."""
    tasks = taken_over(a=1)
    tasks.take_over(has_run=True)
    tasks.give()
    assert tasks.states() == "a1:DEPLOYING#1"
    assert tasks.scheduler.restarts == 1
    assert tasks.scheduler.exceptions()[0].text.endswith("its last JobMaster has left no notes")


def test_restarted_job_continues_attempt_numbers_and_restart_count() -> None:
    tasks = taken_over(a=2)
    tasks.run()
    tasks.fail("a1")
    tasks.restart()
    assert tasks.notes is not None
    tasks.notes = replace(tasks.notes, parallelisms=(3,))
    tasks.replace_job_master()
    assert tasks.states() == "a1:SCHEDULED#2 a2:SCHEDULED#2"
    assert tasks.scheduler.restarts == 2


def test_take_over_with_outdated_recovery_notes_cancels_the_running_tasks() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    old = tasks.notes
    tasks.fail("a1")
    tasks.restart()
    tasks.notes = old
    assert tasks.cancelled(tasks.replace_job_master()) == "a1#1"
    assert "not the last ones" in tasks.scheduler.exceptions()[0].text


def test_take_over_without_recovery_notes_adopts_no_slots() -> None:
    tasks = taken_over(a=1)
    tasks.run()
    tasks.notes = None
    assert only(tasks.replace_job_master(), AdoptSlots) == [AdoptSlots(())]


# --- notes that nobody has but a TaskExecutor


def copied(*, checkpoints: int = 1) -> TakenOverCheckpointedJob:
    """A job with so many complete checkpoints, whose next JobMaster has a copy of the notes."""
    tasks = TakenOverCheckpointedJob(checkpointed_graph())
    tasks.place = lambda: SourceCoordinatorPlace(0, id_of(JobMasterId, 1), "sources", restores=0)
    tasks.run()
    for checkpoint_id in range(1, checkpoints + 1):
        tasks.trigger()
        tasks.acknowledge(checkpoint_id)
        tasks.store()
    tasks.stored = lambda: [
        CompletedCheckpoint(stored.metadata, stored.properties, f"{stored.directory}/_metadata")
        for stored in only(tasks.log, StoreCheckpoint)
    ]
    tasks.is_copy = True
    return tasks


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_all_tasks_continue_if_a_backup_of_recovery_notes_agrees_with_their_reports(
    checkpoints: int,
) -> None:
    tasks = copied(checkpoints=checkpoints)
    states = tasks.states()
    assert work(tasks.replace_job_master()) == []
    assert tasks.states() == states
    assert tasks.scheduler.restarts == 0


def test_finished_task_stays_finished_after_a_take_over_with_backup_recovery_notes() -> None:
    tasks = copied()
    tasks.finish("a1")
    states = tasks.states()
    assert work(tasks.replace_job_master()) == []
    assert tasks.states() == states


def begins_anew(tasks: TakenOverCheckpointedJob) -> str:
    """Why, all tasks being cancelled and a restart counted."""
    running = {a for a in tasks.tasks if tasks.task_states[a] is not ExecutionState.CANCELING}
    actions = tasks.take_over()
    cancelled = {attempt for cancel in only(actions, CancelTasks) for attempt in cancel.attempts}
    assert running <= cancelled
    assert tasks.scheduler.restarts == 1
    (failure,) = tasks.scheduler.exceptions()
    return failure.text


def test_backup_of_the_recovery_notes_is_not_used_if_a_task_is_missing() -> None:
    """Another JobMaster may have restarted the task elsewhere with the same attempt number."""
    tasks = copied()
    tasks.task_executor_dies(tasks.where[tasks.attempt("b1")])
    tasks.next_job_master()
    assert "which may be outdated" in begins_anew(tasks)


@pytest.mark.parametrize("state", [ExecutionState.FAILED, ExecutionState.CANCELED])
def test_backup_recovery_notes_are_not_used_if_a_task_has_failed_or_was_cancelled(
    state: ExecutionState,
) -> None:
    tasks = copied()
    tasks.happens([tasks.attempt("b1")], state, "unheard")
    tasks.next_job_master()
    assert "it has ended, and has not finished" in begins_anew(tasks)


def test_backup_recovery_notes_are_not_used_if_a_task_was_being_cancelled() -> None:
    tasks = copied()
    tasks.task_states[tasks.attempt("b1")] = ExecutionState.CANCELING
    tasks.next_job_master()
    assert "it was being cancelled" in begins_anew(tasks)


def test_backup_recovery_notes_are_not_used_if_the_last_checkpoint_is_of_other_tasks() -> None:
    """The reported tasks were believed dead and replaced. The results that the replacements
    committed would be committed again."""
    tasks = copied(checkpoints=2)
    tasks.acknowledged[tasks.attempt("b1")] = 1
    tasks.next_job_master()
    assert "it is not part of checkpoint 2" in begins_anew(tasks)


def test_tasks_restored_from_the_last_checkpoint_continue_with_backup_recovery_notes() -> None:
    tasks = copied()
    tasks.fail("a1")
    tasks.restart()
    tasks.acknowledged.clear()
    for name in tasks.states().split():
        tasks.report(name.split(":")[0], RUNNING)
    states = tasks.states()
    tasks.place = lambda: SourceCoordinatorPlace(
        0, id_of(JobMasterId, 1), "sources", restores=tasks.notes.restores if tasks.notes else 0
    )
    assert work(tasks.replace_job_master()) == []
    assert tasks.states() == states


def test_tasks_cannot_continue_after_a_take_over_if_the_source_coordinator_is_lost() -> None:
    graph = job(vertices=[stream_vertex("a")])
    place = SourceCoordinatorPlace(0, JobMasterId.generate(), "sources")
    assert why_not(graph, notes_of(graph)) == "the coordinator of its sources is lost"
    assert why_not(graph, replace(notes_of(graph), source_coordinator=place)) is None


def test_job_whose_source_coordinator_never_started_begins_again_without_a_restart() -> None:
    """The coordinator's process was not there after five seconds, and tasks had been deployed
    without it (49th of 300 kills)."""
    tasks = taken_over(vertices=[stream_vertex("a")])
    tasks.sources_start = False
    tasks.tell(t.StartJob())
    tasks.give()
    started = one(tasks.replace_job_master(), StartCoordinator).coordinator
    tasks.tell(t.CoordinatorStarted(started))
    assert tasks.deployed(tasks.give()) == "a1#0"
    assert tasks.scheduler.restarts == 0


def test_recovery_notes_with_other_parallelisms_are_not_used_at_a_take_over() -> None:
    tasks = taken_over(a=2)
    tasks.run()
    assert tasks.notes is not None
    tasks.notes = replace(tasks.notes, parallelisms=(3,))
    assert tasks.cancelled(tasks.replace_job_master()) == "a1#0 a2#0"
    assert "parallelisms" in tasks.scheduler.exceptions()[0].text


# --- contradictions: what is reported is not what can go on


def altered(tasks: TakenOverJob, name: str, **changes: object) -> list[TaskExecutorReport]:
    """The reports, with another word of the task of that name."""
    wanted = tasks.deployments[tasks.attempt(name)]
    reports = []
    for report in tasks.reports():
        graphs = []
        for of_graph in report.graphs:
            told = tuple(
                replace(task, **changes)  # type: ignore[arg-type]
                if task.deployment.allocation_id == wanted.allocation_id
                and task.deployment.vertex == wanted.vertex
                else task
                for task in of_graph.tasks
            )
            graphs.append(replace(of_graph, tasks=told))
        reports.append(replace(report, graphs=tuple(graphs)))
    return reports


def contradicted(reports: list[TaskExecutorReport], tasks: TakenOverJob, text: str) -> None:
    """The region of a1 and b1 restarts as by one failure, the other one goes on."""
    tasks.next_job_master()
    assert tasks.cancelled(tasks.take_over(reports)) in ("a1#0 b1#0", "b1#0 a1#0")
    (entry,) = tasks.scheduler.exceptions()
    assert text in entry.text
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"
    assert tasks.states().count("RUNNING#0") == 2


def two_regions() -> TakenOverJob:
    tasks = taken_over(a=2, b=2, edges=["a --> b"])
    tasks.run()
    return tasks


def test_task_stopping_with_a_savepoint_cannot_continue_after_a_take_over() -> None:
    tasks = two_regions()
    contradicted(altered(tasks, "b1", is_stopping=True), tasks, "savepoint")


def test_task_that_ended_with_a_stop_savepoint_does_not_finish_the_job_if_taken_over() -> None:
    """Otherwise the job is FINISHED, its savepoint is unknown, and the other tasks never end (seed
    107)."""
    tasks = taken_over(a=1)
    tasks.run()
    tasks.happens([tasks.attempt("a1")], ExecutionState.FINISHED)
    reports = altered(tasks, "a1", is_stopping=True)
    tasks.next_job_master()
    tasks.take_over(reports)
    assert "ended with a savepoint" in tasks.scheduler.exceptions()[0].text
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_task_being_cancelled_cannot_continue_after_a_take_over() -> None:
    tasks = two_regions()
    contradicted(altered(tasks, "a1", state=ExecutionState.CANCELING), tasks, "being cancelled")


def test_task_deployed_before_the_last_restore_of_its_sources_cannot_be_taken_over() -> None:
    tasks = two_regions()
    deployment = replace(tasks.deployments[tasks.attempt("a1")], restores=7)
    contradicted(altered(tasks, "a1", deployment=deployment), tasks, "restored")


def test_task_that_reads_from_an_attempt_not_in_the_recovery_notes_cannot_continue() -> None:
    tasks = two_regions()
    reader = tasks.deployments[tasks.attempt("b1")]
    reports = tasks.reports()
    for number, report in enumerate(reports):
        (of_graph,) = report.graphs
        parts = tuple(
            replace(part, content=replace(part.content, attempts=pack_numbers([3])))
            if part.key in reader.inputs and isinstance(part.content, PartitionLocations)
            else part
            for part in of_graph.parts
        )
        reports[number] = replace(report, graphs=(replace(of_graph, parts=parts),))
    contradicted(reports, tasks, "other attempts of a")


def test_task_in_a_slot_that_its_task_executor_does_not_report_is_restarted() -> None:
    tasks = two_regions()
    reports = [
        replace(report, slots=()) if report.location.resource_id == "te0" else report
        for report in tasks.reports()
    ]
    tasks.next_job_master()
    assert set(tasks.cancelled(tasks.take_over(reports)).split()) == {"a1#0", "b1#0"}
    assert "a slot that te0 has not" in tasks.scheduler.exceptions()[0].text
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"


def test_finished_task_that_was_about_to_be_restarted_is_not_finished_at_a_take_over() -> None:
    """A result was lost and its producer runs again, so the readers of the lost result run again,
    too."""
    tasks = taken_over(slots_each=1, a=1, b=1, c=1, edges=["a => b", "a => c"])
    tasks.run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.lose_task_executor("te0")
    tasks.restart()
    assert "a1:DEPLOYING#1" in tasks.states()
    assert "b1:CREATED#1" in tasks.states()
    tasks.replace_job_master()
    assert "a1:DEPLOYING#1 b1:CREATED#1" in tasks.states()
    assert tasks.status is JobStatus.RUNNING


def test_result_lost_with_its_task_executor_is_produced_again_after_a_take_over() -> None:
    tasks = taken_over(a=2, b=1, edges=["a => b"])
    tasks.run()
    tasks.finish("a1")
    tasks.task_executor_dies("te0")
    tasks.replace_job_master()
    assert "the results of a (1/2) were lost" in tasks.scheduler.exceptions()[0].text
    assert tasks.deployed(tasks.restart()) == "a1#1"
    assert "a2:RUNNING#0" in tasks.states()


# --- elastic jobs


def test_elastic_job_keeps_its_parallelism_after_a_take_over() -> None:
    graph = replace(job(a=3, restart_strategy=RESTARTS), scheduler_mode=SchedulerMode.ADAPTIVE)
    tasks = TakenOverJob(graph, kind=ElasticJobScheduler)
    tasks.tell(t.StartJob())
    tasks.tell(t.PoolSlotsChanged(tuple(tasks.new_slot() for _ in range(2))))
    tasks.now += 10.0
    tasks.tell(only(tasks.log, StartTimer)[-1].event)
    tasks.give()
    tasks.report(list(tasks.tasks), RUNNING)
    before = tasks.states()
    assert before == "a1:RUNNING#1 a2:RUNNING#1"
    actions = tasks.replace_job_master()
    assert work(actions) == []
    assert tasks.states() == before
    assert tasks.scheduler.exceptions() == ()


# --- checkpoints


def test_task_awaiting_its_final_checkpoint_gets_it_after_a_take_over() -> None:
    """The task is at the end of its input, and does not wait for the next periodic checkpoint."""
    tasks = TakenOverCheckpointedJob(checkpointed_graph())
    tasks.place = lambda: SourceCoordinatorPlace(0, JobMasterId.generate(), "sources", 0)
    tasks.run()
    for awaits, purposes in ((None, {TRIGGER}), (0, {TRIGGER, FINAL})):
        tasks.next_job_master()
        report, *reports = tasks.reports()
        (of_graph,) = report.graphs
        one, *others = of_graph.tasks
        of_graph = replace(of_graph, tasks=(replace(one, awaits_checkpoint=awaits), *others))
        actions = tasks.take_over([replace(report, graphs=(of_graph,)), *reports])
        assert {fires(timer).purpose for timer in only(actions, StartTimer)} == purposes
