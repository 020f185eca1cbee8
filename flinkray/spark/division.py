"""Fixes the session settings that decide how Spark divides rows into partitions.

Most of them follow from the slots of a job unless a user sets them. A job may continue from a
savepoint in the middle of a DataFrame. Then it must divide the DataFrame as the earlier job did,
whatever its slots are. So these settings are part of the savepoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flinkray.file_results import PublishedPartitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_LEAVES = "spark.sql.leafNodeDefaultParallelism"
DIVIDING = (
    _LEAVES,
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.shuffle.partitions",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)
"""Names of the settings that decide the division.

The last one divides a partition into batches, of which a reader has read some.
"""

_LOOK_INTERVAL = 0.2
_MOST_LOOKS = 300
"""Most looks for the earlier division: without a reader of the DataFrame, it is never known."""


def fixed_division(session: SparkSession, before: Mapping[str, str]) -> dict[str, str]:
    """Set the settings *before*, which an earlier job had, and return the settings that now apply.

    If *before* is empty, the session keeps its own settings.
    """
    if before:
        for name in DIVIDING:
            if name in before:
                session.conf.set(name, before[name])
            else:
                session.conf.unset(name)
    own = {name: session.conf.get(name, None) for name in DIVIDING}
    if own[_LEAVES] is None:
        own[_LEAVES] = str(session.sparkContext.defaultParallelism)
    return {name: value for name, value in own.items() if value is not None}


def division_before(location: str, stopping: threading.Event) -> dict[str, str]:
    """Return the settings by which the job that took the savepoint divided rows.

    Blocks until the stream reports these settings, at most a minute. Empty: no rows were read
    before the savepoint, the stream has reported nothing, or the stage is to stop.
    """
    published = PublishedPartitions(location)
    for _ in range(_MOST_LOOKS):
        division = published.division()
        if division is not None or stopping.wait(_LOOK_INTERVAL):
            return division or {}
    logger.warning("nobody says how the rows at %s were divided before", location)
    return {}
