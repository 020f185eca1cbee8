"""Sources: splits, readers, files, generators, sockets."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.core.durations import Duration
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import (
    ArrowSource,
    CallbackSink,
    DataGeneratorSource,
    FileSource,
    IteratorSource,
    NumberSequenceSource,
    SequentialReader,
)
from flinkray.streaming.elements import Block, Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.local_job import LocalJob
from flinkray.streaming.sources.collection import Slice, slices
from flinkray.streaming.sources.files import FileSplit
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, ReaderContext
from flinkray.testing.manual_clock import ManualClock


def read(source: Any, parallelism: int = 1) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    return list(env.from_source(source).execute_and_collect())


def test_slices_cover_everything_once() -> None:
    for length in range(12):
        for parts in range(1, 6):
            covered = [n for start, end in slices(length, parts) for n in range(start, end)]
            assert covered == list(range(length))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_number_sequence_is_divided_among_subtasks(parallelism: int) -> None:
    assert sorted(read(NumberSequenceSource(5, 20_000), parallelism)) == list(range(5, 20_001))


def test_reader_reads_on_where_its_snapshot_was() -> None:
    context = ReaderContext(0, 1, ManualClock())
    first: Any = NumberSequenceSource(0, 99).create_reader(context)
    first.add_splits([Slice(0, 50), Slice(50, 100)])
    first.notify_no_more_splits()
    assert list(first.poll(30).values) == list(range(30))
    second: Any = NumberSequenceSource(0, 99).create_reader(context)
    second.add_splits(first.snapshot_state(1))
    second.notify_no_more_splits()
    values: list[int] = []
    while (polled := second.poll(40)) is not END_OF_INPUT:
        values += polled.values
    assert values == list(range(30, 100))


def test_iterator_is_read_on_by_offset() -> None:
    source = IteratorSource.of(lambda: "abcdef")
    reader: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([source.create_enumerator(Splits(), ManualClock())._remaining[0]])  # type: ignore[attr-defined]
    assert reader.poll(2).values == ["a", "b"]
    again: Any = source.create_reader(ReaderContext(0, 1, ManualClock()))
    again.add_splits(reader.snapshot_state(1))
    assert again.poll(10).values == ["c", "d", "e", "f"]
    assert read(source) == list("abcdef")


class Splits:
    """An enumerator context without readers."""

    def current_parallelism(self) -> int:
        return 1

    def assign_split(self, split: Any, subtask: int) -> None: ...
    def signal_no_more_splits(self, subtask: int) -> None: ...


def test_arrow_table_comes_in_batches_of_columns() -> None:
    table = pa.table({"a": range(100), "b": [str(n) for n in range(100)]})
    batches: list[Any] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(ArrowSource(table, 30)).sink_to(CallbackSink(on_batch=batches.append))
    env.execute()
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    assert pa.Table.from_batches(batches).equals(table)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\ntwo\r\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("three")
    (tmp_path / ".hidden.txt").write_text("never")
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "c.txt").write_text("never")
    return tmp_path


@pytest.mark.parametrize("parallelism", [1, 3])
def test_directory_of_text_is_read_line_by_line(files: Path, parallelism: int) -> None:
    assert sorted(read(FileSource(files), parallelism)) == ["one", "three", "two"]


def test_json_csv_and_parquet(tmp_path: Path) -> None:
    rows = [{"x": n, "name": f"n{n}"} for n in range(5)]
    text = "\n\n".join(json.dumps(row) for row in rows)
    (tmp_path / "rows.json").write_text(text)
    assert read(FileSource(tmp_path / "rows.json", file_format="json")) == rows
    (tmp_path / "rows.csv").write_text("x,name\n" + "".join(f"{n},n{n}\n" for n in range(5)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for file_format in ("csv", "parquet"):
        found = read(FileSource(tmp_path / f"rows.{file_format}", file_format=file_format))
        assert [row.as_dict() for row in found] == rows


def test_text_is_read_on_by_line(files: Path) -> None:
    reader: Any = FileSource(files).create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([FileSplit(str(files / "a.txt"), 1)])
    block = reader.poll(10)
    assert block.values == ["two"]
    assert reader.snapshot_state(1)[0].offset == 2


def test_missing_path_and_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="unknown file format 'xml'"):
        FileSource(tmp_path, file_format="xml")
    with pytest.raises(Exception, match="there is no file or directory"):
        read(FileSource(tmp_path / "nowhere"))


def test_watched_directory_gives_files_as_they_appear(files: Path) -> None:
    seen: list[str] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    source = FileSource(files, discovery_interval=Duration.of_seconds(10))
    env.from_source(source).add_sink(CallbackFunction(seen.append))
    clock = ManualClock()
    job = LocalJob(env.get_stream_graph(), clock)
    job.run_until_idle()
    assert sorted(seen) == ["one", "three", "two"]
    (files / "z.txt").write_text("later\n")
    clock.advance(9)
    job.run_until_idle()
    assert "later" not in seen
    clock.advance(1)
    job.run_until_idle()
    assert seen[-1] == "later"
    assert not job.finished
    job.close()


class CallbackFunction:
    """A sink function that is not copied."""

    shared = True

    def __init__(self, function: Any) -> None:
        self.invoke = function


def test_generator_keeps_its_rate_over_all_subtasks() -> None:
    clock = ManualClock()
    env = StreamExecutionEnvironment(clock=clock).set_parallelism(2)
    source = DataGeneratorSource(lambda n: n * n, 100, records_per_second=10)
    results = env.from_source(source).execute_and_collect()
    assert sorted(results) == [n * n for n in range(100)]
    assert clock.time() == pytest.approx(10.0, abs=0.01)


def test_socket_gives_lines_until_it_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"one\ntw")
                connection.sendall(b"o\nlast")

        thread = threading.Thread(target=serve)
        thread.start()
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = env.socket_text_stream("127.0.0.1", server.getsockname()[1])
        assert list(stream.execute_and_collect()) == ["one", "two", "last"]
        thread.join(30)


def test_reader_with_several_splits_goes_from_one_to_the_next() -> None:
    class Words(SequentialReader[Any]):
        def open_split(self, split: Any) -> None:
            self.word = list(split)

        def read(self, max_records: int) -> Any:
            if not self.word:
                return END_OF_INPUT
            letters, self.word = self.word[:max_records], self.word[max_records:]
            return Block(letters)

        def remaining(self) -> Any:
            return "".join(self.word)

    context = ReaderContext(0, 1, ManualClock())
    reader = Words(context)
    reader.start()
    assert context.split_requested
    assert reader.poll(2) is NOTHING_NOW
    reader.add_splits(["abc"])
    polled = reader.poll(2)
    assert isinstance(polled, Block | Columns)
    assert reader.snapshot_state(1) == ["c"]
    assert reader.poll(2).values == ["c"]  # type: ignore[union-attr]
    context.split_requested = False
    assert reader.poll(2) is NOTHING_NOW
    assert context.split_requested
    reader.notify_no_more_splits()
    assert reader.poll(2) is END_OF_INPUT
