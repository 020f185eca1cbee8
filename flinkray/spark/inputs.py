"""Reads the results of other vertices as inputs of a Spark stage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ResultPartitionID
from flinkray.file_results import FileResultLostError, ResultDirectory, list_files
from flinkray.spark.gateway import SparkStageInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


class NoColumnsError(FlinkRayError):
    """Raised if a result has no files, so that its columns are not known."""


def read_input(session: SparkSession, read: SparkStageInput) -> DataFrame:
    """Return a DataFrame with the rows of all files of a result.

    Raises:
        FileResultLostError: a part is gone.
        NoColumnsError: the result has no files.
        ResultSchemaError: the tasks that have written the result have given it different columns.
    """
    files = list_files(map(ResultDirectory, read.directories))
    paths = [f"{directory.location}/{file.name}" for directory, file in files]
    if not paths:
        raise NoColumnsError(
            f"the result of {read.name!r} has no rows, and its columns are not known: let each of "
            "its tasks yield at least one record batch, which may be empty"
        )
    frame: DataFrame = parquet_reader(session)(*paths)
    return frame


def missing_of(inputs: tuple[SparkStageInput, ...]) -> tuple[ResultPartitionID, ...]:
    """Return the ids of the result partitions of *inputs* whose directories have lost files. A
    directory that cannot be read because the storage fails counts as complete."""
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
    """Return a function that makes a DataFrame of Parquet files written by pyarrow. Their dates are
    Gregorian, however old; the files do not say so, and Spark 3.5 requires the information."""
    return session.read.option("datetimeRebaseMode", "CORRECTED").parquet
