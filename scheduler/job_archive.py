"""An execution graph as clients see it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flinkray.scheduler.execution import Execution
from flinkray.scheduler.execution_graph import ExecutionJobVertex
from flinkray.scheduler.execution_info import ExecutionInfo
from flinkray.scheduler.job_info import StageProgressInfo, VertexInfo
from flinkray.scheduler.many_executions import packed
from flinkray.scheduler.states import ExecutionState

if TYPE_CHECKING:
    from flinkray.spark.gateway import SparkProgress

PRIORS_SHOWN = 100_000
"""Earlier attempts of one vertex that clients see, so that a message can hold them: of each subtask
the newest few."""


def vertex_info(
    job_vertex: ExecutionJobVertex, epoch_offset: float, progress: SparkProgress | None = None
) -> VertexInfo:
    """A vertex now; *epoch_offset* turns monotonic seconds into seconds since the epoch."""
    vertex = job_vertex.vertex
    priors_each = PRIORS_SHOWN // job_vertex.parallelism
    info = VertexInfo(
        vertex.vertex_id,
        vertex.name,
        job_vertex.parallelism,
        packed(tuple(_execution_info(e, epoch_offset) for e in job_vertex.executions)),
        max_parallelism=job_vertex.max_parallelism,
        prior_executions=packed(
            tuple(
                _execution_info(prior, epoch_offset)
                for subtask in job_vertex.subtasks
                for prior in subtask.prior[max(0, len(subtask.prior) - priors_each) :]
            )
        ),
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


def _execution_info(execution: Execution, epoch_offset: float) -> ExecutionInfo:
    times = {state.name: at + epoch_offset for state, at in execution.entered.items()}
    return ExecutionInfo(
        subtask_index=execution.vertex.subtask_index,
        attempt_number=execution.attempt_number,
        state=execution.state,
        location=execution.location,
        executor_actor_id=execution.executor_actor_id,
        executor_pid=execution.executor_pid,
        start_time=times.get(ExecutionState.DEPLOYING.name),
        end_time=times[execution.state.name] if execution.state.is_terminal else None,
        state_timestamps=times,
        failure=None if execution.failure is None else execution.failure.text,
    )
