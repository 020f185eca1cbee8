"""Type information: the types of the values of a stream.

A declared row or tuple type converts results to rows with field names, or to tuples, as PyFlink's
coders do. A type also gives the Arrow type of a column, and the text of a value in Java's notation.
"""

from __future__ import annotations

import copy
import datetime
import numbers
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Generic

import pyarrow as pa
from typing_extensions import TypeVar

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.number_text import (
    java_double,
    java_float,
    java_time,
    java_timestamp,
)
from flinkray.streaming.records.row import Row

Convert = Callable[[Any], Any]

T = TypeVar("T", covariant=True, default=Any)
E = TypeVar("E", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)


class TypeInformation(Generic[T]):
    """Base class of all types. Types are equal if they have the same meaning."""

    def __init__(self, name: str, arrow: pa.DataType | None = None) -> None:
        self._name = name
        self._arrow = arrow

    def converter(self) -> Callable[[Any], T] | None:
        """Return a function that converts the result of a user function to this type.
        None if no conversion is needed."""
        return None

    def to_arrow(self) -> pa.DataType | None:
        """Return the Arrow type of a column of values of this type.
        None if Arrow has no such type."""
        return self._arrow

    def with_arrow(self, arrow: pa.DataType) -> TypeInformation[T]:
        """Return this type for columns of another Arrow type: of another unit, width or zone."""
        other = copy.copy(self)
        other._arrow = arrow
        return other

    def stringify(self, value: Any) -> str:
        """Return the value in Java's notation."""
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def _identity(self) -> tuple[Any, ...]:
        return (self._name,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return self._name


def expect_type(given: Any) -> TypeInformation:
    """Return *given* if it is a type.
    Raises TypeError: *given* is no type, such as ``int``, or ``Types.INT`` without parentheses."""
    if isinstance(given, TypeInformation):
        return given
    name = getattr(given, "__name__", "")
    is_not_called = given is not None and getattr(Types, name, None) is given
    text = f"Types.{name}: write Types.{name}()" if is_not_called else repr(given)
    raise TypeError(f"a type is needed, such as Types.STRING(), got {text}")


_JAVA_TEXTS: dict[str, tuple[type, Callable[[Any], str]]] = {
    "Float": (numbers.Real, java_float),
    "Double": (numbers.Real, java_double),
    "java.sql.Time": (datetime.time, java_time),
    "java.sql.Timestamp": (datetime.datetime, java_timestamp),
}
"""By type name: (class of values, function that returns the text of such a value).
For other values, :meth:`TypeInformation.stringify` returns the text."""


class BasicTypeInfo(TypeInformation[T]):
    """Type of numbers, texts and times."""

    def stringify(self, value: Any) -> str:
        kind, text = _JAVA_TEXTS.get(self._name, (None, str))
        if kind is None or isinstance(value, bool) or not isinstance(value, kind):
            return super().stringify(value)
        return text(value)

    @staticmethod
    def STRING_TYPE_INFO() -> TypeInformation[str]:  # noqa: N802 - PyFlink's names
        """Return ``Types.STRING()``."""
        return Types.STRING()

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> TypeInformation[bool]:  # noqa: N802
        """Return ``Types.BOOLEAN()``."""
        return Types.BOOLEAN()

    @staticmethod
    def BYTE_TYPE_INFO() -> TypeInformation[int]:  # noqa: N802
        """Return ``Types.BYTE()``."""
        return Types.BYTE()

    @staticmethod
    def SHORT_TYPE_INFO() -> TypeInformation[int]:  # noqa: N802
        """Return ``Types.SHORT()``."""
        return Types.SHORT()

    @staticmethod
    def INT_TYPE_INFO() -> TypeInformation[int]:  # noqa: N802
        """Return ``Types.INT()``."""
        return Types.INT()

    @staticmethod
    def LONG_TYPE_INFO() -> TypeInformation[int]:  # noqa: N802
        """Return ``Types.LONG()``."""
        return Types.LONG()

    @staticmethod
    def FLOAT_TYPE_INFO() -> TypeInformation[float]:  # noqa: N802
        """Return ``Types.FLOAT()``."""
        return Types.FLOAT()

    @staticmethod
    def DOUBLE_TYPE_INFO() -> TypeInformation[float]:  # noqa: N802
        """Return ``Types.DOUBLE()``."""
        return Types.DOUBLE()

    @staticmethod
    def CHAR_TYPE_INFO() -> TypeInformation[str]:  # noqa: N802
        """Return ``Types.CHAR()``."""
        return Types.CHAR()

    @staticmethod
    def BIG_INT_TYPE_INFO() -> TypeInformation[int]:  # noqa: N802
        """Return ``Types.BIG_INT()``."""
        return Types.BIG_INT()

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> TypeInformation[Decimal]:  # noqa: N802
        """Return ``Types.BIG_DEC()``."""
        return Types.BIG_DEC()

    @staticmethod
    def INSTANT_TYPE_INFO() -> TypeInformation[Any]:  # noqa: N802
        """Return ``Types.INSTANT()``."""
        return Types.INSTANT()


class PickledBytesTypeInfo(TypeInformation[Any]):
    """Type of any value. Values are pickled when they are sent."""

    is_any = True

    def __init__(self) -> None:
        super().__init__("PickledByteArrayTypeInfo")

    def stringify(self, value: Any) -> str:
        if isinstance(value, bytes | bytearray):
            return str([byte - 256 if byte > 127 else byte for byte in value])
        return java_string(value)


class _Composite(TypeInformation[T]):
    def __init__(self, name: str, field_types: Sequence[TypeInformation]) -> None:
        super().__init__(name)
        self.field_types = [expect_type(field) for field in field_types]

    def get_field_types(self) -> list[TypeInformation]:
        return list(self.field_types)

    def _identity(self) -> tuple[Any, ...]:
        return (self._name, *self.field_types)

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(map(repr, self.field_types))})"

    def _check_number(self, value: Any) -> None:
        found, declared = len(value), len(self.field_types)
        if found != declared:
            fields = "1 field" if found == 1 else f"{found} fields"
            raise StreamError(
                f"{text_of(value)} has {fields}, and its type has {declared}: {self!r}"
            )

    def _field_converters(self) -> list[Convert | None]:
        return [field.converter() for field in self.field_types]

    def _stringify_fields(self, value: Any) -> list[str]:
        pairs = zip(self.field_types, value, strict=False)
        return [field.stringify(item) for field, item in pairs]


