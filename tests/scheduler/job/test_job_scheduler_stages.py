"""JobScheduler: jobs of Spark stages, and what they do with their slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import IllegalTransitionError, JobSubmissionError
from flinkray.core.ids import ResultPartitionID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    DistributionPattern,
    FixedDelayRestart,
    IntermediateDataSet,
    JobEdge,
    JobType,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    JobEnded,
    JobSchedulerAction,
    ReleasePartitions,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.slots import ResourceShortage, SameWorkerGroup
from flinkray.scheduler.shared.spark_reports import SparkProgress, SparkStageProgress
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import PartitionLocations
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import (
    ReturnSlots,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
)
from tests.scheduler.builders import (
    GRAPH,
    LARGE,
    SMALL,
    allocated_slot,
    allocation,
    group,
    one,
    only,
    spark_job,
    spark_vertex,
)
from tests.scheduler.graphs import data_set_id, python_vertex
from tests.scheduler.graphs import job as graph_of
from tests.scheduler.job.job_under_test import (
    FAILURE,
    NO_RESTART,
    RESULT,
    JobUnderTest,
    attempt,
    driver,
    executor,
)


def shortage(unfulfillable: bool) -> ResourceShortage:
    nothing = ResourceProfile(0.0)
    return ResourceShortage(
        2, SMALL, "2 slots are missing.", unfulfillable, nothing, nothing, LARGE
    )


# --- the way to the end ---------------------------------------------------------------------------


def test_started_job_requests_the_bundles_of_one_worker_group() -> None:
    job = JobUnderTest()
    wanted = one(job.tell(t.StartJob()), SlotRequests)
    assert (wanted.profile, wanted.constraint) == (SMALL, SameWorkerGroup("default", 2))
    assert [(r.bundle, [v.subtask_index for v in r.vertices]) for r in wanted.requests] == [
        (0, [0]),
        (1, [1]),
    ]
    assert job.stage_states() == ["SCHEDULED 0", "SCHEDULED 0"]
    assert job.give(1) == []
    assert (
        job.scheduler.details().pending_reason == "1 slot (1 CPU, 1g memory each) has not come yet."
    )


def test_starting_a_job_twice_raises_an_error() -> None:
    job = JobUnderTest().start()
    with pytest.raises(IllegalTransitionError, match="cannot go from RUNNING to RUNNING"):
        job.tell(t.StartJob())


def test_spark_stage_subtasks_are_deployed_to_their_bundles_once_all_slots_have_come() -> None:
    job = JobUnderTest().start()
    actions = job.give()
    assert job.deployed(actions) == "stage1#0 stage2#0"
    assert [str(job.where[attempt(i)]) for i in range(2)] == ["te0-g", "te1-g"]
    assert {task.coordinator_attempt for task in job.tasks.values()} == {0}
    slots = (allocated_slot(0, 0), allocated_slot(1, 1))
    assert one(actions, StartCoordinator) == StartCoordinator(driver(), slots, graph_id=GRAPH)
    assert job.scheduler.details().pending_reason is None


def test_execution_is_running_once_its_spark_executor_is_registered() -> None:
    job = JobUnderTest().deploy()
    job.started()
    job.task(0, 0, ExecutionState.RUNNING)
    assert job.stage_states() == ["DEPLOYING 0", "DEPLOYING 0"]
    job.executors(executor(1))
    assert job.stage_states() == ["DEPLOYING 0", "RUNNING 0"]
    info = job.scheduler.details().vertices[0].executions[1]
    assert (info.executor_actor_id, info.executor_pid) == ("actor1", 101)
    assert info.location == "te1-g bundle 1 on 10.0.0.1"


def test_job_finishes_once_its_spark_stage_has_finished_and_the_driver_has_ended() -> None:
    """EG-11."""
    job = JobUnderTest().run()
    actions = job.says(RESULT)
    assert only(actions, StopCoordinator) == [StopCoordinator(driver())]
    assert job.cancelled(actions) == "stage1#0 stage2#0"
    assert only(actions, ReturnSlots) == [], "Spark's processes are there yet"
    assert job.stage_states() == ["FINISHED 0", "FINISHED 0"]
    assert job.scheduler.status is JobStatus.RUNNING
    actions = job.stopped()
    assert one(actions, ReturnSlots).allocations == (allocation(0), allocation(1))
    result = one(actions, JobEnded).result
    assert result.status is JobStatus.FINISHED
    assert (result.result_location, result.num_rows) == ("file:///result", 42)
    assert result.net_runtime == job.now


def test_job_details_have_wall_clock_times_of_every_status() -> None:
    job = JobUnderTest().run()
    job.says(RESULT)
    details = one(job.stopped(), JobEnded).details
    assert details.start_time == 1_000_000.0
    assert details.end_time == 1_000_000.0 + job.now
    assert list(details.status_timestamps) == ["INITIALIZING", "CREATED", "RUNNING", "FINISHED"]
    assert details.worker_group == allocated_slot(0).location.worker_group


def test_progress_of_a_spark_stage_is_shown_and_that_of_other_attempts_is_ignored() -> None:
    job = JobUnderTest(strategy=FixedDelayRestart(1)).run()
    running = SparkStageProgress(3, "count", 8, 2, 4, 0)
    (before,) = job.scheduler.progress().vertices
    assert (before.active_stages, before.completed_stages, before.completed_tasks) == ((), 0, 0)
    job.says(SparkProgress((running,), 2, 20, 1), 0)
    (now,) = job.scheduler.progress().vertices
    assert (now.name, now.parallelism, now.completed_stages, now.completed_tasks) == (
        "stage",
        2,
        2,
        20,
    )
    assert [stage.completed_tasks for stage in now.active_stages] == [4]
    vertex = job.scheduler.details().vertices[0]
    assert vertex.active_stages[0].completed_tasks == 4
    assert (vertex.completed_stages, vertex.completed_tasks, vertex.failed_tasks) == (2, 20, 1)
    job.says(SparkProgress(), 1)
    assert job.scheduler.details().vertices[0].completed_stages == 2


def test_stages_run_one_after_another_in_the_same_slots() -> None:
    second = spark_vertex(2)
    job = JobUnderTest(spark_job(spark_vertex(1), second)).run()
    assert one(job.log, StartCoordinator).results == (), "the second does not read of the first"
    job.says(RESULT)
    actions = job.stopped()
    assert only(actions, SlotRequests) == []
    assert only(actions, ReturnSlots) == []
    slots = (allocated_slot(0, 0), allocated_slot(1, 1))
    started = StartCoordinator(driver(0, second.vertex_id), slots, graph_id=GRAPH)
    assert one(actions, StartCoordinator) == started
    last = replace(RESULT, num_rows=7)
    job.says(last, 0, second.vertex_id)
    result = one(job.stopped(0, second.vertex_id), JobEnded).result
    assert (result.status, result.num_rows) == (JobStatus.FINISHED, 7)


def test_spark_stages_of_different_sizes_share_a_worker_group_of_the_largest_size() -> None:
    wide = replace(spark_vertex(2, 3), name="wide")
    job = JobUnderTest(spark_job(spark_vertex(1), wide))
    wanted = one(job.tell(t.StartJob()), SlotRequests)
    assert wanted.constraint == SameWorkerGroup("default", 3)
    assert [r.bundle for r in wanted.requests] == [0, 1]
    job.give()
    wanted = one(job.finish_stage(), SlotRequests)
    assert [r.bundle for r in wanted.requests] == [2], "the others are there"
    assert [s.location.bundle_index for s in one(job.give(), StartCoordinator).slots] == [0, 1, 2]


def test_spark_stages_of_different_slot_sharing_groups_run_in_separate_worker_groups() -> None:
    other = replace(spark_vertex(2, 1), slot_sharing_group="other")
    job = JobUnderTest(spark_job(spark_vertex(1), other))
    wanted = only(job.tell(t.StartJob()), SlotRequests)
    assert [w.constraint for w in wanted] == [
        SameWorkerGroup("default", 2),
        SameWorkerGroup("other", 1),
    ]
    assert len(only(job.give(), StartCoordinator)) == 2


def test_job_details_name_the_worker_group_of_the_latest_spark_stage() -> None:
    second = replace(spark_vertex(2, 1), slot_sharing_group="other")
    job = JobUnderTest(spark_job(spark_vertex(1), second)).start()
    assert job.scheduler.details().worker_group is None
    job.give(2)
    assert job.scheduler.details().worker_group == group("g")
    job.worker_group = "h"
    job.give()
    assert job.scheduler.details().worker_group == group("h")


# --- Spark stages and other vertices --------------------------------------------------------------

BLOCKING = ResultPartitionType.BLOCKING
FILES = ResultMedium.FILES


def mixed(restarts: int = 5) -> JobUnderTest:
    """``stage => b => last``: a Spark stage, Python tasks, and another Spark stage."""
    first = replace(
        spark_vertex(1), results=(IntermediateDataSet(data_set_id(1), BLOCKING, FILES),)
    )
    edge = JobEdge(data_set_id(2), DistributionPattern.ALL_TO_ALL)
    last = replace(spark_vertex(2, 1, name="last"), inputs=(edge,))
    edge = JobEdge(data_set_id(1), DistributionPattern.ALL_TO_ALL)
    python = python_vertex(
        "b",
        2,
        inputs=(edge,),
        results=(IntermediateDataSet(data_set_id(2), BLOCKING, FILES),),
        slot_sharing_group="python",
    )
    graph = graph_of(
        vertices=(first, python, last),
        restart_strategy=FixedDelayRestart(restarts),
        job_type=JobType.BATCH,
    )
    return JobUnderTest(graph)


def test_tasks_read_the_result_of_a_finished_spark_stage() -> None:
    job = mixed().deploy()
    assert job.deployed(job.finish_stage()) == "", "slots of another group are asked for"
    assert job.deployed(job.give()) == "b1#0 b2#0"
    side = job.task_executors[job.where[job.attempt("b1")]]
    (key,) = job.tasks[job.attempt("b1")].inputs
    locations = side.parts[key].content
    assert isinstance(locations, PartitionLocations)
    assert (locations.data_set_id, locations.coordinator_attempt) == (data_set_id(1), 0)


def test_spark_stage_gets_the_locations_of_its_inputs() -> None:
    job = mixed().deploy()
    job.finish_stage()
    job.give()
    job.finish("b1 b2")
    started = one(job.give(), StartCoordinator)
    assert started.coordinator.vertex_id == spark_vertex(2).vertex_id
    (read,) = started.inputs
    assert (read.data_set_id, read.producer_kind) == (data_set_id(2), PYTHON)
    assert read.pattern is DistributionPattern.ALL_TO_ALL
    assert [str(read.locations.location_of(i).resource_id) for i in range(2)] == ["te2", "te3"]
    job.says(RESULT, 0, spark_vertex(2).vertex_id)
    result = one(job.stopped(0, spark_vertex(2).vertex_id), JobEnded).result
    assert (result.status, result.result_location) == (JobStatus.FINISHED, RESULT.location)


def test_stored_result_outlives_the_task_executors_of_its_stage() -> None:
    job = mixed().deploy()
    job.finish_stage()
    job.give()
    assert only(job.lose_task_executor("te0-g"), StartTimer) == []
    actions = job.finish("b1 b2")
    assert only(actions, ReleasePartitions) == [], "its files stay until the job ends"


def test_stored_result_is_produced_again_when_a_task_does_not_find_its_files() -> None:
    """FO-04."""
    job = mixed().deploy()
    job.finish_stage()
    job.give()
    missing = ResultPartitionID(GRAPH, data_set_id(1), 1, 0)
    actions = job.fail("b1", "no such file", missing_partitions=(missing,))
    assert only(actions, ReleasePartitions) == [], "no TaskExecutor keeps it"
    job.confirm_cancellations()
    job.delay_over()
    started = one(job.give(), StartCoordinator)
    assert started.coordinator == driver(1)
    assert {task.coordinator_attempt for task in job.tasks.values()} == {1}
    job.finish_stage(1)
    assert job.deployed(job.give()) == "b1#1 b2#1"


def test_result_files_of_tasks_outlive_the_task_executors_that_wrote_them() -> None:
    job = mixed().deploy()
    job.finish_stage()
    job.give()
    job.finish("b1 b2")
    job.give()
    assert job.lose_task_executor("te2") == []


def test_lost_input_of_a_spark_stage_is_reproduced_and_the_stage_restarts() -> None:
    """FO-04."""
    last = spark_vertex(2).vertex_id
    job = mixed().deploy()
    job.finish_stage()
    job.give()
    job.finish("b1 b2")
    job.give()
    job.started(0, last)
    missing = ResultPartitionID(GRAPH, data_set_id(2), 0, 0)
    lost = replace(FAILURE, text="its input is lost", missing_partitions=(missing,))
    actions = job.says(lost, 0, last)
    assert one(actions, StopCoordinator).coordinator == driver(0, last)
    assert "its input is lost" in job.scheduler.exceptions()[-1].text
    job.stopped(0, last)
    job.confirm_cancellations()
    job.delay_over()
    assert job.deployed(job.give()) == "b1#1"
    started = one([*job.finish("b1"), *job.give()], StartCoordinator)
    assert started.coordinator == driver(1, last)
    (read,) = started.inputs
    assert [read.locations.partition_id(i).attempt_number for i in range(2)] == [1, 0]


def test_job_graph_with_a_spark_stage_within_a_pipelined_region_is_refused() -> None:
    """The stage would have to start before its input is finished."""
    stage = replace(
        spark_vertex(1, name="s"),
        inputs=(JobEdge(data_set_id(7), DistributionPattern.ALL_TO_ALL),),
        results=(IntermediateDataSet(data_set_id(8), BLOCKING, FILES),),
    )
    graph = graph_of(a=1, b=1, edges=["a -> b"], job_type=JobType.BATCH)
    a, b = graph.vertices
    a = replace(a, results=(*a.results, IntermediateDataSet(data_set_id(7), BLOCKING, FILES)))
    edge = JobEdge(data_set_id(8), DistributionPattern.ALL_TO_ALL)
    b = replace(b, inputs=(*b.inputs, edge))
    with pytest.raises(JobSubmissionError, match="'s' reads and feeds vertices that run at the"):
        JobUnderTest(replace(graph, vertices=(a, stage, b)))


# --- slots ----------------------------------------------------------------------------------------


def test_resource_shortage_is_the_pending_reason_of_the_job_until_the_shortage_ends() -> None:
    job = JobUnderTest().start()
    assert job.tell(t.ResourcesShort((shortage(False),))) == []
    assert job.scheduler.details().pending_reason == "2 slots are missing."
    job.tell(t.ResourcesShort(()))
    assert (
        job.scheduler.details().pending_reason
        == "2 slots (1 CPU, 1g memory each) have not come yet."
    )


def refused(job: JobUnderTest, failure: SlotRequestFailure) -> list[JobSchedulerAction]:
    request_id = next(iter(job.wanted))
    del job.wanted[request_id]
    return job.tell(t.SlotsTold((SlotRequestFailed(request_id, failure, "2 are missing."),)))


def test_slot_request_that_can_never_be_fulfilled_fails_the_job_at_once() -> None:
    """FO-15."""
    job = JobUnderTest(strategy=FixedDelayRestart(5)).start()
    ended = one(refused(job, SlotRequestFailure.UNFULFILLABLE), JobEnded)
    assert ended.result.status is JobStatus.FAILED
    assert ended.result.failure == "UnfulfillableSlotRequestError: 2 are missing."
    assert ended.details.restarts == 0


def test_slot_request_timeout_fails_the_job_with_the_reason() -> None:
    """EX-18."""
    job = JobUnderTest(strategy=NO_RESTART).start()
    job.tell(t.ResourcesShort((shortage(False),)))
    result = one(refused(job, SlotRequestFailure.TIMED_OUT), JobEnded).result
    assert result.failure is not None
    assert result.failure.startswith(
        "NoResourceAvailableError: Could not allocate the required slot within slot request "
        "timeout. 2 are missing. 2 slots are missing."
    )


def test_slot_request_timeout_restarts_the_job_if_the_strategy_allows_it() -> None:
    """JM-11."""
    job = JobUnderTest(strategy=FixedDelayRestart(1)).start()
    one(refused(job, SlotRequestFailure.TIMED_OUT), StartTimer)
    assert len(one(job.delay_over(), SlotRequests).requests) == 2
    assert job.deployed(job.give()) == "stage1#1 stage2#1"
