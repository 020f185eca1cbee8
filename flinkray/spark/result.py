"""Converts the result or the error of the user's function to the report for the JobMaster.

The driver gets an error of the user's Python code in the message of a Java exception, between the
stacks of both languages: ``Py4JJavaError`` for a write, ``PythonException`` for a ``collect``.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import FlinkRayError, UnsupportedEnvironmentError
from flinkray.core.ids import ResultPartitionID
from flinkray.core.recurring_errors import (
    ProgramError,
    is_of_missing_things,
    is_of_program,
    program_error_of,
    will_recur,
    without_numbers,
)
from flinkray.file_results import ResultDirectory
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PACKAGE = __name__.rpartition(".")[0] + "."
_COUNT_PATIENCE = 20.0

_OF_SPARK_PROGRAM = frozenset({"AnalysisException", "IllegalArgumentException", "ParseException"})

_OF_SERVICES = re.compile(
    r"\.(HiveException|MetaException|T(Transport|Application|Protocol)?Exception|JDO\w*Exception|"
    r"SQL(Transient|NonTransientConnection|Recoverable)\w*Exception|(Standby|Retriable)Exception|"
    r"(Connect|Connection\w*|NoRouteToHost|PortUnreachable|Socket\w*|UnknownHost|\w*Timeout|EOF)"
    r"Exception)\b"
)
"""Java exception classes of services that are away or cannot work now.

Services are a metastore, a name node or a database.

The text includes the dot after their package.
"""
_NO_PATH = "[PATH_NOT_FOUND]"

NO_RESULT = SparkResult(location=None, num_rows=None, schema_json=None)

_AS_ARROW_HAS_THEM = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Settings so that Spark writes times as Arrow reads them.

By default Spark writes instants as INT96, which other readers take for nanoseconds without a zone:
instants before 1677 and after 2262 change. Spark does not write dates before 1582 by default.
"""


class InvalidStageResultError(FlinkRayError):
    """Raised if the user's function returned a value that cannot be the result of a Spark stage."""


def store_result(returned: Any, location: str, *, is_read: bool = False) -> SparkResult:
    """Store the DataFrame that the user's function returned, as Parquet; the executors write it.

    The files replace the result of an earlier attempt. *is_read*: other vertices read the result.
    Then the function must return a DataFrame, and a manifest of the result's files is written.

    Raises InvalidStageResultError: neither a bounded DataFrame nor an allowed None was returned.
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
    directory = ResultDirectory(location)
    if is_read:
        directory.seal()
    else:
        directory.restrict()
    return SparkResult(location=location, num_rows=rows, schema_json=returned.schema.json())


def _write_and_count(frame: DataFrame, location: str) -> int:
    """Write a DataFrame as Parquet to *location* and return its number of rows, counted while they
    are written."""
    from pyspark.sql import Observation, functions

    observation = Observation()
    counted = frame.observe(observation, functions.count(functions.lit(1)).alias("rows"))
    with _settings(frame.sparkSession, _AS_ARROW_HAS_THEM):
        counted.write.mode("overwrite").parquet(location)
    answer: list[int] = []
    # Spark drops events when its listener bus is overrun; the wait would then never end.
    waiter = threading.Thread(
        target=lambda: answer.append(int(observation.get["rows"])), daemon=True
    )
    waiter.start()
    waiter.join(_COUNT_PATIENCE)
    return answer[0] if answer else frame.sparkSession.read.parquet(location).count()


@contextmanager
def _settings(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
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
    """Return the failure to report for an error that the user caused. Its traceback begins at the
    user's own function, or with the exception of a Python worker."""
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
        suppress_restarts=will_recur(error),
        program_error=_program_error(error, cause),
    )


def _program_error(error: BaseException, cause: PythonCause | None) -> ProgramError | None:
    """Return a description of an error that the user's program causes; it is equal when the error
    is repeated. None: the program did not cause it. The program causes exceptions in its Python
    workers (*cause*) and in its function, and Spark's errors about a missing table, folder or
    column."""
    if cause is not None:
        kind = f"{cause.error_type} at {cause.place}: {without_numbers(cause.message)}"
        may_pass = is_of_missing_things(cause.error_type)
        return ProgramError(kind, may_pass=may_pass) if is_of_program(cause.error_type) else None
    if any(base.__name__ in _OF_SPARK_PROGRAM for base in type(error).__mro__):
        if _tells_of_a_service(error):
            return None
        kind = without_numbers(f"{type(error).__name__}: {one_line(error)}")
        return ProgramError(kind, may_pass=_NO_PATH in str(error))
    return program_error_of(error)


