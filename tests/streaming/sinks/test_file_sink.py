"""Files that appear whole, in buckets, and are followed by others in time."""

from __future__ import annotations

import csv
import datetime as dt
import errno
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flinkray.datastream import Row, RuntimeExecutionMode, StreamExecutionEnvironment, Types
from flinkray.datastream.common.typeinfo import TypeInformation
from flinkray.datastream.connectors import (
    BucketAssigner,
    CollectionSource,
    CollectSink,
    CommitRequest,
    FileSink,
    FileSource,
    IteratorSource,
    ParquetFormat,
    RollingPolicy,
    Sink,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sinks.file_formats import FileFormat, PartFile, TextFormat
from flinkray.streaming.sinks.file_writer import Rename, RenamingCommitter
from flinkray.streaming.sinks.sink import CommitOutcome, SinkError
from flinkray.streaming.sinks.sink_operators import FIRST_PAUSE
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns
from tests.streaming.sinks.sink_harness import SinkHarness
from tests.streaming.sources.reading import read


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def test_files_are_hidden_until_their_checkpoint_is_complete(tmp_path: Path) -> None:
    h = SinkHarness(FileSink(tmp_path))
    h.process("a", "b")
    assert visible(tmp_path) == []
    h.checkpoint()
    h.process("c")
    h.checkpoint()
    assert visible(tmp_path) == []
    h.complete(1)
    assert [path.name[-6:] for path in visible(tmp_path)] == ["-0.txt"]
    assert visible(tmp_path)[0].read_text() == "a\nb\n"
    h.process("d")
    h.finish()
    h.close()
    assert [path.read_text() for path in visible(tmp_path)] == ["a\nb\n", "c\n", "d\n"]
    assert len(list(tmp_path.iterdir())) == 3


def test_files_of_a_failed_attempt_are_removed_unless_in_its_checkpoint(
    tmp_path: Path,
) -> None:
    policy = RollingPolicy(part_size=10)
    h = SinkHarness(FileSink(tmp_path, rolling_policy=policy))
    h.process("covered")
    state = h.checkpoint()
    h.process("finished and lost")
    h.process("lost")
    h.close()
    restored = SinkHarness(FileSink(tmp_path), state)
    assert [path.read_text() for path in visible(tmp_path)] == ["covered\n"]
    restored.close()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("file_format", ["text", "csv", "json", "parquet"])
def test_file_is_synced_before_it_is_renamed_to_its_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    """A power failure could otherwise leave an empty file with the name of a complete one."""
    durable: dict[int, int] = {}
    named: list[tuple[int, int]] = []
    replace = os.replace

    def synchronise(descriptor: int) -> None:
        status = os.fstat(descriptor)
        durable[status.st_ino] = status.st_size

    def rename(hidden: str, shown: str) -> None:
        status = os.stat(hidden)
        named.append((status.st_size, durable.get(status.st_ino, -1)))
        replace(hidden, shown)

    monkeypatch.setattr(os, "fsync", synchronise)
    monkeypatch.setattr(os, "replace", rename)
    write(FileSink(tmp_path, file_format), ROWS)
    ((size, durable_size),) = named
    assert size == durable_size > 0


def test_committing_a_file_twice_is_accepted_by_the_file_sink(tmp_path: Path) -> None:
    hidden, shown = tmp_path / ".x", tmp_path / "x"
    hidden.write_text("once")
    outcomes = []
    for _ in range(2):
        request = CommitRequest(Rename(str(hidden), str(shown)))
        RenamingCommitter().commit([request])
        outcomes.append(request.outcome)
    assert shown.read_text() == "once"
    assert outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED]


def test_commit_fails_if_the_file_is_missing_under_both_of_its_names(tmp_path: Path) -> None:
    hidden, shown = tmp_path / ".x", tmp_path / "x"
    request = CommitRequest(Rename(str(hidden), str(shown)))
    RenamingCommitter().commit([request])
    assert request.outcome is CommitOutcome.FAILED
    assert str(hidden) in str(request.reason)
    assert str(shown) in str(request.reason)


