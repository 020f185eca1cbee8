"""The columns of CSV and Parquet files have one type in all files of a source, however the data is
divided into blocks and files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.durations import Duration
from flinkray.datastream import Types
from flinkray.datastream.connectors import FileSource
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources import csv_files
from flinkray.streaming.sources.source_progress import read_enumerator_state, write_enumerator_state
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import (
    Readers,
    batches_by,
    batches_of,
    read,
    reader_of,
    values_of,
)

# --- the rules, by Python's own means -------------------------------------------------------------

NULLS = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null",
}  # fmt: skip
EPOCH = datetime(1970, 1, 1)


def holds_digits(text: str) -> bool:
    digits = len(re.sub(r"[eE].*|[-.]", "", text).lstrip("0"))
    number = float(text)
    if digits == 0:
        return True
    return 0 < abs(number) < float("inf") and Decimal(text) == Decimal(f"{number:.{digits - 1}e}")


def moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def kind_of(text: str) -> str:
    """What a field is by itself."""
    if re.fullmatch(r"0|-?[1-9]\d*", text):
        if not -(1 << 63) <= int(text) < 1 << 63:
            return "text"
        return "int" if holds_digits(text) else "long"
    if re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?|-?\.\d+(?:[eE][+-]?\d+)?", text):
        return "float" if holds_digits(text) else "text"
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return "bool"
    if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", text) and moment(f"2024-01-01T{text}"):
        return "time"
    found = moment(text)
    if found is None:
        return "text"
    if len(text) == 10:
        return "date"
    return "local" if found.tzinfo is None else "zoned"


HELD = {
    "int64": {"int", "long"},
    "double": {"int", "float"},
    "bool": {"bool"},
    "date32[day]": {"date"},
    "time64[us]": {"time"},
    "timestamp[us]": {"date", "local"},
    "timestamp[us, tz=UTC]": {"zoned"},
}


def type_for(fields: list[str]) -> str:
    kinds = {kind_of(text.strip(" ")) for text in fields if text.strip(" ") not in NULLS}
    return next((name for name, held in HELD.items() if kinds and kinds <= held), "string")


def value_of(text: str | None, name: str) -> Any:
    """Of a field of a column of that type; None: the file lacks the column."""
    if text is None or name == "string":
        return text
    text = text.strip(" ")
    if text in NULLS:
        return None
    if name == "int64":
        return int(text)
    if name == "double":
        return float(text)
    if name == "bool":
        return text.lower() == "true"
    if name == "date32[day]":
        return date.fromisoformat(text)
    if name == "time64[us]":
        return datetime.fromisoformat(f"2024-01-01T{text}").time()
    found = moment(text)
    assert found is not None
    return found.astimezone(timezone.utc) if name.endswith("UTC]") else found


# --- random tables, cut at random -----------------------------------------------------------------

ZONES = ["", "Z", "+02:00", "-05:30"]
DATES = st.dates(date(1, 1, 2), date(9999, 12, 30))
CLOCKS = st.one_of(
    st.times().map(lambda t: t.replace(microsecond=0).isoformat()),
    st.times().map(lambda t: f"{t:%H:%M:%S}.{t.microsecond:06}"[:12]),
    st.times().map(lambda t: f"{t:%H:%M}"),
)
POOLS = [
    st.integers(-99, 99).map(str),
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.integers(0, 99999).map(lambda n: f"{n:05}"),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.2f}"),
    st.decimals(0, 9, allow_nan=False, allow_infinity=False, places=19).map(str),
    st.sampled_from(["1e+05", "2.5E3", "-0.0", "1e400", "1e-400", ".5", "5.", "+5", "0x1F"]),
    st.sampled_from(["true", "False", "TRUE"]),
    DATES.map(str),
    CLOCKS,
    st.builds("{}{}{}".format, DATES.map(str), st.sampled_from("T "), CLOCKS).flatmap(
        lambda text: st.sampled_from([text, f"{text}Z", f"{text}+02:00"])
    ),
    st.builds("{}T{}".format, DATES.map(str), CLOCKS),
    st.sampled_from(["NA", "", "null", "nan", "N/A"]),
    st.text(st.sampled_from('aé,"\n 日;'), max_size=8),
]  # fmt: skip
NAMES = ["a", "b", "ü d"]


@st.composite
def csv_files_of(draw: Any) -> list[tuple[list[str], list[dict[str, str]]]]:
    """Files, each with its columns in their order and its rows."""
    pools = {
        name: st.one_of(*draw(st.lists(st.sampled_from(POOLS), min_size=1, max_size=2)))
        for name in NAMES
    }
    files = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]
        number = draw(st.integers(0, 12))
        rows = [{name: draw(pools[name]) for name in names} for _ in range(number)]
        files.append((["row", *names], [{"row": str(n), **row} for n, row in enumerate(rows)]))
    return files


@settings(max_examples=150, deadline=None)
@given(files=csv_files_of(), block=st.sampled_from([64, 200, 1 << 20]), packed=st.booleans())
def test_csv_files_give_equal_rows_however_they_are_split(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[list[str], list[dict[str, str]]]],
    block: int,
    packed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    for number, (names, rows) in enumerate(files):
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
        path = folder / f"{number}.csv{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    names = list(dict.fromkeys(name for names, _ in files for name in names))
    rows = [row for _, rows in files for row in rows]
    types = {name: type_for([row[name] for row in rows if name in row]) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_BLOCK", block)
        batches = batches_of(FileSource(folder, file_format="csv"))
    for batch in batches:
        assert isinstance(batch, Columns)
        assert {f.name: str(f.type) for f in batch.batch.schema} == types
        assert batch.batch.schema.names == names
    assert values_of(batches) == [
        {n: value_of(row.get(n), types[n]) for n in names} for row in rows
    ]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
JSON_OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON_VALUES)


@settings(max_examples=60, deadline=None)
@given(files=st.lists(st.lists(JSON_OBJECTS, max_size=6), min_size=1, max_size=3))
def test_json_files_give_equal_rows_however_they_are_split(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Any]]
) -> None:
    folder = tmp_path_factory.mktemp("json")
    for number, values in enumerate(files):
        text = "".join(f"{json.dumps(value)}\r\n" for value in values)
        (folder / f"{number}.json").write_bytes(text.encode())
    batches = batches_of(FileSource(folder, file_format="json"))
    assert values_of(batches) == [value for values in files for value in values]


PARQUET_COLUMNS = {
    "n": [pa.int32(), pa.int64(), pa.null()],
    "x": [pa.float32(), pa.float64(), pa.int32(), pa.null()],
    "text": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.null()],
    "at": [pa.timestamp("ms"), pa.timestamp("us"), pa.null()],
}
PARQUET_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(1 << 31), (1 << 31) - 1),
    "x": st.integers(-1000, 1000),
    "text": st.text(max_size=4),
    "at": st.integers(0, 10**6).map(lambda n: EPOCH + timedelta(milliseconds=n)),
}


@st.composite
def parquet_tables(draw: Any) -> list[pa.Table]:
    tables = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.permutations(list(PARQUET_COLUMNS)))[: draw(st.integers(1, 4))]
        number = draw(st.integers(0, 5))
        columns = {}
        for name in names:
            kind = draw(st.sampled_from(PARQUET_COLUMNS[name]))
            some = st.none() if pa.types.is_null(kind) else st.none() | PARQUET_VALUES[name]
            columns[name] = pa.array([draw(some) for _ in range(number)], kind)
        tables.append(pa.table(columns))
    return tables


@settings(max_examples=60, deadline=None)
@given(tables=parquet_tables())
def test_parquet_files_give_equal_rows_however_they_are_split(
    tmp_path_factory: pytest.TempPathFactory, tables: list[pa.Table]
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    names = list(dict.fromkeys(name for table in tables for name in table.schema.names))
    batches = batches_of(FileSource(folder, file_format="parquet"))
    assert len({batch.batch.schema for batch in batches if isinstance(batch, Columns)}) <= 1
    rows = [row for table in tables for row in table.to_pylist()]
    assert values_of(batches) == [{name: row.get(name) for name in names} for row in rows]


# --- cases ----------------------------------------------------------------------------------------


def schema_and_rows(source: FileSource) -> tuple[list[str], list[dict[str, Any]]]:
    """The types of the columns, which all batches have, and the rows."""
    batches = batches_of(source)
    (schema,) = {b.batch.schema for b in batches if isinstance(b, Columns)}
    return list(map(str, schema.types)), values_of(batches)


@pytest.mark.parametrize(
    ("files", "kind", "values"),
    [
        (["NA", "text"], "string", ["NA", "text"]),
        (["NA", "5"], "int64", [None, 5]),
        (["NA", ""], "string", ["NA", ""]),
        (["00501", "x"], "string", ["00501", "x"]),
        (["501", "00501"], "string", ["501", "00501"]),
        (["1", "1e+05"], "double", [1.0, 100000.0]),
        (["9007199254740993", "0.5"], "string", ["9007199254740993", "0.5"]),
        (["1", "18446744073709551616"], "string", ["1", "18446744073709551616"]),
        (["0.1234567890123456789", "1"], "string", ["0.1234567890123456789", "1"]),
        (["0.1000000000000000056", "1"], "double", [0.1, 1.0]),
        (["true", "1"], "string", ["true", "1"]),
        (["+49", "49"], "string", ["+49", "49"]),
        (["2024-05-01", "2024-05-01T10:00:00.5"], "timestamp[us]",
         [datetime(2024, 5, 1), datetime(2024, 5, 1, 10, 0, 0, 500_000)]),
        (["2024-05-01T10:00Z", "2024-05-01T10:00"], "string",
         ["2024-05-01T10:00Z", "2024-05-01T10:00"]),
        (["9999-12-31 00:00:00", "2024-05-01 10:00:00.123456789"], "string",
         ["9999-12-31 00:00:00", "2024-05-01 10:00:00.123456789"]),
        (["10:00", "10:00:00.25"], "time64[us]", [time(10), time(10, 0, 0, 250_000)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "turned round"])
def test_type_of_a_column_suits_the_fields_of_all_files(
    tmp_path: Path, files: list[str], kind: str, values: list[Any], order: int
) -> None:
    for number, field in enumerate(files[::order]):
        (tmp_path / f"{number}.csv").write_text(f"row,x\n{number},{field}\n")
    types, rows = schema_and_rows(FileSource(tmp_path, file_format="csv"))
    assert types == ["int64", kind]
    assert [row["x"] for row in rows] == values[::order]


def test_csv_ids_of_twenty_digits_stay_different(tmp_path: Path) -> None:
    cards = ["89314404000123456781", "89314404000123456782"]
    (tmp_path / "usage.csv").write_text("card,mb\n" + "".join(f"{card},5\n" for card in cards))
    assert [row.card for row in read(FileSource(tmp_path, file_format="csv"))] == cards


def test_csv_time_with_fractional_seconds_after_the_first_block_keeps_the_fraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_files, "_BLOCK", 256)
    times = [datetime(2024, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=n) for n in range(60)]
    times.append(times[-1] + timedelta(milliseconds=137))
    (tmp_path / "a.csv").write_text("at\n" + "".join(f"{at.isoformat()}\n" for at in times))
    types, rows = schema_and_rows(FileSource(tmp_path, file_format="csv"))
    assert types == ["timestamp[us, tz=UTC]"]
    assert [row["at"] for row in rows] == times


def test_declared_column_type_is_used_in_place_of_the_inferred_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("zip,price,n,at\n501,1.10,7,2024-05-01 10:00:00.1234567\n")
    source = FileSource(
        tmp_path,
        file_format="csv",
        column_types={
            "zip": Types.STRING(),
            "price": Types.BIG_DEC(),
            "n": pa.int16(),
            "at": Types.STRING(),
            "later": Types.DOUBLE(),
        },
    )
    types, rows = schema_and_rows(source)
    assert types == ["string", "decimal128(38, 18)", "int16", "string", "double"]
    assert rows == [
        {"zip": "501", "price": Decimal("1.10"), "n": 7, "at": "2024-05-01 10:00:00.1234567",
         "later": None}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("late", "told"),
    [
        ("x", r"b\.csv, line 2004: 'x' does not fit, since its column 'n' was found to be int64"),
        ("007", r"b\.csv, line 2004: '007' does not fit, since its column 'n' was found to be"),
        ("1e3", r"b\.csv, line 2004: '1e3' does not fit, .* column_types=\{'n': Types.STRING\(\)"),
    ],
)
def test_field_after_the_sample_of_another_type_is_refused_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str, told: str
) -> None:
    """Fields after the sample, from which types are inferred, are never changed silently."""
    monkeypatch.setattr(csv_files, "_BLOCK", 256)
    monkeypatch.setattr("flinkray.streaming.sources.files._LEAST_SAMPLE", 256)
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text('text,n\n"a\n\nb",1\n' + "c,2\n" * 1999 + f"c,{late}\n")
    with pytest.raises(Exception, match=told):
        batches_of(FileSource(tmp_path, file_format="csv", sample_size=512))
    rows = schema_and_rows(FileSource(tmp_path, file_format="csv", sample_size=None))[1]
    assert str(rows[-1]["n"]) == {"1e3": "1000.0"}.get(late, late)
    declared = {"n": Types.STRING()}
    source = FileSource(tmp_path, file_format="csv", sample_size=512, column_types=declared)
    assert schema_and_rows(source)[1][-1]["n"] == late


def test_csv_field_that_does_not_fit_its_declared_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n\n1.5\n")
    for kind in (Types.LONG(), pa.date32(), Types.BOOLEAN(), pa.int8(), pa.timestamp("us", "UTC")):
        with pytest.raises(
            Exception, match=r"a\.csv, line [24]: '1.*' does not fit, since its col"
        ):
            batches_of(FileSource(tmp_path, file_format="csv", column_types={"n": kind}))


def test_two_columns_with_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name,id\n1,x,2\n")
    with pytest.raises(Exception, match=r"a\.csv has more than one column named 'id', of which"):
        batches_of(FileSource(tmp_path, file_format="csv"))
    with pytest.raises(StreamError, match="two columns cannot have one name, got 'id'"):
        FileSource(tmp_path, file_format="csv", column_names=["id", "id"])
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(Exception, match=r"a\.parquet has more than one column named 'id', of wh"):
        batches_of(FileSource(tmp_path / "a.parquet", file_format="parquet"))


def test_json_numbers_keep_every_digit_as_int_float_or_decimal(tmp_path: Path) -> None:
    texts = ["0.1", "1.50", "1e5", "-0.0", "0.30000000000000004", "0.1000000000000000056",
             "9007199254740993", "18446744073709551617",  "5e-324"]  # fmt: skip
    longer = ["0.1234567890123456789", "1234567890123456.7", "1e400", "-1e-400", "1.5e-324"]
    (tmp_path / "a.json").write_text(f'{{"x": [{", ".join(texts)}]}}\n[{", ".join(longer)}]\n')
    by_name, decimals = values_of(batches_of(FileSource(tmp_path, file_format="json")))
    assert [*map(repr, by_name["x"])] == [repr(json.loads(text)) for text in texts]
    assert decimals == [Decimal(text) for text in longer]
    assert set(map(type, decimals)) == {Decimal}


def test_json_object_with_a_duplicate_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n{"b": {"a": 1, "a": 2}}\n')
    with pytest.raises(
        StreamError, match=r"a\.json, line 2, is no JSON: an object has the name 'a'"
    ):
        batches_of(FileSource(tmp_path, file_format="json"))
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(StreamError, match=r"a\.json, line 1, is no JSON: "):
        batches_of(FileSource(tmp_path, file_format="json"))


# --- folders that grow ----------------------------------------------------------------------------


class Growing:
    """A watched folder, one enumerator after the other."""

    def __init__(self, folder: Path, file_format: str = "csv") -> None:
        self.source: Any = FileSource(
            folder, file_format=file_format, discovery_interval=Duration.of_seconds(1)
        )
        readers: Any = Readers(1)
        self.readers = readers
        self.enumerator = self.source.create_enumerator(readers, ManualClock())
        self.enumerator.start()

    def restored(self, checkpoint: Any) -> None:
        stored = read_enumerator_state(write_enumerator_state(checkpoint))
        self.readers = Readers(1)
        clock = ManualClock()
        self.enumerator = self.source.restore_enumerator(self.readers, clock, stored)
        self.enumerator.start()

    def next_rows(self) -> list[dict[str, Any]]:
        self.enumerator.discover()
        self.enumerator.handle_split_request(0)
        splits = self.readers.assigned.pop(0, [])
        return values_of(batches_by(reader_of(self.source, *splits)))


def test_schema_of_a_watched_folder_is_inferred_once_and_is_in_the_snapshot(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    (tmp_path / "0.csv").write_text("")  # without columns: it decides nothing
    assert growing.next_rows() == []
    (tmp_path / "1.csv").write_text("id,zip\n1,00501\n")
    assert growing.next_rows() == [{"id": 1, "zip": "00501"}]
    checkpoint = growing.enumerator.snapshot_state(1)
    (tmp_path / "2.csv").write_text("zip\n501\n")
    assert growing.next_rows() == [{"id": None, "zip": "501"}]
    growing.restored(checkpoint)
    assert growing.next_rows() == [{"id": None, "zip": "501"}]
    (tmp_path / "3.csv").write_text("id,zip\n0x1F,501\n")
    with pytest.raises(StreamError, match=r"3\.csv, line 2: '0x1F' does not fit, since its colum"):
        growing.next_rows()
    (tmp_path / "4.csv").write_text("id,town\n1,Oslo\n")
    with pytest.raises(StreamError, match=r"4\.csv, line 1, has a column 'town' that no file had"):
        growing.next_rows()


def test_discovery_state_of_an_earlier_version_is_restored(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id\n1\n")
    (tmp_path / "2.csv").write_text("id\n2\n")
    growing = Growing(tmp_path)
    growing.restored(([str(tmp_path / "1.csv"), str(tmp_path / "gone.csv")], []))
    assert growing.next_rows() == [{"id": 2}]


def test_later_parquet_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    growing = Growing(tmp_path, "parquet")
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), tmp_path / "1.parquet")
    assert growing.next_rows() == [{"n": 1}]
    pq.write_table(pa.table({"n": pa.array([2], pa.int32())}), tmp_path / "2.parquet")
    assert growing.next_rows() == [{"n": 2}]
    pq.write_table(pa.table({"n": [0.5]}), tmp_path / "3.parquet")
    with pytest.raises(StreamError, match=r"3\.parquet: column 'n' of type double has a value in"):
        growing.next_rows()
    pq.write_table(pa.table({"m": [1]}), tmp_path / "4.parquet")
    with pytest.raises(StreamError, match=r"4\.parquet has a column 'm' that no file had"):
        growing.next_rows()


# --- Parquet --------------------------------------------------------------------------------------


def test_parquet_files_with_incompatible_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(Exception, match=r"2\.parquet has a column 'n' of type string, and files"):
        batches_of(FileSource(tmp_path, file_format="parquet"))
    declared = FileSource(tmp_path, file_format="parquet", column_types={"n": Types.STRING()})
    assert schema_and_rows(declared) == (["string"], [{"n": "1"}, {"n": "x"}])


def test_integer_that_a_float_column_would_round_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [9007199254740993]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": [0.5]}), tmp_path / "2.parquet")
    with pytest.raises(Exception, match=r"1\.parquet: column 'n' of type int64 has a value in the"):
        batches_of(FileSource(tmp_path, file_format="parquet"))


DECIMALS = pa.array([Decimal("0.1234567890123456789")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DECIMALS, pa.array([0.5])),
        (DECIMALS, pa.array([0.5], pa.float32())),
        (pa.array([[DECIMALS[0].as_py()]]), pa.array([[0.5]])),
        (pa.array([{"x": DECIMALS[0].as_py()}]), pa.array([{"y": 1, "x": 0.5}])),
        (pa.array([{"y": 1, "x": 0.5}]), pa.array([{"x": DECIMALS[0].as_py()}])),
        (
            pa.array([[("k", DECIMALS[0].as_py())]], pa.map_(pa.string(), DECIMALS.type)),
            pa.array([[("k", 0.5)]], pa.map_(pa.string(), pa.float64())),
        ),
    ],
)
def test_float_column_beside_a_decimal_column_is_refused(
    one: pa.Array, other: pa.Array, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": one}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": other}), tmp_path / "2.parquet")
    with pytest.raises(
        Exception, match=r"2\.parquet has a column 'n' of type .*, and files before"
    ):
        batches_of(FileSource(tmp_path, file_format="parquet"))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint64()], ids=str)
@pytest.mark.parametrize("places", [2, 30])
def test_integers_beside_decimals_are_read_as_decimals(
    kind: pa.DataType, places: int, tmp_path: Path
) -> None:
    most = 2 ** (kind.bit_width - (not pa.types.is_unsigned_integer(kind))) - 1
    price = pa.array([Decimal("1.25")], pa.decimal128(places + 3, places))
    pq.write_table(pa.table({"n": price}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": pa.array([most], kind)}), tmp_path / "2.parquet")
    _, rows = schema_and_rows(FileSource(tmp_path, file_format="parquet"))
    assert [row["n"] for row in rows] == [Decimal("1.25"), most]


FAR_TIMES = [datetime(2006, 1, 2, 7, 4, 5), datetime(9999, 12, 31, 23, 59, 59), None,
             datetime(1600, 1, 1, 0, 0, 0, 1)]  # fmt: skip


def test_int96_timestamps_outside_the_nanosecond_range_are_read(tmp_path: Path) -> None:
    table = pa.table({
        "id": range(4),
        "at": pa.array(FAR_TIMES, pa.timestamp("us")),
        "all": pa.array([[at] for at in FAR_TIMES], pa.list_(pa.timestamp("us"))),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    types, rows = schema_and_rows(FileSource(tmp_path, file_format="parquet"))
    assert types[1] == "timestamp[us]"
    assert [row["at"] for row in rows] == FAR_TIMES
    assert [row["all"] for row in rows] == [[at] for at in FAR_TIMES]


def test_int96_timestamps_with_nanoseconds_are_refused_unless_declared(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = pa.array([1_000, 1_700_000_000_123_456_789], pa.timestamp("ns"))
    pq.write_table(pa.table({"at": times}), path, use_deprecated_int96_timestamps=True)
    with pytest.raises(
        Exception, match=r"a\.parquet: column 'at' is read in microseconds, and one"
    ):
        batches_of(FileSource(path, file_format="parquet"))
    declared = {"at": pa.timestamp("ns")}
    source = FileSource(path, file_format="parquet", column_types=declared)
    (batch,) = batches_of(source)
    assert isinstance(batch, Columns)
    assert batch.batch["at"].equals(times)
    far = pa.array([datetime(9999, 12, 31)], pa.timestamp("us"))
    pq.write_table(pa.table({"at": far}), path, use_deprecated_int96_timestamps=True)
    with pytest.raises(
        Exception, match=r"'at' is declared as timestamp\[ns\], and one of the rows"
    ):
        batches_of(source)
