"""From what the user's function returned to what the JobMaster is told."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import FlinkRayError, UnsupportedEnvironmentError
from flinkray.core.ids import ResultPartitionID
from flinkray.file_results import ResultDirectory
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.python_causes import java_cause, python_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PACKAGE = __name__.rpartition(".")[0] + "."
_COUNT_PATIENCE = 20.0

NO_RESULT = SparkResult(location=None, num_rows=None, schema_json=None)

_AS_ARROW_HAS_THEM = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""By default Spark writes instants as INT96, which everybody else takes for nanoseconds without a
zone: those before 1677 and after 2262 turn into other ones.  Dates before 1582 it does not write.
"""


class InvalidStageResultError(FlinkRayError):
    """The user's function returned something that is no result of a Spark stage."""


def store_result(returned: Any, location: str, *, is_read: bool = False) -> SparkResult:
    """Write a returned DataFrame as Parquet, by the executors; None is no result.

    An existing result at *location* (of an earlier attempt) is replaced.  *is_read*: other vertices
    of the job read it, so there must be one, and it gets its manifest.

    Raises:
        InvalidStageResultError: neither a DataFrame nor None was returned.
    """
    from pyspark.sql import DataFrame

    if returned is None and is_read:
        raise InvalidStageResultError(
            "the function returned None, and another stage of the job reads its result: return a "
            "pyspark.sql.DataFrame"
        )
    if returned is None:
        return NO_RESULT
    if not isinstance(returned, DataFrame):
        raise InvalidStageResultError(
            f"the function returned {described(returned)}; a Spark stage's function returns a "
            "pyspark.sql.DataFrame (its rows become the job's result) or None (it has written "
            "its results itself)"
        )
    if returned.isStreaming:
        raise InvalidStageResultError(
            "the function returned a streaming DataFrame; a Spark stage's result is bounded: "
            "read with spark.read instead of spark.readStream"
        )
    rows = _write_and_count(returned, location)
    if is_read:
        ResultDirectory(location).seal()
    return SparkResult(location=location, num_rows=rows, schema_json=returned.schema.json())


def _write_and_count(frame: DataFrame, location: str) -> int:
    """The rows are counted while they are written; no second pass over the data."""
    from pyspark.sql import Observation, functions

    observation = Observation()
    counted = frame.observe(observation, functions.count(functions.lit(1)).alias("rows"))
    with _settings(frame.sparkSession, _AS_ARROW_HAS_THEM):
        counted.write.mode("overwrite").parquet(location)
    answer: list[int] = []
    # Spark drops events when its listener bus is overrun, and would then let us wait for ever.
    waiter = threading.Thread(
        target=lambda: answer.append(int(observation.get["rows"])), daemon=True
    )
    waiter.start()
    waiter.join(_COUNT_PATIENCE)
    return answer[0] if answer else frame.sparkSession.read.parquet(location).count()


@contextmanager
def _settings(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """While active, a session has these."""
    before = {key: session.conf.get(key, None) for key in properties}
    for key, value in properties.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, earlier)


def user_failure(error: BaseException) -> CoordinatorFailure:
    """A failure that the user caused; the traceback begins at the user's own function, or with what
    a Python worker has raised in it."""
    is_final = isinstance(error, FlinkRayError)
    lines = (
        [f"{type(error).__name__}: {error}\n"]
        if is_final
        else traceback.format_exception(type(error), error, _user_part(error.__traceback__))
    )
    error_type = type(error).__name__
    cause = None if is_final else python_cause(str(error))
    if cause is not None:
        error_type = cause.error_type
        lines = [
            cause.traceback,
            f"\nSpark tells of it by this {type(error).__name__}:\n\n",
            *lines,
        ]
    return CoordinatorFailure(
        error_type=error_type,
        text=str(error) if is_final else one_line(error),
        traceback="".join(lines),
        is_user_error=True,
        suppress_restarts=is_final,
    )


def system_failure(
    error_type: str, text: str, error: BaseException | None = None
) -> CoordinatorFailure:
    """A failure of the machinery: the same function may succeed when the stage is run again."""
    lines = (
        traceback.format_exception(type(error), error, error.__traceback__)
        if error is not None
        else []
    )
    return CoordinatorFailure(
        error_type=error_type,
        text=text,
        traceback="".join(lines),
        is_user_error=False,
        suppress_restarts=isinstance(error, UnsupportedEnvironmentError),
    )


def input_failure(
    error: BaseException, missing: tuple[ResultPartitionID, ...]
) -> CoordinatorFailure:
    """What the stage was to read is gone: it is produced again, and the stage is run again."""
    failure = system_failure("FileResultLostError", f"its input is lost: {one_line(error)}", error)
    return replace(failure, missing_partitions=missing)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Without this package's own frames at the outer end."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        rest = rest.tb_next
    return rest if rest is not None else trace


def one_line(error: BaseException) -> str:
    """Type and first line; of an error inside a Python worker, that error's own, and where it
    arose; of one inside a JVM, the innermost."""
    text = str(error).strip()
    cause = python_cause(text)
    if cause is not None:
        message = " ".join(cause.message.split())
        return message if cause.place is None else f"{message} ({cause.place})"
    if type(error).__name__ == "Py4JJavaError":
        inner = java_cause(text)
        if inner is not None:
            return f"{inner} ({text.splitlines()[0].rstrip('.')})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {lines[0]}"


def described(value: object) -> str:
    """A value that is not what was wanted, for errors."""
    text = " ".join(repr(value).split())
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"a {kind} ({text if len(text) <= 60 else text[:57] + '...'})"
