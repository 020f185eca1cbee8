"""CSV as Flink reads and writes it: files by a schema, and messages by a type."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.datastream import Row, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors.file_system import FileSink, FileSource
from flinkray.datastream.formats.csv import (
    CsvBulkWriters,
    CsvReaderFormat,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    CsvSchema,
    CsvSchemaBuilder,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.records.number_text import java_double, java_float
from flinkray.streaming.sources.files import FileSplit
from tests.streaming.sources.reading import batch_of, reader_of, rest_of


def names() -> CsvSchemaBuilder:
    return CsvSchema.builder().add_string_column("a").add_string_column("b")


def source(schema: CsvSchema, *paths: Path) -> FileSource:
    """As a cluster has it."""
    made = FileSource.for_record_stream_format(
        CsvReaderFormat.for_schema(schema), *map(str, paths)
    ).build()
    return cloudpickle.loads(cloudpickle.dumps(made))  # type: ignore[no-any-return]


def read(tmp_path: Path, schema: CsvSchema, text: str) -> list[Any]:
    path = tmp_path / "in.csv"
    path.write_text(text)
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(source(schema, path), WatermarkStrategy.no_watermarks(), "csv")
    assert stream.get_type() == schema.get_type_info()
    return list(stream.execute_and_collect())


def written(tmp_path: Path, schema: CsvSchema, *values: Any) -> str:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    sink = FileSink.for_bulk_format(str(tmp_path / "out"), CsvBulkWriters.for_schema(schema))
    env.from_collection(list(values)).sink_to(cloudpickle.loads(cloudpickle.dumps(sink.build())))
    env.execute()
    (path,) = (tmp_path / "out").glob("**/part-*")
    return path.read_bytes().decode()


PRIMITIVES = (
    CsvSchema.builder()
    .add_number_column("byte", Types.BYTE())
    .add_number_column("short", Types.SHORT())
    .add_number_column("int", Types.INT())
    .add_number_column("long")
    .add_number_column("float", Types.FLOAT())
    .add_number_column("double", Types.DOUBLE())
    .add_number_column("decimal", Types.BIG_DEC())
    .add_boolean_column("boolean")
    .add_string_column("string")
    .build()
)


def test_numbers_booleans_and_texts_are_read_and_written_as_java_does(tmp_path: Path) -> None:
    line = "127,-32767, 2147483647 ,-9223372036854775808,3e38,2e-308,1.50,True,string\n"
    schema = CsvSchema.builder().add_columns_from(PRIMITIVES).build()
    assert schema == PRIMITIVES
    assert len(schema) == 9
    (row,) = read(tmp_path, schema, line)
    assert list(row)[:4] == [127, -32767, 2147483647, -9223372036854775808]
    assert math.isclose(row["float"], 3e38, rel_tol=1e-7)
    assert row["float"] != 3e38  # it has 32 bits
    assert list(row)[5:] == [2e-308, decimal.Decimal("1.50"), True, "string"]
    assert written(tmp_path, schema, row) == (
        "127,-32767,2147483647,-9223372036854775808,3.0E38,2.0E-308,1.50,true,string\n"
    )


def test_array_columns_use_the_element_separators_of_their_columns(tmp_path: Path) -> None:
    schema = (
        CsvSchema.builder()
        .add_array_column("numbers", ";", Types.INT())
        .add_array_column("booleans", ":", Types.BOOLEAN())
        .add_array_column("strings", ",")
        .set_column_separator("|")
        .disable_quote_char()
        .build()
    )
    lines = "1;2;3|true:false|a,b,c\n||\n"
    rows = read(tmp_path, schema, lines)
    assert list(map(list, rows)) == [[[1, 2, 3], [True, False], ["a", "b", "c"]], [[], [], []]]
    assert written(tmp_path, schema, *rows) == lines


def test_array_column_without_a_separator_uses_that_of_the_schema(tmp_path: Path) -> None:
    def columns() -> CsvSchemaBuilder:
        return CsvSchema.builder().add_array_column("x", "/").remove_array_element_separator(0)

    divided = columns().set_array_element_separator(":").build()
    assert read(tmp_path, divided, "a:b/c\n")[0].x == ["a", "b/c"]
    whole = columns().disable_array_element_separator().build()
    assert read(tmp_path, whole, "a:b/c\n")[0].x == ["a:b/c"]


def test_csv_comments_header_and_skipped_first_row_are_not_returned_as_records(
    tmp_path: Path,
) -> None:
    text = '# comment\nx,b\nfirst,row\n  # more\n"# text\n# text",2\n'
    schema = names().set_allow_comments().set_use_header().set_skip_first_data_row().build()
    assert read(tmp_path, schema, text) == [Row(a="# text\n# text", b="2")]
    assert read(tmp_path, schema, "") == []


def test_strict_header_that_differs_from_the_schema_is_refused(tmp_path: Path) -> None:
    schema = names().set_use_header().set_strict_headers().build()
    assert read(tmp_path, schema, "a, b\n1,2\n") == [Row(a="1", b="2")]
    with pytest.raises(OperatorError, match=r"in\.csv, line 1, .*header has \['x', 'b'\]"):
        read(tmp_path, schema, "x,b\n1,2\n")
    assert written(tmp_path, schema, ("1", "2"), ("3", "4")) == "a,b\n1,2\n3,4\n"


@pytest.mark.parametrize(
    ("schema", "text", "fields", "back"),
    [
        (names().set_column_separator("|"), '"x"|"y"\n', ["x", "y"], '"x"|"y"\n'),
        (names().set_quote_char("'"), "'x,'',','y\"'\r\n", ["x,',", 'y"'], "'x,'',','y\"'\n"),
        (
            names().set_escape_char("\\"),
            'x\\,,\\"y\\"\\n\\\\n\r',
            ["x,", '"y"\n\\n'],
            '"x,","""y""\n\\\\n"\n',
        ),
        (names().disable_quote_char(), '"x",y\n', ['"x"', "y"], '"x",y\n'),
        (names().set_null_value("-"), "-,\n", [None, ""], "-,\n"),
        (names(), ",y\n", ["", "y"], ",y\n"),
        (names().set_line_separator("\r\n"), "x,y,\n", ["x", "y"], "x,y\r\n"),
        (names().set_escape_char("\\").disable_escape_char(), "\\,y", ["\\", "y"], "\\,y\n"),
    ],
)
def test_row_is_read_and_written_in_the_dialect_of_the_schema(
    schema: CsvSchemaBuilder, text: str, fields: list[Any], back: str, tmp_path: Path
) -> None:
    (row,) = read(tmp_path, schema.build(), text)
    assert list(row) == fields
    assert written(tmp_path, schema.build(), row) == back


