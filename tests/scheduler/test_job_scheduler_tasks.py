"""JobScheduler: jobs of many vertices, from slots to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flinkray.core.errors import PartitionProducerDisposedError
from flinkray.core.ids import ExecutionAttemptID, ResourceID
from flinkray.rpc import codec
from flinkray.scheduler.execution import Execution
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.input_splits import InputSplit
from flinkray.scheduler.job_graph import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    JobGraph,
    MasterFormat,
)
from flinkray.scheduler.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    FinalizeOnMaster,
    InitializeOnMaster,
    JobEnded,
    JobStatusChanged,
    ScheduleRestart,
)
from flinkray.scheduler.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.scheduler.tasks import PartitionLocations, ResultPartitionID, VertexInformation
from tests.scheduler.builders import allocation, one, only
from tests.scheduler.graphs import data_set_id, job, python_vertex, vertex_id
from tests.scheduler.tasks_under_test import TasksUnderTest

RESTARTS = FixedDelayRestart(5, 1.0)
TE0 = ResourceID("te0")
STATES_OF_A_FAILURE = ["CREATED", "SCHEDULED", "DEPLOYING", "RUNNING", "FAILED"]


def stream(restarts: int = 5, **arguments: object) -> TasksUnderTest:
    """A job with so many restarts."""
    graph = job(restart_strategy=FixedDelayRestart(restarts, 1.0), **arguments)  # type: ignore[arg-type]
    return TasksUnderTest(graph)


# --- the way to the end ---------------------------------------------------------------------------


def test_stream_asks_for_a_slot_per_sharing_group_and_runs_to_its_end() -> None:
    """EX-01, EG-11, SP-20."""
    tasks = stream(a=2, b=3, edges=["a -> b"])
    requests = one(tasks.tell("start"), SlotRequests)
    assert len(requests.requests) == 3
    assert tasks.deployed(tasks.give(2)) == "", "a region waits until all its slots are there"
    assert sorted(tasks.deployed(tasks.give()).split()) == ["a1#0", "a2#0", "b1#0", "b2#0", "b3#0"]
    tasks.report("a1", ExecutionState.INITIALIZING)
    tasks.report("a1 a2 b1 b2 b3", ExecutionState.RUNNING)
    assert tasks.finish("a1 a2 b1 b2") != []
    assert tasks.ended is None
    ended = one(tasks.finish("b3"), JobEnded)
    assert ended.result.status is JobStatus.FINISHED
    assert tasks.reserved == {}
    assert [a.status.name for a in only(tasks.log, JobStatusChanged)] == ["RUNNING", "FINISHED"]


def test_regions_of_a_stream_start_one_by_one_as_slots_come() -> None:
    tasks = stream(a=3)
    tasks.tell("start")
    assert tasks.deployed(tasks.give(1)) == "a1#0"
    assert tasks.deployed(tasks.give(2)) == "a2#0 a3#0"


def test_batch_schedules_a_region_when_its_blocking_inputs_are_finished() -> None:
    tasks = stream(a=2, b=2, c=1, edges=["a => b", "b --> c"])
    tasks.tell("start")
    assert tasks.deployed(tasks.give()) == "a1#0 a2#0"
    assert only(tasks.finish("a1"), SlotRequests) == []
    tasks.finish("a2")
    assert sorted(tasks.deployed(tasks.give()).split()) == ["b1#0", "b2#0", "c1#0"]


def test_pointwise_regions_of_a_batch_do_not_wait_for_each_other() -> None:
    tasks = stream(a=2, b=2, edges=["a ==> b"]).run()
    tasks.finish("a2")
    assert tasks.deployed(tasks.give()) == "b2#0"


def test_one_message_per_task_executor_carries_all_its_deployments_and_each_shared_part_once() -> (
    None
):
    tasks = TasksUnderTest(job(a=4, b=4, edges=["a -> b"]), slots_each=2)
    tasks.tell("start")
    messages = only(tasks.give(), DeployTasks)
    assert [m.location.resource_id for m in messages] == ["te0", "te1"]
    for message in messages:
        assert len(message.deployments.tasks) == 4
        assert len(message.deployments.parts) == 4  # job, a, b, the locations of a's partitions
        assert codec.decode(codec.encode(message.deployments)) == message.deployments
    (locations,) = [
        p.content
        for p in messages[0].deployments.parts
        if isinstance(p.content, PartitionLocations)
    ]
    assert locations.number_of_partitions == 4
    assert [locations.location_of(p).resource_id for p in range(4)] == ["te0", "te0", "te1", "te1"]
    assert locations.partition_id(3) == ResultPartitionID(data_set_id(1), 3, 0)


def test_size_of_a_deployment_does_not_grow_with_the_parallelism() -> None:
    sizes = []
    for parallelism in (10, 1000):
        tasks = TasksUnderTest(job(a=parallelism, b=parallelism, edges=["a -> b"]))
        tasks.slots_each = parallelism
        tasks.tell("start")
        message = one(tasks.give(), DeployTasks)
        sizes.append(len(codec.encode(message.deployments)) / (2 * parallelism))
    assert sizes[1] < sizes[0]


def test_later_deployments_name_parts_that_the_task_executor_has() -> None:
    tasks = TasksUnderTest(job(a=1, b=1, restart_strategy=RESTARTS), slots_each=8)
    tasks.run()
    tasks.fail("a1")
    message = one(tasks.restart(), DeployTasks)
    assert message.deployments.parts == ()


def test_new_locations_replace_those_of_an_earlier_attempt() -> None:
    tasks = TasksUnderTest(
        job(a=1, b=1, edges=["a => b"], restart_strategy=RESTARTS), slots_each=8
    ).run()
    tasks.finish("a1")
    tasks.give()
    tasks.fail("b1", missing_partitions=(ResultPartitionID(data_set_id(1), 0, 0),))
    tasks.restart()
    tasks.finish("a1")
    (part,) = one(tasks.give(), DeployTasks).deployments.parts
    assert isinstance(part.content, PartitionLocations)
    assert part.content.partition_id(0).attempt_number == 1


def test_task_executor_that_may_have_missed_a_message_is_sent_all_parts_again() -> None:
    tasks = TasksUnderTest(job(a=1, restart_strategy=RESTARTS), slots_each=8)
    tasks.tell("start")
    tasks.give()
    attempt = tasks.attempt("a1")
    del tasks.tasks[attempt]
    tasks.task_executors.clear()
    tasks.tell("deployments_failed", TE0, (attempt,), "connection refused")
    assert len(one(tasks.restart(), DeployTasks).deployments.parts) == 2


def test_task_executor_that_missed_a_message_of_the_past_is_sent_all_parts_again() -> None:
    """EX-15."""
    tasks = TasksUnderTest(job(a=1, restart_strategy=RESTARTS), slots_each=8).run()
    attempt = tasks.attempt("a1")
    tasks.fail("a1")
    tasks.task_executors.clear()
    assert tasks.tell("deployments_failed", TE0, (attempt,), "connection refused") == []
    assert len(one(tasks.restart(), DeployTasks).deployments.parts) == 2


def test_vertex_information_says_what_its_tasks_read_and_write() -> None:
    tasks = stream(a=2, b=3, c=3, edges=["a -> b", "b --> c"])
    tasks.tell("start")
    parts = one(tasks.give(3)[:1], DeployTasks).deployments.parts
    by_name = {p.content.name: p.content for p in parts if isinstance(p.content, VertexInformation)}
    b = by_name["b"]
    assert (b.parallelism, b.max_parallelism, b.invokable.code) == (3, 128, b"b")
    assert [(i.producer_vertex_id, i.producer_parallelism) for i in b.inputs] == [
        (vertex_id("a"), 2)
    ]
    assert [(r.data_set_id, r.consumers[0].parallelism) for r in b.results] == [(data_set_id(2), 3)]


def test_co_located_subtasks_get_one_and_the_same_slot() -> None:
    """EG-09."""
    vertices = (
        python_vertex("x", 1),
        python_vertex("a", 2, co_location_group="g"),
        python_vertex("b", 2, co_location_group="g"),
    )
    tasks = TasksUnderTest(job(vertices=vertices))
    tasks.tell("start")
    tasks.give()
    slot = {tasks.name(a): t.allocation_id for a, t in tasks.tasks.items()}
    assert slot["a1"] == slot["b1"] != slot["a2"] == slot["b2"]


# --- slots ----------------------------------------------------------------------------------------


def test_slots_that_do_not_come_in_time_fail_the_job() -> None:
    """EX-18."""
    tasks = stream(restarts=0, a=2, b=2, edges=["a -> b"])
    tasks.tell("start")
    request = next(iter(tasks.wanted))
    del tasks.wanted[request]
    failed = SlotRequestFailed(request, SlotRequestFailure.TIMED_OUT, "1 slot is missing.")
    ended = one(tasks.tell("slot_events", (failed,)), JobEnded)
    assert ended.result.failure == (
        "NoResourceAvailableError: Could not allocate the required slot within slot request "
        "timeout. 1 slot is missing."
    )
    assert tasks.wanted == {}


def test_slots_that_can_never_come_fail_the_job_at_once() -> None:
    """FO-15."""
    tasks = stream(a=1)
    tasks.tell("start")
    failed = SlotRequestFailed(tasks.wanted.popitem()[0], SlotRequestFailure.UNFULFILLABLE, "No.")
    assert one(tasks.tell("slot_events", (failed,)), JobEnded).details.restarts == 0


def test_slot_that_is_lost_while_its_region_waits_is_asked_for_again() -> None:
    """EX-15."""
    tasks = stream(a=2, b=2, edges=["a -> b"])
    tasks.tell("start")
    tasks.give(1)
    tasks.reserved.clear()
    actions = tasks.tell("slot_events", (SlotsLost((allocation(0),), "killed"),))
    assert len(one(actions, SlotRequests).requests) == 1
    assert len(tasks.deployed(tasks.give()).split()) == 4
    assert tasks.scheduler.details().exceptions == ()


def test_slot_of_a_region_that_is_restarted_while_it_waits_goes_back_and_deploys_nothing() -> None:
    """EX-15."""
    tasks = stream(a=2, b=2, edges=["a -> b"])
    tasks.tell("start")
    tasks.give(1)
    late = dict(tasks.wanted)
    actions = tasks.tell("global_failure", Failure("why"))
    assert one(actions, ReturnSlots).allocations == (allocation(0),)
    assert one(actions, CancelSlotRequests).request_ids == tuple(late)
    assert tasks.states() == "a1:CANCELED#0 a2:CANCELED#0 b1:CANCELED#0 b2:CANCELED#0"
    tasks.wanted = late
    actions = tasks.give()
    assert only(actions, DeployTasks) == []
    assert tasks.reserved == {}, "the answer to a cancelled request is given back"
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_slot_is_back_before_anything_follows_from_the_end_of_its_task() -> None:
    """EX-06."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    actions = tasks.finish("a1")
    kinds = [type(action) for action in actions]
    assert kinds.index(ReturnSlots) < kinds.index(SlotRequests)
    tasks.give()
    actions = tasks.finish("b1")
    kinds = [type(action) for action in actions]
    assert kinds.index(ReturnSlots) < kinds.index(JobEnded)


