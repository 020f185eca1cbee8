"""Read and write JSON without losing digits of numbers or repeated names of objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from flinkray.core.arguments import first_twice
from flinkray.streaming.records.number_text import is_exact
from flinkray.streaming.records.row import Row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse_twice([name for name, _ in pairs])
    return found


def _refuse_twice(names: list[str]) -> None:
    twice = first_twice(names)
    if twice is not None:
        raise ValueError(f"an object has the name {twice!r} more than once")


_LONGEST_PLAIN = 16
"""Characters of a number without an exponent that has at most 15 digits.
A double holds such numbers."""


def _number(text: str) -> float | Decimal:
    if len(text) <= _LONGEST_PLAIN and "e" not in text and "E" not in text:
        return float(text)
    number = float(text)
    return number if repr(number) == text or is_exact(text) else Decimal(text)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_PYTHON = json.JSONDecoder(parse_float=_number, object_pairs_hook=_object)
_EXACT = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_number, object_pairs_hook=_object)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. A number with a fraction or an exponent becomes a float, or
    a Decimal if a float would lose digits. NaN and infinities are accepted as Python writes them.
    Raises ValueError: the text is not JSON, or an object has a name more than once."""
    return _PYTHON.decode(text)


def parse_exact_json(message: bytes) -> Any:
    """Return the value of a JSON text. Each number with a fraction or an exponent becomes a
    Decimal. Raises ValueError: the message is not JSON (NaN is not), or an object repeats a
    name."""
    text = message.decode(json.detect_encoding(message), "surrogatepass")
    return _EXACT.decode(text)


def as_python(value: Any) -> Any:
    """Convert Decimals in *value*, a result of :func:`parse_exact_json`, to floats if these keep
    all digits. The result is that of :func:`parse_json` for the same text."""
    if isinstance(value, Decimal):
        return _number(str(value))
    if isinstance(value, dict):
        return {name: as_python(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_python(item) for item in value]
    return value


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the value as JSON.
    *default* replaces a value without a JSON form. Raises TypeError: a value has no JSON form.
    ValueError: two keys of a dictionary, such as 1 and "1", have one name."""
    text = json.dumps(value, default=default)
    _refuse_equal_names(value)
    return text


def _refuse_equal_names(value: Any) -> None:
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            _refuse_twice([key if isinstance(key, str) else json.dumps(key) for key in value])
        for item in value.values():
            _refuse_equal_names(item)
    elif isinstance(value, list | tuple | Row):
        for item in value:
            _refuse_equal_names(item)
