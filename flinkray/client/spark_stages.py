"""Makes Spark stages that run in one job with streams, from a user's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flinkray.client.spark_jobs import slot_profile, spark_properties
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import JobVertexID
from flinkray.scheduler.graph.job_graph import SPARK, Invokable, JobVertex
from flinkray.spark.executor_memory import split_memory
from flinkray.spark.gateway import EPOCHS, PARTITIONS, PUBLISHED, RESULT_KIND, THROUGH
from flinkray.spark.micro_batches import streamed
from flinkray.spark.session_requests import GUEST_PROFILE, guest_configuration
from flinkray.spark.stage_code import SparkEpochFunction, SparkFunction
from flinkray.spark.stage_properties import refuse_owned
from flinkray.spark.tables import with_key
from flinkray.user_code import UserCodeError, dump_function

_OF_A_SESSION = "a function of a SparkSession"
_OF_AN_EPOCH = "a function of a DataFrame and the id of a checkpoint"


@dataclass(frozen=True, slots=True)
class ExecutorSlots:
    """Describes the slots that a user asks for a Spark stage. Each slot has one Spark executor."""

    number: int
    cpu: float
    """Cores of each executor."""
    memory: int | str
    """Memory of each executor, as ``"1500m"``, ``"2g"`` or bytes."""
    spark_conf: Mapping[str, object] | None
    """Spark properties."""
    session: str | None = None
    """Name of the Spark session, shared by stages and jobs, that has these executors."""


def published_spark_stage(function: SparkFunction, name: str, slots: ExecutorSlots) -> JobVertex:
    """Make a Spark stage whose partitions a stream of the same job reads.

    Raises:
        ConfigurationError: an argument is not acceptable; the text names it.
        UserCodeError: the function cannot be sent to the cluster.
    """
    _check("from_spark", _OF_A_SESSION, function, slots)
    return _stage(function, name, slots, PARTITIONS)


def table_spark_stage(
    function: SparkFunction, key: Sequence[str], name: str, slots: ExecutorSlots
) -> JobVertex:
    """Make a Spark stage whose rows form a table. A stream of the same job looks up rows by the
    columns *key*. Raises ConfigurationError or UserCodeError as :func:`published_spark_stage`
    does."""
    _check("spark_table", _OF_A_SESSION, function, slots)
    return _stage(with_key(function, tuple(key)), name, slots, PARTITIONS)


def streaming_spark_stage(
    function: SparkFunction,
    name: str,
    slots: ExecutorSlots,
    trigger: Mapping[str, object] | None,
    output_mode: str,
) -> JobVertex:
    """Make a Spark stage whose micro-batches a stream of the same job reads.

    Raises ConfigurationError or UserCodeError as :func:`published_spark_stage` does.
    """
    _check("from_spark_stream", _OF_A_SESSION, function, slots)
    return _stage(streamed(function, trigger, output_mode), name, slots, PUBLISHED)


def epochs_spark_stage(
    function: SparkEpochFunction, name: str, slots: ExecutorSlots, *, is_read: bool
) -> JobVertex:
    """Make a Spark stage whose function is called with the rows of each checkpoint (an *epoch*) of
    a stream of the same job. *is_read*: whether a stream reads the function's results. Raises
    ConfigurationError or UserCodeError as :func:`published_spark_stage` does."""
    _check("through_spark" if is_read else "to_spark", _OF_AN_EPOCH, function, slots)
    return _stage(function, name, slots, THROUGH if is_read else EPOCHS)


def _check(called: str, takes: str, function: object, slots: ExecutorSlots) -> None:
    if slots.number < 1:
        raise ConfigurationError(f"{called} takes at least one executor, got {slots.number!r}")
    if not callable(function):
        raise UserCodeError(f"{called} takes {takes}, not {type(function).__name__}: {function!r}")


def _stage(function: Callable[..., Any], name: str, slots: ExecutorSlots, kind: str) -> JobVertex:
    profile = slot_profile(slots.cpu, slots.memory)
    properties = spark_properties(slots.spark_conf)
    refuse_owned(properties)
    split_memory(profile, properties.get("spark.executor.memoryOverhead"))
    number = slots.number
    if slots.session is not None:
        properties = guest_configuration(slots.session, number, profile, properties)
        number, profile = 1, GUEST_PROFILE
    vertex_id = JobVertexID.generate()
    return JobVertex(
        vertex_id,
        f"Spark: {name}",
        number,
        profile,
        Invokable(SPARK, dump_function(function), {**properties, RESULT_KIND: kind}),
        slot_sharing_group=f"spark-{vertex_id.short()}",
    )