def test_restarted_tasks_ask_for_the_slot_that_they_had() -> None:
    tasks = stream(a=1).run()
    tasks.fail("a1")
    tasks.confirm_cancellations()
    actions = tasks.tell("restart_delay_over", one(tasks.log, ScheduleRestart).generation)
    (request,) = one(actions, SlotRequests).requests
    assert request.preferred_allocations == (allocation(0),)


def test_lost_slot_pool_is_one_failure_whatever_it_held() -> None:
    tasks = stream(restarts=1, a=3).run()
    tasks.reserved.clear()
    tasks.tasks.clear()
    tasks.tell("slot_pool_lost", "killed")
    assert tasks.scheduler.details().restarts == 1
    assert tasks.deployed(tasks.restart()) == "a1#1 a2#1 a3#1"


def test_job_that_waits_says_why() -> None:
    tasks = stream(a=2)
    tasks.tell("start")
    assert tasks.scheduler.details().pending_reason == "2 slots have not come yet."
    tasks.give()
    assert tasks.scheduler.details().pending_reason is None


# --- failures -------------------------------------------------------------------------------------


def test_failure_restarts_its_region_and_leaves_the_others_alone() -> None:
    """FO-03."""
    tasks = stream(a=3, b=3, edges=["a --> b"]).run()
    actions = tasks.fail("b2", "out of luck")
    assert tasks.cancelled(actions) == "a2#0"
    assert tasks.status is JobStatus.RESTARTING
    assert tasks.deployed(tasks.restart()) == "a2#1 b2#1"
    assert tasks.status is JobStatus.RUNNING
    assert tasks.states().count("RUNNING#0") == 4
    entry = tasks.scheduler.details().exceptions[0]
    assert (entry.text, entry.task) == ("out of luck", "b (2/3)")


