"""Which results of tasks a TaskExecutor keeps."""

from __future__ import annotations

from typing import Any

from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.shared.produced_partitions import ProducedPartition
from flinkray.actors.task_executor.task_processes import TaskProcessPlace
from flinkray.actors.task_executor.task_results import TaskResults
from flinkray.core.ids import IntermediateDataSetID, JobID, ResultPartitionID
from tests.actors.resource_cluster import GRAPH

JOB = JobID(bytes(16))
PARTITION = JobPartition(JOB, ResultPartitionID(GRAPH, IntermediateDataSetID(bytes(16)), 0, 0))


class _Processes:
    """Notes what is to be deleted."""

    def __init__(self) -> None:
        self.released: list[JobPartition] = []

    def release_partitions(
        self, place: TaskProcessPlace, partitions: tuple[JobPartition, ...]
    ) -> None:
        self.released += partitions


def test_result_of_a_task_that_ends_after_its_job_is_not_kept() -> None:
    """TM-28. Otherwise the TaskExecutor would follow the job for ever, and could not be
    released."""
    processes: Any = _Processes()
    results = TaskResults(processes, lambda place: None)
    produced = (ProducedPartition(PARTITION, 1, is_pipelined=False),)
    results.begun(produced, TaskProcessPlace(0, JOB))

    results.job_gone(JOB)
    results.ended(produced, is_finished=True)

    assert results.is_empty
    assert not results.has_results_of(JOB)
    assert processes.released == [PARTITION]


def test_result_that_is_released_before_its_task_has_ended_is_not_kept() -> None:
    """The JobMaster could not have the task cancelled, and takes the task for ended."""
    processes: Any = _Processes()
    results = TaskResults(processes, lambda place: None)
    produced = (ProducedPartition(PARTITION, 1, is_pipelined=False),)
    results.begun(produced, TaskProcessPlace(0, JOB))

    results.release(JOB, [PARTITION.partition])
    results.ended(produced, is_finished=True)

    assert results.is_empty
    assert processes.released == [PARTITION]