def test_missing_visible_file_counts_as_committed_if_visible_files_may_be_removed(
    tmp_path: Path,
) -> None:
    sink = FileSink(tmp_path, visible_files_may_go=True)
    h = SinkHarness(sink)
    h.process("a")
    state = h.checkpoint()
    h.complete()
    h.close()
    (file,) = visible(tmp_path)
    file.unlink()
    SinkHarness(sink, state).close()
    with pytest.raises(SinkError, match=rf"{file.name}.*visible_files_may_go=True"):
        SinkHarness(FileSink(tmp_path), state)


def test_failed_rename_of_a_finished_file_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [True]
    replace = os.replace

    def rename(hidden: str, shown: str) -> None:
        if refused:
            raise OSError(errno.EIO, refused.pop())
        replace(hidden, shown)

    monkeypatch.setattr(os, "replace", rename)
    h = SinkHarness(FileSink(tmp_path))
    h.process("a")
    h.checkpoint()
    h.complete()
    assert visible(tmp_path) == []
    h.committer.processing_time(FIRST_PAUSE)
    assert [path.read_text() for path in visible(tmp_path)] == ["a\n"]


class FullText(TextFormat):
    """On a disk that is full."""

    def open(self, path: Path) -> PartFile:
        return super().open(Path("/dev/full"))


JOB, OPERATOR = "1" * 32, "a" * 32


def attempt(folder: Path, *written: str, **context: Any) -> SinkHarness:
    """Of a job on a cluster; it has these records in progress."""
    known = {"job_id": JOB, "operator_id": OPERATOR, **context}
    h = SinkHarness(FileSink(folder, bucket_assigner=ByLetter()), **known)
    h.process(*written)
    return h


class ByLetter(BucketAssigner):
    def get_bucket_id(self, element: Any, context: Any) -> str:
        return str(element[0])


def hidden(folder: Path) -> list[str]:
    """What they hold."""
    return sorted(p.read_text().strip() for p in folder.rglob(".*") if p.is_file())


def in_progress_of(folder: Path, text: str, **context: Any) -> None:
    """An attempt died with that."""
    h = attempt(folder, text, **context)
    h.operator._writer._open[text[0]].part.finish()  # type: ignore[attr-defined]
    h.operator._writer._open.clear()  # type: ignore[attr-defined]
    h.close()


