"""Joins and aggregates of columns, with keys of all kinds, give what a naive evaluator gives; and
columns of all types stay what they are."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.datastream import (
    DataStream,
    Row,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import FileSink, FileSource
from flinkray.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError

UTC = datetime.timezone.utc
DAY = datetime.datetime(1960, 2, 29, 0, 0, 0, 1)
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "b", "ä", "", "a\0"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c", "d", "e"]),
    "narrow": (pa.int8(), [-100, 100, 0, 5]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1, 2**63]),
    "wide": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "double": (pa.float64(), [0.0, -0.0, float("nan"), 1.5, float("inf")]),
    "float": (pa.float32(), [0.0, 1.5, float("nan")]),
    "decimal": (pa.decimal128(10, 2), list(map(decimal.Decimal, ("1.00", "1.50", "0.00")))),
    "truth": (pa.bool_(), [True, False]),
    "time": (pa.timestamp("us"), [DAY, datetime.datetime(2020, 1, 1)]),
    "instant": (pa.timestamp("ms", "Europe/Berlin"), [
        datetime.datetime(2020, month, 1, tzinfo=UTC) for month in (1, 7)
    ]),
    "date": (pa.date32(), [DAY.date(), datetime.date(2020, 1, 1)]),
    "bytes": (pa.binary(), [b"a", b"", b"\0"]),
    "duration": (pa.duration("us"), [datetime.timedelta(1), datetime.timedelta(microseconds=1)]),
}  # fmt: skip

BY_T = WatermarkStrategy.for_bounded_out_of_orderness(60).with_timestamp_column("t")
"""No record is late."""
WINDOWS = [
    TumblingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(10, 4, -1),
    SlidingEventTimeWindows.of(4, 10, 2),
]


def known(key: Any) -> Any:
    """What two keys have in common that are one."""
    if isinstance(key, float):
        return "nan" if key != key else key + 0.0
    return key


class Tables:
    """Two of some rows."""

    def __init__(self, name: str) -> None:
        self._rng = random.Random(name)
        self.left, self.right = self._table(name, "a"), self._table(name, "b")

    def _table(self, name: str, value: str) -> pa.Table:
        kind, keys = KEYS[name]
        chosen = [self._rng.choice(keys) for _ in range(20)]
        times = [self._rng.randint(-30, 30) for _ in range(20)]
        return pa.table({"k": pa.array(chosen, kind), "t": times, value: list(range(20))})


@pytest.fixture(params=KEYS)
def tables(request: pytest.FixtureRequest) -> Tables:
    return Tables(request.param)


@pytest.fixture(params=[1, 3])
def env(request: pytest.FixtureRequest) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment.get_execution_environment()
    return environment.set_parallelism(request.param)


def stamped(env: StreamExecutionEnvironment, table: pa.Table) -> DataStream:
    return env.from_arrow(table).assign_timestamps_and_watermarks(BY_T)


def starts(windows: Any, time: int) -> Iterator[int]:
    last = time - (time - windows.offset) % windows.slide
    yield from range(last, time - windows.size, -windows.slide)


def test_join_of_columns_gives_the_pairs_of_a_naive_evaluator(
    tables: Tables, env: StreamExecutionEnvironment
) -> None:
    windows = WINDOWS[0]
    joined = stamped(env, tables.left).join(stamped(env, tables.right))
    pairs = joined.where("k").equal_to("k").window(windows).columns().execute_and_collect()
    expected = [
        (one["a"], other["b"], start)
        for one in tables.left.to_pylist()
        for other in tables.right.to_pylist()
        for start in starts(windows, one["t"])
        if known(one["k"]) == known(other["k"]) and start in starts(windows, other["t"])
    ]
    assert Counter((row.a, row.b, row.window_start) for row in pairs) == Counter(expected)


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_window_aggregates_of_columns_equal_those_of_a_naive_evaluator(
    tables: Tables, env: StreamExecutionEnvironment, windows: Any
) -> None:
    keyed = stamped(env, tables.left).key_by("k").window(windows)
    results = keyed.aggregate_columns(
        n="count", total=("a", "sum"), least=("a", "min"), most=("a", "max"), mean=("a", "mean")
    ).execute_and_collect()
    values: dict[Any, list[int]] = defaultdict(list)
    for row in tables.left.to_pylist():
        for start in starts(windows, row["t"]):
            values[known(row["k"]), start].append(row["a"])
    assert {
        (known(row.k), row.window_start): (row.n, row.total, row.least, row.most, row.mean)
        for row in results
    } == {
        place: (len(of), sum(of), min(of), max(of), sum(of) / len(of))
        for place, of in values.items()
    }


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize(("how", "function"), [("sum", sum), ("min", min), ("max", max)])
def test_rolling_aggregates_of_columns_equal_those_of_a_naive_evaluator(
    tables: Tables, env: StreamExecutionEnvironment, mode: RuntimeExecutionMode, how: str,
    function: Any,
) -> None:  # fmt: skip
    """The last result of each key counts. Its other fields are those of a first row of the key
    in some subtask."""
    env.set_runtime_mode(mode)
    values: dict[Any, list[int]] = defaultdict(list)
    times: dict[Any, set[int]] = defaultdict(set)
    for row in tables.left.to_pylist():
        values[known(row["k"])].append(row["a"])
        times[known(row["k"])].add(row["t"])
    results: dict[Any, int] = {}
    number: Counter[Any] = Counter()
    for row in getattr(env.from_arrow(tables.left).key_by("k"), how)("a").execute_and_collect():
        results[known(row.k)] = row.a
        number[known(row.k)] += 1
        assert row.t in times[known(row.k)]
    assert results == {key: function(of) for key, of in values.items()}
    is_batch = mode is RuntimeExecutionMode.BATCH
    assert number == {key: 1 if is_batch else len(of) for key, of in values.items()}


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
def test_window_keys_are_not_rounded_to_their_declared_type(parallelism: int) -> None:
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
