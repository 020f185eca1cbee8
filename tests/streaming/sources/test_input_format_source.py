"""Input formats as sources."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.common.io import InputFormat
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.input_format import InputFormatSource, InputFormatSplit
from flinkray.streaming.sources.source import EnumeratorContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of, rest_of
from tests.streaming.sources.test_simple_sources import taken


class Words(InputFormat[str, str]):
    """The letters of words. All copies note their calls in one list."""

    calls: ClassVar[list[str]] = []
    asked: ClassVar[list[int]] = []

    def __init__(self, *words: str) -> None:
        self.words = words
        self.calls.clear()
        self.asked.clear()

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


def split_of(value: object, offset: int = 0) -> InputFormatSplit:
    return InputFormatSplit(pickle.dumps(value), offset)


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


def test_input_splits_are_assigned_in_order_to_the_subtask_that_requests_next() -> None:
    """JM-12."""
    words, context = Words("ab", "cd", "ef"), Assigned(4)
    enumerator = InputFormatSource(words).create_enumerator(context, ManualClock())
    enumerator.start()
    assert words.asked == [4]
    for subtask in (1, 0, 1):
        enumerator.add_reader(subtask)
        enumerator.handle_split_request(subtask)
    assert [(subtask, pickle.loads(it.split)) for subtask, it in context.splits] == [
        (1, "ab"),
        (0, "cd"),
        (1, "ef"),
    ]
    assert sorted(context.ended) == [0, 1]


def test_only_the_input_splits_of_a_failed_subtask_are_assigned_again() -> None:
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
    assert [pickle.loads(it.split) for _, it in context.splits] == ["ef", "ab"]


def test_enumerator_that_continues_from_a_checkpoint_creates_no_splits() -> None:
    words, context = Words("ab", "cd"), Assigned(1)
    source = InputFormatSource(words)
    enumerator = source.create_enumerator(context, ManualClock())
    enumerator.start()
    enumerator.handle_split_request(0)
    again = source.restore_enumerator(context, ManualClock(), enumerator.snapshot_state(1))
    again.start()
    again.handle_split_request(0)
    assert [pickle.loads(it.split) for _, it in context.splits] == ["ab", "cd"]
    assert words.asked == [1]


def test_reader_opens_and_closes_each_split_and_skips_records_before_the_offset() -> None:
    words = Words()
    source = InputFormatSource(words)
    reader = reader_of(source, split_of("abcd"), split_of("xyz", 1))
    assert taken(reader, 2) == ["a", "b"]
    assert reader.snapshot_state(1) == [split_of("abcd", 2), split_of("xyz", 1)]
    assert rest_of(reader) == ["c", "d", "y", "z"]
    assert words.calls == ["open abcd", "close", "open xyz", "close"]


def test_record_none_ends_the_split() -> None:
    assert read(InputFormatSource(Words("ab.c", "d"))) == ["a", "b", "d"]


def test_format_that_fails_is_closed_and_its_traceback_is_in_the_error() -> None:
    words = Words()
    reader = reader_of(InputFormatSource(words), split_of("a?"))
    with pytest.raises(ValueError, match="not a letter"):
        rest_of(reader)
    assert words.calls == ["open a?", "close"]
    env = StreamExecutionEnvironment()
    with pytest.raises(OperatorError, match='raise ValueError\\("not a letter"\\)'):
        env.create_input(Words("a?")).execute_and_collect(limit=5)


def test_error_of_close_does_not_hide_why_open_failed(caplog: pytest.LogCaptureFixture) -> None:
    class NotOpened(Words):
        def open(self, split: str) -> None:
            raise FileNotFoundError(split)

        def close(self) -> None:
            raise AttributeError("file")

    with pytest.raises(FileNotFoundError, match="ab"):
        rest_of(reader_of(InputFormatSource(NotOpened()), split_of("ab")))
    assert "close() of NotOpened failed after an error" in caplog.text


TOGETHER = threading.Barrier(2, timeout=60)
"""Waits until two subtasks read at the same time."""


class Meeting(Words):
    """Each of two copies reads its first letter only when the other copy has opened a word."""

    def open(self, split: str) -> None:
        super().open(split)
        self.has_met = False

    def next_record(self) -> str | None:
        if not self.has_met:
            TOGETHER.wait()
            self.has_met = True
        return super().next_record()


def test_subtasks_in_one_process_read_with_a_copy_of_the_format_each() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    letters = env.create_input(Meeting("abc", "def")).execute_and_collect()
    assert sorted(letters) == list("abcdef")


def test_input_format_that_modifies_itself_gives_each_execution_all_splits() -> None:
    class Emptied(Words):
        def create_input_splits(self, min_num_splits: int) -> Sequence[str]:
            words, self.words = self.words, ()
            return words

    letters = StreamExecutionEnvironment().create_input(Emptied("ab"))
    assert [list(letters.execute_and_collect()) for _ in range(2)] == [["a", "b"]] * 2


class Lists(InputFormat[int, "list[int]"]):
    """Takes the records out of the split itself."""

    def create_input_splits(self, min_num_splits: int) -> Sequence[list[int]]:
        return [[1, 2, 3]]

    def open(self, split: list[int]) -> None:
        self.left = split

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int:
        return self.left.pop(0)


def test_split_that_is_changed_while_it_is_read_stays_whole_in_checkpoints() -> None:
    source = InputFormatSource(Lists())
    reader = reader_of(source, split_of([1, 2, 3]))
    assert taken(reader, 2) == [1, 2]
    assert rest_of(reader_of(source, *reader.snapshot_state(1))) == [3]


def test_reader_that_is_closed_while_it_skips_records_reads_no_more() -> None:
    skipping, go, closed = threading.Event(), threading.Event(), threading.Event()
    Endless.events = skipping, go, closed
    reader = reader_of(InputFormatSource(Endless()), split_of("a", 1 << 60))
    reader.poll(1)
    assert skipping.wait(60)
    reader.close()
    go.set()
    assert closed.wait(60)


class Endless(Words):
    events: ClassVar[tuple[threading.Event, threading.Event, threading.Event]]

    def reached_end(self) -> bool:
        return False

    def next_record(self) -> str:
        self.events[0].set()
        assert self.events[1].wait(60)
        return "a"

    def close(self) -> None:
        self.events[2].set()


def test_split_that_cannot_be_pickled_is_refused() -> None:
    class Locks(Words):
        def create_input_splits(self, min_num_splits: int) -> Any:
            return [threading.Lock()]

    enumerator = InputFormatSource(Locks()).create_enumerator(Assigned(1), ManualClock())
    with pytest.raises(StreamError, match="of Locks must return splits that can be pickled"):
        enumerator.start()


@pytest.mark.parametrize("splits", [5, "abc", b"abc"])
def test_result_of_create_input_splits_that_is_no_list_is_refused(splits: object) -> None:
    class Wrong(Words):
        def create_input_splits(self, min_num_splits: int) -> Any:
            return splits

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
