"""Data in flight as bytes, stored with a checkpoint.

::

    magic, version (1 byte), checksum (4), pieces

A piece is a head, descriptions and a body as :mod:`flinkray.streaming.network.element_codec` makes
them, each at a multiple of 8 bytes. Overtaken buffers are stored as they were sent. A schema that
was sent before them is stored with the first piece that needs it. The head names the source of the
schema numbers: one channel, or the encoder of this module.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

import msgpack
import pyarrow as pa

from flinkray.checkpoint.errors import CorruptCheckpointError
from flinkray.checkpoint.state_files import INLINE, check_bytes, check_format
from flinkray.state.errors import StateMigrationError
from flinkray.streaming.errors import UnreadableRecordsError
from flinkray.streaming.network.element_codec import (
    ElementDecoder,
    ElementEncoder,
    schemas_in,
    with_schemas,
)
from flinkray.streaming.network.errors import WireFormatError
from flinkray.streaming.network.frames import padding
from flinkray.streaming.records.elements import Element
from flinkray.streaming.records.in_flight import EncodedElements, InFlight, SchemaSource

MAGIC: Final = b"flinkray in-flight\n"
VERSION: Final = 1
"""Raise this when descriptions or bodies of elements change. A test compares stored bytes."""

_HEADER: Final = len(MAGIC) + 1 + 4
_PIECE: Final = Struct("<QIHxx")
"""Bytes of the body, bytes of the descriptions without padding, number of the schemas' source."""


def encode_elements(elements: Iterable[InFlight]) -> bytes:
    """Return the elements as bytes, in their order. Raises UnpicklableRecordsError or
    BatchTooLargeError for batches that have never left their process."""
    encoder = ElementEncoder()
    sources: dict[SchemaSource, tuple[int, set[int]]] = {}
    parts: list[Any] = [b""]
    for element in elements:
        source = element.source if isinstance(element, EncodedElements) else encoder
        number, known = sources.setdefault(source, (len(sources), set()))
        if isinstance(element, EncodedElements):
            missing = schemas_in(element.descriptions, known)
            descriptions, body = with_schemas(element, missing)
        else:
            encoded = encoder.encode([element], known)
            descriptions, body = encoded.descriptions, encoded.parts
        described: bytes = msgpack.packb(descriptions)
        size = sum(memoryview(part).nbytes for part in body)
        parts += (_PIECE.pack(size, len(described), number), described, padding(len(described)))
        parts += body
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    parts[0] = MAGIC + bytes([VERSION]) + checksum.to_bytes(4, "big")
    return b"".join(parts)


def decode_elements(data: bytes, name: str = INLINE) -> list[Element]:
    """Return the elements whose bytes :func:`encode_elements` has returned. Columns share the
    memory of *data*. *name*: name of the file, for errors. Raises CheckpointStorageError: the data
    is damaged or has another format. StateMigrationError: the class of a record cannot be loaded
    any more."""
    check_format(name, data, MAGIC, VERSION)
    pieces = memoryview(data)[_HEADER:]
    check_bytes(name, pieces, data[_HEADER - 4 : _HEADER])
    decoders: dict[int, ElementDecoder] = {}
    elements: list[Element] = []
    at = 0
    try:
        while at < len(pieces):
            size, described, number = _PIECE.unpack_from(pieces, at)
            at += _PIECE.size
            descriptions = msgpack.unpackb(pieces[at : at + described], use_list=False)
            at += described + len(padding(described))
            decoder = decoders.setdefault(number, ElementDecoder())
            elements += decoder.decode(descriptions, pa.py_buffer(pieces[at : at + size]))
            at += size
    except WireFormatError as error:
        raise CorruptCheckpointError(name, f"{error}; restore an earlier checkpoint") from error
    except UnreadableRecordsError as error:
        raise StateMigrationError(
            f"{name}: records that were in flight cannot be read: {error.reason}; bring back the "
            "class, or the module, that they are of"
        ) from error
    return elements
