"""Programs in this process: what their functions find around them, and what runs them."""

from __future__ import annotations

import decimal
import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.errors import JobCancelledError
from flinkray.datastream import FlatMapFunction, MapFunction, StreamExecutionEnvironment
from flinkray.datastream.common import JobStatus, WatermarkStrategy
from flinkray.datastream.connectors import CallbackSink, FileSink, IteratorSource
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.waiting import wait_until


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture(autouse=True)
def decimal_context() -> Iterator[decimal.Context]:
    with decimal.localcontext(decimal.Context(prec=28)) as context:
        yield context


def digits(value: Any) -> Any:
    return len((decimal.Decimal(1) / 7).as_tuple().digits)


def test_functions_use_the_decimal_context_of_the_calling_program(
    decimal_context: decimal.Context,
) -> None:
    decimal_context.prec = 50
    assert list(environment().from_collection([1]).map(digits).execute_and_collect()) == [50]


class OfPrecision(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        decimal.setcontext(decimal.Context(prec=40))

    def map(self, value: Any) -> Any:
        found = digits(value)
        decimal.setcontext(decimal.Context(prec=found + 1))
        return found


def test_decimal_context_set_by_a_function_stays_within_its_task() -> None:
    stream = environment().from_collection(range(100)).rebalance()
    results = list(stream.map(OfPrecision()).execute_and_collect())
    assert results == list(range(40, 140))
    assert digits(None) == 28


class Fails(FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        yield from range(1000)
        raise ValueError("within")


class Inner(MapFunction[Any, Any]):
    """Takes the results of another program, one for each record."""

    def open(self, runtime_context: Any) -> None:
        stream = environment().from_collection([0]).flat_map(Fails())
        self.results = stream.execute_and_collect()

    def map(self, value: Any) -> Any:
        try:
            return next(self.results, "ended")
        except OperatorError:
            return "failed"

    def close(self) -> None:
        self.results.close()


def test_error_of_a_program_run_inside_a_function_is_raised_where_results_are_read() -> None:
    """The inner task is paused in one step of the outer task and fails in a later step."""
    stream = environment().from_collection(range(1001)).rebalance().map(Inner())
    results = [*stream.execute_and_collect()]
    assert results.count("failed") == 1


class Owned(MapFunction[Any, Any]):
    """What it opens belongs to the thread that opened it, as connections of SQLite do."""

    def open(self, runtime_context: Any) -> None:
        self.owner = threading.get_ident()

    def map(self, value: Any) -> Any:
        assert threading.get_ident() == self.owner
        return value

    def close(self) -> None:
        assert threading.get_ident() == self.owner


def test_function_is_opened_called_and_closed_in_one_thread() -> None:
    env = environment()
    env.from_collection([1]).map(Owned()).sink_to(CallbackSink(lambda value: None))
    env.execute_async().get_job_execution_result().result(300)


class CannotOpen(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        raise ValueError("no way")

    def map(self, value: Any) -> Any:
        return value


def test_program_whose_function_cannot_be_opened_fails_in_execute_async() -> None:
    env = environment()
    env.from_collection([1]).map(CannotOpen()).sink_to(CallbackSink(lambda value: None))
    with pytest.raises(OperatorError, match="no way"):
        env.execute_async()


class FailsAtTheEnd(MapFunction[Any, Any]):
    def map(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        raise ValueError("no end")


class Gone(BaseException):
    """No Exception."""


def leave(value: Any) -> Any:
    raise Gone(value)


@pytest.mark.parametrize(
    ("function", "error"), [(FailsAtTheEnd(), ValueError), (leave, Gone)], ids=["close", "leave"]
)
def test_result_of_execute_async_raises_any_kind_of_exception_of_a_function(
    function: Any, error: type[BaseException]
) -> None:
    env = environment()
    env.from_collection([1]).map(function).sink_to(CallbackSink(lambda value: None))
    job = env.execute_async()
    with pytest.raises(error):
        job.get_job_execution_result().result(300)
    assert job.get_job_status().result() is JobStatus.FAILED


@pytest.mark.parametrize("function", [FailsAtTheEnd(), lambda value: value], ids=["fails", "ends"])
def test_a_program_that_was_cancelled_has_no_result(function: Any) -> None:
    env = environment()
    numbers = env.from_source(
        IteratorSource.of(itertools.count), WatermarkStrategy.no_watermarks(), "numbers"
    )
    numbers.map(function).sink_to(CallbackSink(lambda value: None))
    job = env.execute_async()
    job.cancel().result(300)
    with pytest.raises(JobCancelledError, match="was cancelled"):
        job.get_job_execution_result().result(300)
    assert job.get_job_status().result() is JobStatus.CANCELED


FUNCTIONS = """
import itertools
import threading
from flinkray.datastream import FlatMapFunction

begun = threading.Event()

class Endless(FlatMapFunction):
    def flat_map(self, value):
        for number in itertools.count():
            begun.set()
            yield number

    def close(self):
        print("closed")
"""
PROGRAM = """
import functions
from flinkray.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
numbers = env.from_collection([1]).flat_map(functions.Endless())
numbers.filter(lambda value: False).print()
env.execute_async()
functions.begun.wait(300)
"""


def test_a_program_that_still_runs_is_cancelled_when_the_process_ends(tmp_path: Path) -> None:
    """Otherwise the interpreter ends the thread in the middle of a greenlet, and crashes."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr


class Numbers(FlatMapFunction[Any, Any]):
    """More results than one portion has."""

    def flat_map(self, value: Any) -> Any:
        yield from range(100_000)


def in_another_thread(action: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(action())
        except OperatorError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_results_of_one_record_cannot_be_read_by_a_second_thread() -> None:
    results = environment().from_collection([1]).flat_map(Numbers()).execute_and_collect()
    assert next(results) == 0
    error = in_another_thread(lambda: list(results))
    assert "take all of its results in one thread" in str(error)


def test_results_iterator_can_be_closed_by_another_thread_in_the_middle_of_a_record() -> None:
    results = environment().from_collection([1]).flat_map(Numbers()).execute_and_collect()
    assert next(results) == 0
    assert in_another_thread(results.close) is None


@pytest.mark.parametrize("arguments", [{"limit": -1}, {"job_execution_name": -1}])
def test_a_negative_number_of_results_is_refused_before_the_program_begins(arguments: Any) -> None:
    begun: list[int] = []
    stream = environment().from_collection([1]).map(begun.append)
    with pytest.raises(ValueError, match="a limit of records must not be negative, got -1"):
        stream.execute_and_collect(**arguments)
    assert begun == []


def test_limited_results_are_returned_as_soon_as_the_limit_is_reached() -> None:
    """The source gives no further record."""
    given = threading.Event()
    was_in_time: list[bool] = []

    def two_and_then_nothing() -> Iterator[int]:
        yield from (1, 2)
        was_in_time.append(given.wait(10))

    source = IteratorSource.of(two_and_then_nothing, bounded=False)
    assert environment().from_source(source).execute_and_collect(limit=2) == [1, 2]
    given.set()
    assert False not in was_in_time


def test_file_sink_publishes_its_files_at_the_end_of_its_input_not_of_the_program(
    tmp_path: Path,
) -> None:
    """The other stream of the program ends only when it has seen the files."""

    def texts() -> list[str]:
        return sorted(file.read_text() for file in tmp_path.glob("part-*"))

    def until_files_are_there() -> Iterator[list[str]]:
        wait_until(lambda: len(texts()) == 2, 60, "two files")
        yield texts()

    taken: list[list[str]] = []
    env = environment().set_parallelism(2)
    env.from_collection(["a", "b"]).rebalance().sink_to(FileSink(tmp_path))
    source = IteratorSource.of(until_files_are_there)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "files").sink_to(
        CallbackSink(taken.append)
    )
    env.execute()
    assert taken == [["a\n", "b\n"]]


read_by_a_function: list[Any] = []
"""Results of the program that :func:`with_the_next` reads."""


def with_the_next(number: int) -> int:
    return number + next(read_by_a_function[-1], 0)


def test_program_whose_results_a_function_of_another_program_reads_can_be_closed() -> None:
    """Control came to the other program's task, which went on for ever."""
    inner = environment().from_collection(list(range(10_000))).map(abs).execute_and_collect()
    read_by_a_function.append(inner)
    numbers = environment().from_collection(list(range(1000)))
    outer = iter(numbers.map(with_the_next).execute_and_collect())
    assert next(outer) == 0
    inner.close()
    assert len(list(outer)) == 999


def test_results_can_be_read_by_one_thread_after_another_has_ended() -> None:
    """The next thread often has the identifier of the last one."""
    numbers = environment().from_collection(list(range(5000)))
    results = iter(numbers.map(abs).execute_and_collect())
    read: list[int] = []
    for _ in range(8):
        thread = threading.Thread(target=lambda: read.extend(itertools.islice(results, 600)))
        thread.start()
        thread.join()
    assert read == list(range(4800))


def test_program_whose_results_nobody_reads_to_the_end_is_freed() -> None:
    results = environment().from_collection([1, 2, 3]).map(abs).execute_and_collect()
    assert next(iter(results)) == 1
    job = weakref.ref(results._job)  # type: ignore[attr-defined]
    del results
    gc.collect()
    assert job() is None
