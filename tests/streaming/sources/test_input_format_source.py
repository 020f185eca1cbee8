"""Input formats as sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.common.io import InputFormat
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.input_format import InputFormatSource, InputFormatSplit
from flinkray.streaming.sources.source import EnumeratorContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of, rest_of
from tests.streaming.sources.test_iterator_source import taken


class Words(InputFormat[str, str]):
    """The letters of words; notes the calls of :meth:`open` and :meth:`close`."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.calls: list[str] = []
        self.asked: list[int] = []

    def create_input_splits(self, min_num_splits: int) -> Sequence[str]:
        self.asked.append(min_num_splits)
        return self.words

    def open(self, split: str) -> None:
        self.calls.append(f"open {split}")
        self.left = list(split)

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> str | None:
        letter = self.left.pop(0)
        if letter == "?":
            raise ValueError("not a letter")
        return None if letter == "." else letter

    def close(self) -> None:
        self.calls.append("close")

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class Assigned(EnumeratorContext[Any]):
    """Notes what is assigned."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.splits: list[tuple[int, Any]] = []
        self.ended: list[int] = []

    def current_parallelism(self) -> int:
        return self.parallelism

    def assign_split(self, split: Any, subtask: int) -> None:
        self.splits.append((subtask, split))

    def signal_no_more_splits(self, subtask: int) -> None:
        self.ended.append(subtask)


def test_splits_go_in_their_order_to_the_subtask_that_asks_next() -> None:
    """JM-12."""
    words, context = Words("ab", "cd", "ef"), Assigned(4)
    enumerator = InputFormatSource(words).create_enumerator(context, ManualClock())
    enumerator.start()
    assert words.asked == [4]
    for subtask in (1, 0, 1):
        enumerator.add_reader(subtask)
        enumerator.handle_split_request(subtask)
    assert [(subtask, it.split) for subtask, it in context.splits] == [
        (1, "ab"),
        (0, "cd"),
        (1, "ef"),
    ]
    assert sorted(context.ended) == [0, 1]


def test_splits_of_a_failed_subtask_alone_are_assigned_again() -> None:
    """JM-12."""
    context = Assigned(2)
    enumerator = InputFormatSource(Words("ab", "cd", "ef")).create_enumerator(
        context, ManualClock()
    )
    enumerator.start()
    for subtask in (0, 1):
        enumerator.handle_split_request(subtask)
    lost = context.splits[0][1]
    enumerator.add_splits_back([lost], 0)
    context.splits.clear()
    for _ in range(3):
        enumerator.handle_split_request(1)
    assert [it.split for _, it in context.splits] == ["ef", "ab"]


def test_enumerator_that_continues_from_a_checkpoint_creates_no_splits() -> None:
    words, context = Words("ab", "cd"), Assigned(1)
    source = InputFormatSource(words)
    enumerator = source.create_enumerator(context, ManualClock())
    enumerator.start()
    enumerator.handle_split_request(0)
    again = source.restore_enumerator(context, ManualClock(), enumerator.snapshot_state(1))
    again.start()
    again.handle_split_request(0)
    assert [it.split for _, it in context.splits] == ["ab", "cd"]
    assert words.asked == [1]


def test_reader_opens_and_closes_each_split_and_skips_records_before_the_offset() -> None:
    words = Words()
    source = InputFormatSource(words)
    reader = reader_of(source, InputFormatSplit("abcd", 0), InputFormatSplit("xyz", 1))
    assert taken(reader, 2) == ["a", "b"]
    assert reader.snapshot_state(1) == [InputFormatSplit("abcd", 2), InputFormatSplit("xyz", 1)]
    assert rest_of(reader) == ["c", "d", "y", "z"]
    assert words.calls == ["open abcd", "close", "open xyz", "close"]


def test_record_none_ends_the_split() -> None:
    assert read(InputFormatSource(Words("ab.c", "d"))) == ["a", "b", "d"]


def test_format_that_fails_is_closed_and_its_traceback_is_in_the_error() -> None:
    words = Words()
    reader = reader_of(InputFormatSource(words), InputFormatSplit("a?", 0))
    with pytest.raises(ValueError, match="not a letter"):
        rest_of(reader)
    assert words.calls == ["open a?", "close"]
    env = StreamExecutionEnvironment()
    with pytest.raises(OperatorError, match='raise ValueError\\("not a letter"\\)'):
        env.create_input(Words("a?")).execute_and_collect(limit=5)


def test_result_of_create_input_splits_that_is_no_sequence_is_refused() -> None:
    class Wrong(Words):
        def create_input_splits(self, min_num_splits: int) -> Any:
            return 5

    env = StreamExecutionEnvironment()
    with pytest.raises((StreamError, OperatorError), match="of Wrong must return a list of splits"):
        env.create_input(Wrong()).execute_and_collect(limit=5)


def test_stream_of_a_format_has_the_records_of_all_splits_and_their_type() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    letters = env.create_input(Words("ab", "cd", "ef"))
    assert letters.get_type() == Types.STRING()
    assert letters.get_name() == "Source: Words"
    assert sorted(letters.execute_and_collect()) == list("abcdef")
    assert list(env.create_input(Words()).execute_and_collect()) == []


def test_value_that_is_no_input_format_is_refused() -> None:
    env = StreamExecutionEnvironment()
    with pytest.raises(TypeError, match="create_input takes an InputFormat, got 5"):
        env.create_input(5)  # type: ignore[call-overload]
