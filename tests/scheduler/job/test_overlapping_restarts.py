"""A failure while another one's restart still waits."""

from __future__ import annotations

from flinkray.core.ids import ResultPartitionID
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import GRAPH, one
from tests.scheduler.graphs import data_set_id, job
from tests.scheduler.tasks_under_test import TasksUnderTest


def test_region_whose_restart_was_merged_into_a_later_restart_is_deployed() -> None:
    """Otherwise the job waits for ever (seed 11685 of the cluster of fifty)."""
    graph = job(
        p=1, q=1, c=2, edges=["p => c", "q => c"], restart_strategy=FixedDelayRestart(5, 1.0)
    )
    tasks = TasksUnderTest(graph).run()  # p and q share a slot of te0
    tasks.finish("p1 q1")
    tasks.give()
    missing = ResultPartitionID(GRAPH, data_set_id(1), 0, 0)
    first = one(tasks.fail("c1", "not found", missing_partitions=(missing,)), StartTimer)
    assert tasks.tell(first.event) == []  # c2 is being cancelled
    actions = tasks.lose_task_executor("te0")  # with what q had produced: c waits for that
    second = one(actions, StartTimer)
    assert tasks.deployed(tasks.give()) == "p1#1"
    tasks.finish("p1")
    tasks.confirm_cancellations()
    actions = tasks.tell(second.event) + tasks.give()
    assert tasks.deployed(actions) == "q1#1"
    tasks.finish("q1")
    assert tasks.deployed(tasks.give()) == "c1#1 c2#1"
    tasks.finish("c1 c2")
    assert tasks.status is JobStatus.FINISHED
