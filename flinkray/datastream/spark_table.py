"""Tables that Spark computes and in which records of streams look up rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import ConfigurationError
from flinkray.scheduler.graph.job_graph import JobVertex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, eq=False)
class SparkTable:
    """Table of :func:`spark_table`, in which :meth:`KeyedStream.look_up
    <flinkray.datastream.KeyedStream.look_up>` looks up rows. Several streams may use the same
    table."""

    name: str
    columns: tuple[str, ...]
    """Columns of the key."""
    stage: JobVertex
    """Spark stage that computes the table."""
    uid: str | None

    @property
    def key_selector(self) -> Any:
        """Return the key selector for the rows of the table: the name of the key's column, or, if
        the key has several columns, a function from a row to a tuple of their values."""
        return self.columns[0] if len(self.columns) == 1 else itemgetter(*self.columns)


def spark_table(
    function: Callable[[SparkSession], DataFrame],
    key: str | Sequence[str],
    *,
    name: str = "Spark table",
    uid: str | None = None,
    executors: int = 1,
    cpu: float = 1,
    memory: int | str = "1g",
    spark_conf: Mapping[str, object] | None = None,
    session: str | None = None,
) -> SparkTable:
    """Make a table for look-ups by a unique key.

    The rows of the table are those of the DataFrame that ``function(spark)`` returns.

    The function runs in the slots of the job, beside the program. Its rows become state of the
    operator that looks them up; see docs/spark.md.

    Args:
        key: the column of the key. For several columns, the key is a tuple of their values.
        name: name of the table in the plan and in errors.
        uid: uid of the operator that reads the table, for savepoints; needed if a program gives all
            operators one.
        executors: Spark executors, each in a slot of its own.
        cpu: cores of each of these slots.
        memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
        spark_conf: Spark properties; properties that flinkray sets itself are refused.
        session: name of a Spark session that stages and jobs share, which has these executors; see
            :func:`flinkray.spark_job`.

    Raises:
        ConfigurationError: an argument is not acceptable; the text names it.
        UserCodeError: the function cannot be sent to the cluster.
    """
    from flinkray.client.spark_stages import ExecutorSlots, table_spark_stage

    columns = (key,) if isinstance(key, str) else tuple(key)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise ConfigurationError(
            f"the key of the table {name!r} is the name of a column, or a list of names; got "
            f"{key!r}"
        )
    slots = ExecutorSlots(executors, cpu, memory, spark_conf, session)
    stage = table_spark_stage(function, columns, name, slots)
    return SparkTable(name, columns, stage, uid)
