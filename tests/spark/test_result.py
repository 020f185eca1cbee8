"""Failures as the JobMaster and people read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException

from flinkray.core.errors import UnsupportedEnvironmentError
from flinkray.spark.result import (
    NO_RESULT,
    InvalidStageResultError,
    one_line,
    store_result,
    system_failure,
    user_failure,
)


def test_function_that_returns_none_has_no_result() -> None:
    assert store_result(None, "/nowhere") == NO_RESULT


@pytest.mark.parametrize("returned", [[1, 2], 7, "text", SimpleNamespace()])
def test_returned_value_that_is_no_dataframe_is_refused_with_what_is_accepted(
    returned: Any,
) -> None:
    with pytest.raises(InvalidStageResultError) as caught:
        store_result(returned, "/nowhere")

    assert type(returned).__name__ in str(caught.value)
    assert "pyspark.sql.DataFrame" in str(caught.value)
    assert "None" in str(caught.value)


def test_error_about_a_long_returned_value_is_shortened() -> None:
    with pytest.raises(InvalidStageResultError) as caught:
        store_result(list(range(1000)), "/nowhere")

    assert len(str(caught.value)) < 400


def test_error_about_a_returned_value_of_several_lines_has_one_line() -> None:
    with pytest.raises(InvalidStageResultError, match=r"a pandas.*DataFrame \(a 0 1\); a S"):
        store_result(pd.DataFrame({"a": [1]}), "/nowhere")


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_user_error_allows_restarts_and_shows_its_traceback() -> None:
    failure = user_failure(raised(ZeroDivisionError("division by zero")))

    assert (failure.error_type, failure.text) == (
        "ZeroDivisionError",
        "ZeroDivisionError: division by zero",
    )
    assert failure.is_user_error
    assert not failure.suppress_restarts
    assert "in raised" in failure.traceback


def test_wrong_return_value_suppresses_restarts_and_hides_framework_frames() -> None:
    failure = user_failure(raised(InvalidStageResultError("the function returned 7")))

    assert failure.suppress_restarts
    assert failure.text == "the function returned 7"
    assert "File" not in failure.traceback


def test_unsupported_environment_suppresses_restarts_and_is_no_user_error() -> None:
    failure = system_failure("x", "no Java", UnsupportedEnvironmentError("no Java"))

    assert failure.suppress_restarts
    assert not failure.is_user_error


def test_error_of_a_spark_worker_is_summarized_by_the_exception_of_the_user() -> None:
    class PythonException(Exception):  # noqa: N818 - PySpark's name
        pass

    error = PythonException(
        "\n  An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "pipeline.py", line 3, in f\nValueError: bad carrier\n'
    )

    assert one_line(error) == "ValueError: bad carrier (pipeline.py, line 3, in f)"


class Py4JJavaError(Exception):
    """Py4J's, which needs a JVM."""


OF_A_WRITE = """An error occurred while calling o196.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 1.0 (TID 6) (10.0.0.1 executor 1): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line \
1247, in main
    process()
  File "/jobs/flights.py", line 12, in ratio
    return late / flights
           ~~~~~^~~~~~~~~
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(P.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line \
1247, in main
    process()
  File "/jobs/flights.py", line 12, in ratio
    return late / flights
           ~~~~~^~~~~~~~~
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(P.scala:572)
\t... 1 more
"""


def test_spark_failure_shows_the_exception_of_the_user_before_that_of_spark() -> None:
    failure = user_failure(raised(Py4JJavaError(OF_A_WRITE)))

    assert failure.error_type == "ZeroDivisionError"
    assert failure.text == "ZeroDivisionError: division by zero (flights.py, line 12, in ratio)"
    assert failure.traceback.startswith(
        "Traceback (most recent call last):\n"
        '  File "/jobs/flights.py", line 12, in ratio\n'
        "    return late / flights\n"
        "           ~~~~~^~~~~~~~~\n"
        "ZeroDivisionError: division by zero\n"
        "\nSpark tells of it by this Py4JJavaError:\n"
    )
    assert "o196.parquet" in failure.traceback


HIVE = "org.apache.hadoop.hive."
NO_METASTORE = (
    f"{HIVE}ql.metadata.HiveException: java.lang.RuntimeException: Unable to instantiate "
    f"{HIVE}ql.metadata.SessionHiveMetaStoreClient"
)


def with_stack(error: Exception, stack: str) -> Exception:
    """As PySpark captures it of Java: the causes are in the stack."""
    error.stackTrace = stack  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException(NO_METASTORE),
        AnalysisException(f"{HIVE}metastore.api.MetaException: Got exception"),
        AnalysisException("org.apache.thrift.transport.TTransportException"),
        with_stack(AnalysisException("it failed"), "a.B: it failed\n\tat a.B.c(B.scala:1)\n"
                          "Caused by: java.net.ConnectException: Connection refused\n"),
        with_stack(AnalysisException("it failed"), "a.B: it failed\n\tat a.B.c(B.scala:1)\n"
                          "Caused by: java.sql.SQLTransientConnectionException: no pool\n"),
        IllegalArgumentException("java.net.UnknownHostException: namenode"),
    ],
)  # fmt: skip
def test_error_about_an_unreachable_spark_service_does_not_blame_the_program(
    error: Exception,
) -> None:
    failure = user_failure(raised(error))
    assert failure.program_error is None
    assert not failure.suppress_restarts


def test_unknown_column_counts_as_a_permanent_error_and_a_missing_path_as_temporary() -> None:
    no_column = with_stack(
        AnalysisException("[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved"),
        f"\tat {HIVE}client.SocketException.of(A.scala:1)",
    )
    no_path = AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/data/today.")
    told = [user_failure(raised(error)).program_error for error in (no_column, no_path)]
    assert [error is not None and error.may_pass for error in told] == [False, True]
    assert all(told)


def test_jvm_error_is_summarized_by_its_innermost_cause() -> None:
    text = (
        "An error occurred while calling o9.parquet.\n: org.apache.spark.SparkException: Job "
        "aborted.\n\tat a.B.c(B.scala:1)\nCaused by: java.io.IOException: No space left on device"
        "\n\tat a.B.d(B.scala:2)\n"
    )
    assert one_line(Py4JJavaError(text)) == (
        "java.io.IOException: No space left on device (An error occurred while calling o9.parquet)"
    )
    assert one_line(Py4JJavaError(text.partition("Caused")[0])) == (
        "org.apache.spark.SparkException: Job aborted. (An error occurred while calling o9.parquet)"
    )


def test_error_of_a_jvm_with_several_causes_is_summarized_by_the_innermost_cause() -> None:
    text = (
        "An error occurred while calling o9.parquet.\n: org.apache.spark.SparkException: Job "
        "aborted.\nCaused by: java.io.IOException: not read\nCaused by: java.net.E: no route\n"
    )
    assert one_line(Py4JJavaError(text)).startswith("java.net.E: no route (")


def test_error_of_a_worker_with_a_chain_of_exceptions_is_summarized_by_the_last_one() -> None:
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n\n'
    text = f"{first}During handling of the above exception, another exception occurred:\n\n"
    text += first.replace("line 1", "line 2").replace("KeyError: 1", "ValueError: no")
    assert one_line(Py4JJavaError(text)) == "ValueError: no (a.py, line 2, in f)"


def test_spark_error_of_several_lines_is_summarized_in_one_line() -> None:
    error = Py4JJavaError(OF_A_WRITE.replace("division by zero", "two\n  lines"))
    assert one_line(error) == "ZeroDivisionError: two lines (flights.py, line 12, in ratio)"


def test_error_without_text_is_summarized_by_its_type() -> None:
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
