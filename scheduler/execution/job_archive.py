"""Converts an execution graph to the form that clients see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from flinkray.core.ids import ExecutionAttemptID, ResourceID
from flinkray.scheduler.execution.execution_graph import Execution, ExecutionJobVertex
from flinkray.scheduler.graph.job_graph import MODEL, STREAM
from flinkray.scheduler.reports.execution_info import ExecutionInfo, packed
from flinkray.scheduler.reports.job_info import StageProgressInfo, VertexInfo, VertexProgress
from flinkray.scheduler.shared.io_metrics import IOMetrics, total
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.states import ExecutionState

NO_METRICS: Mapping[ExecutionAttemptID, IOMetrics] = MappingProxyType({})

PRIORS_SHOWN = 100_000
"""Largest number of earlier attempts per vertex that clients see, so that they fit a message.
The newest attempts of each subtask are shown."""


def vertex_info(
    job_vertex: ExecutionJobVertex,
    epoch_offset: float,
    progress: SparkProgress | None,
    running: Mapping[ExecutionAttemptID, IOMetrics] = NO_METRICS,
) -> VertexInfo:
    """Describe the current state of a vertex and its attempts, for clients.

    Args:
        epoch_offset: added to monotonic seconds to get seconds since the epoch.
        progress: progress of the vertex's Spark stage; None if there is none.
        running: I/O metrics of attempts that have not ended.
    """
    vertex = job_vertex.vertex
    executions = tuple(
        _execution_info(execution, epoch_offset, running) for execution in job_vertex.executions
    )
    measured = [e.io_metrics for e in executions if e.io_metrics is not None]
    priors_each = PRIORS_SHOWN // job_vertex.parallelism
    info = VertexInfo(
        vertex.vertex_id,
        vertex.name,
        job_vertex.parallelism,
        packed(executions),
        max_parallelism=job_vertex.max_parallelism,
        prior_executions=packed(
            tuple(
                _execution_info(prior, epoch_offset, NO_METRICS)
                for subtask in job_vertex.subtasks
                for prior in subtask.prior[max(0, len(subtask.prior) - priors_each) :]
            )
        ),
        tasks=task_counts((job_vertex,)),
        io_metrics=total(measured),
        measured=len(measured),
    )
    if progress is None:
        return info
    return replace(
        info,
        active_stages=_active_stages(progress),
        completed_stages=progress.completed_stages,
        completed_tasks=progress.completed_tasks,
        failed_tasks=progress.failed_tasks,
    )


def vertex_progress(
    job_vertex: ExecutionJobVertex, progress: SparkProgress | None
) -> VertexProgress:
    """Describe the current progress of a vertex, for clients. *progress*: progress of the vertex's
    Spark stage; None if there is none."""
    name, tasks = job_vertex.vertex.name, task_counts((job_vertex,))
    shown = VertexProgress(name, job_vertex.parallelism, tasks, job_vertex.is_coordinated)
    if progress is None:
        return shown
    return replace(
        shown,
        active_stages=_active_stages(progress),
        completed_stages=progress.completed_stages,
        completed_tasks=progress.completed_tasks,
    )


def places_of_streams(vertices: Iterable[ExecutionJobVertex]) -> tuple[ResourceID, ...]:
    """Return the ids of the TaskExecutors that may run tasks of streaming vertices now."""
    places = {
        execution.slot.location.resource_id: None
        for vertex in vertices
        if vertex.vertex.invokable.kind in (STREAM, MODEL)
        for execution in vertex.executions
        if execution.slot is not None and not execution.state.is_terminal
    }
    return tuple(places)


def task_counts(vertices: Iterable[ExecutionJobVertex]) -> dict[str, int]:
    """Count the current attempts by state.  Returns ExecutionState name -> number of attempts."""
    states = Counter(subtask.current.state for vertex in vertices for subtask in vertex.subtasks)
    return {state.name: number for state, number in states.items()}


def _active_stages(progress: SparkProgress) -> tuple[StageProgressInfo, ...]:
    return tuple(
        StageProgressInfo(
            stage.stage_id,
            stage.name,
            stage.num_tasks,
            stage.active_tasks,
            stage.completed_tasks,
            stage.failed_tasks,
        )
        for stage in progress.active_stages
    )


def _execution_info(
    execution: Execution, epoch_offset: float, running: Mapping[ExecutionAttemptID, IOMetrics]
) -> ExecutionInfo:
    times = {state.name: at + epoch_offset for state, at in execution.entered.items()}
    metrics, process = execution.io_metrics, execution.process
    if running and not execution.state.is_terminal:
        metrics = running.get(execution.attempt_id)
    return ExecutionInfo(
        subtask_index=execution.vertex.subtask_index,
        attempt_number=execution.attempt_number,
        state=execution.state,
        location=execution.location,
        executor_actor_id=None if process is None else process.actor_id,
        executor_pid=None if process is None else process.pid,
        start_time=times.get(ExecutionState.DEPLOYING.name),
        end_time=times[execution.state.name] if execution.state.is_terminal else None,
        state_timestamps=times,
        failure=None if execution.failure is None else execution.failure.text,
        io_metrics=metrics,
    )
