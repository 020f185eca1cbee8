"""Encodes values to bytes and decodes them: msgpack with an allow-list of types.

These values may be sent: None, bool, int (64 bit), float, str, bytes, tuples and lists (arrive as
tuples), dicts with str keys, the types declared in :mod:`flinkray.core.message` (ids, str
subclasses, enums, message dataclasses), and exceptions. The sender refuses any other value.

Both ends have the same version; :mod:`flinkray.core.records` writes data for later versions.

Wire form: ids, str subclasses and enums are msgpack ext values (type name, NUL, value); messages
and exceptions are maps with one integer key, which no dict of a user can have. Types are sent by
name and looked up in the registry, never imported.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import msgpack

from flinkray.core.error_text import message_of, sendable, traceback_of, type_of
from flinkray.core.errors import FlinkRayError, RemoteError, RpcSerializationError
from flinkray.core.ids import AbstractID, CompositeID
from flinkray.core.message import lookup, type_name

_ID_EXT = 1
_STR_EXT = 2
_ENUM_EXT = 3
_COMPOSITE_EXT = 4
_SHORT = 256
"""The largest ext value in bytes that is cached."""
_MESSAGE_KEY = 0
_ERROR_KEY = 1

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types that msgpack packs unchanged; :func:`encode` reports too large ints."""
_all_plain = _PLAIN.issuperset
_all_str = frozenset({str}).issuperset

_Lowerer = Callable[[Any], Any]
_lowerers: dict[type, _Lowerer] = {}
_builders: dict[str, Callable[[list[Any]], Any]] = {}


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of an error from elsewhere
    """The traceback of an error in the process it came from; set as the error's ``__cause__``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class _RefusedError(Exception):
    """Internal: a value cannot be sent; the text says which value and why."""


def encode(value: object) -> bytes:
    """Return the wire form of a value.

    Raises:
        RpcSerializationError: a part of the value may not be sent; the message names its type.
    """
    try:
        return pack(value if type(value) in _PLAIN else _lower(value))
    except _RefusedError as error:
        raise RpcSerializationError(f"cannot send {error}") from None
    except OverflowError:
        raise RpcSerializationError(
            f"cannot send a {type(value).__name__}: an int has more than 64 bits"
        ) from None
    except (ValueError, RecursionError, struct.error) as error:
        raise RpcSerializationError(f"cannot send a {type(value).__name__}: {error}") from error


def encode_in_parts(value: object) -> Packed:
    """Return the wire form of a value, in parts where that avoids copies of large bytes.

    That is the case if *value* is large bytes, or a tuple that contains large bytes. Raises like
    :func:`encode`.
    """
    if type(value) is tuple:
        for item in value:
            if type(item) is bytes and LARGE < len(item) <= LONGEST:
                return _encode_items(value)
    elif type(value) is bytes and LARGE < len(value) <= LONGEST:
        return [bytes_head(len(value)), value]
    return encode(value)


def _encode_items(items: tuple[Any, ...]) -> list[bytes]:
    parts: list[bytes] = []
    small = [array_head(len(items))]
    for item in items:
        if type(item) is bytes and LARGE < len(item) <= LONGEST:
            parts += (b"".join(small) + bytes_head(len(item)), item)
            small = []
        else:
            small.append(encode(item))
    return [*parts, b"".join(small)]


def decode(data: bytes | memoryview) -> Any:
    """Return the value of a wire form.

    Raises:
        RpcSerializationError: not a wire form, or it names a type that is not registered here.
    """
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=False,
            ext_hook=_raise_ext,
            object_hook=_raise_map,
        )
    except RpcSerializationError:
        raise
    except Exception as error:
        raise RpcSerializationError(f"cannot decode a message: {error!r}") from error


def encode_error(error: BaseException) -> bytes:
    """Return the wire form of an exception; never fails.

    If the exception cannot be sent whole, the form has its type, message and traceback only, with
    escapes for characters that UTF-8 cannot encode.
    """
    try:
        return encode(error)
    except Exception:  # noqa: BLE001 - it cannot be sent, or its class raises
        return encode_error_in_short(error)


def encode_error_in_short(error: BaseException) -> bytes:
    """Return the wire form of an exception that cannot be sent whole: only type, message and
    traceback, each cut to some KiB."""
    if isinstance(error, RemoteError):
        short = [sendable(error.error_type), sendable(error.text)]
    else:
        short = [type_of(error), message_of(error)]
    text = sendable(remote_traceback(error) or traceback_of(error, error.__traceback__))
    return pack({_ERROR_KEY: [type_name(RemoteError), short, text]})


def remote_traceback(error: BaseException) -> str | None:
    """Return the traceback of an error from another process; None: the error arose here."""
    cause = error.__cause__
    return cause.text if isinstance(cause, RemoteTraceback) else None


# --- sending --------------------------------------------------------------------------------------


def _lower(value: Any) -> Any:
    """Return *value* converted to types that msgpack can pack; a value of these types is returned
    unchanged."""
    cls = type(value)
    lowerer = _lowerers.get(cls)
    if lowerer is None:
        lowerer = _lowerers[cls] = _make_lowerer(cls)
    return lowerer(value)


def _make_lowerer(cls: type) -> _Lowerer:
    if cls in _PLAIN:
        return lambda value: value
    if cls is tuple or cls is list:
        return _lower_items
    if cls is dict:
        return _lower_dict
    if issubclass(cls, BaseException):
        return _lower_error
    name = type_name(cls)
    if lookup(name) is not cls:
        raise _RefusedError(
            f"a {cls.__name__} ({name} is not a registered message type; "
            "declare it with flinkray.core.message)"
        )
    prefix = name.encode() + b"\0"
    if issubclass(cls, AbstractID):
        return lambda value: _ext((_ID_EXT, prefix + value.value))
    if issubclass(cls, CompositeID):
        return lambda value: _ext((_COMPOSITE_EXT, prefix + value.to_bytes()))
    if issubclass(cls, Enum):
        members = {member: _ext((_ENUM_EXT, prefix + member.name.encode())) for member in cls}
        return partial(_lower_flag, members) if issubclass(cls, Flag) else members.__getitem__
    if issubclass(cls, str):
        return lambda value: _ext((_STR_EXT, prefix + value.encode()))
    if is_dataclass(cls):
        names = [field.name for field in fields(cls) if field.init]
        if len(names) < 2:  # with one name, an attrgetter returns no tuple
            return lambda value: {
                _MESSAGE_KEY: (name, *_lower_items([getattr(value, it) for it in names]))
            }
        values_of = attrgetter(*names)
        return lambda value: {_MESSAGE_KEY: (name, *_lower_items(values_of(value)))}
    raise _RefusedError(f"a {cls.__name__} (registered, but neither id, str, enum nor dataclass)")


def _lower_flag(members: dict[Any, Any], value: Any) -> Any:
    if value not in members:
        raise _RefusedError(f"{value!r}: of a Flag only members have names, and no combinations")
    return members[value]


_ext = partial(tuple.__new__, msgpack.ExtType)
"""Makes a msgpack ext value from (code, data), without msgpack's checks."""


