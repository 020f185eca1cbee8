"""Types: conversion, Java's notation, Arrow, type hints."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.type_inference import type_of_hint, type_of_result, type_of_schema
from flinkray.streaming.records.typeinfo import Types


def test_converted_nested_rows_get_field_names_and_keep_their_kind() -> None:
    inner = Types.ROW_NAMED(["x"], [Types.INT()])
    convert = Types.ROW_NAMED(["a", "b"], [Types.STRING(), inner]).converter()
    assert convert is not None
    deleted = Row("k", (1,))
    deleted.set_row_kind(RowKind.DELETE)
    row = convert(deleted)
    assert row == _row(["a", "b"], ["k", _row(["x"], [1])], RowKind.DELETE)
    assert convert({"a": "k", "b": None}) == _row(["a", "b"], ["k", None])
    in_tuple = Types.TUPLE([inner]).converter()
    assert in_tuple is not None
    assert in_tuple(((5,),)) == (_row(["x"], [5]),)


def _row(names: list[str], values: list[Any], kind: RowKind = RowKind.INSERT) -> Row:
    row = Row.of(names, values)
    row.set_row_kind(kind)
    return row


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Types.ROW([Types.STRING(), Types.INT()]), Row("a", 3), "+I[a, 3]"),
        (Types.TUPLE([Types.STRING(), Types.BOOLEAN()]), ("a", False), "(a,false)"),
        (Types.LIST(Types.INT()), [1, None], "[1, null]"),
        (Types.MAP(Types.STRING(), Types.DOUBLE()), {"k": 1.5}, "{k=1.5}"),
        (Types.BIG_DEC(), Decimal("1.20"), "1.20"),
        (Types.PICKLED_BYTE_ARRAY(), Row(x=1), "+I[1]"),
        (Types.PICKLED_BYTE_ARRAY(), b"\x00\xff", "[0, -1]"),
        (Types.DOUBLE(), 1e7, "1.0E7"),
        (Types.DOUBLE(), float("-inf"), "-Infinity"),
        (Types.DOUBLE(), 2, "2.0"),
        (Types.DOUBLE(), None, "null"),
        (Types.DOUBLE(), "of another type", "of another type"),
        (Types.FLOAT(), 0.1 + 0.2, "0.3"),
        (Types.SQL_DATE(), date(2021, 1, 9), "2021-01-09"),
        (Types.SQL_TIME(), time(12, 0, 0, 5000), "12:00:00"),
        (Types.SQL_TIMESTAMP(), datetime(2021, 1, 9, 12, 0, 0, 11000), "2021-01-09 12:00:00.011"),
        (Types.LIST(Types.SQL_TIMESTAMP()), [datetime(2021, 1, 9)], "[2021-01-09 00:00:00.0]"),
    ],
)
def test_text_of_a_value_with_a_declared_type_equals_that_of_java(
    kind: Any, value: Any, text: str
) -> None:
    assert kind.stringify(value) == text


def test_types_with_equal_fields_are_equal() -> None:
    assert Types.ROW([Types.INT()]) == Types.ROW_NAMED(["f0"], [Types.INT()])
    assert Types.ROW([Types.INT()]) != Types.ROW([Types.LONG()])
    assert Types.BASIC_ARRAY(Types.INT()) != Types.OBJECT_ARRAY(Types.INT())
    assert len({Types.STRING(), Types.STRING(), Types.CHAR()}) == 2


def test_types_are_derived_from_type_hints_and_arrow_schemas() -> None:
    def function(value: int) -> tuple[str, int | None]: ...  # type: ignore[empty-body]

    assert type_of_result(function) == Types.TUPLE([Types.STRING(), Types.LONG()])
    assert type_of_result(lambda value: value) is None
    assert type_of_hint(dict[str, list[float]]) == Types.MAP(
        Types.STRING(), Types.LIST(Types.DOUBLE())
    )
    assert type_of_hint(tuple[int, ...]) is None
    schema = pa.schema([("a", pa.int16()), ("b", pa.list_(pa.string()))])
    row_type = type_of_schema(schema)
    assert row_type == Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.LIST(Types.STRING())])
    assert row_type.to_arrow() == pa.struct(list(schema))


def test_row_fields_are_read_and_set_by_name_and_position() -> None:
    row = Row(name="Ada", age=36)
    assert (row.age, row["name"], row[0], len(row), "Ada" in row) == (36, "Ada", 36, 2, True)
    row["age"] = 37
    row[1] = "Grace"
    assert row.as_dict() == {"age": 37, "name": "Grace"}
    assert Row("name", "age")("Ada", 36) == Row.of(["name", "age"], ["Ada", 36])
    nested = Row(x=Row(y=1), z=[Row(y=2)])
    assert nested.as_dict(recursive=True) == {"x": {"y": 1}, "z": [{"y": 2}]}
    with pytest.raises(KeyError, match="no field 'nothing'"):
        row["nothing"]
    with pytest.raises(AttributeError):
        row.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"row\['age'\] = value"):
        row.age = 1
    with pytest.raises(ValueError, match="not both"):
        Row(1, a=2)


def test_row_is_equal_after_pickling() -> None:
    import pickle

    row = _row(["a"], [1], RowKind.UPDATE_AFTER)
    assert pickle.loads(pickle.dumps(row)) == row
    assert hash(row) == hash(_row(["a"], [1]))


def test_named_row_is_converted_to_a_declared_row_type_by_field_name() -> None:
    """PyFlink's coder reads fields by name. With positions, values changed places."""
    convert = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()]).converter()
    assert convert is not None
    row = convert(Row(word="to", n=1))
    assert (row.word, row.n, list(row)) == ("to", 1, ["to", 1])
    assert list(convert(Row("to", 1))) == ["to", 1], "without names: by position"


def test_row_with_other_field_names_than_its_declared_type_is_refused() -> None:
    convert = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()]).converter()
    assert convert is not None
    with pytest.raises(ValueError, match=r"has the fields \['number', 'word'\], its declared type"):
        convert(Row(word="to", number=1))


def test_two_fields_with_the_same_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two fields of a row type cannot have one name, got 'a'"):
        Types.ROW_NAMED(["a", "b", "a"], [Types.INT()] * 3)
    with pytest.raises(ValueError, match=r"Row\(a=1, a=2\) has two fields named 'a'"):
        Row.of(["a", "a"], [1, 2]).as_dict()


def test_values_of_a_map_are_converted_to_their_declared_type() -> None:
    point = Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()])
    convert = Types.MAP(Types.STRING(), point).converter()
    assert convert is not None
    assert convert({"a": Row(1, 2), "b": None}) == {"a": Row.of(["x", "y"], [1, 2]), "b": None}
    assert convert(None) is None
    pairs = Types.MAP(Types.TUPLE([Types.INT()]), Types.INT()).converter()
    assert pairs is not None
    assert pairs({Row(1): 2}) == {(1,): 2}
    assert Types.MAP(Types.STRING(), Types.INT()).converter() is None
