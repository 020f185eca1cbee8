"""Options of a program, by name."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any, TypeVar

from flinkray.core.config_option import duration
from flinkray.core.durations import Span, format_duration, milliseconds
from flinkray.core.errors import ConfigurationError

T = TypeVar("T")

_Value = str | int | float | bool | bytes
_Accepted = _Value | bytearray | timedelta


class Configuration:
    """Options of a program, by name.

    A value can be read as another type than it was set as, if its text is valid for that type.

    >>> config = Configuration()
    >>> config.set_string("pipeline.name", "demo").set_integer("parallelism.default", 2).to_dict()
    {'pipeline.name': 'demo', 'parallelism.default': '2'}
    >>> config.get_float("parallelism.default", 1.0), config.get_boolean("no.such.key", True)
    (2.0, True)
    >>> Configuration({"pipeline.name": "demo"})
    Configuration({'pipeline.name': 'demo'})
    """

    def __init__(self, other: Configuration | Mapping[str, _Accepted] | None = None) -> None:
        """Create a configuration with the options of *other*. None: without options.

        A timedelta becomes a text such as ``60 s``.

        Raises:
            ConfigurationError: *other* or a value has another type.
        """
        values: Any = other._values if isinstance(other, Configuration) else other or {}
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"options are given as a mapping, got {values!r}")
        self._values: dict[str, _Value] = {
            key: _checked(key, value) for key, value in values.items()
        }

    @classmethod
    def from_dict(cls, map: Mapping[str, str]) -> Configuration:
        """Return a configuration with the options of the dict *map*."""
        return cls(map)

    @staticmethod
    def parse_list_value(value: str | None) -> list[str]:
        """Return the parts of ``a;b``, or of a YAML list of plain texts.

        >>> Configuration.parse_list_value("a.jar;b.jar")
        ['a.jar', 'b.jar']
        >>> Configuration.parse_list_value("[a.jar, 'b.jar']")
        ['a.jar', 'b.jar']
        """
        text = (value or "").strip()
        if text.startswith("[") and text.endswith("]"):
            parts = text[1:-1].split(",")
        elif text.startswith("- "):
            parts = [line.strip().removeprefix("- ") for line in text.splitlines()]
        else:
            parts = text.split(";")
        return [part.strip().strip("'\"") for part in parts if part.strip()]

    def set_string(self, key: str, value: str) -> Configuration:
        """Set the value of *key* to a text."""
        self._values[key] = _checked(key, value)
        return self

    set = set_string

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set the value of *key* to a whole number."""
        self._values[key] = _checked(key, value)
        return self

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set the value of *key* to true or false."""
        self._values[key] = _checked(key, value)
        return self

    def set_float(self, key: str, value: float) -> Configuration:
        """Set the value of *key* to a number."""
        self._values[key] = _checked(key, value)
        return self

    def set_bytearray(self, key: str, value: bytes | bytearray) -> Configuration:
        """Set the value of *key* to bytes. Read as a text, the value is in Base64."""
        self._values[key] = _checked(key, value)
        return self

    def get_string(self, key: str, default_value: str) -> str:
        """Return the value of *key* as a text; *default_value* if it is not set."""
        return _text(self._values[key]) if key in self._values else default_value

    get = get_string

    def get_integer(self, key: str, default_value: int) -> int:
        """Return the value of *key* as a whole number; *default_value* if it is not set.

        Raises:
            ConfigurationError: the value is no whole number.
        """
        return self._read(key, int, "a whole number", default_value)

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Return the value of *key* as true or false; *default_value* if it is not set.

        Raises:
            ConfigurationError: the value is neither true nor false.
        """
        return self._read(key, _truth, "true or false", default_value)

    def get_float(self, key: str, default_value: float) -> float:
        """Return the value of *key* as a number; *default_value* if it is not set.

        Raises:
            ConfigurationError: the value is no number.
        """
        return self._read(key, float, "a number", default_value)

    def get_bytearray(self, key: str, default_value: bytearray) -> bytearray:
        """Return the value of *key* as bytes; *default_value* if it is not set.

        Raises:
            ConfigurationError: the value is not Base64.
        """
        return self._read(key, _bytes, "bytes in Base64", default_value)

    def _read(self, key: str, parse: Callable[[str], T], what: str, default_value: T) -> T:
        if key not in self._values:
            return default_value
        text = _text(self._values[key])
        try:
            return parse(text)
        except ValueError:
            raise ConfigurationError(f"{key} must be {what}, got {text!r}") from None

    def key_set(self) -> AbstractSet[str]:
        """Return the keys that have a value."""
        return set(self._values)

    def contains_key(self, key: str) -> bool:
        """Return whether the key has a value."""
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Remove the option *key*. Return whether it had a value."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Copy all options of *other* into this configuration, with *prefix* put before each key.
        *prefix* None: with the same keys."""
        self._values.update({(prefix or "") + key: value for key, value in other._values.items()})
        return self

    add_configuration = add_all

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        """Put all options of this configuration into *target_dict*, with the types in which they
        were set."""
        for key, value in self._values.items():
            target_dict[key] = bytearray(value) if isinstance(value, bytes) else value

    def to_dict(self) -> dict[str, str]:
        """Return all options as a dict from the key to the value as text."""
        return {key: _text(value) for key, value in self._values.items()}

    def __copy__(self) -> Configuration:
        return Configuration(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}={value}' for key, value in self.to_dict().items())}}}"

    def __repr__(self) -> str:
        return f"Configuration({self.to_dict()})"


def _checked(key: str, value: object) -> _Value:
    """Return *value* in the form in which a configuration stores it. Raises ConfigurationError:
    values of this type are not accepted."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, timedelta):
        return format_duration(value.total_seconds())
    if isinstance(value, str | int | float | bytes):
        return value
    raise ConfigurationError(
        f"the value of {key} is a text, a number, true or false, bytes or a timedelta, "
        f"not of type {type(value).__name__}"
    )


def _text(value: _Value) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _bytes(text: str) -> bytearray:
    return bytearray(base64.b64decode(text, validate=True))


def parse_milliseconds(value: object) -> int:
    """Return the whole milliseconds of a time in a configuration: ``1 min``, ``200 ms``, or a
    number of milliseconds."""
    text = str(value).strip()
    if text.lstrip("-").isdigit():
        return int(text)
    return round(float(duration(positive=False).parse(text)) * 1000)


def span_in_milliseconds(span: Span | str) -> int:
    """Return the whole milliseconds of a span of time, also of a text as ``20 ms``.
    Raises ValueError and TypeError: this is none."""
    return parse_milliseconds(span) if isinstance(span, str) else milliseconds(span)