def test_job_is_restarting_as_long_as_one_region_waits() -> None:
    """EX-17."""
    tasks = stream(a=2).run()
    tasks.fail("a1")
    tasks.fail("a2")
    first, second = only(tasks.log, ScheduleRestart)
    tasks.tell("restart_delay_over", first.generation)
    assert tasks.status is JobStatus.RESTARTING
    tasks.tell("restart_delay_over", second.generation)
    assert tasks.status is JobStatus.RUNNING
    assert tasks.scheduler.details().restarts == 2


def test_task_executor_that_dies_is_one_failure_with_the_others_beside_it() -> None:
    """JM-04."""
    tasks = TasksUnderTest(job(a=4, restart_strategy=FixedDelayRestart(1)), slots_each=2).run()
    tasks.lose_task_executor("te0")
    details = tasks.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RESTARTING, 1)
    (entry,) = details.exceptions
    assert entry.text == "a (1/4) lost its slot: killed"
    assert [e.task for e in entry.concurrent] == ["a (2/4)"]
    assert tasks.deployed(tasks.restart()) == "a1#1 a2#1"


def test_merged_failures_are_one_attempt() -> None:
    """FO-10."""
    strategy = ExponentialDelayRestart(initial_backoff=5.0, jitter_factor=0.0, attempts=1)
    tasks = TasksUnderTest(job(a=2, restart_strategy=strategy)).run()
    assert one(tasks.fail("a1", "first"), ScheduleRestart).delay == 5.0
    assert one(tasks.fail("a2", "second"), ScheduleRestart).delay == 4.0
    details = tasks.scheduler.details()
    assert (details.status, details.restarts) == (JobStatus.RESTARTING, 1)
    assert [e.text for e in details.exceptions] == ["first"]
    assert [e.text for e in details.exceptions[0].concurrent] == ["second"]