def test_next_attempt_removes_files_in_progress_of_dead_attempts(
    tmp_path: Path,
) -> None:
    in_progress_of(tmp_path, "a0")
    assert hidden(tmp_path) == ["a0"]
    in_progress_of(tmp_path, "b0", attempt_number=1)
    assert hidden(tmp_path) == ["b0"]
    attempt(tmp_path, attempt_number=2).close()
    assert hidden(tmp_path) == []
    in_progress_of(tmp_path, "a2", restored_checkpoint_id=2, attempt_number=4)
    attempt(tmp_path, restored_checkpoint_id=3).close()  # by another JobMaster
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    "other",
    [
        {"job_id": "2" * 32},
        {"job_id": ""},
        {"operator_id": "b" * 32},
        {"subtask_index": 0},
        {"restored_checkpoint_id": 6},
        {"restored_checkpoint_id": 5, "attempt_number": 3},
        {"restored_checkpoint_id": 5, "attempt_number": 2},
    ],
    ids=str,
)
def test_files_of_other_writers_and_later_attempts_are_not_removed(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    in_progress_of(tmp_path, "kept", **{"subtask_index": 1, "parallelism": 2, **other})
    mine = {"subtask_index": 1, "parallelism": 2}
    attempt(tmp_path, restored_checkpoint_id=5, attempt_number=2, **mine).close()
    assert hidden(tmp_path) == ["kept"]


def test_files_in_progress_of_removed_subtasks_are_removed_by_another_subtask(
    tmp_path: Path,
) -> None:
    for subtask in range(4):
        in_progress_of(tmp_path, f"of {subtask}", subtask_index=subtask, parallelism=4)
    attempt(tmp_path, restored_checkpoint_id=1, subtask_index=1, parallelism=2).close()
    assert hidden(tmp_path) == ["of 0", "of 2"]


def test_files_in_progress_that_a_checkpoint_may_need_are_not_removed(tmp_path: Path) -> None:
    first = attempt(tmp_path, "a0")
    savepoint = first.checkpoint()  # it is its user's: the job goes on from none
    second = attempt(tmp_path, "a1", attempt_number=1)
    first.close()
    assert hidden(tmp_path) == ["a0", "a1"]
    second.close()
    SinkHarness(FileSink(tmp_path), savepoint, job_id="2" * 32).close()
    assert [path.read_text() for path in visible(tmp_path / "a")] == ["a0\n"]


def test_attempt_whose_file_in_progress_was_removed_by_a_later_one_fails(
    tmp_path: Path,
) -> None:
    """An attempt of another JobMaster, which stood still before the attempt began."""
    successor = attempt(tmp_path, "a0", attempt_number=0)
    attempt(tmp_path, attempt_number=1).close()
    with pytest.raises(FileNotFoundError):
        successor.checkpoint()
    successor.close()


class FullParquet(ParquetFormat):
    def open(self, path: Path) -> PartFile:
        return super().open(Path("/dev/full"))


@pytest.mark.parametrize("file_format", [FullText(), FullParquet()], ids=["text", "parquet"])
@pytest.mark.parametrize("rows", [1, 100_000])
def test_full_disk_raises_one_error_that_names_the_file(
    tmp_path: Path, file_format: FileFormat, rows: int
) -> None:
    """While the file is written, or when it is finished."""
    h = SinkHarness(FileSink(tmp_path, file_format))

    def fill() -> None:
        h.process(*(Row(x=n, name="n" * 50) for n in range(rows)))
        h.checkpoint()

    with pytest.raises(
        SinkError, match=rf"{tmp_path}/\.part-\w+-0\.\S*\.inprogress: No space left"
    ):
        fill()
    h.close()  # which raises nothing, and would hide that error


def write(sink: Sink[Any], values: list[Any], type_info: Any = None) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(values, type_info).sink_to(sink)
    env.execute()


ROWS = [Row.of(["x", "name"], [n, f"n{n}"]) for n in range(5)]


def test_file_sink_writes_csv_json_and_parquet_and_refuses_unknown_formats(tmp_path: Path) -> None:
    for file_format in ("csv", "json", "parquet"):
        write(FileSink(tmp_path / file_format, file_format), ROWS)
    (csv_file,) = visible(tmp_path / "csv")
    assert csv_file.read_text() == "0,n0\n1,n1\n2,n2\n3,n3\n4,n4\n"
    (json_file,) = visible(tmp_path / "json")
    lines = json_file.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row.as_dict() for row in ROWS]
    assert pq.read_table(tmp_path / "parquet").to_pylist() == [row.as_dict() for row in ROWS]
    with pytest.raises(StreamError, match="unknown file format 'xml'"):
        FileSink(tmp_path, "xml")


TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from('\r\n",\ufeff \t\0')), max_size=6
)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
@example([("\ufeffa", "\r"), ("a\rb", '"')])
def test_any_text_is_unchanged_after_writing_and_reading_csv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    """Read by flinkray and by Python's csv module."""
    rows.append(("that it is", "a column of texts"))
    folder = tmp_path_factory.mktemp("csv")
    h = SinkHarness(FileSink(folder, "csv"))
    h.process(*rows)
    h.finish()
    (path,) = visible(folder)
    text = path.read_bytes().decode()
    assert list(csv.reader(io.StringIO(text, newline=""))) == [list(row) for row in rows]
    source = FileSource(path, file_format="csv", column_names=["a", "b"])
    assert [tuple(row) for row in read(source)] == rows


def test_csv_of_one_column_has_a_line_for_each_record(tmp_path: Path) -> None:
    write(FileSink(tmp_path, "csv"), ["\r", "", "c"])
    source = FileSource(tmp_path, file_format="csv", column_names=["a"])
    assert [row.a for row in read(source)] == ["\r", "", "c"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1, "b": None}, "{'a': 1, 'b': None} of type dict has no form there"),
        ((1, {"a": 1}), "{'a': 1} of type dict has no form there"),
        ((1, ["x", "y"]), "['x', 'y'] of type list has no form there"),
        (Row(1, Row(2, 3)), "of type Row has no form there"),
        ({1}, "{1} of type set has no form there"),
        (b"x", "b'x' of type bytes has no form there"),
        (np.array([1, 2]), "array([1, 2]) of type ndarray has no form there"),
    ],
)
def test_value_without_csv_form_is_refused_with_its_type(
    tmp_path: Path, value: Any, words: str
) -> None:
    """No reader of CSV parses the repr of a Python object."""
    with pytest.raises(OperatorError, match="cannot be written as CSV") as refused:
        write(FileSink(tmp_path, "csv"), [value])
    assert words in str(refused.value)
    assert "map each record to a tuple" in str(refused.value)
    assert visible(tmp_path) == []


