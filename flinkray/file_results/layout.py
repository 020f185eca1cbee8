"""Locations of the results of a job's vertices in the cluster's storage, and their deletion.

All are below ``<storage>/data/<job>/results/``, and are deleted after the job's end:

- ``<data set>/<execution graph>-<partition>-<attempt>``: a partition that a task has written,
- ``<data set>/<execution graph>-all-<attempt>``: a whole result from an attempt of a coordinator,
- ``commits/<operator>``: committables that the committer of a sink is about to commit,
- ``published/<vertex>``: partitions or micro-batches that a Spark stage publishes for a stream,
- ``epochs/<vertex>``: epochs that a stream hands over to a Spark stage,
- ``look-ups/<operator>``: notes of a look-up.
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
    """Return the directory of everything a job has in the cluster's storage, results included."""
    return f"{storage_dir.rstrip('/')}/data/{job_id}"


def results_of_job(storage_dir: str, job_id: JobID) -> str:
    """Return the directory of the results that the job's vertices read from each other."""
    return f"{data_of_job(storage_dir, job_id)}/results"


def partition_location(storage_dir: str, job_id: JobID, partition: ResultPartitionID) -> str:
    """Return the location of a partition that a task writes."""
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
    """Return the location of a whole result, written by its vertex's coordinator."""
    name = f"{graph_id.short()}-all-{coordinator_attempt}"
    return f"{results_of_job(storage_dir, job_id)}/{data_set_id}/{name}"


def commit_log_location(storage_dir: str, job_id: JobID, operator_id: str) -> str:
    """Return the directory of a committer's commit log
    (:mod:`flinkray.file_results.commit_log`)."""
    return f"{results_of_job(storage_dir, job_id)}/commits/{operator_id}"


def published_location(storage_dir: str, job_id: JobID, vertex_id: JobVertexID) -> str:
    """Return the location of the partitions that a vertex publishes while it runs."""
    return f"{results_of_job(storage_dir, job_id)}/published/{vertex_id}"


def epochs_location(storage_dir: str, job_id: JobID, vertex_id: JobVertexID) -> str:
    """Return the location of the epochs that a stream hands over to the vertex."""
    return f"{results_of_job(storage_dir, job_id)}/epochs/{vertex_id}"


def look_ups_location(storage_dir: str, job_id: JobID, operator_id: str) -> str:
    """Return the location of the notes of the look-up with that operator id."""
    return f"{results_of_job(storage_dir, job_id)}/look-ups/{operator_id}"


def stream_execution(graph_id: ExecutionGraphID | None, restores: int) -> str:
    """Return an id of the present execution of a job's streams; empty if *graph_id* is None.

    The streams get another id each time they all go back to a checkpoint. *restores*: how often
    this execution graph has gone back to a checkpoint.
    """
    return "" if graph_id is None else f"{graph_id}-{restores}"


def delete_directory(location: str) -> None:
    """Delete the directory with all its contents; no error if it does not exist. Blocks.

    Args:
        location: a path of this machine, or a URI.

    Raises:
        OSError: the storage fails.
    """
    from flinkray.file_results.result_files import ResultDirectory  # pyarrow takes its time to load

    ResultDirectory(location).delete()
