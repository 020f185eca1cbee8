"""Files of text, JSON, CSV and Parquet."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import re
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
from flinkray.streaming.functions.functions import SinkFunction
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources import csv_files
from flinkray.streaming.sources.files import FileSplit, find_files
from flinkray.streaming.sources.source import END_OF_INPUT, Boundedness, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import batch_of, read, reader_of, rest_of


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


def test_json_csv_and_parquet_files_are_read(tmp_path: Path) -> None:
    rows = [{"x": n, "name": f"n{n}"} for n in range(5)]
    text = "\n\n \t\n".join(json.dumps(row) for row in rows)
    (tmp_path / "rows.json").write_text(text)
    assert read(FileSource(tmp_path / "rows.json", file_format="json")) == rows
    (tmp_path / "rows.csv").write_text("x,name\n" + "".join(f"{n},n{n}\n" for n in range(5)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for file_format in ("csv", "parquet"):
        found = read(FileSource(tmp_path / f"rows.{file_format}", file_format=file_format))
        assert [row.as_dict() for row in found] == rows


def test_csv_files_without_header_are_read_with_given_column_names(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([("A", 1), ("B", 2)]).sink_to(FileSink(tmp_path, "csv"))
    env.execute()
    source = FileSource(tmp_path, file_format="csv", column_names=["city", "fare"])
    rows = [row.as_dict() for row in read(source)]
    assert rows == [{"city": "A", "fare": 1}, {"city": "B", "fare": 2}]
    with pytest.raises(StreamError, match="column names are of CSV files, not of parquet"):
        FileSource(tmp_path, file_format="parquet", column_names=["city"])


def rows_of(reader: Any, most: int) -> list[tuple[Any, ...]]:
    """Those that come with so many polls."""
    found: list[tuple[Any, ...]] = []
    for _ in range(most):
        if (polled := batch_of(reader.poll(10))) is END_OF_INPUT:
            break
        found += [tuple(row) for row in polled.to_block().values] if len(polled) else []
    return found


RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200), st.integers(0, 200)), max_size=6)
"""Rows, how many blank lines follow them, and how long their text is; a block has 64 bytes here."""


@settings(max_examples=60)
@given(
    blank=st.integers(0, 200),
    runs=RUNS,
    polls=st.lists(st.integers(0, 20), max_size=4),
    compressed=st.booleans(),
)
def test_each_csv_row_is_read_once_wherever_reading_resumes(
    tmp_path_factory: pytest.TempPathFactory,
    blank: int,
    runs: list[tuple[int, int, int]],
    polls: list[int],
    compressed: bool,
) -> None:
    """Also after many blank lines, and rows that are longer than a block."""
    lines, rows = ["\n" * blank, "n,text\n"], list[tuple[int, str]]()
    for number, blanks, length in runs:
        added = [(len(rows) + place, f"x{'y' * length}\n") for place in range(number)]
        lines += [f'{n},"{text}"\n' for n, text in added]
        lines.append("\n" * blanks)
        rows += added
    path = tmp_path_factory.mktemp("csv") / ("a.csv.gz" if compressed else "a.csv")
    text = "".join(lines).encode()
    path.write_bytes(gzip.compress(text) if compressed else text)
    source, split = FileSource(path, file_format="csv"), FileSplit(str(path), 0)
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_BLOCK", 64)
        for most in (*polls, 1000):
            reader = reader_of(source, split)
            found += rows_of(reader, most)
            splits = reader.snapshot_state(1)
            if not splits:
                break
            (split,) = splits
    assert found == rows


def test_rows_of_several_megabytes_written_by_a_sink_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_files, "_LARGEST_BLOCK", 4 << 20)
    rows = [(1, "x"), (2, "y" * (3 << 20)), (3, "y" * (3 << 20)), (0.5, "z")]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(rows).sink_to(FileSink(tmp_path, "csv"))
    env.execute()
    source = FileSource(tmp_path, file_format="csv", column_names=["n", "text"])
    assert [tuple(row) for row in read(source)] == rows


def test_csv_row_above_the_size_limit_with_an_open_quote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_files, "_BLOCK", 64)
    monkeypatch.setattr(csv_files, "_LARGEST_BLOCK", 256)
    (tmp_path / "a.csv").write_text('n\n"' + "1\n" * 1000)
    with pytest.raises(Exception, match=r"a\.csv cannot be .* row of more than 256 bytes, a quote"):
        read(FileSource(tmp_path, file_format="csv"))


def test_empty_csv_file_has_no_rows_and_a_malformed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    assert read(FileSource(tmp_path, file_format="csv")) == []
    (tmp_path / "names.csv").write_text("x,y")
    assert read(FileSource(tmp_path, file_format="csv")) == []
    (tmp_path / "b.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(Exception, match=r"b\.csv cannot be read as CSV: .* Expected 2 columns"):
        read(FileSource(tmp_path, file_format="csv"))


LONG_TEXT = "ä\n" * 10_000
"""More than is decoded at a time."""


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", b'{"a": 1}\n\n{bad\n', r"a\.json, line 3, is no JSON: Expecting property name"),
        ("a.json", b"1\n\xfc\n", r"a\.json, line 2, column 1, is not UTF-8: invalid start byte"),
        ("a.text", LONG_TEXT.encode() + b"x\r\n\xe4\n" + LONG_TEXT.encode(),
         r"a\.text, line 10002, column 1, is not UTF-8: invalid continuation byte; give the enc"),
        ("a.text.gz", gzip.compress(b"ok\n\xfc\n", mtime=0),
         r"a\.text\.gz, line 2, column 1, is not UTF-8"),
        ("a.text.gz", gzip.compress(b"ok\n", mtime=0)[:-9],
         r"^flinkray.*FileNotReadyError: .*a\.text\.gz cannot be read as text: it is cut off: "),
        ("a.text.gz", b"ok\n", r"a\.text\.gz cannot be read as text: it is not compressed as"),
        ("a.csv.gz", b"ok\n", r"a\.csv\.gz cannot be read as CSV: it is not compressed as"),
        ("a.parquet", b"nope", r"a\.parquet cannot be read as Parquet: "),
    ],
)  # fmt: skip
def test_malformed_content_is_reported_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Exception, match=told):
        read(FileSource(tmp_path, file_format=name.split(".")[1]))


def test_missing_file_raises_file_not_found_error_and_no_format_error(tmp_path: Path) -> None:
    for file_format in ("csv", "json", "text"):
        reader = reader_of(
            FileSource(tmp_path, file_format=file_format), FileSplit(str(tmp_path / "gone"), 0)
        )
        with pytest.raises(FileNotFoundError, match="gone"):
            reader.poll(10)


@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"))))
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with a mark"])
def test_compressed_text_and_json_are_read_like_plain_files(
    tmp_path_factory: pytest.TempPathFactory, mark: bytes, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("text")
    text = mark + "".join(f"{line}\n" for line in lines).encode()
    values = mark + "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for end, compress in (("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)):
        for file_format, content in (("text", text), ("json", values)):
            path = folder / f"a.{file_format}{end}"
            path.write_bytes(compress(content))
            reader = reader_of(FileSource(path, file_format=file_format), FileSplit(str(path), 0))
            assert rest_of(reader) == lines


# --- directories ----------------------------------------------------------------------------------


def test_file_that_several_links_lead_to_is_read_once(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    for folder in (top / "real", top / ".hidden", outside / "deep", outside / "_hidden"):
        folder.mkdir(parents=True)
    for path in (top / "real" / "a", outside / "deep" / "b", outside / "_hidden" / "c"):
        path.touch()
    (top / ".hidden" / "d").touch()
    for name, target in {
        "again": top / "real", "current": outside, "other": outside / "deep", "up": tmp_path,
        "file": top / "real" / "a", "nowhere": tmp_path / "nothing", ".not": top / ".hidden",
    }.items():  # fmt: skip
        (top / name).symlink_to(target)
    (outside / "loop").symlink_to(top)
    found = find_files([str(top)])
    assert found == [str(outside / "deep" / "b"), str(top / "file"), str(top / "real" / "a")]
    (top / "all").symlink_to(outside)  # another link does not make another file
    assert find_files([str(top)]) == found
    assert find_files([str(top / "again")]) == [str(top / "again" / "a")]


def test_directory_that_cannot_be_listed_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its rows would be missing."""
    refused = tmp_path / "sub" / "refused"
    refused.mkdir(parents=True)
    (tmp_path / "_hidden").mkdir()
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if os.path.basename(path) in ("refused", "_hidden"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match=re.escape(str(refused))):
        find_files([str(tmp_path)])


