"""Joins and aggregates of columns, with keys of all kinds, give what a naive evaluator gives; and
columns of all types stay what they are."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.datastream import (
    DataStream,
    Row,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import FileSink, FileSource
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError

UTC = datetime.timezone.utc

BY_T = WatermarkStrategy.for_bounded_out_of_orderness(60).with_timestamp_column("t")
"""No record is late."""


@pytest.fixture(params=[1, 3])
def env(request: pytest.FixtureRequest) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment.get_execution_environment()
    return environment.set_parallelism(request.param)


def stamped(env: StreamExecutionEnvironment, table: pa.Table) -> DataStream:
    return env.from_arrow(table).assign_timestamps_and_watermarks(BY_T)


MOMENT = datetime.datetime(2020, 7, 1, 12)
COLUMNS: dict[str, pa.Array] = {
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "map of structs": pa.array(
        [[("a", {"x": 1})], None, []], pa.map_(pa.string(), pa.struct([("x", pa.int32())]))
    ),
    "map of maps": pa.array(
        [[("a", [("b", [1, 2])])], None, []],
        pa.map_(pa.string(), pa.map_(pa.string(), pa.list_(pa.int64()))),
    ),
    "map by structs": pa.array(
        [[({"x": 1}, 1), ({"x": 2}, 2)], None, []],
        pa.map_(pa.struct([("x", pa.int32())]), pa.int64()),
    ),
    "maps in structs in lists": pa.array(
        [[{"m": [("a", 1)]}, None, {"m": None}], None, []],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
    ),
    "struct": pa.array([{"x": 1, "y": "b"}, None, {"x": None, "y": "c"}]),
    "list": pa.array([[1, None], None, []], pa.list_(pa.uint8())),
    "decimal": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)),
    "long decimal": pa.array([decimal.Decimal(10) ** 35, None], pa.decimal128(38, 2)),
    "wide decimal": pa.array([decimal.Decimal("1.25"), None], pa.decimal256(50, 2)),
    "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
    "half": pa.array([1.5, 2.0], pa.float64()).cast(pa.float16()),
    "float": pa.array([0.1, None], pa.float32()),
    "seconds": pa.array([MOMENT, None], pa.timestamp("s")),
    "nanoseconds": pa.array([1, None, 1001], pa.timestamp("ns")),
    "zone": pa.array([MOMENT.replace(tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
    "date": pa.array([MOMENT.date(), None], pa.date64()),
    "time": pa.array([MOMENT.time(), None], pa.time32("s")),
    "duration": pa.array([1001, None], pa.duration("ns")),
    "bytes": pa.array([b"ab", None], pa.binary(2)),
    "large text": pa.array(["a", None], pa.large_string()),
    "null": pa.nulls(2),
}


@pytest.mark.parametrize("in_window", [False, True])
@pytest.mark.parametrize("kind", COLUMNS)
def test_column_processed_as_rows_has_equal_values_afterwards(kind: str, in_window: bool) -> None:
    table = pa.table({"c": COLUMNS[kind], "t": list(range(len(COLUMNS[kind])))})
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = stamped(env, table).filter(lambda row: True)
    places = rows.window_all(TumblingEventTimeWindows.of(10)) if in_window else rows
    again = places.map_batches(lambda batch: batch.select(["c", "t"])).execute_and_collect_arrow()
    assert pa.Table.from_batches(list(again)).equals(table)


TIMED = Types.ROW_NAMED(["k", "t", "v"], [Types.LONG(), Types.LONG(), Types.DOUBLE()])


def windows_of_dictionaries(portions: list[list[dict[str, Any]]], folder: Path) -> list[list[Row]]:
    """What each function of columns sees of JSON lines, with a file for each portion."""
    for number, portion in enumerate(portions):
        (folder / f"{number}.json").write_text("".join(json.dumps(one) + "\n" for one in portion))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = FileSource(folder, file_format="json")
    stream = env.from_source(source, BY_T, type_info=TIMED)
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(100))
    joined = stream.join(stream).where("t").equal_to("t").window(TumblingEventTimeWindows.of(100))
    results = [
        stream.map_batches(lambda batch: batch.drop_columns(["$timestamp"])),
        windows.map_batches(lambda batch: batch),
        windows.aggregate_columns(n="count", last=("t", "max")),
        joined.columns().map_batches(lambda batch: batch.drop_columns(["$timestamp"])),
    ]
    return [sorted(of.execute_and_collect(), key=str) for of in results]


def test_declared_columns_are_equal_for_any_division_of_the_data_into_batches(
    tmp_path: Path,
) -> None:
    """Fields are missing or in another order, and integers stand beside floats."""
    records: list[dict[str, Any]] = [
        {"k": 1, "t": 0},
        {"t": 1, "k": 2, "v": None},
        {"k": 1, "v": 3, "t": 2},
        {"k": 2, "t": 3, "v": 0.5},
    ]
    found = []
    for number, portions in enumerate(
        [[records], [records[:2], records[2:]], [[r] for r in records]]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(windows_of_dictionaries(portions, folder))
    assert sorted(found[0][0], key=lambda row: row.t) == [
        Row(k=1, t=0, v=None),
        Row(k=2, t=1, v=None),
        Row(k=1, t=2, v=3.0),
        Row(k=2, t=3, v=0.5),
    ]
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_window_keys_declared_as_float_are_not_rounded_to_32_bits(parallelism: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    kind = Types.ROW_NAMED(["k", "t"], [Types.FLOAT(), Types.LONG()])
    rows = [Row(k=key, t=time) for key in (0.1, 0.2, 0.3) for time in range(5)]
    stream = env.from_collection(rows, kind).assign_timestamps_and_watermarks(BY_T)
    counts = stream.key_by("k").window(TumblingEventTimeWindows.of(10)).aggregate_columns(n="count")
    assert sorted((row.k, row.n) for row in counts.execute_and_collect()) == [
        (0.1, 5), (0.2, 5), (0.3, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "no batch"),
        (pa.table({"a": [1]}).select([]), "without a column"),
        (pa.record_batch({"a": [1]}).select([]), "without a column"),
        (pa.table([[1], [2]], ["a", "a"]), "cannot have one name, got 'a' twice"),
    ],
)
def test_data_without_columns_or_with_duplicate_column_names_is_refused(
    data: Any, why: str
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ValueError, match=why):
        env.from_arrow(data)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (pa.record_batch({"a": [decimal.Decimal(1)]}), r"'a' has decimal128\(1, 0\) and double"),
        (pa.record_batch({"a": [2**53 + 1]}), "Integer value 9007199254740993 not in range"),
        (pa.record_batch([[1], [2]], ["a", "a"]), "two columns of a batch are named 'a'"),
    ],
)
def test_batches_whose_types_cannot_be_united_without_loss_are_refused(
    first: pa.RecordBatch, why: str
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(StreamError, match=why):
        env.from_arrow([first, pa.record_batch({"a": [0.5]})])


@pytest.mark.parametrize("whole", [pa.Table.from_batches, list])
def test_view_columns_become_large_string_and_large_binary_columns(whole: Any) -> None:
    plain = pa.table({"k": ["a", "b", None, "a"], "b": [b"1", None, b"3", b"2"], "v": [1, 2, 3, 4]})
    views = pa.schema([("k", pa.string_view()), ("b", pa.binary_view()), ("v", pa.int64())])
    large = pa.schema([("k", pa.large_string()), ("b", pa.large_binary()), ("v", pa.int64())])
    table = plain.cast(views)

    def made_there(batch: pa.RecordBatch) -> Any:
        return whole([batch.cast(views)])

    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_arrow(table)
    assert pa.Table.from_batches(stream.execute_and_collect_arrow()).equals(plain.cast(large))
    sums = stream.map_batches(made_there).key_by("k").sum("v").execute_and_collect()
    last = {row.k: (row.b, row.v) for row in sums}
    assert {key: total for key, (_, total) in last.items()} == {"a": 5, "b": 2, None: 3}


def test_map_columns_are_read_as_dictionaries() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    kinds = ("map", "map of maps", "map by structs", "maps in structs in lists")
    table = pa.table({kind: COLUMNS[kind] for kind in kinds})
    rows = list(env.from_arrow(table).map(lambda row: list(row)).execute_and_collect())
    assert rows == [
        [
            {"a": 1},
            {"a": {"b": [1, 2]}},
            [({"x": 1}, 1), ({"x": 2}, 2)],
            [{"m": {"a": 1}}, None, {"m": None}],
        ],
        [None, None, None, None],
        [{}, {}, [], []],
    ]


def test_map_with_a_duplicate_key_fails_and_names_the_key() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    twice = pa.array([[("a", 1), ("b", 2), ("a", 3)]], pa.map_(pa.string(), pa.int64()))
    stream = env.from_arrow(pa.table({"m": twice})).map(lambda row: row.m)
    with pytest.raises(FlinkRayError, match="the key 'a' more than once"):
        list(stream.execute_and_collect())


@pytest.mark.parametrize("as_rows", [False, True])
@pytest.mark.parametrize("kind", COLUMNS)
def test_column_written_to_parquet_is_read_unchanged(
    kind: str, as_rows: bool, tmp_path: Path
) -> None:
    """Except for types that Parquet lacks: dates with a time of day, and times in seconds."""
    table = pa.table({"c": COLUMNS[kind]})
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_arrow(table)
    (stream.filter(lambda row: True) if as_rows else stream).sink_to(FileSink(tmp_path, "parquet"))
    env.execute()
    (path,) = tmp_path.glob("part*")
    column = pq.read_table(path)["c"]
    instead = {"seconds": pa.timestamp("ms"), "date": pa.date32(), "time": pa.time32("ms")}
    assert column.equals(table["c"].cast(instead.get(kind, table["c"].type)))


def test_union_of_timestamp_columns_keeps_the_zone_of_each_stream(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    zones = ["UTC", "Europe/Berlin", None]
    times = [pa.array([0], pa.timestamp("us", zone)) for zone in zones]
    first, *others = (env.from_arrow(pa.table({"c": column})) for column in times)
    first.union(*others).sink_to(FileSink(tmp_path, "parquet"))
    env.execute()
    types = {pq.read_table(path)["c"].type for path in tmp_path.glob("part*")}
    assert types == {column.type for column in times}


@pytest.mark.parametrize("narrow", [pa.int8(), pa.uint8(), pa.int32(), pa.float32()])
def test_sums_of_narrow_columns_written_to_a_file_have_64_bits(
    narrow: pa.DataType, tmp_path: Path
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    large = 2**30 if narrow.bit_width == 32 else 100
    table = pa.table({"k": [1, 1, 1], "v": pa.array([large] * 3).cast(narrow, safe=False)})
    env.from_arrow(table).key_by("k").sum("v").sink_to(FileSink(tmp_path, "parquet"))
    env.execute()
    (path,) = tmp_path.glob("part*")
    assert pq.read_table(path)["v"].to_pylist() == [large, 2 * large, 3 * large]