def test_jitter_comes_from_outside() -> None:
    """FO-11."""
    strategy = ExponentialDelayRestart(initial_backoff=10.0, jitter_factor=0.5)
    tasks = TasksUnderTest(job(a=1, restart_strategy=strategy), random=lambda: 0.0).run()
    assert one(tasks.fail("a1"), ScheduleRestart).delay == 5.0


def test_failure_of_what_is_cancelled_for_a_restart_is_told_beside_it() -> None:
    """EX-05."""
    tasks = stream(a=1, b=1, edges=["a -> b"]).run()
    tasks.fail("a1", "first")
    tasks.fail("b1", "connection to a1 lost")
    (entry,) = tasks.scheduler.details().exceptions
    assert [e.text for e in entry.concurrent] == ["connection to a1 lost"]
    assert tasks.scheduler.details().restarts == 1


def test_history_is_bounded() -> None:
    tasks = stream(restarts=100, a=40).run()
    for _ in range(20):
        tasks.report([tasks.attempt(f"a{i + 1}") for i in range(40)], ExecutionState.FAILED, "x")
        tasks.restart()
    exceptions = tasks.scheduler.details().exceptions
    assert len(exceptions) == 16
    assert {len(entry.concurrent) for entry in exceptions} == {16}


def test_unreadable_partition_restarts_its_producer() -> None:
    """FO-04."""
    tasks = stream(a=2, b=2, edges=["a => b"]).run()
    tasks.finish("a1 a2")
    tasks.give()
    missing = ResultPartitionID(data_set_id(1), 0, 0)
    actions = tasks.fail("b1", "not found", missing_partitions=(missing,))
    assert tasks.cancelled(actions) == "b2#0"
    assert tasks.deployed(tasks.restart()) == "a1#1"
    assert tasks.states() == "a1:DEPLOYING#1 a2:FINISHED#0 b1:CREATED#1 b2:CREATED#1"
    tasks.finish("a1")
    assert tasks.deployed(tasks.give()) == "b1#1 b2#1"