def test_csv_contains_the_text_of_scalars_of_any_type(tmp_path: Path) -> None:
    fields = (None, True, 1, 1.5, Decimal("2.50"), dt.date(2024, 5, 1), np.int64(7), UUID(int=3))
    write(FileSink(tmp_path, "csv"), [fields, list(fields), Row(*fields)])
    (path,) = visible(tmp_path)
    line = f",True,1,1.5,2.50,2024-05-01,7,{UUID(int=3)}\n"
    assert path.read_text() == 3 * line


def json_of(folder: Path, *values: Any) -> list[Any]:
    h = SinkHarness(FileSink(folder, "json"))
    h.process(*values)
    h.finish()
    (path,) = visible(folder)
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain(value: Any) -> Any:
    """What JSON is to have of a value, said another way."""
    match value:
        case Row() if value._fields is not None:
            return {name: plain(value[name]) for name in value._fields}
        case Row() | tuple() | list() | np.ndarray():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case np.bool_():
            return bool(value)
        case np.integer():
            return int(value)
        case np.floating():
            return float(value)
    return value


LEAVES = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.integers(0, 255).flatmap(lambda n: st.sampled_from([np.int64(n), np.uint8(n)])),
    st.floats(width=32, allow_nan=False).flatmap(
        lambda n: st.sampled_from([np.float32(n), np.float64(n)])
    ),
    st.sampled_from([np.bool_(True), np.array([1, 2]), np.array([0.5])]),
)
NAMES = st.sampled_from(["a", "b", "c"])


def in_something(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=3)
    objects = st.dictionaries(NAMES, values, min_size=1)
    return st.one_of(
        lists, lists.map(tuple), lists.map(lambda items: Row(*items)), objects,
        objects.map(lambda fields: Row(**fields)),
    )  # fmt: skip


@given(st.recursive(LEAVES, in_something, max_leaves=6))
def test_json_keeps_nested_numbers_and_rows(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    assert json_of(tmp_path_factory.mktemp("json"), value) == [plain(value)]


def test_json_contains_dates_times_decimals_and_ids_as_texts(tmp_path: Path) -> None:
    noon = dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone.utc)
    values = [noon, noon.date(), noon.time(), Decimal("1.50"), UUID(int=1), np.datetime64("2020")]
    assert json_of(tmp_path, Row(a=values)) == [{"a": [str(value) for value in values]}]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ((1, b"x"), r"\(1, b'x'\) cannot be written as JSON: b'x' of type bytes has no form there"),
        ({(1, 2): 3}, r"\{\(1, 2\): 3\} cannot be written as JSON: keys must be"),
        ({1: 2, "1": 3}, "cannot be written as JSON: an object has the name '1' more than once"),
        ([Row(x={True: 2, "true": 3})], "an object has the name 'true' more than once"),
        (Row.of(["a", "a"], [1, 2]), r"Row\(a=1, a=2\) has two fields named 'a'"),
    ],
)
def test_value_without_json_form_is_refused_with_its_type(
    tmp_path: Path, value: Any, told: str
) -> None:
    h = SinkHarness(FileSink(tmp_path, "json"))
    with pytest.raises(StreamError, match=told):
        h.process(value)
    h.close()


def test_parquet_has_the_declared_types(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    write(FileSink(tmp_path, ParquetFormat(kind)), [(1, "x"), (2, None)])
    table = pq.read_table(tmp_path)
    assert table.schema.field("a").type == pa.int16()
    assert table.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_parquet_has_the_declared_type_of_the_stream(tmp_path: Path) -> None:
    """Also if all values so far are None."""
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.DOUBLE()])
    write(FileSink(tmp_path, "parquet"), [(1, None), (2, None)], kind)
    assert pq.read_table(tmp_path).schema.types == [pa.int16(), pa.float64()]


