"""Output formats, in one subtask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flinkray.datastream.common.io import CleanupWhenUnsuccessful, OutputFormat
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.output_format import OutputFormatOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_failure_is_told, columns, unlike_five


class Noted(OutputFormat[Any], CleanupWhenUnsuccessful):
    """Notes its calls. One that is in *fails* raises an error."""

    def __init__(self, *fails: object, error: type[BaseException] = ValueError) -> None:
        self.calls: list[Any] = []
        self.fails = fails
        self.error = error

    def _note(self, call: object) -> None:
        self.calls.append(call)
        if call in self.fails:
            raise self.error(f"cannot {call}")

    def open(self, task_number: int, num_tasks: int) -> None:
        self._note(f"open {task_number} of {num_tasks}")

    def write_record(self, record: Any) -> None:
        self._note(record)

    def close(self) -> None:
        self._note("close")

    def try_cleanup_on_error(self) -> None:
        self._note("clean up")


def test_output_format_is_opened_gets_each_record_and_is_closed_at_the_end() -> None:
    noted = Noted()
    h = OperatorHarness(OutputFormatOperator(noted), subtask_index=1, parallelism=2)
    h.process(1, 2, at=[3, 4])
    h.process_columns(columns(x=[1]))
    h.finish()
    for _ in range(2):
        h.operator.close()
    assert noted.calls == ["open 1 of 2", 1, 2, Row(x=1), "close"]


def test_output_format_of_a_task_that_ends_early_is_closed_once_and_not_cleaned_up() -> None:
    noted = Noted()
    h = OperatorHarness(OutputFormatOperator(noted))
    h.process(1)
    for _ in range(2):
        h.operator.close()
    assert noted.calls == ["open 0 of 1", 1, "close"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_failed_write_is_cleaned_up_after_close(error: type[BaseException]) -> None:
    noted = Noted(2, error=error)
    h = OperatorHarness(OutputFormatOperator(noted))
    with pytest.raises(error, match="cannot 2"):
        h.process(1, 2, 3)
    h.operator.close()
    assert noted.calls == ["open 0 of 1", 1, 2, "close", "clean up"]


def test_errors_of_closing_and_cleaning_up_after_a_failed_write_are_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = OperatorHarness(OutputFormatOperator(Noted(2, "close", "clean up")))
    with pytest.raises(ValueError, match="cannot 2"):
        h.process(2)
    h.operator.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Noted.close() failed after an error",
        "Noted.try_cleanup_on_error() failed after an error",
    ]


def test_format_that_cannot_be_configured_is_neither_closed_nor_cleaned_up() -> None:
    class Unconfigured(Noted):
        def configure(self, parameters: Mapping[str, str]) -> None:
            raise ValueError("cannot configure")

    operator = OutputFormatOperator(noted := Unconfigured())
    with pytest.raises(ValueError, match="cannot configure"):
        OperatorHarness(operator)
    operator.close()
    assert noted.calls == []


def test_failed_open_is_closed_and_cleaned_up() -> None:
    operator = OutputFormatOperator(noted := Noted("open 0 of 1"))
    with pytest.raises(ValueError, match="cannot open"):
        OperatorHarness(operator)
    operator.close()
    assert noted.calls == ["open 0 of 1", "close", "clean up"]


def test_close_that_fails_at_the_end_of_the_input_is_cleaned_up_and_not_repeated() -> None:
    noted = Noted("close")
    h = OperatorHarness(OutputFormatOperator(noted))
    with pytest.raises(ValueError, match="cannot close"):
        h.finish()
    h.operator.close()
    assert noted.calls == ["open 0 of 1", "close", "clean up"]


def test_failed_close_of_a_task_that_ends_early_is_cleaned_up_and_raised() -> None:
    noted = Noted("close")
    h = OperatorHarness(OutputFormatOperator(noted))
    with pytest.raises(ValueError, match="cannot close"):
        h.operator.close()
    h.operator.close()
    assert noted.calls == ["open 0 of 1", "close", "clean up"]


def test_sink_emits_no_watermark_status_or_result() -> None:
    h = OperatorHarness(OutputFormatOperator(Noted()))
    h.watermark(5)
    h.finish()
    assert h.output() == []


def test_error_of_an_output_format_names_operator_subtask_and_record() -> None:
    class Unlike(OutputFormat[int]):
        def open(self, task_number: int, num_tasks: int) -> None:
            return

        def write_record(self, record: int) -> None:
            unlike_five(record)

    assert_failure_is_told(OutputFormatOperator(Unlike()), 4, 5, 6, record=5)
