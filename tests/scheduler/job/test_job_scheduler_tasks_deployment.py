"""JobScheduler: how jobs of many vertices get their slots, are deployed and run to their end."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID, ResultPartitionID
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.wire import codec
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobEnded,
    JobStatusChanged,
    ReleasePartitions,
)
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import PartitionLocations, VertexInformation
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import GRAPH, allocation, location, one, only
from tests.scheduler.graphs import data_set_id, execution_graph, job, python_vertex, vertex_id
from tests.scheduler.tasks_under_test import RESTARTS, TasksUnderTest, stream

TE0 = ResourceID("te0")


# --- the way to the end ---------------------------------------------------------------------------


def test_streaming_job_requests_one_slot_per_sharing_group_and_runs_to_its_end() -> None:
    """EX-01, EG-11, SP-20."""
    tasks = stream(a=2, b=3, edges=["a -> b"])
    requests = one(tasks.tell(t.StartJob()), SlotRequests)
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


def test_each_region_of_a_streaming_job_starts_when_its_slot_comes() -> None:
    tasks = stream(a=3)
    tasks.tell(t.StartJob())
    assert tasks.deployed(tasks.give(1)) == "a1#0"
    assert tasks.deployed(tasks.give(2)) == "a2#0 a3#0"


def test_batch_job_schedules_a_region_when_its_blocking_inputs_are_finished() -> None:
    tasks = stream(a=2, b=2, c=1, edges=["a => b", "b --> c"])
    tasks.tell(t.StartJob())
    assert tasks.deployed(tasks.give()) == "a1#0 a2#0"
    assert only(tasks.finish("a1"), SlotRequests) == []
    tasks.finish("a2")
    assert sorted(tasks.deployed(tasks.give()).split()) == ["b1#0", "b2#0", "c1#0"]


def test_pointwise_regions_of_a_batch_job_do_not_wait_for_each_other() -> None:
    tasks = stream(a=2, b=2, edges=["a ==> b"]).run()
    tasks.finish("a2")
    assert tasks.deployed(tasks.give()) == "b2#0"


def test_deployment_message_of_a_task_executor_has_shared_data_of_tasks_only_once() -> None:
    tasks = TasksUnderTest(job(a=4, b=4, edges=["a -> b"]), slots_each=2)
    tasks.tell(t.StartJob())
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
    assert locations.partition_id(3) == ResultPartitionID(GRAPH, data_set_id(1), 3, 0)


def test_size_of_a_deployment_does_not_grow_with_the_parallelism() -> None:
    sizes = []
    for parallelism in (10, 1000):
        tasks = TasksUnderTest(job(a=parallelism, b=parallelism, edges=["a -> b"]))
        tasks.slots_each = parallelism
        tasks.tell(t.StartJob())
        message = one(tasks.give(), DeployTasks)
        sizes.append(len(codec.encode(message.deployments)) / (2 * parallelism))
    assert sizes[1] < sizes[0]


def test_later_deployments_leave_out_shared_data_that_the_task_executor_already_has() -> None:
    tasks = TasksUnderTest(job(a=1, b=1, restart_strategy=RESTARTS), slots_each=8)
    tasks.run()
    tasks.fail("a1")
    message = one(tasks.restart(), DeployTasks)
    assert message.deployments.parts == ()


def test_redeployed_reader_is_sent_the_partition_locations_of_the_new_attempt() -> None:
    tasks = TasksUnderTest(
        job(a=1, b=1, edges=["a => b"], restart_strategy=RESTARTS), slots_each=8
    ).run()
    tasks.finish("a1")
    tasks.give()
    tasks.fail("b1", missing_partitions=(ResultPartitionID(GRAPH, data_set_id(1), 0, 0),))
    tasks.restart()
    tasks.finish("a1")
    (part,) = one(tasks.give(), DeployTasks).deployments.parts
    assert isinstance(part.content, PartitionLocations)
    assert part.content.partition_id(0).attempt_number == 1


def test_shared_deployment_data_is_sent_again_after_a_failed_deployment() -> None:
    tasks = TasksUnderTest(job(a=1, restart_strategy=RESTARTS), slots_each=8)
    tasks.tell(t.StartJob())
    tasks.give()
    attempt = tasks.attempt("a1")
    del tasks.tasks[attempt]
    tasks.task_executors.clear()
    tasks.tell(t.DeploymentsFailed(TE0, (attempt,), "connection refused"))
    assert len(one(tasks.restart(), DeployTasks).deployments.parts) == 2


def test_shared_data_is_sent_again_after_a_past_attempts_deployment_failed() -> None:
    """EX-15."""
    tasks = TasksUnderTest(job(a=1, restart_strategy=RESTARTS), slots_each=8).run()
    attempt = tasks.attempt("a1")
    tasks.fail("a1")
    tasks.task_executors.clear()
    assert tasks.tell(t.DeploymentsFailed(TE0, (attempt,), "connection refused")) == []
    assert len(one(tasks.restart(), DeployTasks).deployments.parts) == 2


def test_deployment_data_of_a_vertex_has_the_inputs_and_results_of_its_tasks() -> None:
    tasks = stream(a=2, b=3, c=3, edges=["a -> b", "b --> c"])
    tasks.tell(t.StartJob())
    parts = one(tasks.give(3)[:1], DeployTasks).deployments.parts
    by_name = {p.content.name: p.content for p in parts if isinstance(p.content, VertexInformation)}
    b = by_name["b"]
    assert (b.parallelism, b.max_parallelism, b.invokable.code) == (3, 128, b"b")
    assert [(i.producer_vertex_id, i.producer_parallelism) for i in b.inputs] == [
        (vertex_id("a"), 2)
    ]
    assert [(r.data_set_id, r.consumers[0].parallelism) for r in b.results] == [(data_set_id(2), 3)]


def test_co_located_subtasks_get_the_same_slot() -> None:
    """EG-09."""
    vertices = (
        python_vertex("x", 1),
        python_vertex("a", 2, co_location_group="g"),
        python_vertex("b", 2, co_location_group="g"),
    )
    tasks = TasksUnderTest(job(vertices=vertices))
    tasks.tell(t.StartJob())
    tasks.give()
    slot = {tasks.name(a): t.allocation_id for a, t in tasks.tasks.items()}
    assert slot["a1"] == slot["b1"] != slot["a2"] == slot["b2"]


# --- slots ----------------------------------------------------------------------------------------


def test_slots_that_do_not_come_within_the_timeout_fail_the_job() -> None:
    """EX-18."""
    tasks = stream(restarts=0, a=2, b=2, edges=["a -> b"])
    tasks.tell(t.StartJob())
    request = next(iter(tasks.wanted))
    del tasks.wanted[request]
    nothing = ResourceProfile(0.0)
    told = "1 of 2 slots is missing. The cluster has 1 CPU in all."
    shortage = ResourceShortage(1, nothing, told, False, nothing, nothing, nothing)
    tasks.tell(t.ResourcesShort((shortage,)))
    failed = SlotRequestFailed(request, SlotRequestFailure.TIMED_OUT, "No slot came within 9 s.")
    ended = one(tasks.tell(t.SlotsTold((failed,))), JobEnded)
    assert ended.result.failure == (
        "NoResourceAvailableError: Could not allocate the required slot within slot request "
        "timeout. No slot came within 9 s. 1 of 2 slots is missing. The cluster has 1 CPU in all. "
        "Lower the parallelism, ask for less per slot, add nodes or end other jobs; "
        "slot.request.timeout says how long jobs wait."
    )
    assert tasks.wanted == {}


def test_slots_that_can_never_come_fail_the_job_at_once() -> None:
    """FO-15."""
    tasks = stream(a=1)
    tasks.tell(t.StartJob())
    failed = SlotRequestFailed(tasks.wanted.popitem()[0], SlotRequestFailure.UNFULFILLABLE, "No.")
    assert one(tasks.tell(t.SlotsTold((failed,))), JobEnded).details.restarts == 0


def test_slot_lost_while_its_region_waits_for_slots_is_requested_again() -> None:
    """EX-15."""
    tasks = stream(a=2, b=2, edges=["a -> b"])
    tasks.tell(t.StartJob())
    tasks.give(1)
    tasks.reserved.clear()
    actions = tasks.tell(t.SlotsTold((SlotsLost((allocation(0),), "killed"),)))
    assert len(one(actions, SlotRequests).requests) == 1
    assert len(tasks.deployed(tasks.give()).split()) == 4
    assert tasks.scheduler.details().exceptions == ()


def test_slot_that_comes_for_a_region_that_failed_meanwhile_is_returned_unused() -> None:
    """EX-15."""
    tasks = stream(a=2, b=2, edges=["a -> b"])
    tasks.tell(t.StartJob())
    tasks.give(1)
    late = dict(tasks.wanted)
    actions = tasks.tell(t.GlobalFailure(Failure("why")))
    assert one(actions, ReturnSlots).allocations == (allocation(0),)
    assert one(actions, CancelSlotRequests).request_ids == tuple(late)
    assert tasks.states() == "a1:CANCELED#0 a2:CANCELED#0 b1:CANCELED#0 b2:CANCELED#0"
    tasks.wanted = late
    actions = tasks.give()
    assert only(actions, DeployTasks) == []
    assert tasks.reserved == {}, "the answer to a cancelled request is given back"
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_slot_of_a_finished_task_is_returned_before_new_slots_are_requested() -> None:
    """EX-06."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    actions = tasks.finish("a1")
    kinds = [type(action) for action in actions]
    assert kinds.index(ReturnSlots) < kinds.index(SlotRequests)
    tasks.give()
    actions = tasks.finish("b1")
    kinds = [type(action) for action in actions]
    assert kinds.index(ReturnSlots) < kinds.index(JobEnded)


