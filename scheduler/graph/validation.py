"""Checks job graphs before anything is started, and finds their topological order. An error is one
sentence that says what is wrong and how to mend it.
"""

from __future__ import annotations

from collections import deque

from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, JobSubmissionError
from flinkray.core.ids import IntermediateDataSetID, JobVertexID
from flinkray.core.job_options import CHECKPOINTING_UNALIGNED, JOB_OPTIONS, STATE_RECOVERY_PATH
from flinkray.core.key_group_ranges import UPPER_BOUND_MAX_PARALLELISM
from flinkray.scheduler.graph.job_graph import (
    COORDINATED_KINDS,
    SPARK,
    SPARK_SESSION,
    STREAM,
    TASK_PROCESS_KINDS,
    DistributionPattern,
    JobGraph,
    JobType,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
    SchedulerMode,
)


def validate(job_graph: JobGraph) -> None:
    """Check that the job can run.

    Raises:
        JobSubmissionError: the first problem found, and how to mend it.
    """
    problem = _problem_of(job_graph)
    if problem is not None:
        raise JobSubmissionError(job_graph.job_id, problem)
    topological_order(job_graph)


def topological_order(job_graph: JobGraph) -> tuple[JobVertex, ...]:
    """Return the vertices in topological order: each vertex comes after all vertices that it reads.
    Vertices that do not depend on each other stay in the order of the graph.

    Raises:
        JobSubmissionError: a vertex reads a data set that no vertex produces, or there is a cycle.
    """
    producers = {
        result.data_set_id: vertex.vertex_id
        for vertex in job_graph.vertices
        for result in vertex.results
    }
    by_id = {vertex.vertex_id: vertex for vertex in job_graph.vertices}
    missing: dict[JobVertexID, int] = {}
    readers: dict[JobVertexID, list[JobVertexID]] = {}
    for vertex in job_graph.vertices:
        sources = set()
        for edge in vertex.inputs:
            if edge.source not in producers:
                raise JobSubmissionError(job_graph.job_id, _unknown_source(vertex, edge.source))
            sources.add(producers[edge.source])
        missing[vertex.vertex_id] = len(sources)
        for source in sorted(sources):
            readers.setdefault(source, []).append(vertex.vertex_id)
    ready = deque(vertex_id for vertex_id, count in missing.items() if not count)
    order = []
    while ready:
        vertex_id = ready.popleft()
        order.append(by_id[vertex_id])
        for reader in readers.get(vertex_id, ()):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(order) < len(by_id):
        names = ", ".join(repr(by_id[v].name) for v, count in missing.items() if count)
        raise JobSubmissionError(
            job_graph.job_id,
            f"the vertices {names} read each other's results in a circle, or what comes out of "
            "one: a job graph must have no cycle",
        )
    return tuple(order)


def _unknown_source(vertex: JobVertex, source: IntermediateDataSetID) -> str:
    return (
        f"vertex {vertex.name!r} reads the data set {source}, which no vertex of the job produces: "
        "add it to the results of its producer, or remove the input"
    )


def _problem_of(job_graph: JobGraph) -> str | None:
    if not job_graph.vertices:
        return f"{job_graph.name!r} has no vertices, there is nothing to run: add at least one"
    seen: dict[JobVertexID, str] = {}
    produced: dict[IntermediateDataSetID, str] = {}
    for vertex in job_graph.vertices:
        if vertex.vertex_id in seen:
            return (
                f"the vertices {seen[vertex.vertex_id]!r} and {vertex.name!r} have the same id, "
                f"{vertex.vertex_id}: give each its own"
            )
        seen[vertex.vertex_id] = vertex.name
        for result in vertex.results:
            if result.data_set_id in produced:
                return (
                    f"the data set {result.data_set_id} is produced by {vertex.name!r} and by "
                    f"{produced[result.data_set_id]!r}: give each result an id of its own"
                )
            produced[result.data_set_id] = vertex.name
        problem = _problem_of_vertex(vertex)
        if problem is not None:
            return problem
    return (
        _problem_of_configuration(job_graph)
        or _problem_of_savepoint(job_graph)
        or _problem_of_files(job_graph)
        or _problem_of_groups(job_graph)
        or _problem_of_streaming(job_graph)
        or _problem_of_adaptive(job_graph)
    )


