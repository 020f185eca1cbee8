"""Converts an exception to a text that can be sent in a message.

``__str__`` of user code's exceptions may raise, take long, or return a huge text, half of a
surrogate pair, or a subclass of str. The functions here never raise, and return a plain str that
UTF-8 can encode. Call them in the thread that caught the exception.
"""

from __future__ import annotations

import traceback
from types import TracebackType

MOST_BYTES = 16 * 2**10
"""Most bytes of an encoded text about a failure: states of many tasks travel in one message."""
_TRACEBACK = "Traceback (most recent call last):"
_LONGEST_NAME = 256
"""Longest name of a class in bytes."""


def sendable(text: str, most_bytes: int = MOST_BYTES) -> str:
    """Return *text* in a form that can be sent, of at most *most_bytes* bytes.

    If the text is too long, its middle is left out. Half of a surrogate pair becomes ``\\udc80``.
    """
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
    """Return the name of the error's class, even if its metaclass changes ``__name__``."""
    return sendable(str.__str__(type.__dict__["__name__"].__get__(type(error))))


def message_of(error: BaseException, most_bytes: int = MOST_BYTES) -> str:
    """Return ``str(error)``; if ``__str__`` raises, a note that says so."""
    try:
        return sendable(str.__str__(str(error)), most_bytes)
    except BaseException as raised:  # noqa: BLE001 - whatever the class of the error raised
        return f"(its __str__ raised {type_of(raised)})"


def summary_of(error: BaseException) -> str:
    """Return class and message of the error, as ``ValueError: no such thing``.
    Only the class is returned if there is no message."""
    name = sendable(type_of(error), _LONGEST_NAME)
    message = message_of(error, MOST_BYTES - _LONGEST_NAME - 2)
    return f"{name}: {message}" if message else name


def in_one_line(text: str, most: int = 600) -> str:
    """Return the text of a failure in one line, without the frames of its tracebacks.
    Of chained errors, only the last is shown."""
    _, traceback_begins, said = text.rpartition(_TRACEBACK)
    lines = [line for line in said.splitlines() if line.strip()]
    if traceback_begins:
        lines = [line for line in lines if not line[0].isspace()]
    told = "; ".join(line.strip() for line in lines)
    return told if len(told) <= most else f"{told[: most - 2]} …"


def traceback_of(error: BaseException, frames: TracebackType | None, *, chain: bool = True) -> str:
    """Return the text of the traceback that Python would show for an error.
    *frames* is the part of the traceback to show, such as ``error.__traceback__``. With *chain*,
    the errors that caused the error are shown, too."""
    try:
        lines = traceback.format_exception(type(error), error, frames, chain=chain)
        return sendable(str.__str__("".join(lines)))
    except BaseException:  # noqa: BLE001 - whatever the class of the error raised
        return sendable("".join(traceback.format_tb(frames)) + summary_of(error) + "\n")