class RowTypeInfo(_Composite[Row]):
    """Type of rows. Without given names, fields are f0, f1, …"""

    def __init__(
        self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None
    ) -> None:
        super().__init__("RowTypeInfo", field_types)
        names = [f"f{place}" for place in range(len(self.field_types))]
        self.is_named = field_names is not None
        """Whether names were given. If so, values of a row with names are matched by name."""
        self.field_names = list(field_names) if field_names is not None else names
        if len(self.field_names) != len(self.field_types):
            raise ValueError(
                f"a row type needs as many names as types, got {self.field_names} and "
                f"{self.field_types}"
            )
        twice = first_twice(self.field_names)
        if twice is not None:
            raise ValueError(f"two fields of a row type cannot have one name, got {twice!r} twice")

    def get_field_names(self) -> list[str]:
        return list(self.field_names)

    def get_field_index(self, field_name: str) -> int:
        """Return the index of a field.

        Raises:
            ValueError: no field has this name.
        """
        return self.field_names.index(field_name)

    def converter(self) -> Convert | None:
        names, named = self.field_names, self.is_named
        converters = self._field_converters()
        plain = not any(converters)
        check_number = self._check_number

        def to_row(value: Any) -> Any:
            if isinstance(value, Row):
                if plain and value._fields == names:
                    return value
                kind = value.get_row_kind()
                values = value.values_by(names) if named else list(value)
                check_number(values)
            elif isinstance(value, dict):
                kind = None
                values = [value[name] for name in names]
            elif isinstance(value, tuple | list):
                kind = None
                values = list(value)
                check_number(value)
            else:
                return value
            if not plain:
                pairs = zip(converters, values, strict=False)
                values = [item if c is None or item is None else c(item) for c, item in pairs]
            row = Row.of(names, values)
            if kind is not None:
                row.set_row_kind(kind)
            return row

        return to_row

    def to_arrow(self) -> pa.DataType | None:
        arrow = [field.to_arrow() for field in self.field_types]
        if any(field is None for field in arrow):
            return None
        return pa.struct(list(zip(self.field_names, arrow, strict=True)))

    def stringify(self, value: Any) -> str:
        if value is None:
            return "null"
        kind = value.get_row_kind().short_string() if isinstance(value, Row) else "+I"
        return f"{kind}[{', '.join(self._stringify_fields(value))}]"

    def _identity(self) -> tuple[Any, ...]:
        return (self._name, *self.field_types, *self.field_names)

    def __repr__(self) -> str:
        pairs = zip(self.field_names, self.field_types, strict=True)
        return f"RowTypeInfo({', '.join(f'{name}: {field!r}' for name, field in pairs)})"