def _lower_items(value: tuple[Any, ...] | list[Any]) -> tuple[Any, ...] | list[Any]:
    if _all_plain(map(type, value)):
        return value
    return [item if type(item) in _PLAIN else _lower(item) for item in value]


def _lower_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if not _all_str(map(type, value)):
        wrong = next(type(key) for key in value if type(key) is not str)
        raise _RefusedError(f"a dict with a key of type {wrong.__name__}: keys must be str")
    if _all_plain(map(type, value.values())):
        return value
    return {key: item if type(item) in _PLAIN else _lower(item) for key, item in value.items()}


def _lower_error(error: BaseException) -> Any:
    cls = type(error)
    text = remote_traceback(error)
    if text is None or error.__traceback__ is not None:
        text = traceback_of(error, error.__traceback__)
    known = lookup(type_name(cls)) is cls or cls is FlinkRayError or _builtin(cls.__name__) is cls
    if known:
        try:
            arguments = [_lower_argument(argument) for argument in error.args]
        except _RefusedError:
            known = False
    if not known:
        return {_ERROR_KEY: [type_name(RemoteError), [type_of(error), message_of(error)], text]}
    return {_ERROR_KEY: [type_name(cls), arguments, text]}


def _lower_argument(argument: Any) -> Any:
    if type(argument) is str:
        if argument.isascii():
            return argument
        return argument.encode(errors="backslashreplace").decode()  # escapes lone surrogates
    return _lower(argument)


# --- receiving ------------------------------------------------------------------------------------


def _raise_ext(code: int, data: bytes) -> Any:
    return _raise_short(code, data) if len(data) <= _SHORT else _raise_any_ext(code, data)


def _raise_any_ext(code: int, data: bytes) -> Any:
    name, separator, value = bytes(data).partition(b"\0")
    if not separator:
        raise RpcSerializationError(f"cannot decode a message: ext value without type, code {code}")
    cls = _registered(name.decode())
    if code == _ID_EXT and issubclass(cls, AbstractID):
        return cls(value)
    if code == _COMPOSITE_EXT and issubclass(cls, CompositeID):
        return cls.from_bytes(value)
    if code == _STR_EXT and issubclass(cls, str):
        return cls(value.decode())
    if code == _ENUM_EXT and issubclass(cls, Enum):
        return cls[value.decode()]
    raise RpcSerializationError(f"cannot decode a message: ext code {code} for {name.decode()}")


