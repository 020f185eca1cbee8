"""What a Spark driver reports of the stage that it runs."""

from __future__ import annotations

from flinkray.core.message import message


@message
class SparkExecutorInfo:
    """One executor of a stage, as Ray and Spark see it."""

    subtask_index: int
    executor_id: str
    """Spark's id."""
    actor_id: str
    """Ray's id of the executor's actor, hex."""
    node_id: str
    pid: int
    bundle_index: int


@message
class SparkStageProgress:
    """Spark's own count of one Spark stage (of a Spark job that the user's function runs)."""

    stage_id: int
    name: str
    num_tasks: int
    active_tasks: int
    completed_tasks: int
    failed_tasks: int


@message
class SparkProgress:
    """What Spark is doing: running stages, and totals since the session began."""

    active_stages: tuple[SparkStageProgress, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0


@message
class SparkResult:
    """The user's function is done: it returned nothing, or a DataFrame that now lies as Parquet."""

    location: str | None
    num_rows: int | None
    schema_json: str | None
    """Spark's own JSON form of the schema."""
