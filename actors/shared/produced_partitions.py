"""The result partitions that a deployed task is going to produce."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.actors.gateways.task_process import JobPartition
from flinkray.core.ids import ExecutionGraphID, JobID, ResultPartitionID
from flinkray.scheduler.graph.distribution import number_of_subpartitions
from flinkray.scheduler.graph.job_graph import ResultMedium
from flinkray.scheduler.shared.tasks import TaskDeployment, VertexInformation


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    partition_id: JobPartition
    subpartitions: int
    """Number of subpartitions: as many as the largest consumer reads.
    If a blocking result has several consumers, the i-th reader of each consumer reads subpartition
    i.
    """
    is_pipelined: bool


def produced_partitions(
    job_id: JobID, graph_id: ExecutionGraphID, vertex: VertexInformation, task: TaskDeployment
) -> tuple[ProducedPartition, ...]:
    """Return the partitions that the task will produce for channels, in the order of the results.
    Results that are written to files are left out (:func:`written_partitions`).
    """
    subtask = task.subtask_index
    return tuple(
        ProducedPartition(
            JobPartition(
                job_id,
                ResultPartitionID(graph_id, result.data_set_id, subtask, task.attempt_number),
            ),
            max(
                (
                    number_of_subpartitions(
                        consumer.pattern, vertex.parallelism, consumer.parallelism, subtask
                    )
                    for consumer in result.consumers
                ),
                default=0,
            ),
            result.result_type.is_pipelined,
        )
        for result in vertex.results
        if result.medium is ResultMedium.CHANNELS
    )


def written_partitions(
    graph_id: ExecutionGraphID, vertex: VertexInformation, task: TaskDeployment
) -> tuple[ResultPartitionID, ...]:
    """Return the partitions that the task writes to files, in the order of the vertex's results."""
    return tuple(
        ResultPartitionID(graph_id, result.data_set_id, task.subtask_index, task.attempt_number)
        for result in vertex.results
        if result.medium is ResultMedium.FILES
    )
