"""What a Spark stage reads of other vertices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ResultPartitionID
from flinkray.file_results import FileResultLostError, ResultDirectory
from flinkray.spark.gateway import SparkStageInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


class NoColumnsError(FlinkRayError):
    """A result has no rows, and nobody knows what columns it would have."""


def read_input(session: SparkSession, read: SparkStageInput) -> DataFrame:
    """The rows of all files of a result.

    Raises:
        FileResultLostError: some of it is gone.
        NoColumnsError: it has no files.
    """
    paths = [
        f"{directory.location}/{file.name}"
        for directory in map(ResultDirectory, read.directories)
        for file in directory.list()
    ]
    if not paths:
        raise NoColumnsError(
            f"the result of {read.name!r} has no rows, and its columns are not known: let each of "
            "its tasks yield at least one record batch, which may be empty"
        )
    frame: DataFrame = parquet_reader(session)(*paths)
    return frame


def missing_of(inputs: tuple[SparkStageInput, ...]) -> tuple[ResultPartitionID, ...]:
    """What is not there (any more): a partition of each directory that has lost something.  What
    cannot be asked for, as the storage fails, is not taken for lost."""
    missing = []
    for read in inputs:
        for location, partition in zip(read.directories, read.partitions, strict=True):
            try:
                ResultDirectory(location).list()
            except FileResultLostError:
                missing.append(partition)
            except OSError as error:
                logger.warning("cannot look at %s: %s", location, error)
    return tuple(missing)


def parquet_reader(session: SparkSession) -> Callable[..., DataFrame]:
    """Reads files that pyarrow has written: dates are Gregorian in them, however old they are, as
    Spark has them; the files do not say so, and Spark 3.5 asks."""
    return session.read.option("datetimeRebaseMode", "CORRECTED").parquet
