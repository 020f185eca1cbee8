"""The operator of a Python stage: a function of record batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import IntermediateDataSetID
from flinkray.file_results import ResultDirectory, ResultWriter, share_of
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError, operator_error
from flinkray.streaming.operators.python_stage import BatchFunctionOperator
from flinkray.streaming.operators.task_services import TaskServices
from flinkray.streaming.sources.result_files import ResultFileSplit
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW
from flinkray.testing.operator_harness import OperatorHarness

LEFT, RIGHT = IntermediateDataSetID(b"l" * 16), IntermediateDataSetID(b"r" * 16)
RESULT = IntermediateDataSetID(b"o" * 16)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


class Stage:
    """A task of a stage; *written* is its result."""

    def __init__(self, function: Any, *inputs: IntermediateDataSetID, is_read: bool = True) -> None:
        self.written: list[pa.RecordBatch] = []
        written = self.written

        class Services(TaskServices):
            def file_writer(self, data_set_id: IntermediateDataSetID) -> Any:
                assert data_set_id == RESULT
                return written.append if is_read else None

        self.operator = BatchFunctionOperator(function, inputs, RESULT)
        self.harness = OperatorHarness(self.operator, services=Services(), parallelism=2)

    def give(self, directory: Path, *numbers: int) -> None:
        """Give the task the rows of one more input."""
        writer = ResultWriter(ResultDirectory(str(directory)))
        writer.write(batch(*numbers))
        writer.finish()
        rows = share_of([ResultDirectory(str(directory))], 0, 1)
        self.operator.add_splits([ResultFileSplit(one) for one in rows])
        self.operator.no_more_splits()

    def run(self) -> list[int]:
        """Run the function; return the numbers of its result."""
        while self.operator.emit_next() is not END_OF_INPUT:
            pass
        self.harness.finish()
        return [n for one in self.written for n in one.column("n").to_pylist()]


def test_stage_without_inputs_writes_the_batches_that_its_function_yields() -> None:
    stage = Stage(lambda: iter([batch(1, 2), pa.table({"n": [3]})]))
    assert stage.operator.emit_next() == 2
    assert stage.run() == [1, 2, 3]


def test_stage_calls_its_function_only_after_all_its_inputs_have_arrived(tmp_path: Path) -> None:
    def both(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Any:
        yield from right
        yield from left

    stage = Stage(both, LEFT, RIGHT)
    stage.give(tmp_path / "left", 1, 2)
    assert stage.operator.emit_next() is NOTHING_NOW
    stage.give(tmp_path / "right", 3)
    assert stage.run() == [3, 1, 2]


def test_batch_without_rows_is_written_so_that_the_result_has_its_columns() -> None:
    stage = Stage(lambda: [batch()])
    assert stage.run() == []
    assert [one.schema.names for one in stage.written] == [["n"]]


def test_stage_whose_result_nobody_reads_runs_its_function_to_the_end() -> None:
    yielded = []

    def twice() -> Iterator[pa.RecordBatch]:
        for number in (1, 2):
            yielded.append(number)
            yield batch(number)

    assert Stage(twice, is_read=False).run() == []
    assert yielded == [1, 2]


def test_function_that_returns_none_has_an_empty_result() -> None:
    assert Stage(lambda: None).run() == []


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda: iter({"n": 1} for _ in range(1)), "generator of dict"),
        (lambda: pa.table({"reading": [1]}).to_pandas(), "DataFrame of str"),
        (lambda: {"n": [1]}, "dict of str"),
        (lambda: batch(1), "RecordBatch"),
        (batch, "RecordBatch"),
        (lambda: 1, "int"),
    ],
)
def test_error_about_a_function_that_yields_no_batches_says_what_it_should_yield(
    function: Any, returned: str
) -> None:
    words = rf"yields Arrow record batches or tables.* It has returned: {returned}$"
    with pytest.raises(StreamError, match=words) as caught:
        Stage(function).run()
    assert operator_error(caught.value, "task").operator == "operator"


def test_generator_of_a_task_that_ends_early_is_closed() -> None:
    story = []

    def numbers() -> Iterator[pa.RecordBatch]:
        try:
            yield batch(1)
            yield batch(2)
        finally:
            story.append("closed")

    stage = Stage(numbers)
    stage.operator.emit_next()
    stage.operator.close()
    assert story == ["closed"]


def test_failure_of_the_function_names_the_stage_and_the_subtask() -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise ValueError("no more")

    stage = Stage(fails)
    with pytest.raises(ValueError, match="no more") as caught:
        stage.run()
    told = operator_error(caught.value, "task")
    assert isinstance(told, OperatorError)
    assert (told.operator, told.subtask, told.occasion) == ("operator", "1/2", "")
    assert "in fails" in told.story