def test_parquet_of_columns_has_the_declared_types_and_names(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.DOUBLE()])
    h = SinkHarness(FileSink(tmp_path, ParquetFormat(kind)))
    h.process_columns(columns(x=[1, 2], y=[3, 4]))
    h.process_columns(columns(x=[5.0], y=[0.5]))
    h.process(Row(6, 7.0))
    h.finish()
    (path,) = visible(tmp_path)
    table = pq.read_table(path)
    assert table.schema.types == [pa.int16(), pa.float64()]
    assert table.to_pydict() == {"a": [1, 2, 5, 6], "b": [3.0, 4.0, 0.5, 7.0]}


@pytest.mark.parametrize(
    ("declared", "kind"),
    [(Types.FLOAT(), pa.float32()), (Types.PICKLED_BYTE_ARRAY(), pa.int64())],
    ids=["float", "any"],
)
def test_parquet_of_one_column_has_the_declared_type(
    tmp_path: Path, declared: TypeInformation, kind: pa.DataType
) -> None:
    h = SinkHarness(FileSink(tmp_path, ParquetFormat(declared)))
    h.process_columns(columns(n=[1, 2]))
    h.finish()
    (path,) = visible(tmp_path)
    assert pq.read_table(path).schema == pa.schema([("n", kind)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"x": [1], "y": [2**15]},
            r"column 'y' of type int64 cannot be of the declared type int16: .*32768",
        ),
        (
            {"x": [1], "y": [0.5]},
            "column 'y' of type double cannot be of the declared type int16: .*truncated",
        ),
        (
            {"x": [1], "y": [[1]]},
            "column 'y' of type list<item: int64> cannot be of the declared type int16: ",
        ),
        (
            {"x": [1]},
            r"columns \['x'\] are not those of the declared type RowTypeInfo\(a: ",
        ),
    ],
)
def test_columns_of_another_type_than_declared_are_refused_with_their_names(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.SHORT()])
    h = SinkHarness(FileSink(tmp_path, ParquetFormat(kind)))
    with pytest.raises(StreamError, match=told):
        h.process_columns(columns(**given))
    h.finish()


def test_batch_with_wider_types_starts_another_parquet_file(tmp_path: Path) -> None:
    h = SinkHarness(FileSink(tmp_path, "parquet"))
    h.process_columns(columns(v=[2**60 + 1], w=pa.nulls(1)))
    h.process_columns(columns(v=[0.5, 1.0], w=["x", "y"]))
    h.process_columns(columns(v=[3], w=pa.nulls(1)))
    h.process(Row(v=4, w="z"))
    with pytest.raises(
        StreamError, match=r"file of columns \['v', 'w'\] was given rows of columns \['v'\]"
    ):
        h.process(Row(v=1))
    h.process_columns(columns(v=[1]))
    h.finish()
    assert [pq.read_table(path).to_pydict() for path in visible(tmp_path)] == [
        {"v": [2**60 + 1], "w": [None]},
        {"v": [0.5, 1.0, 3.0, 4.0, 1.0], "w": ["x", "y", None, "z", None]},
    ]


DICTIONARIES: dict[str, list[dict[str, Any]]] = {
    "a field that comes": [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Bergen", "coupon": "X1"}],
    "a field that goes": [{"id": 1, "city": "Oslo", "coupon": "X1"}, {"id": 2, "city": "Bergen"}],
    "other fields": [{"id": 1, "a": "x"}, {"b": 0.5, "id": 2}, {"id": 3, "a": "y"}],
    "another order": [{"id": 1, "city": "Oslo"}, {"city": "Bergen", "id": 2}],
    "a null, then a text": [{"id": 1, "note": None}, {"id": 2, "note": "late"}],
    "an integer, then a float": [{"id": 1, "price": 3}, {"id": 2, "price": 3.5}],
}


@pytest.mark.parametrize("values", DICTIONARIES.values(), ids=list(DICTIONARIES))
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in batches"])
def test_dictionaries_with_different_fields_are_written_to_parquet(
    tmp_path: Path, values: list[dict[str, Any]], together: bool
) -> None:
    h = SinkHarness(FileSink(tmp_path, "parquet"))
    for part in [values] if together else [[value] for value in values]:
        h.process(*part)
    h.finish()
    rows = [row for path in visible(tmp_path) for row in pq.read_table(path).to_pylist()]
    found = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert found == [{n: v for n, v in value.items() if v is not None} for value in values]
    assert len(visible(tmp_path)) <= 2  # the second one has room for the columns of both


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([{"x": 1}, {"x": "a"}], "column 'x'"),
        ([{"x": 0.5}, {"x": 9007199254740993}], "column 'x'.*9007199254740993"),
        ([{"x": True}, {"x": 1}], "column 'x'"),
        ([Row(a=1), Row(b=1)], r"\['?a'?\]|'a'"),
    ],
)
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in batches"])
def test_values_of_mixed_types_for_a_parquet_column_are_refused(
    tmp_path: Path, values: list[Any], told: str, together: bool
) -> None:
    h = SinkHarness(FileSink(tmp_path, "parquet"))
    with pytest.raises(StreamError, match=told):
        write_all(h, [values] if together else [[value] for value in values])
    h.close()


