"""What of Spark stages goes on when the job's JobMaster is another one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.scheduler.graph.job_graph import (
    DistributionPattern,
    FixedDelayRestart,
    IntermediateDataSet,
    JobEdge,
    JobGraph,
    JobType,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import SparkExecutors
from flinkray.scheduler.job.job_scheduler_actions import (
    AdoptSlots,
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
    NoteFinished,
    NoteJob,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.slots import AllocatedSlot, SameWorkerGroup
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import SourceCoordinatorPlace
from flinkray.scheduler.slots.slot_requests import ReturnSlots, SlotRequest, SlotRequests
from tests.scheduler.builders import VERTEX, id_of, only, spark_job, spark_vertex
from tests.scheduler.graphs import data_set_id, stream_vertex
from tests.scheduler.graphs import job as graph_of
from tests.scheduler.job.job_under_test import (
    FAILURE,
    RESULT,
    JobUnderTest,
    attempt,
    driver,
    executor,
)
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.tasks_under_test import TasksUnderTest

RESTARTS = FixedDelayRestart(5, 1.0)
LAST = id_of(JobVertexID, 2)


class StagesUnderTest(JobUnderTest, TakenOverJob):
    """Drivers live on without their JobMaster, but for those that a test takes out of
    ``drivers``."""

    def __init__(self, graph: JobGraph | None = None) -> None:
        super().__init__(graph or spark_job(restart_strategy=RESTARTS))
        self.drivers = {vertex.vertex_id for vertex in self.graph.vertices}

    def coordinated(self) -> Collection[JobVertexID]:
        return self.drivers

    def slot_for(self, request: SlotRequest, constraint: SameWorkerGroup | None) -> AllocatedSlot:
        slot = TasksUnderTest.slot_for(self, request, constraint)
        self.slots[slot.allocation_id] = slot
        self.locations[slot.location.resource_id] = slot.location
        self.ledger.add(slot)
        return slot


def work(actions: list[JobSchedulerAction]) -> list[JobSchedulerAction]:
    """What changes anything for tasks, slots or drivers."""
    kinds = (DeployTasks, CancelTasks, SlotRequests, StartCoordinator, StopCoordinator)
    return [action for action in actions if isinstance(action, kinds)]


def two_stages() -> StagesUnderTest:
    """``last`` reads what ``stage`` has written."""
    edge = JobEdge(data_set_id(1), DistributionPattern.ALL_TO_ALL)
    written = IntermediateDataSet(
        data_set_id(1), ResultPartitionType.BLOCKING, medium=ResultMedium.FILES
    )
    first = replace(spark_vertex(), results=(written,))
    last = replace(spark_vertex(2, 1, name="last"), inputs=(edge,))
    graph = spark_job(first, last, restart_strategy=RESTARTS)
    return StagesUnderTest(replace(graph, job_type=JobType.BATCH))


def test_spark_stage_continues_with_its_driver_without_messages_after_a_take_over() -> None:
    job = StagesUnderTest()
    job.run()
    assert work(job.replace_job_master()) == []
    assert job.status is JobStatus.RUNNING
    assert job.scheduler.exceptions() == ()
    assert work(job.executors(executor(0), executor(1))) == []
    assert job.stage_states() == ["RUNNING 0", "RUNNING 0"]
    job.says(SparkProgress(completed_tasks=7))
    assert job.scheduler.details().vertices[0].completed_tasks == 7
    assert only(job.says(RESULT), StopCoordinator) == [StopCoordinator(driver())]
    job.stopped()
    assert job.ended is not None
    assert (job.ended.result.status, job.ended.result.num_rows) == (JobStatus.FINISHED, 42)


def test_spark_executor_that_was_replaced_before_a_take_over_keeps_its_attempt() -> None:
    job = StagesUnderTest()
    job.run()
    job.replace_job_master()
    assert work(job.executors(executor(0), executor(1, pid=900))) == []
    assert job.stage_states() == ["RUNNING 0", "RUNNING 0"]
    job.executors(executor(0, pid=901), executor(1, pid=900))
    assert job.stage_states() == ["RUNNING 1", "RUNNING 0"], "from now on they are attempts"


def test_spark_executor_missing_after_a_take_over_gets_a_new_attempt() -> None:
    """The standalone host waits for the new attempt: otherwise no executor would start."""
    job = StagesUnderTest()
    job.run()
    job.replace_job_master()
    actions = job.says(SparkExecutors((executor(0),), missing=(1,)))
    assert job.deployed(actions) == "stage2#1"
    assert job.cancelled(actions) == "stage2#0"
    assert job.says(SparkExecutors((executor(0),), missing=(1,))) == [], "it has one"
    job.executors(executor(0), executor(1, pid=900))
    assert job.stage_states() == ["RUNNING 0", "RUNNING 1"]


def test_spark_executor_not_registered_before_a_take_over_stays_deploying() -> None:
    job = StagesUnderTest()
    job.deploy().started()
    job.replace_job_master()
    assert job.executors(executor(1)) == []
    assert job.stage_states() == ["DEPLOYING 0", "RUNNING 0"]
    assert job.executors(executor(0), executor(1)) == []
    assert job.stage_states() == ["RUNNING 0", "RUNNING 0"]


def test_spark_stage_whose_driver_is_lost_at_a_take_over_restarts_as_next_attempt() -> None:
    job = StagesUnderTest()
    job.run()
    job.drivers.clear()
    actions = job.replace_job_master()
    assert job.cancelled(actions) == "stage1#0 stage2#0"
    (entry,) = job.scheduler.exceptions()
    assert "its Spark driver was lost" in entry.text
    actions = job.restart()
    assert job.deployed(actions) == "stage1#1 stage2#1"
    (start,) = only(actions, StartCoordinator)
    assert start.coordinator == driver(1)


def test_spark_stage_that_fails_after_a_take_over_restarts_as_the_next_attempt() -> None:
    job = StagesUnderTest()
    job.run()
    job.replace_job_master()
    job.executors(executor(0), executor(1))
    job.says(FAILURE)
    job.tell(t.CoordinatorGone(driver(), "it has failed"))
    actions = job.restart()
    assert job.deployed(actions) == "stage1#1 stage2#1"
    (start,) = only(actions, StartCoordinator)
    assert start.coordinator == driver(1)


def test_spark_stage_with_a_task_missing_at_a_take_over_is_stopped_with_its_driver() -> None:
    job = StagesUnderTest()
    job.run()
    job.task_executor_dies("te0-g")
    actions = job.replace_job_master()
    assert only(actions, StopCoordinator) == [StopCoordinator(driver())]
    assert job.cancelled(actions) == "stage2#0"
    assert job.scheduler.details().vertices[0].executions[0].state is ExecutionState.FAILED


def test_result_of_a_spark_driver_not_stopped_yet_survives_a_take_over() -> None:
    job = StagesUnderTest()
    job.run()
    job.says(RESULT)
    actions = job.replace_job_master()
    assert only(actions, StopCoordinator) == [StopCoordinator(driver())]
    assert job.ended is None
    job.stopped()
    assert job.ended is not None
    assert job.ended.result.result_location == RESULT.location
    assert job.ended.details.restarts == 0


def test_result_of_a_spark_driver_that_ended_survives_a_take_over() -> None:
    job = StagesUnderTest()
    job.run()
    job.says(RESULT)
    job.drivers.clear()
    job.replace_job_master()
    assert job.ended is not None
    assert job.ended.result.status is JobStatus.FINISHED
    assert job.ended.result.result_location == RESULT.location
    assert job.ended.details.restarts == 0


def test_spark_driver_reports_its_result_again_if_the_next_job_master_misses_it() -> None:
    job = StagesUnderTest()
    job.run()
    job.carried_out = 1  # the note that it has finished
    actions = job.says(RESULT)
    assert [type(action) for action in actions] == [NoteFinished]
    job.replace_job_master()
    assert job.ended is None
    job.executors(executor(0), executor(1))
    assert only(job.says(RESULT), StopCoordinator) == [StopCoordinator(driver())]
    job.stopped()
    assert job.ended is not None
    assert job.ended.result.result_location == RESULT.location


def test_slots_of_a_finished_spark_stage_are_returned_only_once_its_driver_has_ended() -> None:
    job = two_stages()
    job.run()
    job.says(RESULT)
    before = set(job.reserved)
    actions = job.replace_job_master()
    (adopted,) = only(actions, AdoptSlots)
    in_use = [it.slot.allocation_id for it in adopted.slots if it.request_id is not None]
    assert set(in_use) == before
    assert only(actions, NoteFinished), "for the next one"
    assert only(actions, ReturnSlots) == []
    actions = job.stopped()
    assert job.deployed(actions) == "last1#0", "in one of them"
    returned = [a for it in only(actions, ReturnSlots) for a in it.allocations]
    assert set(returned) < before
    assert len(returned) == 1


def test_spark_stage_being_restarted_at_a_take_over_gets_a_new_driver() -> None:
    """A process of the old driver that is still there is killed."""
    job = StagesUnderTest()
    job.run()
    job.tell(t.CoordinatorGone(driver(), "its connection was lost"))
    job.confirm_cancellations()
    job.delay_over()
    job.replace_job_master()
    actions = job.give()
    assert job.deployed(actions) == "stage1#1 stage2#1"
    assert only(actions, StartCoordinator)[0].coordinator == driver(1)


def test_spark_driver_without_deployed_tasks_is_replaced_after_a_take_over() -> None:
    """The JobMaster died between the start of the driver and the deployments."""
    stage = replace(spark_vertex(), slot_sharing_group="spark")
    vertices = (stream_vertex("a", 1), stage)
    job = StagesUnderTest(graph_of(vertices=vertices, restart_strategy=RESTARTS))
    job.drivers = {VERTEX}
    job.tell(t.StartJob())
    job.carried_out = 2
    assert [type(action) for action in job.give()] == [StartCoordinator, NoteJob]
    assert job.notes is not None
    place = SourceCoordinatorPlace(0, JobMasterId.generate(), "sources", 0, has_readers=False)
    job.notes = replace(job.notes, source_coordinator=place)
    assert job.notes.task_executors
    assert only(job.replace_job_master(), StopCoordinator) == [StopCoordinator(driver())]
    job.stopped()
    (start,) = only(job.restart(), StartCoordinator)
    assert start.coordinator == driver(1)


def test_report_of_a_spark_driver_of_a_past_execution_graph_is_ignored() -> None:
    job = StagesUnderTest()
    job.run()
    assert job.notes is not None
    job.notes = replace(job.notes, is_being_scaled=True)  # a reason to begin anew
    job.replace_job_master()
    job.confirm_cancellations()
    (start,) = only(job.give(), StartCoordinator)
    assert start.coordinator == driver(1)
    assert job.says(RESULT) == []
    assert job.says(FAILURE) == []


def test_spark_result_that_is_only_partly_in_the_recovery_notes_is_produced_again() -> None:
    job = StagesUnderTest()
    job.run()
    job.says(RESULT)
    del job.finished[attempt(1).vertex]
    job.drivers.clear()
    job.replace_job_master()
    assert job.ended is None
    assert job.deployed(job.restart()) == "stage1#1 stage2#1"


def test_spark_stage_that_reads_the_result_of_another_stage_continues_at_a_take_over() -> None:
    job = two_stages()
    job.run()
    job.says(RESULT)
    job.stopped()
    job.confirm_cancellations()
    job.give()
    assert job.deployed(job.log).endswith("last1#0")
    job.started(vertex=LAST)
    job.drivers = {LAST}
    assert work(job.replace_job_master()) == []
    job.says(FAILURE, vertex=LAST)
    job.tell(t.CoordinatorGone(driver(vertex=LAST), "it has failed"))
    assert job.deployed(job.restart()) == "last1#1", "what it reads is there"


def test_next_spark_stage_starts_if_a_past_job_master_finished_the_previous_stage() -> None:
    job = two_stages()
    job.run()
    job.says(RESULT)
    job.drivers.clear()
    job.replace_job_master()
    assert job.deployed(job.give()) == "last1#0"


@pytest.mark.parametrize("is_there", [True, False])
def test_finished_spark_stage_keeps_its_times_after_a_take_over(is_there: bool) -> None:
    """Whether or not its driver is still there."""
    job = two_stages()
    job.run()
    job.says(RESULT)
    before = [e.state_timestamps for e in job.scheduler.details().vertices[0].executions]
    if not is_there:
        job.drivers.clear()
    for _ in range(2):
        job.replace_job_master()
        after = [e.state_timestamps for e in job.scheduler.details().vertices[0].executions]
        for state in ("DEPLOYING", "FINISHED"):
            assert [times[state] for times in after] == [times[state] for times in before]


def test_next_stage_reads_a_result_under_the_attempt_number_of_its_producer() -> None:
    job = two_stages()
    job.run()
    job.says(FAILURE)
    job.tell(t.CoordinatorGone(driver(), "it has failed"))
    job.restart()
    job.started(1)
    job.says(RESULT, 1)
    job.drivers.clear()
    job.replace_job_master()
    (start,) = only(job.give(), StartCoordinator)
    assert start.inputs[0].locations.coordinator_attempt == 1


def test_spark_job_survives_several_job_masters_one_after_another() -> None:
    job = StagesUnderTest()
    job.run()
    for _ in range(3):
        assert work(job.replace_job_master()) == []
    job.says(RESULT)
    for _ in range(2):
        job.replace_job_master()
    job.stopped()
    assert job.ended is not None
    assert job.ended.result.num_rows == 42
