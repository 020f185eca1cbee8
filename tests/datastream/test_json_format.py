"""Rows as JSON messages, as Flink reads and writes them."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable
from typing import Any

import cloudpickle
import hypothesis.strategies as st
import pytest
from hypothesis import given

from flinkray.datastream import Row, Types
from flinkray.datastream.formats.json import (
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    JsonValueSchema,
)
from flinkray.streaming.errors import StreamError


def reading(kind: Any) -> JsonRowDeserializationSchema:
    made = JsonRowDeserializationSchema.builder().type_info(kind).build()
    return cloudpickle.loads(cloudpickle.dumps(made))  # type: ignore[no-any-return]


def writing(kind: Any) -> JsonRowSerializationSchema:
    made = JsonRowSerializationSchema.builder().with_type_info(kind).build()
    return cloudpickle.loads(cloudpickle.dumps(made))  # type: ignore[no-any-return]


def one(kind: Any) -> Any:
    return Types.ROW_NAMED(["x"], [kind])


EVENT = Types.ROW_NAMED(
    ["at", "who", "ids"],
    [
        Types.STRING(),
        Types.ROW_NAMED(["id"], [Types.STRING()]),
        Types.PRIMITIVE_ARRAY(Types.INT()),
    ],
)


@pytest.mark.parametrize(
    ("message", "back"),
    [
        ('{"at":"2020-02-24"}', '{"at":"2020-02-24","who":null,"ids":null}'),
        (
            '{"ids": [1, 2, 3], "at": "é\\"", "more": {}, "who": {"id": "28-d0", "x": 1}}',
            '{"at":"é\\"","who":{"id":"28-d0"},"ids":[1,2,3]}',
        ),
    ],
)
def test_json_row_is_written_as_it_was_read(message: str, back: str) -> None:
    row = reading(EVENT).deserialize(message.encode())
    assert writing(EVENT).serialize(row) == back.encode()
    assert reading(EVENT).get_produced_type() == EVENT


@pytest.mark.parametrize(
    ("kind", "text", "value", "back"),
    [
        (Types.STRING(), "1.50", "1.5", '"1.5"'),
        (Types.STRING(), "true", "true", '"true"'),
        (Types.STRING(), '{"a": [1, null]}', '{"a":[1,null]}', '"{\\"a\\":[1,null]}"'),
        (Types.BOOLEAN(), '" True"', True, "true"),
        (Types.BOOLEAN(), '"yes"', False, "false"),
        (Types.INT(), "1.9", 1, "1"),
        (Types.INT(), '" 12"', 12, "12"),
        (Types.LONG(), str(2**63 - 1), 2**63 - 1, str(2**63 - 1)),
        (Types.SHORT(), '"-5"', -5, "-5"),
        (Types.BYTE(), "7", 7, "7"),
        (Types.DOUBLE(), "1e10", 1e10, "1.0E10"),
        (Types.DOUBLE(), '"NaN"', math.nan, '"NaN"'),
        (Types.FLOAT(), "0.1", 0.10000000149011612, "0.1"),
        (Types.BIG_INT(), str(10**30), 10**30, str(10**30)),
        (Types.BIG_DEC(), '"1.50"', decimal.Decimal("1.50"), "1.50"),
        (Types.SQL_DATE(), '"2024-02-29"', datetime.date(2024, 2, 29), '"2024-02-29"'),
        (Types.SQL_TIME(), '"01:02:03Z"', datetime.time(1, 2, 3), '"01:02:03"'),
        (
            Types.SQL_TIMESTAMP(),
            '"2024-02-29T01:02:03.25Z"',
            datetime.datetime(2024, 2, 29, 1, 2, 3, 250_000),
            '"2024-02-29T01:02:03.25"',
        ),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), '"AP8/"', b"\x00\xff?", '"AP8/"'),
        (Types.OBJECT_ARRAY(Types.STRING()), '["a", null]', ["a", None], '["a",null]'),
        (Types.MAP(Types.INT(), Types.BOOLEAN()), '{"1": true}', {1: True}, '{"1":true}'),
        (Types.PICKLED_BYTE_ARRAY(), '{"a": [1]}', {"a": [1]}, '{"a":[1]}'),
        (Types.STRING(), "null", None, "null"),
    ],
)
def test_json_value_of_each_type_is_read_and_written(
    kind: Any, text: str, value: Any, back: str
) -> None:
    row: Any = reading(one(kind)).deserialize(f'{{"x": {text}}}'.encode())
    assert row.x == value or (value != value and row.x != row.x)
    assert type(row.x) is type(value)
    assert writing(one(kind)).serialize(row) == f'{{"x":{back}}}'.encode()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Types.INT(), str(2**31)),
        (Types.INT(), "1e12"),
        (Types.INT(), "true"),
        (Types.SHORT(), "1.0"),
        (Types.LONG(), "[]"),
        (Types.BIG_DEC(), '"NaN"'),
        (Types.SQL_DATE(), '"2024-02-30"'),
        (Types.SQL_TIMESTAMP(), '"2024-02-29"'),
        (Types.OBJECT_ARRAY(Types.STRING()), '"a"'),
        (Types.ROW([Types.STRING()]), "[]"),
    ],
)
def test_json_value_of_a_wrong_type_fails_or_becomes_none(kind: Any, text: str) -> None:
    message = f'{{"x": {text}}}'.encode()
    with pytest.raises(StreamError, match=r"failed to deserialize JSON b.*: field 'x': "):
        reading(one(kind)).deserialize(message)
    builder = JsonRowDeserializationSchema.builder().type_info(one(kind)).ignore_parse_errors()
    assert builder.build().deserialize(message) == Row(x=None)


DIGITS = ["1234567890123456.789012", "0.1234567890123456789", "-98765432109876543210.5", "12.50",
          "1e-20", "3"]  # fmt: skip


@pytest.mark.parametrize("text", DIGITS)
def test_decimals_keep_every_digit(text: str) -> None:
    kind = Types.ROW_NAMED(
        ["id", "rate", "parts", "any", "text"],
        [Types.LONG(), Types.BIG_DEC(), Types.OBJECT_ARRAY(Types.BIG_DEC()),
         Types.PICKLED_BYTE_ARRAY(), Types.STRING()],
    )  # fmt: skip
    message = (
        f'{{"id": 9007199254740993.0, "rate": {text}, "parts": [{text}], "any": [{text}],'
        f' "text": {{"x": {text}}}}}'
    )
    row: Any = reading(kind).deserialize(message.encode())
    exact = decimal.Decimal(text)
    assert (row.id, row.rate, row.parts) == (9007199254740993, exact, [exact])
    assert decimal.Decimal(str(row.any[0])) == exact
    assert decimal.Decimal(row.text.removeprefix('{"x":').removesuffix("}")) == exact
    of_schema = '{"type": "object", "properties": {"rate": {"type": "number"}}}'
    by_schema = JsonRowDeserializationSchema.builder().json_schema(of_schema).build()
    assert by_schema.deserialize(message.encode()) == Row(rate=exact)


def test_json_number_too_large_for_its_type_is_refused_without_filling_memory() -> None:
    for kind in (Types.INT(), Types.LONG()):
        with pytest.raises(StreamError, match=r"field 'x': \d+ is no integer of \d+ bits"):
            reading(one(kind)).deserialize(b'{"x": 1e999999999}')


def test_json_object_with_a_duplicate_name_is_refused() -> None:
    with pytest.raises(StreamError, match="an object has the name 'x' more than once"):
        reading(one(Types.INT())).deserialize(b'{"x": 1, "x": 2}')


def test_json_message_that_is_no_object_fails_or_becomes_none() -> None:
    kind = one(Types.INT())
    lenient = JsonRowDeserializationSchema.builder().type_info(kind).ignore_parse_errors().build()
    for message in (b"{", b"[1]", b"NaN", b"\xff", b""):
        with pytest.raises(StreamError, match="failed to deserialize JSON"):
            reading(kind).deserialize(message)
        assert lenient.deserialize(message) is None
    assert reading(kind).deserialize(b"null") is None


def test_missing_json_field_is_none_or_fails_as_set() -> None:
    kind = one(Types.INT())
    assert reading(kind).deserialize(b"{}") == Row(x=None)
    builder = JsonRowDeserializationSchema.builder().type_info(kind).fail_on_missing_field()
    assert builder.build().deserialize(b'{"x": null}') == Row(x=None)
    with pytest.raises(StreamError, match="could not find field with name 'x'"):
        builder.build().deserialize(b"{}")
    with pytest.raises(ValueError, match="are both true"):
        builder.ignore_parse_errors().build()


def test_row_is_written_as_json_by_field_name_or_position_unless_fields_differ() -> None:
    kind = Types.ROW_NAMED(["b", "a"], [Types.INT(), Types.INT()])
    for value in (Row(a=2, b=1), Row(1, 2), (1, 2), {"a": 2, "b": 1}):
        assert writing(kind).serialize(value) == b'{"b":1,"a":2}'
    for wrong in (Row(a=1), (1,), 5, Row(a="x", b=1)):
        with pytest.raises(StreamError, match=r"could not serialize row .* schema matches"):
            writing(kind).serialize(wrong)


def test_json_format_without_a_usable_row_type_is_refused() -> None:
    for build in (
        lambda: JsonRowSerializationSchema.builder().build(),
        lambda: JsonRowDeserializationSchema.builder().build(),
        lambda: JsonRowDeserializationSchema.builder().json_schema(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            build()
    with pytest.raises(ValueError, match="the type of rows is needed, got Integer"):
        reading(Types.INT())
    for make in (reading, writing):
        with pytest.raises(StreamError, match="have no text in this format"):
            make(one(Types.INSTANT()))


# --- JSON schemas ---------------------------------------------------------------------------------

ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}}}


def test_json_schema_determines_the_row_type() -> None:
    schema = {
        "definitions": {"address": ADDRESS},
        "type": "object",
        "properties": {
            "name": {"type": ["string", "null"]},
            "age": {"type": "integer"},
            "weight": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "born": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "time"},
            "seen": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
            "photo": {"type": "string", "contentEncoding": "base64"},
            "home": {"$ref": "#/definitions/address"},
            "others": {"type": "array", "items": {"$ref": "#/definitions/address"}},
            "active": {"type": "boolean"},
        },
    }
    made = JsonRowDeserializationSchema.builder().json_schema(json.dumps(schema)).build()
    address = Types.ROW_NAMED(["street"], [Types.STRING()])
    kinds = {
        "name": Types.STRING(),
        "age": Types.BIG_DEC(),
        "weight": Types.BIG_DEC(),
        "born": Types.SQL_DATE(),
        "at": Types.SQL_TIME(),
        "seen": Types.SQL_TIMESTAMP(),
        "mail": Types.STRING(),
        "photo": Types.PRIMITIVE_ARRAY(Types.BYTE()),
        "home": address,
        "others": Types.OBJECT_ARRAY(address),
        "active": Types.BOOLEAN(),
    }
    assert made.get_produced_type() == Types.ROW_NAMED(list(kinds), list(kinds.values()))
    row: Any = made.deserialize(b'{"age": 36, "others": [{"street": "x"}]}')
    assert (row.age, row.others) == (decimal.Decimal(36), [Row(street="x")])


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("{", "invalid JSON schema"),
        ("{}", "no type could be found in node: <root>"),
        ('{"type": "date"}', "unsupported type 'date' in node: <root>"),
        ('{"type": ["string", "number"]}', "union types with more than just a null type"),
        ('{"anyOf": []}', "union types and extending"),
        ('{"type": "null"}', "nothing but null"),
        (
            '{"type": "object", "properties": {"x": {"type": "null"}}}',
            "nothing but null .*<root>/x",
        ),
        ('{"type": "object", "additionalProperties": true}', "must not allow additional"),
        ('{"type": "array"}', "arrays must specify an 'items' property"),
        ('{"type": "string", "contentEncoding": "x"}', "invalid encoding 'x'"),
        ('{"$ref": "other.json"}', "only references in the same document"),
        ('{"$ref": "#/nowhere"}', "could not find reference: #/nowhere"),
        ('{"$ref": "#"}', "cyclic references are not supported: #"),
        ("[]", "an object is expected in node: <root>"),
    ],
)
def test_json_schema_that_describes_no_row_type_is_refused(schema: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        JsonRowDeserializationSchema.builder().json_schema(schema)


ODD_MESSAGES = [
    b'{"a": 1, "a": [1.5, null, true, "\\u00e9"], "b": 123456789012345678901}',
    b" [1] \n",
    b"1 2",
    b"1,2",
    b"[3",
    b"4]",
    b"1],[2",
    b'"',
    b"NaN",
    b"-0",
    b"null",
    b"",
    b'"\xed\xa0\x80"',
    b'"\xff"',
    '{"é": "\u20ac"}'.encode(),
    '{"é": 1}'.encode("utf-8-sig"),
    '{"é": 1}'.encode("utf-16"),
    "1".encode("utf-16-le"),
]


@given(st.lists(st.sampled_from(ODD_MESSAGES)))
def test_json_value_schema_reads_messages_as_json_loads_reads_each(messages: list[bytes]) -> None:
    def result(read: Callable[[], list[Any]]) -> str:
        try:
            return repr(read())
        except ValueError as error:
            return type(error).__name__

    one_by_one = result(lambda: [json.loads(message) for message in messages])
    assert result(lambda: JsonValueSchema().deserialize_all(messages)) == one_by_one


def test_json_value_schema_reads_each_message_alone_if_a_subclass_reads_it_otherwise() -> None:
    class Doubled(JsonValueSchema):
        def deserialize(self, message: bytes) -> Any:
            return 2 * super().deserialize(message)

    assert Doubled().deserialize_all([b"1", b'"a"']) == [2, "aa"]


def test_json_value_schema_writes_what_it_reads() -> None:
    values = [{"a": [1, 1.5, None, True, "é"]}, 2]
    schema = JsonValueSchema()
    assert schema.deserialize_all(list(map(schema.serialize, values))) == values