def write_all(h: SinkHarness, batches: list[list[Any]]) -> None:
    for batch in batches:
        h.process(*batch)


@pytest.mark.parametrize("file_format", ["text", "csv", "parquet"])
def test_half_of_a_surrogate_pair_is_refused_with_its_record(
    tmp_path: Path, file_format: str
) -> None:
    """Such a value comes from JSON that was cut in the middle of an emoji."""
    half = json.loads('"cut \\ud83d"')
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(["good", half]).sink_to(FileSink(tmp_path, file_format))
    with pytest.raises(Exception, match=r"'cut \\ud83d'.* it has half of a surrogate pair, whi"):
        env.execute()


def test_half_of_a_surrogate_pair_is_written_and_read_as_json(tmp_path: Path) -> None:
    half = json.loads('"cut \\ud83d"')
    h = SinkHarness(FileSink(tmp_path, "json"))
    h.process({"text": half})
    h.finish()
    (path,) = visible(tmp_path)
    assert json.loads(path.read_bytes()) == {"text": half}


def test_sink_starts_a_new_file_when_the_size_limit_is_reached(tmp_path: Path) -> None:
    policy = RollingPolicy(part_size=10)
    h = SinkHarness(FileSink(tmp_path, rolling_policy=policy))
    for _ in range(3):
        h.process("0123456789")
    h.finish()
    prefix, suffix = "part-", ".txt"
    names = [path.name for path in visible(tmp_path)]
    (uid,) = {name[len(prefix) : -len(f"-0{suffix}")] for name in names}
    assert names == [f"{prefix}{uid}-{number}{suffix}" for number in range(3)]


@pytest.mark.parametrize("part", ["prefix", "suffix"])
def test_slash_in_the_prefix_or_suffix_of_a_file_is_refused(tmp_path: Path, part: str) -> None:
    """The committer would regard a file in a missing folder as committed."""
    told = f"the {part} of a file's name has no slash, got 'p/q': folders are those of a bucket"
    with pytest.raises(StreamError, match=told):
        FileSink(tmp_path, **{part: "p/q"})  # type: ignore[arg-type]


def test_closed_writer_leaves_no_file_if_nothing_was_committed(tmp_path: Path) -> None:
    h = SinkHarness(FileSink(tmp_path / "new"))
    h.process("x")
    h.close()
    assert list((tmp_path / "new").iterdir()) == []
    assert h.values() == []


# --- rolling --------------------------------------------------------------------------------------


def rolled(tmp_path: Path, policy: RollingPolicy, check: int = 100) -> SinkHarness:
    sink = FileSink(tmp_path, rolling_policy=policy, bucket_check_interval=check)
    return SinkHarness(sink)


def contents(h: OperatorHarness, folder: Path) -> list[str]:
    """After the end of the input, file by file in the order in which they were begun."""
    h.finish()
    h.close()
    return [path.read_text() for path in visible(folder)]


def test_sink_starts_a_new_file_after_the_rollover_interval(tmp_path: Path) -> None:
    h = rolled(tmp_path, RollingPolicy(rollover_interval=250))
    for moment in range(0, 401, 10):
        h.processing_time(moment)
        if moment in (0, 90, 180, 290, 310, 400):
            h.process(moment)
    # Looked at every 100 ms, a file that was begun at 0 is old enough at 300.
    assert contents(h, tmp_path) == ["0\n90\n180\n290\n", "310\n400\n"]


