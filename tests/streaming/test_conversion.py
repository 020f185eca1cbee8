"""Python values that become columns: all of them do, as they are, or an error names the column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flinkray.streaming.columnar.conversion import block_to_batch, block_to_columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import TypeInformation, Types

EAST = dt.timezone(dt.timedelta(hours=5))
DAY = dt.date(2020, 1, 1)
NOON = dt.datetime(2020, 1, 1, 12)

KEYS = st.sampled_from("abcd")


def rows_of(values: list[Any], kind: TypeInformation | None = None) -> list[dict[str, Any]]:
    return block_to_batch(Block(values), kind).to_pylist()  # type: ignore[no-any-return]


# --- fields ---------------------------------------------------------------------------------------


@given(st.lists(st.dictionaries(KEYS, st.integers(0, 9)), min_size=1))
def test_dictionaries_become_columns_for_the_union_of_their_keys(values: list[Any]) -> None:
    keys = {key for value in values for key in value}
    assume(keys)
    assert rows_of(values) == [{key: value.get(key) for key in keys} for value in values]


class Pair(NamedTuple):
    a: int
    b: int


class Swapped(NamedTuple):
    b: int
    a: int


@given(
    values=st.lists(st.dictionaries(KEYS, st.integers(0, 9), min_size=4), min_size=1),
    data=st.data(),
    declared=st.booleans(),
)
def test_named_rows_become_columns_by_field_name_in_any_order(
    values: list[dict[str, int]], data: st.DataObject, declared: bool
) -> None:
    rows = []
    for value in values:
        names = data.draw(st.permutations(list(value)))
        rows.append(Row.of(list(names), [value[name] for name in names]))
    order = data.draw(st.permutations("abcd"))
    kind = Types.ROW_NAMED(list(order), [Types.LONG()] * 4) if declared else None
    assert rows_of(rows, kind) == values
    assert rows_of(values, kind) == values


def test_named_tuples_become_columns_by_name_and_tuples_by_position() -> None:
    assert rows_of([Pair(1, 2), Swapped(2, 1), (1, 2), Row(1, 2)]) == [{"a": 1, "b": 2}] * 4
    assert rows_of([(1, 2), Row(1, 2)]) == [{"f0": 1, "f1": 2}] * 2
    by_place = Types.ROW([Types.LONG(), Types.LONG()])
    assert rows_of([Pair(1, 2), Swapped(1, 2)], by_place) == [{"f0": 1, "f1": 2}] * 2


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ([Row(a=1, b=2), Row(a=1, c=9)], None, r"fields \['a', 'c'\], and not \['a', 'b'\]"),
        ([Row(a=1, b=2), Row(a=1)], None, r"has not the fields \['a', 'b'\]"),
        ([(1, 2), (1, 2, 3)], None, r"\(1, 2, 3\) has not the fields \['f0', 'f1'\]"),
        ([Row(a=1), {"b": 1}], None, r"has the fields \['b'\], and there are only \['a'\]"),
        ([{"a": 1}, Row(a=1)], None, r"Row\(a=1\) is not a dictionary, as others are"),
        ([(1,), 2], None, r"2 is not a record of the fields \['f0'\]"),
        ([{1: 2}], None, "the key 1 of a dictionary is no name of a column: declare a type such"),
        ([{}, {}], None, r"\{\} has no fields"),
        ([()], None, r"\(\) has no fields"),
        ([Row.of(["a", "a"], [1, 2])], None, r"Row\(a=1, a=2\) has two fields named 'a'"),
        ([2**63 + 1, 3], None, "column 'value': Python int too large"),
        ([(1, object())], None, "column 'f1': Could not convert .*declare an output type"),
        ([(1, "a")], Types.TUPLE([Types.LONG(), Types.LONG()]), "'f1': .* declared as int64"),
        ([{"a": 1, "c": 2}], Types.ROW_NAMED(["a"], [Types.LONG()]), r"the fields \['c'\], and"),
        ([[1]], Types.MAP(Types.LONG(), Types.LONG()), r"\[1\] is not a dictionary, as MapType"),
        ([None], Types.ROW_NAMED(["a"], [Types.LONG()]), "None is not a record of the fields"),
    ],
)  # fmt: skip
def test_records_with_different_fields_or_kinds_raise_an_error(
    values: list[Any], kind: TypeInformation | None, told: str
) -> None:
    with pytest.raises(StreamError, match=told):
        rows_of(values, kind)


# --- declared types -------------------------------------------------------------------------------


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda kind: ("list", kind), leaf),
        st.builds(lambda kind: ("map", kind), leaf),
        st.builds(lambda kinds: ("row", kinds), st.lists(leaf, min_size=1, max_size=3)),
        st.builds(lambda kinds: ("tuple", kinds), st.lists(leaf, min_size=1, max_size=3)),
    )


SHAPES = st.recursive(st.just("long"), nested, max_leaves=5)
NAMES = ["c", "a", "b"]


def type_of(shape: Any) -> TypeInformation:
    if shape == "long":
        return Types.LONG()
    name, inner = shape
    if name == "list":
        return Types.LIST(type_of(inner))
    if name == "map":
        return Types.MAP(Types.LONG(), type_of(inner))
    kinds = [type_of(kind) for kind in inner]
    return Types.TUPLE(kinds) if name == "tuple" else Types.ROW_NAMED(NAMES[: len(kinds)], kinds)


def value_of(shape: Any, data: st.DataObject, is_field: bool = True) -> tuple[Any, Any]:
    """A value of the shape, and how Arrow gives it back."""
    if is_field and data.draw(st.integers(0, 5)) == 0:
        return None, None
    if shape == "long":
        return (data.draw(st.integers(0, 9)),) * 2
    name, inner = shape
    if name in ("list", "map"):
        items = [value_of(inner, data) for _ in range(data.draw(st.integers(0, 3)))]
        values, given_back = [value for value, _ in items], [back for _, back in items]
        if name == "list":
            return values, given_back
        return dict(enumerate(values)), list(enumerate(given_back))
    items = [value_of(kind, data) for kind in inner]
    names = NAMES if name == "row" else ["f0", "f1", "f2"]
    back = {key: item for key, (_, item) in zip(names, items, strict=False)}
    if name == "tuple":
        return tuple(value for value, _ in items), back
    fields = {key: value for key, (value, _) in zip(names, items, strict=False)}
    forms = [Row(**fields), fields, tuple(fields.values()), Row(*fields.values())]
    return data.draw(st.sampled_from(forms)), back


@given(shape=SHAPES, data=st.data(), number=st.integers(1, 4))
def test_values_of_any_declared_type_become_columns_of_that_type(
    shape: Any, data: st.DataObject, number: int
) -> None:
    kind = type_of(shape)
    is_record = isinstance(shape, tuple) and shape[0] in ("row", "tuple")
    items = [value_of(shape, data, is_field=not is_record) for _ in range(number)]
    columns = block_to_columns(Block([value for value, _ in items]), kind)
    given_back = [back if is_record else {"value": back} for _, back in items]
    assert columns.batch.to_pylist() == given_back
    assert columns.scalar is not is_record
    struct = pa.struct(list(columns.batch.schema))
    assert (struct if is_record else columns.batch.schema.types[0]) == kind.to_arrow()


# --- times ----------------------------------------------------------------------------------------

ZONES: Any = [EAST, dt.timezone.utc]
TIMES = {
    "date": st.dates(),
    "local": st.datetimes(),
    "aware": st.datetimes(
        dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.sampled_from(ZONES)
    ),
    "time": st.times(),
}
COLUMN = st.lists(st.sampled_from(sorted(TIMES)), min_size=1, max_size=2, unique=True).flatmap(
    lambda kinds: st.lists(
        st.one_of([st.none(), *(st.tuples(st.just(kind), TIMES[kind]) for kind in kinds)]),
        min_size=1,
    )
)
WRAPPED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bare": (lambda v: v, lambda row: row["value"]),
    "field": (lambda v: (1, v), lambda row: row["f1"]),
    "list": (lambda v: [v], lambda row: row["value"][0]),
    "struct": (lambda v: (1, {"t": v}), lambda row: row["f1"]["t"]),
}


@given(column=COLUMN, wrap=st.sampled_from(sorted(WRAPPED)))
def test_times_of_equal_kind_are_kept_and_mixed_kinds_are_refused(
    column: list[Any], wrap: str
) -> None:
    into, out = WRAPPED[wrap]
    values = [None if item is None else item[1] for item in column]
    block = [into(value) for value in values]
    if len({item[0] for item in column if item is not None}) > 1:
        with pytest.raises(StreamError, match=r"column '(value|f1)"):
            rows_of(block)
    else:
        assert [out(row) for row in rows_of(block)] == values


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ([DAY, NOON], None, "column 'value' has dates and datetimes without an offset, and a col"),
        ([NOON, NOON.replace(tzinfo=EAST)], None,
         "'value' has datetimes with an offset and datetimes without an offset"),
        ([(1, NOON.replace(tzinfo=EAST)), (2, NOON)],
         Types.TUPLE([Types.LONG(), Types.SQL_TIMESTAMP()]), "column 'f1' has datetimes with an"),
        ([(1, dt.time(1, tzinfo=EAST))], None, "'f1' has times with an offset, and a column of"),
        ([NOON], Types.SQL_DATE(), "to hold dates, and 2020-01-01 12:00:00 has a time of day"),
        ([{"a": {"b": [DAY, NOON]}}], None, r"column 'a\.b\[\]' has dates and datetimes"),
        ([{1: DAY, 2: NOON}], Types.MAP(Types.LONG(), Types.SQL_DATE()),
         r"column 'value\.value' has dates and datetimes"),
        ([{DAY: 1, NOON: 2}], Types.MAP(Types.SQL_DATE(), Types.LONG()),
         r"column 'value\.key' has dates and datetimes"),
    ],
)  # fmt: skip
def test_times_that_would_lose_precision_are_refused_with_the_column(
    values: list[Any], kind: TypeInformation | None, told: str
) -> None:
    with pytest.raises(StreamError, match=told):
        rows_of(values, kind)


def test_datetimes_at_midnight_become_dates_of_a_declared_date_column() -> None:
    assert rows_of([dt.datetime(2020, 1, 1)], Types.SQL_DATE()) == [{"value": DAY}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.5], Types.INT()),
        ([Decimal("1.5")], Types.LONG()),
        ([float("nan")], Types.INT()),
        ([("a", 1.5)], Types.TUPLE([Types.STRING(), Types.INT()])),
        ([[1, 2.5]], Types.LIST(Types.INT())),
        ([1e300], Types.FLOAT()),
        ([b"x"], Types.STRING()),
        (["a", b"a"], None),
        ([(["a", b"b"],)], None),
        ([{"k": "a"}, {"k": b"a"}], None),
        ([DAY, 5], None),
        ([dt.timedelta(1), 5], None),
        ([UUID(int=1), bytes(16)], None),
        ([1.5, True], None),
    ],
)
def test_values_that_arrow_would_convert_silently_are_refused(
    values: list[Any], kind: TypeInformation | None
) -> None:
    with pytest.raises(StreamError, match="column "):
        rows_of(values, kind)


@pytest.mark.parametrize("kind", [None, Types.ROW([Types.INT()])])
def test_rows_of_kind_delete_are_refused_as_columns(kind: TypeInformation | None) -> None:
    values = [Row(1), Row.of_kind(RowKind.DELETE, 2)]
    with pytest.raises(
        StreamError, match=r"<Row\(2\)> is of the kind DELETE \(-D\), which columns"
    ):
        rows_of(values, kind)


def test_numbers_are_converted_to_the_declared_type_if_nothing_is_lost() -> None:
    assert rows_of([2.0, None, 3], Types.INT()) == [{"value": 2}, {"value": None}, {"value": 3}]
    assert rows_of([float("inf"), 1, None], Types.FLOAT())[0] == {"value": float("inf")}


def test_nanoseconds_are_kept_when_columns_become_rows_and_columns_again() -> None:
    """Rows contain pandas timestamps if pandas is installed."""
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")):
        column = pa.array([1, None, 1_700_000_000_123_456_789], kind)
        block = Columns(pa.record_batch({"x": column})).to_block()
        assert block_to_batch(block)["x"].equals(column)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            pa.array([1], pa.time64("ns")),
            r"time64\[ns\] has a time with nanoseconds, which",
        ),
        (
            pa.array([10**18], pa.timestamp("us")),
            r"timestamp\[us\] has a value that is none of",
        ),
        (pa.array([10**7], pa.date32()), r"date32\[day\] has a value that is none of Python's"),
    ],
)
def test_times_that_python_cannot_represent_are_refused(column: pa.Array, told: str) -> None:
    with pytest.raises(StreamError, match=told):
        Columns(pa.record_batch({"x": column})).to_block()
    whole = Columns(pa.record_batch({"x": pa.array([1000, None], pa.time64("ns"))})).to_block()
    assert [row.x for row in whole.values] == [dt.time(0, 0, 0, 1), None]
