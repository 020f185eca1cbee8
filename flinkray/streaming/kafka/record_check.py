"""Checks records before a checkpoint contains them: refuses records that no producer accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import index
from typing import Any, SupportsIndex

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.records import KafkaProducerRecord

MAX_BYTES = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""

_OVERHEAD = 36
"""Bytes that librdkafka counts in addition to key, value and headers.
Its name there is ``RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD``."""

_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""Valid topic names, by the rules of ``org.apache.kafka.common.internals.Topic``."""

_BYTES = (bytes, str, type(None))
"""Types of key, value and header values. The client accepts text, too."""

_LONGEST_TEXT = 100
"""Most characters of a wrong part in an error text."""


def max_bytes_of(properties: Mapping[str, Any]) -> int:
    """Return the most bytes of a record. Raises StreamError if the property is no number."""
    value = properties.get("message.max.bytes", MAX_BYTES)
    try:
        return int(value)
    except ValueError:
        raise StreamError(f"message.max.bytes is a number of bytes, not {value!r}") from None


def why_refused(record: Any, max_bytes: int) -> str:
    """Return the reason for which no producer accepts the record.
    Empty: the record is acceptable."""
    if not isinstance(record, KafkaProducerRecord):
        return f"it has to be a KafkaProducerRecord, and is {_shown(record)}"
    return next(_faults(record, max_bytes), "")


def _faults(record: KafkaProducerRecord, max_bytes: int) -> Iterator[str]:
    topic, value, key, partition, timestamp, headers = record
    if not isinstance(topic, str) or not _is_topic(topic):
        yield (
            "a topic's name has up to 249 letters of ASCII, digits, '.', '_' and '-', and its "
            f"topic is {_shown(topic)}"
        )
    for name, part in (("value", value), ("key", key)):
        if not isinstance(part, _BYTES):
            yield f"its {name} has to be bytes or None, and is {_shown(part)}"
    if partition is not None and not _is_integer(partition, -1, 31):  # -1: any
        yield f"its partition has to be a number from 0 on or None, and is {_shown(partition)}"
    if timestamp is not None and not _is_integer(timestamp, 0, 63):
        yield (
            "its timestamp has to be milliseconds since 1970, or None for the time of writing, and "
            f"is {_shown(timestamp)}"
        )
    if headers:
        if not isinstance(headers, (tuple, list)):
            yield f"its headers have to be a tuple of pairs, and are {_shown(headers)}"
        for header in headers:
            if not _is_header(header):
                yield (
                    "its headers have to be pairs of a name and bytes or None, and one is "
                    f"{_shown(header)}"
                )
    size = _OVERHEAD + _length(value) + _length(key)
    if headers:
        size += sum(map(_size_of_header, headers))
    if size > max_bytes:
        yield f"it has {size} bytes, and the property message.max.bytes allows {max_bytes}"


@lru_cache
def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def _is_integer(value: Any, least: int, bits: int) -> bool:
    is_one = type(value) is int or isinstance(value, SupportsIndex)  # the latter is slow
    return is_one and least <= index(value) < 1 << bits


def _is_header(header: Any) -> bool:
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    name, value = header
    return isinstance(name, str) and isinstance(value, _BYTES)


def _length(part: bytes | str | None) -> int:
    if part is None:
        return 0
    return len(part.encode() if isinstance(part, str) else part)


def _size_of_header(header: tuple[str, bytes | None]) -> int:
    name, value = map(_length, header)
    return _varint(name) + name + _varint(value) + value


def _varint(number: int) -> int:
    return number.bit_length() // 7 + 1


def _shown(part: Any) -> str:
    text = repr(part)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