def test_restarted_tasks_prefer_their_previous_slot() -> None:
    tasks = stream(a=1).run()
    tasks.fail("a1")
    tasks.confirm_cancellations()
    actions = tasks.tell(one(tasks.log, StartTimer).event)
    (request,) = one(actions, SlotRequests).requests
    assert request.preferred_allocations == (allocation(0),)


def test_job_that_waits_for_slots_shows_the_pending_reason() -> None:
    tasks = stream(a=2)
    tasks.tell(t.StartJob())
    assert (
        tasks.scheduler.details().pending_reason
        == "2 slots (1 CPU, 1g memory each) have not come yet."
    )
    tasks.give()
    assert tasks.scheduler.details().pending_reason is None


def test_restarting_job_shows_no_pending_reason_although_a_region_waits_for_slots() -> None:
    tasks = stream(a=2)
    tasks.tell(t.StartJob())
    tasks.give(1)
    tasks.fail("a1")
    assert tasks.status is JobStatus.RESTARTING
    assert tasks.scheduler.details().pending_reason is None
    tasks.tell(one(tasks.log, StartTimer).event)
    assert tasks.scheduler.details().pending_reason is not None


def test_task_that_is_deployed_and_cancelled_by_the_same_event_is_deployed_first() -> None:
    """In the other order the task would run on while the JobMaster waits for its end."""
    tasks = TasksUnderTest(replace(job(a=2), restart_all=True, restart_strategy=None))
    tasks.tell(t.StartJob())
    first, second = list(tasks.wanted)
    slot = tasks.slot_for(*tasks.wanted.pop(first))
    tasks.reserved[slot.allocation_id] = slot
    del tasks.wanted[second]
    events = (
        SlotAllocated(first, slot),
        SlotRequestFailed(second, SlotRequestFailure.TIMED_OUT, "why"),
    )
    actions = tasks.tell(t.SlotsTold(tuple(events)))
    assert [type(a) for a in actions if isinstance(a, DeployTasks | CancelTasks)] == [
        DeployTasks,
        CancelTasks,
    ]
    assert tasks.cancelled(actions) == tasks.deployed(actions)
    assert ExecutionState.CANCELING.name in tasks.states()


def test_actions_of_an_execution_graph_are_sent_before_those_of_the_next_graph() -> None:
    outbox, first = Outbox(), execution_graph(a=1)
    partition = ResultPartitionID(GRAPH, data_set_id(1), 0, 0)
    record = JobRecord(first.job_graph, 0.0, 0.0)
    outbox.open(first, record)
    outbox.bulk.release([(location("te0"), partition)])
    outbox.open(execution_graph(a=1), record)
    ended = StartTimer(t.RestartDelayOver(1), 1.0)
    outbox.add(ended)
    assert outbox.take() == [ReleasePartitions(location("te0"), (partition,)), ended]
    assert outbox.take() == []