_raise_short = lru_cache(4096)(_raise_any_ext)
"""Decodes a short ext value, with a cache: ids and enums come often, and are immutable."""


def _raise_map(value: dict[Any, Any]) -> Any:
    for key in value:
        if type(key) is not str:
            break
    else:
        return value
    if len(value) != 1:
        raise RpcSerializationError("cannot decode a message: a map with keys that are not str")
    key, body = value.popitem()
    if key == _MESSAGE_KEY and type(key) is int:
        name, *values = body
        builder = _builders.get(name)
        if builder is None:
            builder = _builders[name] = _make_builder(name)
        return builder(values)
    if key == _ERROR_KEY and type(key) is int:
        return _raise_error(*body)
    raise RpcSerializationError(f"cannot decode a message: a map with the key {key!r}")


def _registered(name: str) -> type:
    cls = lookup(name)
    if cls is None:
        raise RpcSerializationError(
            f"cannot decode a message: no type {name} is registered in this process "
            "(import its module)"
        )
    return cls


def _make_builder(name: str) -> Callable[[list[Any]], Any]:
    message_type = _registered(name)
    if not is_dataclass(message_type):
        raise RpcSerializationError(f"cannot decode a message: {name} is not a message")
    init = tuple(field for field in fields(message_type) if field.init)
    cls: Callable[..., Any] = message_type
    keywords = any(field.kw_only for field in init)

    def build(values: list[Any]) -> Any:
        if len(values) != len(init):
            raise RpcSerializationError(
                f"cannot decode a message: {name} has {len(init)} fields here, {len(values)} came"
            )
        if keywords:
            return cls(**{field.name: value for field, value in zip(init, values, strict=True)})
        return cls(*values)

    return build


def _builtin(name: str) -> type[Exception] | None:
    cls = getattr(builtins, name, None)
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else None


def _raise_error(name: str, arguments: tuple[Any, ...], text: str) -> BaseException:
    module, _, short_name = name.partition(":")
    cls = _builtin(short_name) if module == "builtins" else lookup(name)
    if name == type_name(FlinkRayError):
        cls = FlinkRayError
    error: BaseException
    # no future can hold a StopIteration
    if cls is None or not issubclass(cls, Exception) or issubclass(cls, StopIteration):
        error = RemoteError(short_name or name, ", ".join(map(str, arguments)))
    else:
        try:
            error = cls(*arguments)
        except Exception:  # noqa: BLE001 - its constructor does not accept its own args
            error = RemoteError(short_name, ", ".join(map(str, arguments)))
    if isinstance(error, FlinkRayError):
        error.remote_traceback = text
    error.__cause__ = RemoteTraceback(text)
    return error


LARGE = 65_536
"""Bytes above this size are not copied where that can be avoided."""

Packed = bytes | list[bytes]
"""A packed value, or its parts in order."""

LONGEST = 0xFFFF_FFFF
"""The most bytes that msgpack can pack as one value."""

_BIN_32 = struct.Struct(">BI")
_BIN_32_CODE = 0xC6
_HEAD = 8192
"""Bytes within which :func:`unpack_but_last` expects all values but the last."""

_idle: list[msgpack.Packer] = []
"""Packers that are not in use; any thread takes and returns packers."""


def pack(value: object) -> bytes:
    """Return the msgpack form of *value*.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: raised by msgpack.
    """
    try:
        packer = _idle.pop()
    except IndexError:
        packer = msgpack.Packer()
    data: bytes = packer.pack(value)
    if len(data) <= LARGE:  # a packer keeps its buffer
        _idle.append(packer)
    return data


def bytes_head(size: int) -> bytes:
    """Return the msgpack head of *size* bytes (at most :data:`LONGEST`)."""
    return _BIN_32.pack(_BIN_32_CODE, size)


def array_head(count: int) -> bytes:
    """Return the msgpack head of a tuple of *count* values."""
    head: bytes = msgpack.Packer().pack_array_header(count)
    return head


def unpack_but_last(data: bytes | memoryview, count: int) -> tuple[object, ...] | None:
    """Return a packed tuple of *count* values, with the last (bytes) as a view of *data*.

    None: *data* holds something else, or the other values are too long.
    """
    unpacker = msgpack.Unpacker(use_list=False, read_size=_HEAD, max_buffer_size=_HEAD)
    unpacker.feed(data[:_HEAD])
    try:
        if unpacker.read_array_header() != count:
            return None
        parts = [unpacker.unpack() for _ in range(count - 1)]
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
    begin = unpacker.tell() + _BIN_32.size
    if len(data) < begin or data[begin - _BIN_32.size : begin] != bytes_head(len(data) - begin):
        return None
    return (*parts, memoryview(data)[begin:])
