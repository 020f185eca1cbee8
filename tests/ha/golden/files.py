"""The golden files: what each version of flinkray that changed a stored type has written.

``records/<kind>.<specimen>.<number>.record`` is a specimen as it was stored; the highest number is
today's writer's.  The ``.txt`` beside it is what today's reader makes of it.  ``schemas.json``
holds the shape that each version of each stored type has had.
"""

from __future__ import annotations

import json
import types
import typing
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgpack

from flinkray.core.ids import AbstractID
from flinkray.core.records import stored_types
from flinkray.core.schema import Schema, schema_of, schemas, stored_fields
from flinkray.scheduler.reports.execution_info import ExecutionTable
from tests.ha.golden.kinds import KINDS, Kind

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "records"
SHAPES = FOLDER / "schemas.json"
COMMAND = "python -m tests.ha.golden --write"

_ENTRY = b"flinkray entry\n"
_CHECKSUM_SIZE = 4

Shape = dict[str, str] | list[str] | str
"""Of a dataclass: the types of its fields, by name.  Of an enum: its members.  Of others: "id" or
"str"."""


@dataclass(frozen=True)
class Golden:
    """One golden file."""

    kind: Kind
    specimen: str
    number: int
    record: Path

    @property
    def reading(self) -> Path:
        """What it is read as."""
        return self.record.with_suffix(".txt")

    def read(self) -> str:
        """By today's reader."""
        return text_of(self.kind.decode(self.record.read_bytes(), self.kind.record_type)) + "\n"


def golden_files() -> list[Golden]:
    """All, the earlier before the later ones of the same specimen."""
    files = []
    for record in RECORDS.glob("*.record"):
        kind, specimen, number = record.stem.split(".")
        files.append(Golden(KINDS[kind], f"{kind}.{specimen}", int(number), record))
    return sorted(files, key=lambda it: (it.specimen, it.number))


def specimens() -> Iterator[tuple[str, Kind, object]]:
    """Each as ``kind.specimen``, with its kind and the record."""
    for name, kind in KINDS.items():
        for specimen, record in kind.specimens.items():
            yield f"{name}.{specimen}", kind, record


def newest() -> dict[str, Golden]:
    """By specimen."""
    return {golden.specimen: golden for golden in golden_files()}


def canonical(data: bytes) -> object:
    """What was written, in a form that does not depend on the version of zlib."""
    container: object = None
    if data.startswith(_ENTRY):
        container, data = data[len(_ENTRY)], data[len(_ENTRY) + 1 + _CHECKSUM_SIZE :]
    types_, body = msgpack.unpackb(data)
    return container, types_, _decompressed(msgpack.unpackb(body, strict_map_key=False))


def _decompressed(value: Any) -> Any:
    if isinstance(value, list):
        return [_decompressed(item) for item in value]
    if isinstance(value, dict):
        return {key: _decompressed(item) for key, item in value.items()}
    if isinstance(value, bytes):
        try:
            return "compressed", zlib.decompress(value)
        except zlib.error:
            return value
    return value


def text_of(record: object) -> str:
    """For people to read and to compare."""
    return "\n".join(line.rstrip() for line in _text_of(record, "").split("\n"))


def _text_of(value: object, indent: str) -> str:
    deeper = f"{indent}  "
    name = _name_of(type(value))
    if isinstance(value, ExecutionTable):
        return name + "".join(f"\n{deeper}- {_text_of(row, deeper)}" for row in value)
    if is_dataclass(value):
        return name + "".join(
            f"\n{deeper}{field}: {_text_of(getattr(value, field), deeper)}"
            for field in stored_fields(type(value))
        )
    if isinstance(value, tuple):
        return "".join(f"\n{deeper}- {_text_of(item, deeper)}" for item in value) or "()"
    if isinstance(value, dict):
        items = (f"\n{deeper}{key!r}: {_text_of(item, deeper)}" for key, item in value.items())
        return "".join(items) or "{}"
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if isinstance(value, AbstractID):
        return f"{name}({value})"
    return repr(value)


def _name_of(cls: type) -> str:
    schema = schema_of(cls)
    return cls.__name__ if schema is None else schema.name


# --- shapes -----------------------------------------------------------------------------------


def our_schemas() -> Iterator[Schema]:
    """Those of the package, not those of tests."""
    return (schema for schema in schemas() if schema.type.__module__.startswith("flinkray."))


def shape_of(cls: type) -> Shape:
    """Raises TypeError: a field is of a type that is not stored."""
    if is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        return {name: _type_text(cls, name, hints[name]) for name in stored_fields(cls)}
    if issubclass(cls, Enum):
        return [member.name for member in cls]
    return "id" if issubclass(cls, AbstractID) else "str"


_PLAIN = {type(None): "None", bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes"}


def _type_text(cls: type, field: str, hint: Any) -> str:
    arguments = ["..." if it is ... else _type_text(cls, field, it) for it in typing.get_args(hint)]
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(arguments)
    if origin in (tuple, dict):
        return f"{origin.__name__}[{', '.join(arguments)}]"
    if hint in _PLAIN:
        return _PLAIN[hint]
    schema = schema_of(hint) if isinstance(hint, type) else None
    if schema is None:
        raise TypeError(
            f"{cls.__name__} is stored, and its field {field} is of the type {hint}, which is not: "
            "declare it with flinkray.core.schema.stored"
        )
    return schema.name


def recorded_shapes() -> dict[str, dict[str, Shape]]:
    """Of each stored type, by name and version."""
    shapes: dict[str, dict[str, Shape]] = json.loads(SHAPES.read_text())
    return shapes


# --- what is missing --------------------------------------------------------------------------


def changed_without_version() -> list[str]:
    """Which stored types have another shape than their version has."""
    recorded = recorded_shapes()
    changed = []
    for schema in our_schemas():
        versions = recorded.get(schema.name, {})
        before, now = versions.get(str(schema.version)), shape_of(schema.type)
        if before is not None and before != now:
            changed.append(
                f"{schema.name} version {schema.version} was {before}, and is {now} now: make it "
                f"version {schema.version + 1}, with a migration from version {schema.version} "
                "(see flinkray.core.schema)"
            )
    return changed


def unrecorded_shapes() -> list[str]:
    """Names of schemas whose version is not in ``schemas.json``."""
    recorded = recorded_shapes()
    return [
        schema.name
        for schema in our_schemas()
        if str(schema.version) not in recorded.get(schema.name, {})
    ]


def unwritten_specimens() -> dict[str, tuple[int, bytes]]:
    """Specimens that today's writer writes otherwise than the newest golden file has it, with the
    number and the content of the golden file that is missing."""
    last, missing = newest(), {}
    for specimen, kind, record in specimens():
        data = kind.encode(record)
        golden = last.get(specimen)
        if golden is None or canonical_of(golden) != canonical(data):
            missing[specimen] = (1 if golden is None else golden.number + 1, data)
    return missing


def canonical_of(golden: Golden) -> object:
    """None: it is of the first format."""
    data = golden.record.read_bytes()
    return None if data.startswith(_ENTRY + b"\x01") else canonical(data)


def types_in(golden: Golden) -> set[str]:
    """Names of the schemas that occur in a golden file of today's format."""
    data = golden.record.read_bytes()
    if data.startswith(_ENTRY):
        data = data[len(_ENTRY) + 1 + _CHECKSUM_SIZE :]
    return {name for name, _, _ in stored_types(data)}