def test_inactive_file_is_finished_after_the_inactivity_interval(tmp_path: Path) -> None:
    h = rolled(tmp_path, RollingPolicy(inactivity_interval=150))
    for moment in (0, 90, 180, 260):
        h.processing_time(moment)
        h.process(moment)
    h.processing_time(600)
    h.process(600)
    assert contents(h, tmp_path) == ["0\n90\n180\n260\n", "600\n"]


def test_finished_files_become_visible_with_the_next_checkpoint(tmp_path: Path) -> None:
    h = rolled(tmp_path, RollingPolicy(rollover_interval=100))
    h.process("a")
    h.processing_time(100)
    h.process("b")
    assert visible(tmp_path) == []
    h.checkpoint()
    h.complete()
    assert [path.read_text() for path in visible(tmp_path)] == ["a\n", "b\n"]
    h.close()


def test_checkpoint_rolling_policy_ignores_size_and_age_of_a_file(tmp_path: Path) -> None:
    h = rolled(tmp_path, RollingPolicy.on_checkpoint_rolling_policy())
    h.process("a")
    h.processing_time(10**9)
    h.process("b" * 1000)
    assert contents(h, tmp_path) == ["a\n" + "b" * 1000 + "\n"]


# --- buckets --------------------------------------------------------------------------------------


class ByFirstLetter(BucketAssigner):
    def get_bucket_id(self, element: Any, context: Any) -> str:
        return f"letter={element[0]}"


