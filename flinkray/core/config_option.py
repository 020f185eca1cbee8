"""Defines configuration options, and the types that read and describe their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flinkray.core.durations import format_duration, parse_duration
from flinkray.core.errors import ConfigurationError
from flinkray.core.resources import MOST_CORES, format_memory_size, parse_memory_size

T = TypeVar("T")


@dataclass(frozen=True)
class ValueType(Generic[T]):
    """The type of an option's value: parses, formats and describes values."""

    accepts: str
    """Text for error messages and the reference page: "a duration, for example 500 ms or 10 s"."""
    parse: Callable[[object], T]
    """Converts a value. Raises ValueError or TypeError if the value is not accepted."""
    format: Callable[[T], str]
    """Inverse of ``parse``: ``parse(format(value)) == value``."""


@dataclass(frozen=True)
class ConfigOption(Generic[T]):
    """Describes one configuration option: key, type, default and meaning.
    Each option is a row of the table in :mod:`flinkray.core.options`."""

    key: str
    type: ValueType[T]
    default: T
    meaning: str
    """One or two sentences for the reference page, including the source of a constant."""
    aliases: tuple[str, ...] = ()
    """Keys of the option in earlier versions of Flink. A value under ``key`` takes precedence."""
    is_secret: bool = False
    """Whether the value is hidden from logs, error texts and other text for people."""

    def default_text(self) -> str:
        is_set = self.default is not None and self.default != ()
        return self.type.format(self.default) if is_set else "(not set)"

    def read(self, value: object) -> T:
        """Return *value* converted to the option's type. Raises ConfigurationError if it is not
        accepted."""
        try:
            return self.type.parse(value)
        except (ValueError, TypeError) as error:
            if self.is_secret:
                text = f"the configuration value of {self.key} is not accepted"
                raise ConfigurationError(f"{text}: it takes {self.type.accepts}") from None
            raise ConfigurationError(
                f"configuration value {value!r} of {self.key} is not accepted: "
                f"it takes {self.type.accepts}"
            ) from error


def duration(*, positive: bool = True, at_most: float | None = None) -> ValueType[float]:
    """Return the type of a duration in seconds.
    *positive*: zero is refused. *at_most*: longest accepted duration; None: any."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if positive and seconds == 0:
            raise ValueError("zero")
        if at_most is not None and seconds > at_most:
            raise ValueError("too long")
        return seconds

    accepts = "a duration" if not positive else "a duration above zero"
    if at_most is not None:
        accepts += f" of at most {format_duration(at_most)}"
    return ValueType(f"{accepts}, for example 500 ms, 10 s or 5 min", parse, format_duration)


def duration_or_never() -> ValueType[float | None]:
    """Return the type of a duration in seconds, or None for the text ``never``."""

    def parse(value: object) -> float | None:
        return None if value in ("never", "-1", -1) else parse_duration(value)

    def text_of(seconds: float | None) -> str:
        return "never" if seconds is None else format_duration(seconds)

    return ValueType("a duration, for example 500 ms or 5 min, or never", parse, text_of)


def rate() -> ValueType[float]:
    """Return the type of a rate, in events per minute."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TypeError("not a number")
        number = float(value)
        if not 0 < number < float("inf"):
            raise ValueError("not above zero")
        return number

    return ValueType("a number above zero, per minute", parse, lambda number: f"{number:g}")


def integer(*, minimum: int) -> ValueType[int]:
    def parse(value: object) -> int:
        if isinstance(value, str):
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise TypeError("not an integer")
        if number < minimum:
            raise ValueError("too small")
        return number

    return ValueType(f"an integer of at least {minimum}", parse, str)


def cores() -> ValueType[float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise TypeError("not a number")
        number = float(value)
        if not 0 < number <= MOST_CORES:
            raise ValueError("out of range")
        return number

    return ValueType(
        "a number above zero, for example 1 or 0.5", parse, lambda n: repr(n).removesuffix(".0")
    )


def memory_size(*, minimum: int = 1, maximum: int | None = None) -> ValueType[int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise TypeError("not a memory size")
        size = parse_memory_size(value)
        if size < minimum or (maximum is not None and size > maximum):
            raise ValueError("out of range")
        return size

    def write(size: int) -> str:
        text = format_memory_size(size)
        return text if parse_memory_size(text) == size else f"{size}b"

    to = f"of at least {write(minimum)}"
    if maximum is not None:
        to = f"from {write(minimum)} to {write(maximum)}"
    accepts = f"a memory size {to}, for example 512m or 1.5g"
    return ValueType(accepts, parse, write)


def number(*, minimum: float, maximum: float = float("inf")) -> ValueType[float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TypeError("not a number")
        parsed = float(value)
        if not minimum <= parsed <= maximum or parsed == float("inf"):
            raise ValueError("out of range")
        return parsed

    to = (
        f"from {minimum:g} to {maximum:g}" if maximum < float("inf") else f"of at least {minimum:g}"
    )
    return ValueType(f"a number {to}", parse, lambda n: repr(n).removesuffix(".0"))


def optional_choice(*values: str, **aliases: str) -> ValueType[str | None]:
    """Return the type of a choice between *values*; None and "" mean not set.
    *aliases* maps other accepted names to values."""

    def parse(value: object) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str) or aliases.get(value, value) not in values:
            raise ValueError("not one of them")
        return aliases.get(value, value)

    return ValueType("one of " + ", ".join(values), parse, lambda value: value or "")


def choice(*values: str) -> ValueType[str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in values:
            raise ValueError("not one of them")
        return value

    return ValueType("one of " + ", ".join(values), parse, str)


def name_of(*names: str) -> ValueType[str]:
    """Return the type of a choice between Flink's constants *names*.
    Upper and lower case are accepted, and ``-`` in place of ``_``."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError("not a name")
        name = value.upper().replace("-", "_")
        if name not in names:
            raise ValueError("not one of them")
        return name

    return ValueType("one of " + ", ".join(names), parse, str)


def boolean() -> ValueType[bool]:
    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in ("true", "false"):
            raise ValueError("neither of them")
        return value.lower() == "true"

    return ValueType("true or false", parse, lambda value: str(value).lower())


def text(accepts: str = "a text that is not empty", pattern: str = r"(?s).+") -> ValueType[str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError("does not match")
        return value

    return ValueType(accepts, parse, str)


def optional_text(accepts: str, pattern: str = r"(?s).*") -> ValueType[str | None]:
    """Return the type of a text; the empty text and None mean not set."""

    def parse(value: object) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError("does not match")
        return value

    return ValueType(accepts, parse, lambda value: value or "")


def locations() -> ValueType[tuple[str, ...]]:
    """Return the type of a list of directories, separated by ``;`` as in Flink; may be empty."""

    def parse(value: object) -> tuple[str, ...]:
        parts = value.split(";") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(it, str) for it in parts):
            raise TypeError("not a list of texts")
        found = tuple(part.strip() for part in parts if part.strip())
        if any("\0" in each or (each.startswith("file:") and each[5:6] != "/") for each in found):
            raise ValueError("not a path")
        return found

    return ValueType(
        "directory paths or URIs, separated by ;, for example /data/savepoints;s3://bucket/path",
        parse,
        ";".join,
    )


def optional_location() -> ValueType[str | None]:
    """Return the type of a location that every node can reach; "" and None mean not set."""
    return optional_text(
        "a directory path or a URI that pyarrow knows, for example s3://bucket/flinkray",
        r"(?s)(?!file:(?!/))[^\0]*",
    )
