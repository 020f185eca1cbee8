"""What files are like outside: encodings, compression, names."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import FileSource
from flinkray.datastream.connectors.file_system import FileSource as BuiltSource
from flinkray.datastream.connectors.file_system import StreamFormat
from flinkray.datastream.formats.csv import CsvReaderFormat, CsvSchema
from flinkray.streaming.errors import FileNotReadyError, StreamError
from tests.streaming.sources.reading import batches_of, read, values_of

PEOPLE = [{"id": 1, "name": "Zoë"}, {"id": 2, "name": "Łukasz"}]
SCHEMA = CsvSchema.builder().add_number_column("id", Types.INT()).add_string_column("name")


def with_schema(path: Path, encoding: str | None = None) -> Any:
    """Rows of a CSV file with a header, by a schema."""
    schema = CsvReaderFormat.for_schema(SCHEMA.set_use_header().build(), encoding)
    return BuiltSource.for_record_stream_format(schema, str(path)).build()


TEXTS: dict[str, tuple[str, Callable[[Path, str | None], Any], list[Any]]] = {
    "text": ("Zoë\r\nŁukasz\r\n", lambda path, encoding: FileSource(path, encoding=encoding),
             ["Zoë", "Łukasz"]),
    "json": ('{"id": 1, "name": "Zoë"}\r\n{"id": 2, "name": "Łukasz"}',
             lambda path, encoding: FileSource(path, file_format="json", encoding=encoding),
             PEOPLE),
    "csv": ("id,name\r\n1,Zoë\r\n2,Łukasz\r\n",
            lambda path, encoding: FileSource(path, file_format="csv", encoding=encoding), PEOPLE),
    "rows": ("id,name\r\n1,Zoë\r\n2,Łukasz\r\n", with_schema, PEOPLE),
}  # fmt: skip
"""By format: a file, what reads it, and its records."""


@pytest.mark.parametrize("name", list(TEXTS))
@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        (None, codecs.BOM_UTF8), (None, b""), ("utf-8", codecs.BOM_UTF8), ("iso8859-2", b""),
        ("iso8859-2", codecs.BOM_UTF8), (None, codecs.BOM_UTF16_LE), (None, codecs.BOM_UTF16_BE),
        (None, codecs.BOM_UTF32_LE), (None, codecs.BOM_UTF32_BE), ("utf-16-le", b""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_file_is_read_in_the_encoding_of_its_byte_order_mark_or_the_setting(
    tmp_path: Path, name: str, encoding: str | None, mark: bytes, packed: bool
) -> None:
    text, source, records = TEXTS[name]
    by_mark = {
        codecs.BOM_UTF8: "utf-8",
        codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be",
        codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",
    }  # fmt: skip
    data = mark + text.encode(by_mark.get(mark, encoding or "utf-8"))
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert values_of(batches_of(source(path, encoding))) == records


@pytest.mark.parametrize("name", list(TEXTS))
@pytest.mark.parametrize(
    ("encoding", "data", "place", "told"),
    [
        (None, 'id,name\n1,ok\n2,"Zo\xeb"\n'.encode("latin-1"), "line 3, column 6", "UTF-8"),
        (None, 'id,n\xebme\n1,ok\n'.encode("latin-1"), "line 1, column 5", "UTF-8"),
        ("ascii", "id,name\n1,ë\n".encode(), "line 2, column 3", "ascii"),
        (None, codecs.BOM_UTF16_LE + "id,name\n1,".encode("utf-16-le") + b"\x00\xd8\x00\xd8",
         "line 2, column 3", "utf-16"),
        (None, gzip.compress(b"id,name\n1,ok\n", mtime=0), "line 1, column 2", "UTF-8"),
    ],
)  # fmt: skip
def test_text_in_another_encoding_is_refused_with_file_line_and_column(
    tmp_path: Path, name: str, encoding: str | None, data: bytes, place: str, told: str
) -> None:
    _, source, _ = TEXTS[name]
    (tmp_path / "a.txt").write_bytes(data)
    if name == "json" and place != "line 1, column 2":
        data = b"\n".join(b'"' + line.replace(b'"', b"'") + b'"' for line in data.split(b"\n"))
        if told != "utf-16":
            (tmp_path / "a.txt").write_bytes(data)
            line, column = place.split(", column ")
            place = f"{line}, column {int(column) + 1}"
    with pytest.raises(StreamError, match=rf"a\.txt, {place}, is not {told}: .*; ") as raised:
        batches_of(source(tmp_path / "a.txt", encoding))
    if data.startswith(b"\x1f\x8b"):
        assert "it begins as a .gz file does, and its name must end with .gz" in str(raised.value)


def test_unknown_encoding_and_encoding_of_a_binary_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="there is no encoding of text named 'latin-9000'"):
        FileSource(tmp_path, encoding="latin-9000")
    with pytest.raises(StreamError, match="there is no encoding of text named 'base64'"):
        StreamFormat.text_line_format("base64")
    with pytest.raises(StreamError, match="an encoding is of text, CSV and JSON, not of parquet"):
        FileSource(tmp_path, file_format="parquet", encoding="utf-8")
    with pytest.raises(StreamError, match="column types are of CSV and Parquet files, not of json"):
        FileSource(tmp_path, file_format="json", column_types={"a": Types.INT()})
    with pytest.raises(TypeError, match=r"such as Types.STRING.., got <class 'int'> for 'a'"):
        FileSource(tmp_path, file_format="csv", column_types={"a": int})


def test_program_reads_text_with_the_given_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Zoë\n".encode("cp1252"))
    env = StreamExecutionEnvironment.get_execution_environment()
    lines = env.read_text_file(str(tmp_path), "windows-1252")
    assert list(lines.execute_and_collect()) == ["Zoë"]
    text = StreamFormat.text_line_format("windows-1252")
    source = BuiltSource.for_record_stream_format(text, str(tmp_path)).build()
    assert values_of(batches_of(source)) == ["Zoë"]


# --- compression ----------------------------------------------------------------------------------


def packed_by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as file:
            file.write(data)
        return bytes(sink.getvalue())

    return compress


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".gzip": gzip.compress, ".GZ": gzip.compress, ".bz2": bz2.compress,
    ".xz": lzma.compress, ".zst": packed_by_arrow("zstd"), ".zstd": packed_by_arrow("zstd"),
    ".lz4": packed_by_arrow("lz4"),
}  # fmt: skip


@pytest.mark.parametrize("end", list(COMPRESSIONS))
@pytest.mark.parametrize("name", list(TEXTS))
def test_concatenated_compressed_files_are_read_and_a_truncated_file_is_named(
    tmp_path: Path, name: str, end: str
) -> None:
    text, source, records = TEXTS[name]
    data, path = text.encode(), tmp_path / f"a.x{end}"
    compress = COMPRESSIONS[end]
    # In the middle of a character.
    place = data.index("ë".encode()) + 1
    path.write_bytes(compress(data[:place]) + compress(data[place:]))
    assert values_of(batches_of(source(path, None))) == records
    path.write_bytes(compress(data) + compress(os.urandom(1000))[:-8])
    with pytest.raises(
        StreamError, match=r"a\.x\.\w+ cannot be read as \w+: it is cut off: "
    ) as cut:
        batches_of(source(path, None))
    assert "Traceback" not in str(cut.value)
    path.write_bytes(b"this is no compressed file at all, whatever its name says\n" * 3)
    with pytest.raises(StreamError, match=r"a\.x\.\w+ cannot be read as \w+: it is (not com|cut)"):
        batches_of(source(path, None))


@pytest.mark.parametrize("name", list(TEXTS))
def test_files_of_unsupported_compressions_are_refused(tmp_path: Path, name: str) -> None:
    for end in (".zip", ".snappy", ".br", ".Z", ".tar", ".7z"):
        (tmp_path / f"a{end}").write_bytes(b"PK\x03\x04")
        with pytest.raises(StreamError, match=rf"a\{end} is .* by its name \({end.lower()}\), and"):
            batches_of(TEXTS[name][1](tmp_path / f"a{end}", None))


def test_parquet_file_compressed_as_a_whole_is_read(tmp_path: Path) -> None:
    table = pa.table({"n": range(3)})
    pq.write_table(table, tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.gz").write_bytes(data)  # Spark calls files so that are compressed inside
    assert (
        values_of(batches_of(FileSource(tmp_path, file_format="parquet")))
        == [{"n": n} for n in range(3)] * 3
    )
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(data)[:-10])
    with pytest.raises(StreamError, match=r"b\.parquet\.gz cannot be read as Parquet: it is cut"):
        batches_of(FileSource(tmp_path, file_format="parquet"))


# --- files that are still being written -----------------------------------------------------------


def parquet_bytes(path: Path) -> bytes:
    pq.write_table(pa.table({"n": range(1000)}), path)
    return path.read_bytes()


def typed_csv(path: Path) -> Any:
    return FileSource(path, file_format="csv", column_types={"id": Types.INT()})


def source_of(kind: str) -> Callable[[Path], Any]:
    if kind == "typed":
        return typed_csv
    if kind == "parquet":
        return lambda path: FileSource(path, file_format="parquet")
    return lambda path: TEXTS[kind][1](path, None)


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(
    ("kind", "part", "rest"),
    [
        ("json", '{"id": 1}\n{"id": 2, "na', 'me": "x"}\n'),
        ("json", '{"id": 1}\n{"id": 2, "name": "Zo\u00eb', '"}\n'),
        ("csv", "id,name,age\n1,Zo,3\n2", ",Lu,4\n"),
        ("typed", "id,name\n1,Zo\n-", "2,Lu\n"),
        ("rows", "id,name\n1,Zo\n-", "2,Lu\n"),
    ],
)
def test_text_that_ends_within_a_record_raises_file_not_ready_error(
    tmp_path: Path, kind: str, part: str, rest: str, end: str
) -> None:
    path, source = tmp_path / f"a{end}", source_of(kind)
    pack = gzip.compress if end else bytes
    path.write_bytes(pack(part.encode()))
    with pytest.raises(FileNotReadyError, match=r"line [23]"):
        batches_of(source(path))
    path.write_bytes(pack((part + "\n" + rest).encode()))
    with pytest.raises(StreamError) as bad:  # another record follows: it is bad for good
        batches_of(source(path))
    assert not isinstance(bad.value, FileNotReadyError)
    path.write_bytes(pack((part + rest).encode()))
    assert len(values_of(batches_of(source(path)))) == 2


def test_row_that_ends_within_quotes_raises_file_not_ready_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('id,name\n1,Zo\n2,"L')
    with pytest.raises(FileNotReadyError, match="line 3, cannot be read"):
        batches_of(with_schema(tmp_path / "a"))


@pytest.mark.parametrize("name", list(TEXTS))
def test_text_that_ends_within_a_character_raises_file_not_ready_error(
    tmp_path: Path, name: str
) -> None:
    text, source, _ = TEXTS[name]
    data = text.encode()
    (tmp_path / "a").write_bytes(data[: data.index("Ł".encode()) + 1])
    with pytest.raises(FileNotReadyError, match=r"line \d, column \d+, is not UTF-8"):
        batches_of(source(tmp_path / "a", None))


@pytest.mark.parametrize("end", list(COMPRESSIONS))
@pytest.mark.parametrize("name", list(TEXTS))
def test_truncated_compressed_file_raises_file_not_ready_error(
    tmp_path: Path, name: str, end: str
) -> None:
    text, source, _ = TEXTS[name]
    path, whole = tmp_path / f"a{end}", COMPRESSIONS[end](text.encode())
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileNotReadyError, match="it is cut off"):
            batches_of(source(path, None))


def test_parquet_file_without_a_footer_raises_file_not_ready_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    whole = parquet_bytes(path)
    source = FileSource(path, file_format="parquet")
    for length in (*range(12), *range(12, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileNotReadyError, match=r"a\.parquet .* has no footer"):
            batches_of(source)
    for never in (b"nope" + whole[4:-4], b"nope", whole[:-8] + b"\xff\xff\xff\x7fPAR1"):
        path.write_bytes(never)
        with pytest.raises(StreamError, match="cannot be read as Parquet") as bad:
            batches_of(source)
        assert not isinstance(bad.value, FileNotReadyError)


# --- names ----------------------------------------------------------------------------------------

NAMES = ["a b", "100%", "2024-01-01T00:00:00Z", "c#d", "q?x=1&y=2", "[brackets]", "star*", "日本",
         "e\u0301", "new\nline", "back\\slash", "quote'\"", "col=1/part", "file:odd", "s3:x",
         os.fsdecode(b"caf\xe9")]  # fmt: skip


@pytest.mark.parametrize("file_format", ["text", "csv", "json", "parquet", "rows"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_files_with_special_characters_in_their_names_are_read(
    tmp_path: Path, file_format: str, end: str
) -> None:
    folder = tmp_path / os.fsdecode(b"in a; f\xf6lder 100%")
    text = {"text": "7\n", "csv": "id\n7\n", "rows": "id,name\n7,\n", "json": '{"id": 7}\n'}
    for name in NAMES:
        path = folder / f"{name}{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if file_format == "parquet":
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": [7]}), sink)
            data = bytes(sink.getvalue())
        else:
            data = text[file_format].encode()
        path.write_bytes(gzip.compress(data) if end else data)
    source = with_schema(folder) if file_format == "rows" else FileSource(
        folder, file_format=file_format
    )  # fmt: skip
    found = read(source, 2)
    assert [row if file_format == "text" else row["id"] for row in found] == (
        ["7" if file_format == "text" else 7] * len(NAMES)
    )


def test_error_shows_the_escaped_name_of_a_file_that_is_no_utf8(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9.csv")
    odd.write_text("a,b\n1\n")
    with pytest.raises(Exception, match=r"caf\\udce9\.csv cannot be read as CSV: line 2 has 1"):
        read(FileSource(tmp_path, file_format="csv"))
