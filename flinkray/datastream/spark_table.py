"""Tables that Spark computes, for records of streams to look up."""

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
    """What :func:`spark_table` gives; for :meth:`KeyedStream.look_up
    <flinkray.datastream.KeyedStream.look_up>`, of one stream or several."""

    name: str
    columns: tuple[str, ...]
    """The key."""
    stage: JobVertex
    """Computes the table."""
    uid: str | None

    @property
    def key_selector(self) -> Any:
        """Of a row: the value of the column, or a tuple of those of several."""
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
    """The rows of the DataFrame that ``function(spark)`` returns, to be looked up by a key that
    each of them has for itself.

    The function runs in the slots of the job, beside the program, and its rows become state of the
    operator that looks them up; see docs/spark.md.

    Args:
        key: the column of the key.  Of several columns, the key is a tuple of their values.
        name: in the plan, and in errors.
        uid: of the operator that reads the table, for savepoints; needed where a program gives all
            operators one.
        executors: Spark executors, each in a slot of its own.
        cpu: cores of each of these slots.
        memory: of each, as ``"1500m"``, ``"2g"`` or bytes.
        spark_conf: Spark properties; those that flinkray sets itself are refused.
        session: name of a Spark session that stages and jobs share, which has these executors;
            see :func:`flinkray.spark_job`.

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
