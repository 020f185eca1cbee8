"""What an exception says, as text that can travel.

Exceptions of user code may do anything when they are asked: ``__str__`` may raise, return a huge
text, one with half of a surrogate pair, or a subclass of str.  Nothing here raises, and what it
returns is a plain str that UTF-8 can encode.  An exception is asked in the thread in which it was
caught, as it may also take its time.
"""

from __future__ import annotations

import traceback
from types import TracebackType

MOST_BYTES = 16 * 2**10
"""Of a text about a failure, encoded: states of many tasks travel in one message."""
_LONGEST_NAME = 256
"""Bytes of the name of a class."""


def sendable(text: str, most_bytes: int = MOST_BYTES) -> str:
    """*text*, without its middle if it is too long; half surrogates are written as ``\\udc80``."""
    if len(text) <= most_bytes:
        encoded = str.encode(text, "utf-8", "backslashreplace")
        if len(encoded) <= most_bytes:
            return encoded.decode()
    gap = f"\n… (shortened: it has {len(text)} characters) …\n"
    half = (most_bytes - len(gap.encode())) // 2
    head = str.encode(text[:half], "utf-8", "backslashreplace")[:half]
    tail = str.encode(text[-half:], "utf-8", "backslashreplace")[-half:]
    return head.decode(errors="ignore") + gap + tail.decode(errors="ignore")


def type_of(error: BaseException) -> str:
    """The name of its class, whatever its metaclass says."""
    return sendable(str.__str__(type.__dict__["__name__"].__get__(type(error))))


def message_of(error: BaseException, most_bytes: int = MOST_BYTES) -> str:
    """What ``str`` says of it."""
    try:
        return sendable(str.__str__(str(error)), most_bytes)
    except BaseException as raised:  # noqa: BLE001 - whatever the class of the error raised
        return f"(its __str__ raised {type_of(raised)})"


def summary_of(error: BaseException) -> str:
    """``ValueError: no such thing``; the class alone where there is no message."""
    name = sendable(type_of(error), _LONGEST_NAME)
    message = message_of(error, MOST_BYTES - _LONGEST_NAME - 2)
    return f"{name}: {message}" if message else name


def traceback_of(error: BaseException, frames: TracebackType | None, *, chain: bool = True) -> str:
    """As Python would show it, with these frames."""
    try:
        lines = traceback.format_exception(type(error), error, frames, chain=chain)
        return sendable(str.__str__("".join(lines)))
    except BaseException:  # noqa: BLE001 - whatever the class of the error raised
        return sendable("".join(traceback.format_tb(frames)) + summary_of(error) + "\n")