def _tells_of_a_service(error: BaseException) -> bool:
    """Return whether the error says that a service, such as a metastore, does not answer. The class
    of the service's exception is in the message or in the Java stack trace of the error."""
    stack = getattr(error, "stackTrace", None) or getattr(error, "_stackTrace", None)
    lines = [*str(error).splitlines(), *(stack or "").splitlines()]
    return any(_OF_SERVICES.search(line) for line in lines if not line.startswith("\tat "))


def system_failure(
    error_type: str, text: str, error: BaseException | None = None
) -> CoordinatorFailure:
    """Return the failure to report for an error of Spark or Ray. Running the stage again may
    succeed, except for an UnsupportedEnvironmentError, which suppresses restarts."""
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
    """Return the failure to report when the partitions *missing* of the stage's input are lost:
    they are produced again, and the stage runs again."""
    failure = system_failure("FileResultLostError", f"its input is lost: {one_line(error)}", error)
    return replace(failure, missing_partitions=missing)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without its outer frames that belong to this package."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        rest = rest.tb_next
    return rest if rest is not None else trace


def one_line(error: BaseException) -> str:
    """Return type and first line of an error, for users. For an error in a Python worker: its
    message and its place in the code. For an error in a JVM: the innermost exception."""
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
    """Return a description of a value that a function must not return, for error texts."""
    text = " ".join(repr(value).split())
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"a {kind} ({text if len(text) <= 60 else text[:57] + '...'})"


_BEGINNING = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_JAVA = re.compile(r"^\s*(at [\w.$/]+[(<]|\.\.\. \d+ more$|Caused by: |Driver stacktrace:$)")
_CAUSED_BY = "Caused by: "
_NOT_THE_USERS = ("/pyspark/", "/site-packages/", "/dist-packages/", "/pyspark.zip/")


@dataclass(frozen=True)
class PythonCause:
    """An exception in a Python worker, as extracted from a text of Spark."""

    error_type: str
    message: str
    """Type and text, as in the last lines of the traceback."""
    traceback: str
    """Traceback from the first frame of the user's code on."""
    place: str | None
    """Innermost frame of the user's code: ``name.py, line 3, in f``. None: no frame is the
    user's."""


def python_cause(text: str) -> PythonCause | None:
    """Return the innermost Python exception in a text. None: no Python code has failed."""
    at = text.rfind(_BEGINNING)
    if at < 0:
        return None
    lines = []
    for line in text[at:].splitlines()[1:]:
        if _JAVA.match(line):
            break
        lines.append(line)
    last_frame = next((i for i in reversed(range(len(lines))) if _FRAME.match(lines[i])), None)
    if last_frame is None:
        return None
    said = last_frame + 1
    while said < len(lines) and lines[said].startswith("    "):  # code, and marks below it
        said += 1
    message = "\n".join(lines[said:]).strip()
    if not message:
        return None
    frames = [(i, match) for i, line in enumerate(lines) if (match := _FRAME.match(line))]
    users = [(i, m) for i, m in frames if not any(part in m["file"] for part in _NOT_THE_USERS)]
    first = users[0][0] if users else frames[0][0]
    place = None
    if users:
        match = users[-1][1]
        name = match["file"].rpartition("/")[2]
        place = f"{name}, line {match['line']}, in {match['function']}"
    shown = [_BEGINNING, *lines[first:said], message]
    error_type = re.split(r"[:\s]", message, maxsplit=1)[0].rpartition(".")[2]
    return PythonCause(error_type, message, "\n".join(shown) + "\n", place)


def java_cause(text: str) -> str | None:
    """Return the line of the innermost Java exception in an error's text. None: the text has
    none."""
    causes = [line.strip() for line in text.splitlines() if line.startswith(_CAUSED_BY)]
    if causes:
        return causes[-1].removeprefix(_CAUSED_BY)
    lines = text.splitlines()
    told = next((line for line in lines if line.startswith(": ")), None)  # Py4J's second line
    return None if told is None else told.removeprefix(": ").strip()
