"""Defines predictions that say whether an error would occur again after a restart."""

from __future__ import annotations

from typing import NamedTuple

from flinkray.core.message import message


@message
class ProgramError:
    """Describes an error that the program itself caused, to recognise the same error the next
    time."""

    kind: str
    """The error's class, the line that raised it, and its message without numbers."""
    record: str = ""
    """The record on which the program failed, with its origin; empty if not known."""
    may_pass: bool = False
    """Whether a missing or incomplete file or folder, which may come later, caused the error."""


class Outlook(NamedTuple):
    """A prediction about one error: whether it will recur, and how to recognise it."""

    will_recur: bool
    """Whether the error recurs until somebody changes something, so that a restart is useless."""
    program_error: ProgramError | None
    """The description by which the error is recognised; None if the error may be temporary."""