def test_texts_are_quoted_where_jackson_quotes_them(tmp_path: Path) -> None:
    """Jackson quotes a text that has a low character, up to the greatest special one, or more
    than 24 characters."""
    long = "x" * 25
    text = written(tmp_path, names().build(), ("a b", "a.b"), (long, long[1:]), (None, "+"))
    assert text == f'"a b",a.b\n"{long}",{long[1:]}\n,"+"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1\n", "line 1, cannot be read: 9 fields are expected, and there are 1"),
        ("\n", "9 fields are expected, and there are 1"),
        (",,,,,,,,,,\n", "9 fields are expected, and there are 11"),
        ("128,,,,,,,,\n", "field 'byte': 128 is no integer of 8 bits"),
        ("1,,,,,,,,\n", "field 'short': '' is no integer"),
        ("1_0,1,1,1,1,1,1,true,x\n", "field 'byte': '1_0' is no integer"),
        ('1,1,1,1,1,1,1,true,"x\n', "line 1, cannot be read: unexpected end of data"),
    ],
)
def test_unreadable_csv_line_is_reported_with_its_number(
    text: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(OperatorError, match=told):
        read(tmp_path, PRIMITIVES, text)


def test_csv_reader_resumes_where_its_snapshot_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("".join(f"{n},x\n" for n in range(10_000)))
    made = source(names().build(), path)
    reader = reader_of(made, FileSplit(str(path), 0))
    first = batch_of(reader.poll(10))
    again = reader_of(made, *reader.snapshot_state(1))
    assert [row.a for row in [*first.values, *rest_of(again)]] == [str(n) for n in range(10_000)]
    assert len(first) < 10_000


def test_invalid_csv_schema_is_refused() -> None:
    for wrong in (
        lambda: names().set_column_separator(";;"),
        lambda: names().set_quote_char(""),
        lambda: names().set_escape_char("ab"),
        lambda: names().add_string_column("a").build(),
    ):
        with pytest.raises(ValueError, match=r"single character|columns with one name: \['a'\]"):
            wrong()
    with pytest.raises(TypeError, match="'n' needs one of Types"):
        names().add_number_column("n", "INT")  # type: ignore[arg-type]
    assert names().clear_columns().size() == 0


# --- messages -------------------------------------------------------------------------------------


def both(kind: Any) -> tuple[CsvRowSerializationSchema, CsvRowDeserializationSchema]:
    row = Types.ROW([Types.STRING(), kind, Types.STRING()])
    builders: list[Any] = [CsvRowSerializationSchema.Builder, CsvRowDeserializationSchema.Builder]
    made: Any = [
        builder(row)
        .set_escape_character("*")
        .set_quote_character("'")
        .set_array_element_delimiter(":")
        .set_field_delimiter(";")
        .build()
        for builder in builders
    ]
    return cloudpickle.loads(cloudpickle.dumps(tuple(made)))  # type: ignore[no-any-return]


NESTED = Types.ROW([Types.STRING(), Types.INT()])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Types.STRING(), "'123''4**'", "123'4*"),
        (Types.STRING(), "'a;b''c'", "a;b'c"),
        (Types.STRING(), "null", "null"),
        (Types.INT(), "12", 12),
        (Types.DOUBLE(), "1.0E-5", 1e-5),
        (NESTED, "'hello:1'", ("hello", 1)),
        (Types.OBJECT_ARRAY(Types.STRING()), "'a:b c'", ["a", "b c"]),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "'AP8/'", b"\x00\xff?"),
        (Types.SQL_DATE(), "'2024-02-29'", datetime.date(2024, 2, 29)),
        (Types.SQL_TIME(), "'01:02:03'", datetime.time(1, 2, 3)),
        (
            Types.SQL_TIMESTAMP(),
            "'2024-02-29 01:02:03.5'",
            datetime.datetime(2024, 2, 29, 1, 2, 3, 500_000),
        ),
        (Types.BIG_INT(), str(10**30), 10**30),
    ],
)
def test_csv_messages_are_decoded_and_encoded_by_their_row_type(
    kind: Any, text: str, value: Any
) -> None:
    serialization, deserialization = both(kind)
    message = f"BEGIN;{text};END\n".encode()
    found: Any = deserialization.deserialize(message)
    assert (found.f0, found.f2) == ("BEGIN", "END")
    assert (tuple(found.f1) if kind is NESTED else found.f1) == value
    assert serialization.serialize(("BEGIN", value, "END")) == message
    assert serialization.serialize(Row("BEGIN", None, "END")) == b"BEGIN;;END\n"


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"])), min_size=2, max_size=2))
def test_any_text_in_a_csv_message_is_read_as_it_was_written(texts: list[str]) -> None:
    kind = Types.ROW([Types.STRING(), Types.STRING()])
    for escape in (None, "\\"):
        writing: Any = CsvRowSerializationSchema.Builder(kind)
        reading: Any = CsvRowDeserializationSchema.Builder(kind)
        if escape is not None:
            writing.set_escape_character(escape)
            reading.set_escape_character(escape)
        message = writing.build().serialize(tuple(texts))
        assert list(reading.build().deserialize(message)) == texts


