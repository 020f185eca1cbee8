"""CSV lines and the rows that they represent.

The rules are those of Flink's CSV format, which uses Jackson.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flinkray.datastream.formats.field_text import (
    NUMBERS,
    Parse,
    ToText,
    no_such_type,
    parser_of,
    text_of,
)
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import ListTypeInfo, RowTypeInfo, TypeInformation

csv.field_size_limit(sys.maxsize)  # Python's default would refuse fields of more than 128 kB

_LOOKED_THROUGH = 24
"""Most characters of a text that is checked for characters that need quotes.
Longer texts are put in quotes without a check (Jackson's CsvEncoder)."""

_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class CsvDialect:
    """Characters that separate fields and lines, and related rules."""

    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    line_end: str = "\n"
    """Line end of written text; text that is read may have any line end."""
    null: str | None = None
    """Text that stands for no value.
    None: no text is read so, and no value is written as an empty text."""
    element_separator: str = ";"
    """Separator of the elements of arrays and rows in a field. Empty: fields are not divided."""
    allow_comments: bool = False
    """Whether lines that begin with ``#`` are skipped."""

    def records(self, lines: Iterable[str]) -> Records:
        """Iterate over the records in lines; a record is the list of its fields."""
        return Records(self, lines)

    def quoted(self, text: str) -> str:
        """Return *text* as a CSV field contains it: in quotes if Jackson writes quotes around this
        text, which Jackson does for more texts than necessary."""
        quote = self.quote
        if quote is None:
            return text
        if len(text) <= _LOOKED_THROUGH:
            safe = max(map(ord, (self.separator, quote, *self.line_end)))
            if all(ord(c) > safe and c != self.escape for c in text):
                return text
        if self.escape is not None:
            text = text.replace(self.escape, 2 * self.escape)
        return f"{quote}{text.replace(quote, 2 * quote)}{quote}"

    def line(self, fields: Sequence[str]) -> str:
        """Return the line that consists of *fields*. Fields that need quotes must already have them
        (:meth:`quoted`)."""
        return self.separator.join(fields) + self.line_end


class Records(Iterator[list[str]]):
    """Iterator over the CSV records in lines of text; a record is the list of its fields. Raises
    ValueError: quotes that do not match."""

    def __init__(self, dialect: CsvDialect, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._allow_comments = dialect.allow_comments
        self._is_between = True
        self.line_number = 0
        """Number of the line that was read last, from 1 on."""
        self._escaped = None
        if dialect.escape is not None:
            self._escaped = re.compile(f"{re.escape(dialect.escape)}(.)", re.DOTALL)
        self._reader = csv.reader(
            self._next_lines(),
            delimiter=dialect.separator,
            quotechar=dialect.quote,
            escapechar=dialect.escape,
            quoting=csv.QUOTE_NONE if dialect.quote is None else csv.QUOTE_MINIMAL,
            strict=True,
        )

    def __next__(self) -> list[str]:
        self._is_between = True
        try:
            return next(self._reader) or [""]
        except csv.Error as error:
            raise ValueError(str(error)) from error

    def _next_lines(self) -> Iterator[str]:
        for line in self._lines:
            self.line_number += 1
            if self._is_between and self._allow_comments and line.lstrip(" \t").startswith("#"):
                continue
            self._is_between = False
            yield line if self._escaped is None else self._escaped.sub(_meant, line)


def _meant(match: re.Match[str]) -> str:
    escape, character = match[0][0], match[1]
    return escape + _ESCAPED.get(character, character)


class FieldsToRows:
    """Converter of the fields of CSV records to rows.
    *element_separators*: separators of the elements in a field, by the field's position, for fields
    with a separator of their own. *ignore_errors*: fields that cannot be read become None. Raises
    StreamError: a field has a type that CSV cannot express."""

    def __init__(
        self,
        row_type: RowTypeInfo,
        dialect: CsvDialect,
        element_separators: dict[int, str] | None = None,
        ignore_errors: bool = False,
    ) -> None:
        self._names = row_type.get_field_names()
        self._ignore_errors = ignore_errors
        own = element_separators or {}
        self._fields = [
            self._nullable(self._parser(kind, own.get(place, dialect.element_separator), dialect))
            for place, kind in enumerate(row_type.get_field_types())
        ]
        self._null = dialect.null

    def row(self, fields: list[str]) -> Row:
        """Return the row of a record's fields. Fields that are missing at the end are None if
        errors are ignored. Raises ValueError: there are too many fields, or too few, or a field
        cannot be read."""
        expected = len(self._fields)
        if len(fields) == expected + 1 and not fields[-1]:
            fields = fields[:-1]  # a separator at the end of the line adds an empty field
        missing = expected - len(fields)
        if missing and (missing < 0 or not self._ignore_errors):
            raise ValueError(f"{expected} fields are expected, and there are {len(fields)}")
        values = []
        for name, parse, text in zip(self._names, self._fields, fields, strict=False):
            try:
                values.append(parse(text))
            except ValueError as error:
                raise ValueError(f"field {name!r}: {error}") from error
        return Row.of(self._names, values + [None] * missing)

    def _nullable(self, parse: Parse) -> Parse:
        def parse_or_none(text: str) -> Any:
            if text == self._null:
                return None
            try:
                return parse(text)
            except ValueError:
                if self._ignore_errors:
                    return None
                raise

        return parse_or_none

    def _parser(self, kind: TypeInformation, separator: str, dialect: CsvDialect) -> Parse:
        parse = parser_of(kind)
        if parse is not None:
            return parse
        if isinstance(kind, RowTypeInfo):
            inner = FieldsToRows(kind, dialect, None, self._ignore_errors)
            return lambda text: inner.row(_elements(text, separator)) if text else None
        if isinstance(kind, ListTypeInfo):
            element = self._nullable(self._parser(kind.element_type, "", dialect))
            return lambda text: [element(part) for part in _elements(text, separator)]
        raise no_such_type(kind)


def _elements(text: str, separator: str) -> list[str]:
    if not text:
        return []
    return text.split(separator) if separator else [text]


class RowsToLines:
    """Converter of rows to CSV lines. Raises StreamError: a field has a type that CSV cannot
    express."""

    def __init__(
        self,
        row_type: RowTypeInfo,
        dialect: CsvDialect,
        element_separators: dict[int, str] | None = None,
    ) -> None:
        self._names = row_type.get_field_names()
        self._dialect = dialect
        self._null = dialect.null or ""
        own = element_separators or {}
        self._fields = [
            self._field(kind, own.get(place, dialect.element_separator))
            for place, kind in enumerate(row_type.get_field_types())
        ]

    def header(self) -> str:
        return self._dialect.line([self._dialect.quoted(name) for name in self._names])

    def line(self, value: Any) -> str:
        """Return the CSV line of a row. Raises ValueError or TypeError: the value does not have the
        declared fields."""
        values = fields_of(value, self._names)
        pairs = zip(self._fields, values, strict=True)
        return self._dialect.line([self._null if v is None else text(v) for text, v in pairs])

    def _field(self, kind: TypeInformation, separator: str) -> ToText:
        text = self._text(kind, separator)
        if kind in NUMBERS:
            return text
        quoted: Callable[[str], str] = self._dialect.quoted
        return lambda value: quoted(text(value))

    def _text(self, kind: TypeInformation, separator: str) -> ToText:
        text = text_of(kind)
        if text is not None:
            return text
        if isinstance(kind, RowTypeInfo):
            names = kind.get_field_names()
            parts = [self._element(part) for part in kind.get_field_types()]
            return lambda value: separator.join(
                part(v) for part, v in zip(parts, fields_of(value, names), strict=True)
            )
        if isinstance(kind, ListTypeInfo):
            element = self._element(kind.element_type)
            return lambda value: separator.join(map(element, value))
        raise no_such_type(kind)

    def _element(self, kind: TypeInformation) -> ToText:
        text = self._text(kind, "")
        return lambda value: self._null if value is None else text(value)


def fields_of(value: Any, names: list[str]) -> list[Any]:
    """Return the fields of a row, dictionary or tuple, in the order of *names*. Missing
    fields of a dictionary are None, its other fields are left out. Raises ValueError: a row has
    other fields, or a tuple or list another number. TypeError: the value is none of these."""
    if isinstance(value, Row):
        values = value.values_by(names)
    elif isinstance(value, dict):
        values = [value.get(name) for name in names]
    elif isinstance(value, tuple | list):
        values = list(value)
    else:
        raise TypeError(f"a row of {names} is needed, got {value!r}")
    if len(values) != len(names):
        raise ValueError(f"{len(names)} fields are expected, and {value!r} has {len(values)}")
    return values


def first_record(dialect: CsvDialect, text: str) -> list[str] | None:
    """Return the fields of the first record in *text*, a message. None: the message is empty."""
    return next(dialect.records(io.StringIO(text, newline="")), None) if text else None