def test_unreadable_partition_of_an_older_attempt_restarts_its_reader_alone() -> None:
    """FO-04."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.fail("b1", missing_partitions=(ResultPartitionID(data_set_id(1), 0, 7),))
    assert tasks.deployed(tasks.restart()) == "b1#1"


def test_results_lost_with_their_task_executor_are_produced_again_before_anyone_misses_them() -> (
    None
):
    """FO-05."""
    tasks = stream(restarts=1, a=2, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    actions = tasks.lose_task_executor("te0")
    assert one(actions, ScheduleRestart).delay == 1.0
    text = tasks.scheduler.details().exceptions[0].text
    assert text == "the results of a (1/2) were lost: killed"
    tasks.finish("a2")
    assert tasks.wanted == {}, "the reader does not begin before its input is there again"
    assert tasks.deployed(tasks.restart()) == "a1#1"
    tasks.finish("a1")
    assert tasks.deployed(tasks.give()) == "b1#0"


def test_task_executor_with_tasks_and_results_is_lost_as_one_failure() -> None:
    """FO-05."""
    tasks = TasksUnderTest(
        job(a=2, b=1, edges=["a => b"], restart_strategy=FixedDelayRestart(1)), slots_each=2
    ).run()
    tasks.finish("a1")
    tasks.lose_task_executor("te0")
    details = tasks.scheduler.details()
    assert (details.restarts, len(details.exceptions)) == (1, 1)
    assert sorted(tasks.deployed(tasks.restart()).split()) == ["a1#1", "a2#1"]


def test_results_are_lost_with_the_slot_pool_as_their_task_executors_forget_the_job() -> None:
    """FO-05."""
    tasks = stream(restarts=1, a=3, b=1, edges=["a => b"]).run()
    tasks.finish("a1 a2")
    tasks.reserved.clear()
    tasks.tasks.clear()
    tasks.tell("slot_pool_lost", "killed")
    details = tasks.scheduler.details()
    assert (details.restarts, len(details.exceptions)) == (1, 1)
    assert tasks.deployed(tasks.restart()) == "a1#1 a2#1 a3#1"


def test_partitions_that_are_found_missing_together_are_produced_again_together() -> None:
    """FO-04."""
    tasks = stream(restarts=1, a=3, b=1, edges=["a => b"]).run()
    tasks.finish("a1 a2 a3")
    tasks.give()
    missing = tuple(ResultPartitionID(data_set_id(1), index, 0) for index in (0, 2))
    tasks.fail("b1", "not found", missing_partitions=missing)
    assert tasks.deployed(tasks.restart()) == "a1#1 a3#1"


def test_results_that_nobody_needs_any_more_may_be_lost() -> None:
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.give()
    assert tasks.lose_task_executor("te0") == []


def test_old_attempts_change_nothing() -> None:
    """EX-11."""
    tasks = stream(a=2, b=2, edges=["a -> b"]).run()
    old = [tasks.attempt(name) for name in ("a1", "b2")]
    tasks.fail("a1")
    tasks.restart()
    before = tasks.scheduler.details()
    assert tasks.report(old, ExecutionState.FAILED, "late") == []
    assert tasks.tell("deployments_failed", TE0, old, "late") == []
    assert tasks.tell("cancel_failed", old[0], "late") == []
    assert tasks.scheduler.details() == before


def test_restart_that_was_overtaken_by_a_later_failure_does_nothing() -> None:
    """EX-15."""
    tasks = stream(a=2).run()
    first = one(tasks.fail("a1"), ScheduleRestart)
    second = one(tasks.tell("global_failure", Failure("all")), ScheduleRestart)
    tasks.confirm_cancellations()
    assert tasks.tell("restart_delay_over", first.generation) == []
    actions = tasks.tell("restart_delay_over", second.generation)
    assert tasks.deployed(actions + tasks.give()) == "a1#1 a2#1"


def test_global_failure_restarts_everything_that_was_begun() -> None:
    """FO-06."""
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.tell("global_failure", Failure("all"))
    assert tasks.deployed(tasks.restart()) == "a1#1"
    assert tasks.states() == "a1:DEPLOYING#1 b1:CREATED#1 c1:CREATED#0"


def test_failure_that_would_happen_again_fails_the_job_with_what_it_was_caused_by() -> None:
    """FO-15."""
    tasks = stream(a=1, b=1, edges=["a -> b"]).run()
    wrapped = Failure("outer", cause=Failure("inner", suppress_restarts=True))
    tasks.tell("global_failure", wrapped)
    assert tasks.status is JobStatus.FAILING
    tasks.confirm_cancellations()
    assert tasks.ended is not None
    assert (tasks.ended.result.failure, tasks.ended.details.restarts) == ("outer", 0)


def test_task_that_says_so_fails_the_job_at_once() -> None:
    """FO-15."""
    tasks = stream(a=1).run()
    assert one(tasks.fail("a1", suppress_restarts=True), JobEnded).result.failure == "it broke"


def test_restart_all_restarts_all() -> None:
    """FO-07."""
    graph = replace(job(a=3, restart_strategy=RESTARTS), restart_all=True)
    tasks = TasksUnderTest(graph).run()
    assert tasks.cancelled(tasks.fail("a1")) == "a2#0 a3#0"


def test_job_without_strategy_restarts_regions() -> None:
    """FO-07, FO-14."""
    tasks = TasksUnderTest(job(a=2, restart_strategy=None)).run()
    assert tasks.cancelled(tasks.fail("a1")) == ""
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_failure_before_all_is_deployed_ends_with_exactly_its_cause() -> None:
    """EX-02."""
    tasks = stream(restarts=0, a=1)
    tasks.tell("start")
    tasks.give()
    ended = one(tasks.tell("deployments_failed", TE0, (tasks.attempt("a1"),), "refused"), JobEnded)
    assert ended.result.failure == "a (1/1) could not be deployed: refused"


def test_archived_job_tells_of_every_attempt_its_states_and_its_failure() -> None:
    """EX-01, DI-08."""
    tasks = stream(a=1).run()
    tasks.fail("a1", "first")
    tasks.restart()
    ended = one(tasks.finish("a1"), JobEnded)
    assert codec.decode(codec.encode(ended.details)) == ended.details
    (vertex,) = ended.details.vertices
    (execution,), (prior,) = vertex.executions, vertex.prior_executions
    assert (execution.attempt_number, execution.failure) == (1, None)
    assert (prior.attempt_number, prior.failure, prior.state.name) == (0, "first", "FAILED")
    assert list(prior.state_timestamps) == [
        "CREATED",
        "SCHEDULED",
        "DEPLOYING",
        "RUNNING",
        "FAILED",
    ]
    assert list(execution.state_timestamps)[-1] == "FINISHED"
    assert '"description":"a"' in ended.details.plan


# --- state ----------------------------------------------------------------------------------------


class ScriptedState:
    """Writes down what it is asked, and restores a word; or fails."""

    def __init__(self, *failures: Failure) -> None:
        self.calls: list[str] = []
        self.failures = list(failures)

    def abort_pending(self, cause: str) -> None:
        self.calls.append("abort")

    def restore(self, executions: Sequence[Execution], *, is_global: bool) -> Failure | None:
        states = {e.state.name for e in executions}
        self.calls.append(f"restore {len(executions)} {states} global={is_global}")
        for execution in executions:
            execution.restored_state = b"state"
        return self.failures.pop(0) if self.failures else None


def test_restart_aborts_checkpoints_resets_restores_and_only_then_schedules() -> None:
    """EX-16, EX-07."""
    state = ScriptedState()
    graph = job(a=1, b=1, edges=["a -> b"], restart_strategy=RESTARTS)
    tasks = TasksUnderTest(graph, state=state).run()
    tasks.fail("a1")
    assert state.calls == ["abort"]
    tasks.restart()
    assert state.calls == ["abort", "restore 2 {'CREATED'} global=False"]
    assert {t.restored_state for t in tasks.tasks.values()} == {b"state"}
    execution = tasks.scheduler._graph.find(tasks.attempt("a1"))
    assert execution is not None
    assert execution.restored_state is None


def test_failing_restore_is_a_global_failure_and_the_local_restart_is_skipped() -> None:
    """EX-16."""
    state = ScriptedState(Failure("cannot read the checkpoint"))
    tasks = TasksUnderTest(job(a=2, restart_strategy=RESTARTS), state=state).run()
    tasks.fail("a1")
    actions = tasks.restart()
    assert tasks.deployed(actions) == ""
    assert tasks.cancelled(actions) == "a2#0"
    assert tasks.deployed(tasks.restart()) == "a1#1 a2#1"
    assert state.calls[-1] == "restore 2 {'CREATED'} global=True"


# --- partitions -----------------------------------------------------------------------------------


def test_blocking_result_is_released_when_all_its_readers_are_finished() -> None:
    """EX-14."""
    tasks = stream(a=1, b=2, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    assert tasks.released(tasks.finish("b1")) == []
    assert tasks.released(tasks.finish("b2")) == ["1.0#0 on te0"]
    assert tasks.scheduler.holds_partitions_on(tasks.where[tasks.attempt("b1")])
    assert not tasks.scheduler.holds_partitions_on(tasks.where[tasks.attempt("a1")])


def test_blocking_result_is_kept_when_a_reader_runs_again() -> None:
    """EX-14."""
    tasks = stream(a=1, b=2, c=2, edges=["a => b", "b ==> c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.give()
    lost = tasks.where[tasks.attempt("b1")]
    tasks.lose_task_executor(str(lost))
    assert tasks.released(tasks.finish("b2")) == []
    assert tasks.deployed(tasks.restart()) == "c2#0 b1#1"
    assert tasks.released(tasks.finish("b1")) == ["1.0#0 on te0"]


def test_released_result_is_produced_again_when_it_is_needed_again() -> None:
    """FO-05."""
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.give()
    tasks.fail("c1", missing_partitions=(ResultPartitionID(data_set_id(2), 0, 0),))
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_results_of_a_producer_that_runs_again_are_released() -> None:
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    tasks.give()
    assert tasks.released(tasks.tell("global_failure", Failure("all"))) == ["1.0#0 on te0"]


def test_end_of_the_job_releases_what_is_left() -> None:
    """JM-21."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    actions = tasks.tell("cancel")
    assert tasks.released(actions) == ["1.0#0 on te0"]
    assert isinstance(actions[-1], JobEnded)