PAIR = Types.ROW_NAMED(["n", "x"], [Types.INT(), Types.DOUBLE()])


def test_csv_messages_use_null_literals_line_ends_and_quotes_as_set() -> None:
    builder = CsvRowSerializationSchema.Builder(Types.ROW([Types.STRING(), Types.INT()]))
    builder.set_null_literal("n/a").set_line_delimiter("").disable_quote_character()
    assert builder.build().serialize(("a, b", None)) == b"a, b,n/a"
    with pytest.raises(ValueError, match="line delimiter"):
        builder.set_line_delimiter("x")
    nulls = CsvRowDeserializationSchema.Builder(PAIR).set_null_literal("n/a").build()
    assert nulls.deserialize(b"n/a,1.5") == Row(n=None, x=1.5)
    assert nulls.deserialize(b"") is None
    comments = CsvRowDeserializationSchema.Builder(PAIR).set_allow_comments(True).build()
    assert comments.deserialize(b"#\n1,2") == Row(n=1, x=2.0)
    assert comments.get_produced_type() == PAIR


def test_unreadable_csv_message_fails_or_is_ignored_as_set() -> None:
    strict = CsvRowDeserializationSchema.Builder(PAIR).build()
    for message in (b"1", b"1,2,3", b"x,2", b'"1,2', b"\xff,2"):
        with pytest.raises(StreamError, match="failed to deserialize CSV row b"):
            strict.deserialize(message)
    lenient = CsvRowDeserializationSchema.Builder(PAIR).set_ignore_parse_errors(True).build()
    assert lenient.deserialize(b"x,2") == Row(n=None, x=2.0)
    assert lenient.deserialize(b"1") == Row(n=1, x=None)
    assert lenient.deserialize(b"1,2,3") is None
    assert lenient.deserialize(b'"1,2') is None
    with pytest.raises(StreamError, match="could not serialize row"):
        CsvRowSerializationSchema.Builder(PAIR).build().serialize((1, 2, 3))


def test_types_without_a_text_form_are_refused_by_the_csv_format() -> None:
    for kind in (Types.MAP(Types.STRING(), Types.INT()), Types.PICKLED_BYTE_ARRAY()):
        row = Types.ROW([kind])
        for builder in (CsvRowSerializationSchema.Builder, CsvRowDeserializationSchema.Builder):
            with pytest.raises(StreamError, match="have no text in this format"):
                builder(row).build()
            with pytest.raises(TypeError, match="must not be None"):
                builder(None)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="the type of rows is needed"):
                builder(Types.INT())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"), (1e7, "1.0E7"), (-1234.5678, "-1234.5678"), (100.0, "100.0"),
        (1.5e300, "1.5E300"), (math.inf, "Infinity"),
        (-math.inf, "-Infinity"), (math.nan, "NaN"), (123456.75, "123456.75"), (0.25, "0.25"),
    ],
)  # fmt: skip
def test_floats_are_written_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text
    if value not in (1.5e300, -1234.5678):
        assert java_float(value) == text


def test_32_bit_floats_are_written_with_as_few_digits_as_they_need() -> None:
    assert (java_float(0.1), java_float(3e38), java_float(1e39)) == ("0.1", "3.0E38", "Infinity")
    assert java_float(16777216.0) == "1.6777216E7"
