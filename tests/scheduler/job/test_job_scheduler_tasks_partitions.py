"""JobScheduler: how long the results of a task are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import PartitionProducerDisposedError
from flinkray.core.ids import ResultPartitionID
from flinkray.scheduler.graph.job_graph import IntermediateDataSet, JobType, ResultPartitionType
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import JobEnded
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import GRAPH, OTHER_GRAPH
from tests.scheduler.graphs import data_set_id, job, python_vertex
from tests.scheduler.tasks_under_test import TasksUnderTest, stream


def test_blocking_result_is_released_once_all_its_readers_are_finished() -> None:
    """EX-14."""
    tasks = stream(a=1, b=2, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    assert tasks.released(tasks.finish("b1")) == []
    assert tasks.released(tasks.finish("b2")) == ["1.0#0 on te0"]
    assert tasks.scheduler.holds_partitions_on(tasks.where[tasks.attempt("b1")])
    assert not tasks.scheduler.holds_partitions_on(tasks.where[tasks.attempt("a1")])


def test_blocking_result_is_kept_when_one_of_its_readers_is_restarted() -> None:
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


def test_released_blocking_result_is_reproduced_when_a_reader_needs_it_again() -> None:
    """FO-05."""
    tasks = stream(a=1, b=1, c=1, edges=["a => b", "b => c"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.finish("b1")
    tasks.give()
    tasks.fail("c1", missing_partitions=(ResultPartitionID(GRAPH, data_set_id(2), 0, 0),))
    assert tasks.deployed(tasks.restart()) == "a1#1"


def test_old_results_of_a_producer_that_runs_again_are_released() -> None:
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    tasks.give()
    assert tasks.released(tasks.tell(t.GlobalFailure(Failure("all")))) == ["1.0#0 on te0"]


def test_results_of_a_task_that_finishes_although_it_is_being_cancelled_are_released() -> None:
    """Otherwise the results would stay until the end of the job."""
    tasks = stream(a=2, b=1, edges=["a => b"]).run()
    tasks.tell(t.GlobalFailure(Failure("all")))
    assert tasks.released(tasks.finish("a1")) == ["1.0#0 on te0"]
    assert tasks.released(tasks.report("a2", ExecutionState.CANCELED)) == []
    assert tasks.states() == "a1:CANCELED#0 a2:CANCELED#0 b1:CREATED#0"


def test_results_of_a_task_whose_cancel_call_failed_are_released() -> None:
    """The task counts as cancelled, but may still finish."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.tell(t.GlobalFailure(Failure("all")))
    failed = tasks.tell(t.CancellationsFailed((tasks.attempt("a1"),), "no answer"))
    assert tasks.released(failed) == ["1.0#0 on te0"]
    assert tasks.released(tasks.finish("a1")) == ["1.0#0 on te0"], "the first may be lost, too"
    assert tasks.released(tasks.finish("a1")) == ["1.0#0 on te0"]
    assert tasks.states() == "a1:CANCELED#0 b1:CREATED#0"


def test_results_of_a_task_whose_deployment_call_was_not_answered_are_released() -> None:
    tasks = stream(a=1, b=1, edges=["a => b"])
    tasks.tell(t.StartJob())
    tasks.give()
    where = tasks.where[tasks.attempt("a1")]
    failed = tasks.tell(t.DeploymentsFailed(where, (tasks.attempt("a1"),), "no answer"))
    assert tasks.released(failed) == ["1.0#0 on te0"]
    assert tasks.released(tasks.finish("a1")) == ["1.0#0 on te0"]


def test_results_of_a_task_that_reports_its_end_twice_are_kept() -> None:
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    assert tasks.released(tasks.finish("a1")) == []
    assert tasks.scheduler.holds_partitions_on(tasks.where[tasks.attempt("a1")])


def test_job_end_releases_the_remaining_results() -> None:
    """JM-21."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    actions = tasks.tell(t.CancelJob())
    assert tasks.released(actions) == ["1.0#0 on te0"]
    assert isinstance(actions[-1], JobEnded)


@pytest.mark.parametrize("ends", ["finish", "cancel"])
def test_blocking_result_without_a_reader_is_released_when_its_job_ends(ends: str) -> None:
    result = IntermediateDataSet(data_set_id(1), ResultPartitionType.BLOCKING)
    vertex = replace(python_vertex("a", 2), results=(result,))
    tasks = TasksUnderTest(job(vertices=[vertex], job_type=JobType.BATCH)).run()
    assert tasks.released(tasks.finish("a1")) == []
    if ends == "finish":
        assert tasks.released(tasks.finish("a2")) == ["1.0#0 on te0", "1.1#0 on te1"]
        assert tasks.status is JobStatus.FINISHED
    else:
        tasks.tell(t.CancelJob())
        assert tasks.released(tasks.confirm_cancellations()) == ["1.0#0 on te0"]
        assert tasks.status is JobStatus.CANCELED


def test_requested_state_of_a_partition_is_the_state_of_its_producer() -> None:
    """JM-13."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    partition = ResultPartitionID(GRAPH, data_set_id(1), 0, 0)
    assert tasks.scheduler.partition_state(partition) is ExecutionState.RUNNING
    tasks.finish("a1")
    assert tasks.scheduler.partition_state(partition) is ExecutionState.FINISHED
    for unknown in (
        replace(partition, partition=1),
        replace(partition, data_set_id=data_set_id(9)),
    ):
        with pytest.raises(ValueError, match="the job produces no partition"):
            tasks.scheduler.partition_state(unknown)
    tasks.tell(t.GlobalFailure(Failure("all")))
    tasks.restart()
    now = tasks.attempt("a1")
    with pytest.raises(PartitionProducerDisposedError, match=f"at attempt {now} now"):
        tasks.scheduler.partition_state(partition)
    of_another_job_master = replace(partition, attempt_number=1, graph_id=OTHER_GRAPH)
    with pytest.raises(PartitionProducerDisposedError):
        tasks.scheduler.partition_state(of_another_job_master)


def test_missing_partition_of_another_execution_graph_is_not_produced_again() -> None:
    """FO-04: a task of a past JobMaster looked for a partition of that JobMaster's graph."""
    tasks = stream(a=1, b=1, edges=["a => b"]).run()
    tasks.finish("a1")
    tasks.give()
    tasks.fail("b1", missing_partitions=(ResultPartitionID(OTHER_GRAPH, data_set_id(1), 0, 0),))
    assert tasks.deployed(tasks.restart()) == "b1#1"