def test_state_of_a_producer_is_told() -> None:
    """JM-13."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    partition = ResultPartitionID(data_set_id(1), 0, 0)
    assert tasks.scheduler.partition_state(partition) is ExecutionState.RUNNING
    tasks.finish("a1")
    assert tasks.scheduler.partition_state(partition) is ExecutionState.FINISHED
    for unknown in (
        replace(partition, partition=1),
        replace(partition, data_set_id=data_set_id(9)),
    ):
        with pytest.raises(ValueError, match="the job produces no partition"):
            tasks.scheduler.partition_state(unknown)
    tasks.tell("global_failure", Failure("all"))
    tasks.restart()
    with pytest.raises(PartitionProducerDisposedError, match="at attempt 1 now"):
        tasks.scheduler.partition_state(partition)


# --- formats --------------------------------------------------------------------------------------

FORMAT = MasterFormat(b"format", makes_splits=True, finalizes=True)
SPLITS = tuple(InputSplit(i, b"%d" % i, ("near",) if i == 3 else ()) for i in range(4))


def with_format(restarts: int = 5) -> JobGraph:
    vertices = (python_vertex("a", 2, master_format=FORMAT), python_vertex("b", 2))
    return job(vertices=vertices, restart_strategy=FixedDelayRestart(restarts))


def started() -> TasksUnderTest:
    tasks = TasksUnderTest(with_format())
    assert tasks.tell("start") == [InitializeOnMaster(vertex_id("a"), FORMAT)]
    tasks.tell("master_initialized", vertex_id("a"), SPLITS)
    tasks.give()
    return tasks


def split_numbers(tasks: TasksUnderTest, attempt: ExecutionAttemptID, often: int) -> list[object]:
    splits = [tasks.scheduler.request_next_input_split(attempt, n) for n in range(often)]
    return [split and split.number for split in splits]


def test_job_is_scheduled_when_its_formats_are_initialised() -> None:
    tasks = TasksUnderTest(with_format())
    tasks.tell("start")
    assert tasks.status is JobStatus.CREATED
    assert (
        len(one(tasks.tell("master_initialized", vertex_id("a"), ()), SlotRequests).requests) == 2
    )
    assert tasks.tell("master_initialized", vertex_id("a"), ()) == []


def test_failed_initialisation_fails_the_job_without_restart() -> None:
    """DI-07."""
    tasks = TasksUnderTest(with_format())
    tasks.tell("start")
    ended = one(tasks.tell("master_failed", vertex_id("a"), Failure("no such file")), JobEnded)
    assert (ended.result.failure, ended.details.restarts) == ("no such file", 0)
    assert tasks.tell("master_initialized", vertex_id("a"), ()) == []


def test_job_is_finished_when_its_formats_are_finalised_each_once() -> None:
    """EG-11."""
    tasks = started()
    actions = tasks.finish("a1 a2 b1 b2")
    assert only(actions, FinalizeOnMaster) == [FinalizeOnMaster(vertex_id("a"), FORMAT, 1)]
    assert tasks.ended is None
    one(tasks.tell("master_finalized", vertex_id("a"), 1), JobEnded)
    assert tasks.tell("master_finalized", vertex_id("a"), 1) == []
    assert len(only(tasks.log, FinalizeOnMaster)) == 1


def test_failed_job_is_never_finalised() -> None:
    """EG-11."""
    tasks = started()
    tasks.finish("a1 a2 b1")
    tasks.fail("b2", suppress_restarts=True)
    assert tasks.status is JobStatus.FAILED
    assert only(tasks.log, FinalizeOnMaster) == []


def test_failed_finalisation_is_a_global_failure() -> None:
    """EG-11."""
    tasks = started()
    tasks.finish("a1 a2 b1 b2")
    tasks.now += 1.0
    actions = tasks.scheduler.master_failed(vertex_id("a"), Failure("disk full"), tasks.now, 1)
    tasks.log += actions
    one(actions, ScheduleRestart)
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_splits_are_handed_out_near_ones_first_and_each_once() -> None:
    """JM-12."""
    tasks = started()
    first = tasks.attempt("a1")
    near = tasks.scheduler.request_next_input_split(first, 0, "near")
    assert near == SPLITS[3]
    assert split_numbers(tasks, first, 5) == [3, 0, 1, 2, None]
    assert tasks.scheduler.request_next_input_split(tasks.attempt("b1"), 0) is None


def test_local_failover_hands_out_the_failed_subtasks_splits_again() -> None:
    """JM-12."""
    tasks = started()
    assert split_numbers(tasks, tasks.attempt("a1"), 2) == [0, 1]
    assert split_numbers(tasks, tasks.attempt("a2"), 1) == [2]
    old = tasks.attempt("a1")
    tasks.fail("a1")
    tasks.restart()
    assert split_numbers(tasks, old, 1) == [None]
    assert sorted(map(str, split_numbers(tasks, tasks.attempt("a1"), 4))) == ["0", "1", "3", "None"]


def test_global_failover_hands_out_all_splits_again() -> None:
    """JM-12."""
    tasks = started()
    split_numbers(tasks, tasks.attempt("a1"), 3)
    tasks.tell("global_failure", Failure("all"))
    tasks.restart()
    assert split_numbers(tasks, tasks.attempt("a2"), 5) == [0, 1, 2, 3, None]


# --- cancel, suspend ------------------------------------------------------------------------------


def test_cancelled_job_waits_for_its_tasks_with_one_message_per_task_executor() -> None:
    """EX-04."""
    tasks = TasksUnderTest(job(a=4, b=4, edges=["a -> b"]), slots_each=2).run()
    actions = tasks.tell("cancel")
    assert [len(c.attempts) for c in only(actions, CancelTasks)] == [4, 4]
    assert tasks.tell("cancel") == []
    one(tasks.confirm_cancellations(), JobEnded)
    assert tasks.status is JobStatus.CANCELED
    assert tasks.reserved == {}


def test_cancel_of_a_job_that_waits_for_slots_leaves_no_request() -> None:
    """EX-03."""
    tasks = stream(a=2, b=1, edges=["a => b"])
    tasks.tell("start")
    tasks.give(1)
    tasks.report("a1", ExecutionState.FAILED, "x")
    ended = one(tasks.tell("cancel"), JobEnded)
    assert tasks.wanted == {}
    assert {e.state for v in ended.details.vertices for e in v.executions} == {
        ExecutionState.CANCELED,
        ExecutionState.FAILED,
    }


def test_report_of_a_running_task_after_cancel_changes_nothing() -> None:
    """EX-04."""
    tasks = stream(a=1)
    tasks.tell("start")
    tasks.give()
    tasks.tell("cancel")
    assert tasks.report("a1", ExecutionState.RUNNING) == []
    assert tasks.states() == "a1:CANCELING#0"
    one(tasks.finish("a1"), JobEnded)
    assert tasks.states() == "a1:CANCELED#0"


def test_cancel_while_restarting_waits_for_what_still_runs_and_the_restart_does_nothing() -> None:
    """EX-10."""
    tasks = stream(a=2).run()
    restart = one(tasks.fail("a1"), ScheduleRestart)
    assert tasks.cancelled(tasks.tell("cancel")) == "a2#0"
    assert tasks.status is JobStatus.CANCELLING
    assert tasks.tell("restart_delay_over", restart.generation) == []
    one(tasks.confirm_cancellations(), JobEnded)


@pytest.mark.parametrize("situation", ["created", "waiting", "running", "restarting", "cancelling"])
def test_suspended_job_cancels_what_runs_once_and_ends_suspended(situation: str) -> None:
    """EX-08."""
    tasks = stream(a=2)
    if situation == "waiting":
        tasks.tell("start")
    elif situation != "created":
        tasks.run()
    if situation == "restarting":
        tasks.fail("a1")
    elif situation == "cancelling":
        tasks.tell("cancel")
    expected = {"running": "a1#0 a2#0", "restarting": "a2#0"}.get(situation, "")
    assert tasks.cancelled(tasks.tell("suspend", "leadership lost")) == expected
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.SUSPENDED
    assert tasks.ended is not None
    assert tasks.tell("restart_delay_over", 1) == []


def test_global_failure_while_cancelling_ends_as_failed() -> None:
    """EX-09."""
    tasks = stream(a=1).run()
    tasks.tell("cancel")
    tasks.tell("global_failure", Failure("worse"))
    assert tasks.status is JobStatus.FAILING
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.FAILED