class TupleTypeInfo(_Composite[tuple[Any, ...]]):
    """Type of tuples."""

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        super().__init__("TupleTypeInfo", field_types)

    def converter(self) -> Convert | None:
        converters = self._field_converters()
        plain = not any(converters)
        check_number = self._check_number

        def to_tuple(value: Any) -> Any:
            if not isinstance(value, tuple | list | Row):
                return value
            check_number(value)
            if plain:
                return value if isinstance(value, tuple) else tuple(value)
            pairs = zip(converters, value, strict=False)
            return tuple(item if c is None or item is None else c(item) for c, item in pairs)

        return to_tuple

    def to_arrow(self) -> pa.DataType | None:
        return RowTypeInfo(self.field_types).to_arrow()

    def stringify(self, value: Any) -> str:
        return "null" if value is None else f"({','.join(self._stringify_fields(value))})"


class ListTypeInfo(TypeInformation[list[E]], Generic[E]):
    """Type of lists and arrays with one element type."""

    def __init__(self, element_type: TypeInformation[E]) -> None:
        super().__init__(type(self).__name__)
        self.element_type = expect_type(element_type)

    def converter(self) -> Convert | None:
        convert = self.element_type.converter()
        if convert is None:
            return None
        return lambda value: [None if item is None else convert(item) for item in value]

    def to_arrow(self) -> pa.DataType | None:
        element = self.element_type.to_arrow()
        return None if element is None else pa.list_(element)

    def stringify(self, value: Any) -> str:
        if value is None:
            return "null"
        return f"[{', '.join(self.element_type.stringify(item) for item in value)}]"

    def _identity(self) -> tuple[Any, ...]:
        return (self._name, self.element_type)

    def __repr__(self) -> str:
        return f"{self._name}<{self.element_type!r}>"


class PrimitiveArrayTypeInfo(ListTypeInfo[E]):
    """Type of lists of numbers."""


class BasicArrayTypeInfo(ListTypeInfo[E]):
    """Type of lists of basic values."""


class ObjectArrayTypeInfo(ListTypeInfo[E]):
    """Type of lists with one element type, which may be any type."""


class MapTypeInfo(TypeInformation[dict[K, V]], Generic[K, V]):
    """Type of dictionaries."""

    def __init__(self, key_type: TypeInformation[K], value_type: TypeInformation[V]) -> None:
        super().__init__("MapTypeInfo")
        self.key_type = expect_type(key_type)
        self.value_type = expect_type(value_type)

    def converter(self) -> Convert | None:
        of_key, of_value = self.key_type.converter(), self.value_type.converter()
        if of_key is None and of_value is None:
            return None

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {
                key if of_key is None else of_key(key): (
                    item if of_value is None or item is None else of_value(item)
                )
                for key, item in value.items()
            }

        return convert

    def to_arrow(self) -> pa.DataType | None:
        key, value = self.key_type.to_arrow(), self.value_type.to_arrow()
        return None if key is None or value is None else pa.map_(key, value)

    def stringify(self, value: Any) -> str:
        if value is None:
            return "null"
        entries = (
            f"{self.key_type.stringify(key)}={self.value_type.stringify(item)}"
            for key, item in value.items()
        )
        return f"{{{', '.join(entries)}}}"

    def _identity(self) -> tuple[Any, ...]:
        return (self._name, self.key_type, self.value_type)

    def __repr__(self) -> str:
        return f"MapTypeInfo<{self.key_type!r}, {self.value_type!r}>"


def java_string(value: Any) -> str:
    """Return a value of unknown type in Java's notation. Rows are written as rows."""
    if isinstance(value, Row):
        kind = value.get_row_kind().short_string()
        return f"{kind}[{', '.join(java_string(item) for item in value)}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def stringifier(type_info: TypeInformation | None) -> Callable[[Any], str]:
    """Return the function that writes values in Java's notation. None: the type is unknown."""
    return java_string if type_info is None else type_info.stringify