def _problem_of_configuration(job_graph: JobGraph) -> str | None:
    for key in job_graph.configuration:
        if key not in JOB_OPTIONS:
            known = ", ".join(sorted(JOB_OPTIONS))
            return f"{key} cannot be set for a job: those that can are {known}"
    try:
        ReadableConfig(job_graph.configuration)
    except ConfigurationError as error:
        return str(error)
    return None


def _problem_of_savepoint(job_graph: JobGraph) -> str | None:
    path = ReadableConfig(job_graph.configuration).get(STATE_RECOVERY_PATH)
    if path is None or job_graph.checkpoints is not None:
        return None
    return f"it is to start from {path}, and is no streaming job: only those have state to restore"


def _problem_of_vertex(vertex: JobVertex) -> str | None:
    if vertex.parallelism < 1:
        return f"vertex {vertex.name!r} has parallelism {vertex.parallelism}: it must be at least 1"
    if vertex.non_parallel and vertex.parallelism > 1:
        return (
            f"vertex {vertex.name!r} has parallelism {vertex.parallelism}, and does what one "
            "subtask must do for all: its parallelism must be 1"
        )
    maximum = vertex.max_parallelism
    if maximum is not None and not 1 <= maximum <= UPPER_BOUND_MAX_PARALLELISM:
        return (
            f"vertex {vertex.name!r} has max parallelism {maximum}: it must be from 1 "
            f"to {UPPER_BOUND_MAX_PARALLELISM}"
        )
    most = UPPER_BOUND_MAX_PARALLELISM if maximum is None else maximum
    if vertex.parallelism > most:
        return (
            f"the parallelism of vertex {vertex.name!r}, {vertex.parallelism}, is higher than the "
            f"max parallelism, {most}: lower the one or raise the other"
        )
    if not 1 <= vertex.min_parallelism <= vertex.parallelism:
        return (
            f"vertex {vertex.name!r} has min parallelism {vertex.min_parallelism}: it must be from "
            f"1 to the parallelism, {vertex.parallelism}"
        )
    takes_any_slot = vertex.slot_profile.is_zero() and vertex.invokable.kind in TASK_PROCESS_KINDS
    is_guest = vertex.invokable.kind == SPARK and SPARK_SESSION in vertex.invokable.configuration
    if vertex.slot_profile.cpu <= 0 and not takes_any_slot and not is_guest:
        return (
            f"vertex {vertex.name!r} asks for {vertex.slot_profile.cpu:g} CPU per slot: "
            "it must be more than 0"
        )
    if vertex.invokable.kind not in (SPARK, *TASK_PROCESS_KINDS):
        return (
            f"vertex {vertex.name!r} is of kind {vertex.invokable.kind!r}, which this version "
            f"cannot run: the kinds it knows are {SPARK!r} and {STREAM!r}"
        )
    return None


