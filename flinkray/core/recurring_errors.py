"""Predicts whether an error would occur again after a restart.

flinkray's errors say so by their class (``retryable``). Errors of Python and of other libraries do
not. Errors that the program itself causes are recognised here, and compared with later errors.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from typing import NamedTuple

from flinkray.core.error_text import message_of, sendable, type_of
from flinkray.core.errors import (
    FlinkRayError,
    RpcError,
    RpcSerializationError,
    SuppressRestartsError,
)
from flinkray.core.message import message

_OF_SURROUNDINGS = (OSError, EOFError, MemoryError)
"""Errors of the surroundings, which may pass: a connection, a time limit, a full disk.
The classes in ``_OF_MISSING_THINGS`` are exceptions."""
_OF_MISSING_THINGS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
_OF_PROGRAM = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_OF_DATABASE_PROGRAM = frozenset({"ProgrammingError", "DataError", "NotSupportedError"})
"""Names of PEP 249 classes in every database library.
They report a missing table or column, or a value that does not fit."""
_OF_DATABASE_CONNECTION = frozenset({"OperationalError", "InterfaceError"})
"""Names of PEP 249 classes that drivers raise for a lost or closed connection.
Drivers are not imported, so a class counts only if one of its bases is named ``Error``."""
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""Parts that differ between messages of the same error: addresses and numbers."""
_LONGEST = 400


def outlook_of(error: BaseException, record: str = "") -> Outlook:
    """Predict whether an error would occur again after a restart.
    Call this where the error was raised: in another process its ``__cause__`` may be missing. Never
    raises. *record*: the record on which the program failed; empty if not known."""
    told = error.outlook if isinstance(error, FlinkRayError) else None
    return told or Outlook(will_recur(error), program_error_of(error, record))


def will_recur(error: BaseException) -> bool:
    """Return whether the classes of the error and its causes say that a restart is useless.
    The first flinkray error in the chain decides; a SuppressRestartsError always means True."""
    causes = tuple(causes_of(error))
    if any(isinstance(cause, SuppressRestartsError) for cause in causes):
        return True
    ours = (c for c in causes if isinstance(c, FlinkRayError) and not _only_says_where(c))
    decisive = next(ours, None)
    if decisive is None:
        return False
    if isinstance(decisive, RpcError):  # an error of cluster processes, which are replaced
        return isinstance(decisive, RpcSerializationError)
    return not decisive.retryable


def program_error_of(error: BaseException, record: str = "") -> ProgramError | None:
    """Return a description by which the same program error is recognised later.
    None if the program did not cause the error, so that it may not occur again. Never raises.
    *record*: the record on which the program failed; empty if not known."""
    knowing = [c for c in causes_of(error) if not _only_says_where(c)]
    if not knowing or not _is_counted(knowing[0]) or any(map(_is_of_surroundings, knowing)):
        return None
    cause = knowing[0]
    text = message_of(cause)
    if isinstance(cause, FlinkRayError):  # its text names file and line
        record = record or text
    kind = f"{type_of(cause)} at {_place_of(cause)}: {without_numbers(text)}"
    may_pass = isinstance(cause, (FlinkRayError, *_OF_MISSING_THINGS))
    return ProgramError(kind, sendable(record), may_pass)


def without_numbers(text: str) -> str:
    """Return the first 400 characters of a message, with ``#`` for numbers and addresses."""
    return _CHANGING.sub("#", text[:_LONGEST])


def is_of_program(builtin: str) -> bool:
    """Return whether the builtin class of that name is an error that programs cause."""
    return _is_one_of(builtin, _OF_PROGRAM + _OF_MISSING_THINGS)


def is_of_missing_things(builtin: str) -> bool:
    """Return whether the builtin class of that name reports that a file is missing or forbidden."""
    return _is_one_of(builtin, _OF_MISSING_THINGS)


def _is_one_of(builtin: str, classes: tuple[type, ...]) -> bool:
    kind = getattr(builtins, builtin, None)
    return isinstance(kind, type) and issubclass(kind, classes)


def _only_says_where(error: BaseException) -> bool:
    return isinstance(error, FlinkRayError) and error.only_says_where


def _is_counted(error: BaseException) -> bool:
    if isinstance(error, FlinkRayError):  # the class decides
        return error.is_counted
    if any(base.__name__ in _OF_DATABASE_PROGRAM for base in type(error).__mro__):
        return True
    return isinstance(error, (*_OF_PROGRAM, *_OF_MISSING_THINGS))


def _is_of_surroundings(error: BaseException) -> bool:
    """Return whether the class of *error* says that the surroundings of the program (disk, network,
    database, …) caused the error. Missing or forbidden files do not count."""
    if _is_of_database_connection(error):
        return True
    return isinstance(error, _OF_SURROUNDINGS) and not isinstance(error, _OF_MISSING_THINGS)


def _is_of_database_connection(error: BaseException) -> bool:
    names = [base.__name__ for base in type(error).__mro__]
    known = (n for n in names if n in _OF_DATABASE_CONNECTION or n in _OF_DATABASE_PROGRAM)
    return next(known, None) in _OF_DATABASE_CONNECTION and "Error" in names


def _place_of(error: BaseException) -> str:
    step = error.__traceback__
    if step is None:
        return "?"
    while step.tb_next is not None:
        step = step.tb_next
    return f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"


def causes_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


@message
class ProgramError:
    """Describes an error that the program itself caused, so that the same error is recognised when
    it occurs again."""

    kind: str
    """The error's class, the line that raised it, and its message without numbers."""
    record: str = ""
    """The record on which the program failed, with its origin; empty if not known."""
    may_pass: bool = False
    """Whether a missing or incomplete file or folder, which may come later, caused the error."""


class Outlook(NamedTuple):
    """A prediction about one error: whether it will occur again, and how to recognise it then."""

    will_recur: bool
    """Whether the error recurs until somebody changes something, so that a restart is useless."""
    program_error: ProgramError | None
    """The description by which the error is recognised; None if the error may be temporary."""