def test_text_file_is_continued_at_its_line_offset(files: Path) -> None:
    reader: Any = FileSource(files).create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits([FileSplit(str(files / "a.txt"), 1)])
    block = batch_of(reader.poll(10))
    assert block.values == ["two"]
    assert reader.snapshot_state(1)[0].offset == 2


def test_missing_path_and_unknown_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="unknown file format 'xml'"):
        FileSource(tmp_path, file_format="xml")
    with pytest.raises(Exception, match="there is no file or directory"):
        read(FileSource(tmp_path / "nowhere"))


def run_until_idle(job: LocalJob) -> None:
    """Run the job until nothing can happen before time passes."""
    while job.step():
        pass


def test_new_files_in_a_watched_directory_are_read_at_the_next_discovery(files: Path) -> None:
    seen: list[str] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    source = FileSource(files, discovery_interval=Duration.of_seconds(10))
    env.from_source(source).add_sink(CallbackFunction(seen.append))
    clock = ManualClock()
    job = LocalJob(env.get_stream_graph(), clock)
    run_until_idle(job)
    assert sorted(seen) == ["one", "three", "two"]
    (files / "z.txt").write_text("later\n")
    clock.advance(9)
    run_until_idle(job)
    assert "later" not in seen
    clock.advance(1)
    run_until_idle(job)
    assert seen[-1] == "later"
    assert not job.finished
    job.close()


def test_watched_directory_that_disappears_for_a_while_is_read_again(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    source = FileSource(files, discovery_interval=Duration.of_seconds(10))
    env.from_source(source).add_sink(CallbackFunction(seen.append))
    clock = ManualClock()
    job = LocalJob(env.get_stream_graph(), clock)
    run_until_idle(job)
    away = files.rename(files.with_name("away"))
    clock.advance(10)
    run_until_idle(job)
    assert f"there is no file or directory {files}" in caplog.text
    away.rename(files)
    (files / "z.txt").write_text("later\n")
    clock.advance(10)
    run_until_idle(job)
    assert seen[-1] == "later"
    job.close()


class CallbackFunction(SinkFunction):
    """A sink function that is not copied."""

    shared = True

    def __init__(self, function: Any) -> None:
        self._function = function

    def invoke(self, value: Any) -> None:
        self._function(value)


def test_file_source_with_a_discovery_interval_is_unbounded(tmp_path: Path) -> None:
    assert FileSource(tmp_path).get_boundedness() is Boundedness.BOUNDED
    watching = FileSource(tmp_path, discovery_interval=Duration.of_seconds(1))
    assert watching.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED


def test_restored_reader_continues_a_parquet_file_at_its_batch(tmp_path: Path) -> None:
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