def below(folder: Path) -> dict[str, str]:
    """Bucket -> what its files hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    texts: dict[str, str] = {}
    for path in files:
        bucket = str(path.parent.relative_to(folder))
        texts[bucket] = texts.get(bucket, "") + path.read_text()
    return texts


def test_records_go_to_the_files_of_their_buckets(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, bucket_assigner=ByFirstLetter())
    write(sink, ["ant", "bee", "asp", "bug", "cat"])
    assert below(tmp_path) == {
        "letter=a": "ant\nasp\n", "letter=b": "bee\nbug\n", "letter=c": "cat\n",
    }  # fmt: skip


def test_date_time_buckets_use_the_processing_time(tmp_path: Path) -> None:
    assigner = BucketAssigner.date_time_bucket_assigner("yyyy-MM-dd--HH'h'", "Europe/Berlin")
    h = SinkHarness(FileSink(tmp_path, bucket_assigner=assigner))
    h.process("first")
    h.processing_time(3_600_000)
    h.process("second")
    h.finish()
    assert below(tmp_path) == {"1970-01-01--01h": "first\n", "1970-01-01--02h": "second\n"}


def test_bucket_assigner_gets_timestamp_watermark_and_processing_time(tmp_path: Path) -> None:
    class Told(BucketAssigner):
        def get_bucket_id(self, element: Any, context: Any) -> str:
            now, watermark = context.current_processing_time(), context.current_watermark()
            return f"{context.timestamp()}-{watermark}-{now}"

    h = SinkHarness(FileSink(tmp_path, bucket_assigner=Told()))
    h.watermark(5)
    h.processing_time(70)
    h.process("x", "y", at=[10, 20])
    h.finish()
    assert below(tmp_path) == {"10-5-70": "x\n", "20-5-70": "y\n"}


def test_rows_of_columns_are_divided_by_bucket(tmp_path: Path) -> None:
    class ByCity(BucketAssigner):
        def get_bucket_id(self, element: Any, context: Any) -> str:
            return f"city={element.city}"

    env = StreamExecutionEnvironment.get_execution_environment()
    table = pa.table({"city": ["A", "B", "A"], "n": [1, 2, 3]})
    env.from_arrow(table).sink_to(FileSink(tmp_path, "parquet", bucket_assigner=ByCity()))
    env.execute()
    read = {
        p.name: pq.read_table(p, partitioning=None)["n"].to_pylist() for p in tmp_path.iterdir()
    }
    assert read == {"city=A": [1, 3], "city=B": [2]}


@pytest.mark.parametrize("bucket", ["/etc", "a/../../b"])
def test_bucket_outside_of_the_directory_is_refused(tmp_path: Path, bucket: str) -> None:
    class Outside(BucketAssigner):
        def get_bucket_id(self, element: Any, context: Any) -> str:
            return bucket

    with pytest.raises(OperatorError, match="named by a relative path"):
        write(FileSink(tmp_path / "x", bucket_assigner=Outside()), ["x"])


@pytest.mark.parametrize("wrong", ["yyyy-EEE", "MMM"])
def test_unsupported_date_format_of_a_bucket_assigner_is_refused(wrong: str) -> None:
    with pytest.raises(StreamError, match="cannot read"):
        BucketAssigner.date_time_bucket_assigner(wrong)


def test_error_about_an_unknown_time_zone_names_the_time_zone() -> None:
    with pytest.raises(StreamError, match="Mars/Olympus"):
        BucketAssigner.date_time_bucket_assigner(timezone_id="Mars/Olympus")


def test_second_run_of_a_file_sink_keeps_the_files_of_the_first_run(tmp_path: Path) -> None:
    for _ in range(2):
        write(FileSink(tmp_path), ["a"])
    assert [path.read_text() for path in visible(tmp_path)] == ["a\n", "a\n"]


def test_columns_are_written_as_the_text_of_their_rows(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    table = pa.table({"x": [1, None], "y": [True, False]})
    env.from_arrow(table).sink_to(FileSink(tmp_path))
    env.execute()
    assert [path.read_text() for path in visible(tmp_path)] == ["+I[1, true]\n+I[null, false]\n"]


def endless() -> IteratorSource:
    """So it says."""
    return IteratorSource(lambda split, offset: iter(["a"][offset:]), bounded=False)


def executed(
    caplog: pytest.LogCaptureFixture, sink: Sink[Any], source: Any, mode: RuntimeExecutionMode
) -> list[str]:
    """The warnings of a program, in which the sink is behind a union with that source."""
    env = StreamExecutionEnvironment.get_execution_environment().set_runtime_mode(mode)
    second = env.from_source(source, None, "second").key_by(lambda value: value)
    env.from_collection(["b"]).union(second).map(str).sink_to(sink).name("files")
    env.get_execution_plan()
    assert not caplog.records
    env.execute()
    return [record.getMessage() for record in caplog.records]


STREAMING, AUTOMATIC = RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.AUTOMATIC


def test_sink_of_an_endless_source_without_checkpoints_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode in (STREAMING, AUTOMATIC):
        (told,) = executed(caplog, FileSink(tmp_path), endless(), mode)
        assert told.startswith("files (FileSink) will show nothing of what it writes:")
        assert "Source: second has no end. Enable checkpoints (env.enable_checkpointing)" in told
        caplog.clear()


def test_file_sink_whose_files_become_visible_logs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = CollectionSource(["a"])
    batch = RuntimeExecutionMode.BATCH
    assert executed(caplog, FileSink(tmp_path), ends, STREAMING) == []
    assert executed(caplog, FileSink(tmp_path), ends, batch) == []
    assert executed(caplog, CollectSink(), endless(), STREAMING) == []


def test_pyflink_builders_configure_file_names_and_default_buckets(tmp_path: Path) -> None:
    from flinkray.datastream.connectors.file_system import Encoder, OutputFileConfig
    from flinkray.datastream.connectors.file_system import FileSink as Built

    config = OutputFileConfig.builder().with_part_prefix("p").with_part_suffix(".log").build()
    assert (config.get_part_prefix(), config.get_part_suffix()) == ("p", ".log")
    rows = Built.for_row_format(str(tmp_path / "rows"), Encoder.simple_string_encoder())
    rows.with_output_file_config(config).with_bucket_check_interval(5)
    rows.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    write(rows.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build(), ["a"])
    (file,) = visible(tmp_path / "rows")
    assert file.name.startswith("p-")
    assert file.name.endswith("-0.log")
    # As in PyFlink, buckets of the hour are the default of builders.
    write(Built.for_bulk_format(str(tmp_path / "bulk"), ParquetFormat()).build(), ROWS)
    (bucket,) = (tmp_path / "bulk").iterdir()
    assert len(bucket.name) == len("2024-01-01--00")
    assert pq.read_table(next(bucket.iterdir()), partitioning=None).num_rows == 5
