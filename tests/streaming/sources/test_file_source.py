"""Files of text, JSON, CSV and Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.durations import Duration
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import FileSink, FileSource
from flinkray.streaming.errors import StreamError
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources import csv_files
from flinkray.streaming.sources.files import FileSplit
from flinkray.streaming.sources.source import END_OF_INPUT, Boundedness, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import batch_of, read, reader_of


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


def test_csv_files_of_a_sink_are_read_with_the_names_that_are_given(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([("A", 1), ("B", 2)]).sink_to(FileSink(tmp_path, "csv"))
    env.execute()
    source = FileSource(tmp_path, file_format="csv", column_names=["city", "fare"])
    rows = [row.as_dict() for row in read(source)]
    assert rows == [{"city": "A", "fare": 1}, {"city": "B", "fare": 2}]
    with pytest.raises(StreamError, match="column names are of CSV files, not of parquet"):
        FileSource(tmp_path, file_format="parquet", column_names=["city"])


LONG_CSV = 130_000
"""Lines that are more than a block of Arrow's."""


def test_column_of_a_csv_file_has_a_type_for_all_its_values(tmp_path: Path) -> None:
    last = {"n": "0.5", "void": "x", "code": "A7", "day": "2024-01-01 10:00:00", "text": '"a\nb"'}
    line = "7,,12,2024-01-01,a\n"
    lines = [",".join(last), "\n", line * LONG_CSV, ",".join(last.values()), "\n"]
    (tmp_path / "long.csv").write_text("".join(lines))
    reader = reader_of(
        FileSource(tmp_path, file_format="csv"), FileSplit(str(tmp_path / "long.csv"), 0)
    )
    batches = []
    while (polled := batch_of(reader.poll(10))) is not END_OF_INPUT:
        batches += [polled.batch] if len(polled) else []
    table = pa.Table.from_batches(batches)
    assert len(batches) > 1
    assert table.schema.types == [
        pa.float64(), pa.string(), pa.string(), pa.timestamp("s"), pa.string(),
    ]  # fmt: skip
    assert [str(v) for v in table.slice(LONG_CSV).to_pylist()[0].values()] == [
        "0.5", "x", "A7", "2024-01-01 10:00:00", "a\nb",
    ]  # fmt: skip
    assert table.slice(0, 1).to_pylist()[0]["code"] == "12"
    assert table.num_rows == LONG_CSV + 1


def test_long_csv_file_is_read_on_where_its_reader_was(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(400_000)) + "0.5\n")
    reader = reader_of(FileSource(path, file_format="csv"), FileSplit(str(path), 0))
    while not len(first := batch_of(reader.poll(10))):
        pass
    (split,) = reader.snapshot_state(1)
    again = reader_of(FileSource(path, file_format="csv"), split)
    rest: list[float] = []
    while (polled := batch_of(again.poll(10))) is not END_OF_INPUT:
        rest += polled.batch["n"].to_pylist() if len(polled) else []
    assert rest[0] == len(first)
    assert rest[-1] == 0.5
    assert len(first) + len(rest) == 400_001


def numbers_of(reader: Any, most: int) -> list[int]:
    """Those of the column n, after so many polls."""
    found: list[int] = []
    for _ in range(most):
        if (polled := batch_of(reader.poll(10))) is END_OF_INPUT:
            break
        found += [row["n"] for row in polled.to_block().values] if len(polled) else []
    return found


ROWS_AND_BLANKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), max_size=6)


@settings(max_examples=40)
@given(runs=ROWS_AND_BLANKS, polls=st.lists(st.integers(0, 20), max_size=4))
def test_each_row_of_a_csv_file_with_blank_lines_comes_once_wherever_it_is_read_on(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]], polls: list[int]
) -> None:
    path = tmp_path_factory.mktemp("blank") / "a.csv"
    lines, rows = ["n\n"], 0
    for number, blank in runs:
        lines += [f"{n}\n" for n in range(rows, rows + number)]
        lines.append("\n" * blank)
        rows += number
    path.write_text("".join(lines))
    source, split = FileSource(path, file_format="csv"), FileSplit(str(path), 0)
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_BLOCK", 64)
        for most in (*polls, 1000):
            reader = reader_of(source, split)
            found += numbers_of(reader, most)
            splits = reader.snapshot_state(1)
            if not splits:
                break
            (split,) = splits
    assert found == list(range(rows))


def test_empty_csv_file_has_no_rows_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    assert read(FileSource(tmp_path, file_format="csv")) == []
    (tmp_path / "b.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(Exception, match=r"b\.csv cannot be read as CSV: .* Expected 2 columns"):
        read(FileSource(tmp_path, file_format="csv"))


def test_text_is_read_on_by_line(files: Path) -> None:
    reader: Any = FileSource(files).create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([FileSplit(str(files / "a.txt"), 1)])
    block = batch_of(reader.poll(10))
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


def test_source_that_watches_has_no_end(tmp_path: Path) -> None:
    assert FileSource(tmp_path).get_boundedness() is Boundedness.BOUNDED
    watching = FileSource(tmp_path, discovery_interval=Duration.of_seconds(1))
    assert watching.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED


def test_parquet_is_read_on_by_batch_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(70_000)}), path)
    source = FileSource(tmp_path, file_format="parquet")
    reader = reader_of(source, FileSplit(str(path), 0))
    first = batch_of(reader.poll(4))
    assert isinstance(first, Columns)
    again = reader_of(source, *reader.snapshot_state(1))
    while not len(rest := batch_of(again.poll(4))):
        pass
    assert (len(first), len(rest)) == (65_536, 4_464)
    assert rest.batch["x"][0].as_py() == 65_536
