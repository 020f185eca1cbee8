"""Defines the reports of a Spark driver about the stage that it runs."""

from __future__ import annotations

from flinkray.core.message import message


@message
class SparkExecutorInfo:
    """One executor of a stage, as Ray and Spark see it."""

    subtask_index: int
    executor_id: str
    """Spark's id."""
    actor_id: str
    """Ray's id of the executor's actor, in hexadecimal."""
    node_id: str
    pid: int
    bundle_index: int


@message
class SparkStageProgress:
    """Spark's counts of one Spark stage (in a Spark job that the user's function runs)."""

    stage_id: int
    name: str
    num_tasks: int
    active_tasks: int
    completed_tasks: int
    failed_tasks: int


@message
class SparkProgress:
    """Spark's activity: running stages, and totals since the session began."""

    active_stages: tuple[SparkStageProgress, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0


@message
class SparkResult:
    """Reports that the user's function has ended, and the DataFrame that it returned, if any. The
    DataFrame is stored as Parquet at ``location``.  All fields are None if the function returned
    None."""

    location: str | None
    num_rows: int | None
    schema_json: str | None
    """Spark's JSON form of the schema; None without a DataFrame."""