def _problem_of_files(job_graph: JobGraph) -> str | None:
    """Return the first problem with results that are files or must be files, or None. Results and
    inputs of Spark stages must be files."""
    results = {r.data_set_id: r for vertex in job_graph.vertices for r in vertex.results}
    of_spark = {
        result.data_set_id
        for vertex in job_graph.vertices
        if vertex.invokable.kind in COORDINATED_KINDS
        for result in vertex.results
    }
    for vertex in job_graph.vertices:
        is_spark = vertex.invokable.kind in COORDINATED_KINDS
        if is_spark and len(vertex.results) > 1:
            return (
                f"the Spark stage {vertex.name!r} has {len(vertex.results)} results, and its "
                "function returns one DataFrame: let all its readers read one result"
            )
        for result in vertex.results:
            if is_spark and result.medium is not ResultMedium.FILES:
                return (
                    f"the Spark stage {vertex.name!r} has a result of medium "
                    f"{result.medium.value}, and writes files: make it {ResultMedium.FILES.value}"
                )
            if result.medium is not ResultMedium.FILES:
                continue
            if result.result_type is not ResultPartitionType.BLOCKING:
                return (
                    f"vertex {vertex.name!r} has a result of type {result.result_type.value} that "
                    "is files, which are read when they are finished and stay until the job ends: "
                    "make it BLOCKING"
                )
        for edge in vertex.inputs:
            source = results.get(edge.source)
            if source is None:
                continue
            if is_spark and source.medium is not ResultMedium.FILES:
                return (
                    f"the Spark stage {vertex.name!r} reads a result of medium "
                    f"{source.medium.value}, and reads files: make it {ResultMedium.FILES.value}"
                )
            is_pointwise = edge.pattern is DistributionPattern.POINTWISE
            if is_pointwise and (is_spark or edge.source in of_spark):
                return (
                    f"the POINTWISE edge into {vertex.name!r} begins or ends at a Spark stage, "
                    "whose subtasks read and write all files together: make it ALL_TO_ALL"
                )
        media = {results[edge.source].medium for edge in vertex.inputs if edge.source in results}
        if len(media) > 1 and vertex.invokable.kind == STREAM:
            return (
                f"vertex {vertex.name!r} is a chain of stream operators and reads files beside "
                "channels: let a chain of its own begin with the source that reads the files"
            )
    return None


def _problem_of_groups(job_graph: JobGraph) -> str | None:
    sharing: dict[str, JobVertex] = {}
    located: dict[str, JobVertex] = {}
    for vertex in job_graph.vertices:
        first = sharing.setdefault(vertex.slot_sharing_group, vertex)
        if first.slot_profile != vertex.slot_profile:
            return (
                f"the vertices {first.name!r} ({first.slot_profile}) and {vertex.name!r} "
                f"({vertex.slot_profile}) share slots, in group {vertex.slot_sharing_group!r}: "
                "give them the same slot profile or different slot-sharing groups"
            )
        if vertex.co_location_group is None:
            continue
        first = located.setdefault(vertex.co_location_group, vertex)
        if (first.slot_sharing_group, first.parallelism) != (
            vertex.slot_sharing_group,
            vertex.parallelism,
        ):
            return (
                f"the vertices {first.name!r} and {vertex.name!r} are in co-location group "
                f"{vertex.co_location_group!r}: give them the same slot-sharing group and the "
                "same parallelism"
            )
    return None


def _problem_of_streaming(job_graph: JobGraph) -> str | None:
    if job_graph.job_type is JobType.BATCH:
        return None
    for vertex in job_graph.vertices:
        for result in vertex.results:
            if not result.result_type.is_pipelined:
                return (
                    f"vertex {vertex.name!r} of a streaming job has a blocking result, which would "
                    "be read only when it is finished: make the result pipelined or the job a "
                    "batch job"
                )
    return None


def _problem_of_adaptive(job_graph: JobGraph) -> str | None:
    if job_graph.scheduler_mode is SchedulerMode.DEFAULT:
        return None
    if job_graph.job_type is JobType.BATCH or job_graph.has_coordinated_vertices:
        return (
            f"{job_graph.name!r} is to be scheduled adaptively, which is for streaming jobs "
            "without Spark stages: leave its scheduler mode at DEFAULT"
        )
    if job_graph.checkpoints is not None and job_graph.checkpoints.is_unaligned:
        return (
            f"{job_graph.name!r} is to be scheduled adaptively, and takes unaligned checkpoints, "
            "from which it could not go on with another parallelism: leave "
            f"{CHECKPOINTING_UNALIGNED.key} at false"
        )
    return None
