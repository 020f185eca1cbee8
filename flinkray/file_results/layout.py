"""Where the results of a job's vertices lie in the cluster's storage.

``<storage>/data/<job>/results/<data set>/<execution graph>-<partition>-<attempt>``; what a
coordinator has written as a whole has ``all`` for the partition, and its own attempt.  What the
committer of a sink is about to commit is in ``<storage>/data/<job>/results/commits/<operator>``.
What a Spark stage publishes for a stream is in ``<storage>/data/<job>/results/published/<vertex>``,
and what a stream hands over to a Spark stage in ``<storage>/data/<job>/results/epochs/<vertex>``.
Notes of a look-up are in ``<storage>/data/<job>/results/look-ups/<operator>``.
All of it goes with the job's end.
"""

from __future__ import annotations

from flinkray.core.ids import (
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobVertexID,
    ResultPartitionID,
)


def data_of_job(storage_dir: str, job_id: JobID) -> str:
    """All that a job has in the cluster's storage, its result included."""
    return f"{storage_dir.rstrip('/')}/data/{job_id}"


def results_of_job(storage_dir: str, job_id: JobID) -> str:
    """What its vertices read of each other."""
    return f"{data_of_job(storage_dir, job_id)}/results"


def partition_location(storage_dir: str, job_id: JobID, partition: ResultPartitionID) -> str:
    """Of a partition that a task has written."""
    graph, data_set = partition.graph_id, partition.data_set_id
    name = f"{graph.short()}-{partition.partition}-{partition.attempt_number}"
    return f"{results_of_job(storage_dir, job_id)}/{data_set}/{name}"


def whole_location(
    storage_dir: str,
    job_id: JobID,
    graph_id: ExecutionGraphID,
    data_set_id: IntermediateDataSetID,
    coordinator_attempt: int,
) -> str:
    """Of all partitions of a result that their vertex's coordinator has written."""
    name = f"{graph_id.short()}-all-{coordinator_attempt}"
    return f"{results_of_job(storage_dir, job_id)}/{data_set_id}/{name}"


def commit_log_location(storage_dir: str, job_id: JobID, operator_id: str) -> str:
    """Of what the committer with that operator id commits."""
    return f"{results_of_job(storage_dir, job_id)}/commits/{operator_id}"


def published_location(storage_dir: str, job_id: JobID, vertex_id: JobVertexID) -> str:
    """Of the partitions that a vertex publishes while it runs."""
    return f"{results_of_job(storage_dir, job_id)}/published/{vertex_id}"


def epochs_location(storage_dir: str, job_id: JobID, vertex_id: JobVertexID) -> str:
    """Of the epochs of a stream that a vertex takes."""
    return f"{results_of_job(storage_dir, job_id)}/epochs/{vertex_id}"


def look_ups_location(storage_dir: str, job_id: JobID, operator_id: str) -> str:
    """Of the notes of the look-up with that operator id."""
    return f"{results_of_job(storage_dir, job_id)}/look-ups/{operator_id}"


def stream_execution(graph_id: ExecutionGraphID | None, restores: int) -> str:
    """Another one each time when all of a job's streams go back to a checkpoint."""
    return "" if graph_id is None else f"{graph_id}-{restores}"