class Types:
    """Creates type information: ``Types.TUPLE([Types.STRING(), Types.INT()])``."""

    @staticmethod
    def STRING() -> TypeInformation[str]:  # noqa: N802 - PyFlink's names
        """Return the type of ``str`` values."""
        return BasicTypeInfo("String", pa.string())

    @staticmethod
    def BOOLEAN() -> TypeInformation[bool]:  # noqa: N802
        """Return the type of ``bool`` values."""
        return BasicTypeInfo("Boolean", pa.bool_())

    @staticmethod
    def BYTE() -> TypeInformation[int]:  # noqa: N802
        """Return the type of ``int`` values of 8 bits."""
        return BasicTypeInfo("Byte", pa.int8())

    @staticmethod
    def SHORT() -> TypeInformation[int]:  # noqa: N802
        """Return the type of ``int`` values of 16 bits."""
        return BasicTypeInfo("Short", pa.int16())

    @staticmethod
    def INT() -> TypeInformation[int]:  # noqa: N802
        """Return the type of ``int`` values of 32 bits."""
        return BasicTypeInfo("Integer", pa.int32())

    @staticmethod
    def LONG() -> TypeInformation[int]:  # noqa: N802
        """Return the type of ``int`` values of 64 bits."""
        return BasicTypeInfo("Long", pa.int64())

    @staticmethod
    def FLOAT() -> TypeInformation[float]:  # noqa: N802
        """Return the type of ``float`` values that are rounded to 32 bits."""
        return BasicTypeInfo("Float", pa.float32())

    @staticmethod
    def DOUBLE() -> TypeInformation[float]:  # noqa: N802
        """Return the type of ``float`` values."""
        return BasicTypeInfo("Double", pa.float64())

    @staticmethod
    def CHAR() -> TypeInformation[str]:  # noqa: N802
        """Return the type of ``str`` values of one character."""
        return BasicTypeInfo("Character", pa.string())

    @staticmethod
    def BIG_INT() -> TypeInformation[int]:  # noqa: N802
        """Return the type of ``int`` values without limit."""
        return BasicTypeInfo("BigInteger", pa.decimal256(76, 0))

    @staticmethod
    def BIG_DEC() -> TypeInformation[Decimal]:  # noqa: N802
        """Return the type of ``decimal.Decimal`` values."""
        return BasicTypeInfo("BigDecimal", pa.decimal128(38, 18))

    @staticmethod
    def INSTANT() -> TypeInformation[Any]:  # noqa: N802
        """Return the type of ``Instant`` values; columns have ``datetime.datetime`` values."""
        return BasicTypeInfo("Instant", pa.timestamp("us", "UTC"))

    @staticmethod
    def SQL_DATE() -> TypeInformation[datetime.date]:  # noqa: N802
        """Return the type of ``datetime.date`` values."""
        return BasicTypeInfo("java.sql.Date", pa.date32())

    @staticmethod
    def SQL_TIME() -> TypeInformation[datetime.time]:  # noqa: N802
        """Return the type of ``datetime.time`` values."""
        return BasicTypeInfo("java.sql.Time", pa.time64("us"))

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation[datetime.datetime]:  # noqa: N802
        """Return the type of ``datetime.datetime`` values."""
        return BasicTypeInfo("java.sql.Timestamp", pa.timestamp("us"))

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:  # noqa: N802
        """Return the type of any value. This type is used if no type is declared."""
        return PickledBytesTypeInfo()

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:  # noqa: N802
        """Return the type of rows with the fields f0, f1, …"""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(  # noqa: N802
        field_names: Sequence[str], field_types: Sequence[TypeInformation]
    ) -> RowTypeInfo:
        """Return the type of rows with these field names."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:  # noqa: N802
        """Return the type of tuples."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[E]) -> PrimitiveArrayTypeInfo[E]:  # noqa: N802
        """Return the type of lists of numbers."""
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[E]) -> BasicArrayTypeInfo[E]:  # noqa: N802
        """Return the type of lists of basic values."""
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[E]) -> ObjectArrayTypeInfo[E]:  # noqa: N802
        """Return the type of lists whose elements have this type, which may be any type."""
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def LIST(element_type_info: TypeInformation[E]) -> ListTypeInfo[E]:  # noqa: N802
        """Return the type of lists."""
        return ListTypeInfo(element_type_info)

    @staticmethod
    def MAP(  # noqa: N802
        key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]
    ) -> MapTypeInfo[K, V]:
        """Return the type of dictionaries."""
        return MapTypeInfo(key_type_info, value_type_info)
