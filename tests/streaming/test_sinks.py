"""Printing, callbacks, and sinks that users write, with commits and without."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import (
    CallbackSink,
    Committer,
    Sink,
    SinkWriter,
    WriterContext,
)
from flinkray.streaming.elements import Block
from flinkray.streaming.sinks.sink import SinkOperator
from flinkray.testing.operator_harness import OperatorHarness


def write(sink: Sink[Any], values: list[Any]) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(values).sink_to(sink)
    env.execute()


def test_printing_names_the_subtask_where_there_are_several(
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


def test_callbacks_take_values_or_batches() -> None:
    values: list[Any] = []
    batches: list[Any] = []
    write(CallbackSink(values.append), [1, 2])
    write(CallbackSink(on_batch=batches.append), [1, 2])
    assert (values, batches) == ([1, 2], [[1, 2]])
    with pytest.raises(ValueError, match="either"):
        CallbackSink()


class Shelf(Sink[Any]):
    """A sink of two phases, as a user writes it."""

    def __init__(self) -> None:
        self.commits: list[Any] = []

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return ShelfWriter()

    def create_committer(self) -> Committer[Any]:
        return ShelfCommitter(self.commits)


class ShelfWriter(SinkWriter[Any]):
    def __init__(self) -> None:
        self._values: list[Any] = []

    def write(self, block: Block) -> None:
        self._values.extend(block.values)

    def prepare_commit(self, end_of_input: bool) -> list[Any]:
        box, self._values = (tuple(self._values), end_of_input), []
        return [box]


class ShelfCommitter(Committer[Any]):
    def __init__(self, commits: list[Any]) -> None:
        self._commits = commits

    def commit(self, committables: Any) -> None:
        self._commits.extend(committables)


def test_users_sink_commits_what_complete_checkpoints_cover_in_their_order() -> None:
    sink = Shelf()
    h = OperatorHarness(SinkOperator(sink))
    h.process(1)
    h.snapshot(1)
    h.process(2)
    h.snapshot(2)
    h.process(3)
    assert sink.commits == []
    h.operator.notify_checkpoint_complete(2)  # 1 was never confirmed by itself
    assert sink.commits == [((1,), False), ((2,), False)]
    h.finish()
    assert sink.commits[2:] == [((3,), True)]


def test_users_sink_commits_again_what_its_last_attempt_had_prepared() -> None:
    first = OperatorHarness(SinkOperator(Shelf()))
    first.process(1)
    snapshot = first.snapshot(1)
    first.process(2)  # is read again, because it came after the checkpoint
    sink = Shelf()
    OperatorHarness(SinkOperator(sink), restore=snapshot)
    assert sink.commits == [((1,), False)]


def test_users_sink_is_told_subtask_time_and_watermark() -> None:
    told: list[WriterContext] = []

    class Told(Shelf):
        def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
            told.append(context)
            return ShelfWriter()

    h = OperatorHarness(SinkOperator(Told()), subtask_index=1, parallelism=3, attempt_number=2)
    h.processing_time(40)
    h.watermark(7)
    (context,) = told
    assert (context.subtask_index, context.parallelism, context.attempt_number) == (1, 3, 2)
    assert (context.time_service.now(), context.current_watermark) == (40, 7)
