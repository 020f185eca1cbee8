"""Printing."""

from __future__ import annotations

import pytest

from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.streaming.errors import operator_error
from flinkray.streaming.sinks.simple import PrintOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns, unlike_five


def test_printed_line_names_the_subtask_if_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    typed = env.from_collection([("a", True)], Types.TUPLE([Types.STRING(), Types.BOOLEAN()]))
    typed.print()
    env.execute()
    assert capsys.readouterr().out == "(a,true)\n"
    stream = env.from_collection([1, 2]).rebalance().map(lambda v: v).set_parallelism(2)
    stream.print("out").set_parallelism(2)
    env.execute()
    assert {line.partition("> ")[0] for line in capsys.readouterr().out.splitlines()} == {
        "out:1", "out:2",
    }  # fmt: skip


def test_printed_line_has_sink_name_subtask_and_text_of_the_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    OperatorHarness(PrintOperator()).process(None, True, (1, "a"), at=[1, 2, 3])
    OperatorHarness(PrintOperator(), subtask_index=1, parallelism=3).process("b")
    OperatorHarness(PrintOperator("name")).process("c")
    OperatorHarness(PrintOperator("name"), subtask_index=1, parallelism=3).process("d")
    assert capsys.readouterr().out == "null\ntrue\n(1, 'a')\n2> b\nname> c\nname:2> d\n"


def test_print_operator_prints_columns_as_rows(capsys: pytest.CaptureFixture[str]) -> None:
    OperatorHarness(PrintOperator()).process_columns(columns(x=[1, 2], y=["a", "b"]))
    assert capsys.readouterr().out == "+I[1, a]\n+I[2, b]\n"


def test_sink_emits_no_watermark_status_or_result() -> None:
    h = OperatorHarness(PrintOperator())
    h.watermark(5)
    h.finish()
    assert h.output() == []


def test_error_in_str_of_a_printed_value_names_the_value() -> None:
    class Fails:
        def __init__(self, number: int) -> None:
            self.number = number

        def __repr__(self) -> str:
            return "the fifth"

        def __str__(self) -> str:
            return str(unlike_five(self.number))

    h = OperatorHarness(PrintOperator(), subtask_index=1, parallelism=3)
    with pytest.raises(ValueError, match="five is not liked") as caught:
        h.process(Fails(4), Fails(5))
    error = operator_error(caught.value, "the task")
    assert (error.operator, error.subtask, error.record) == ("operator", "2/3", "the fifth")
