"""Predictions of whether an error would recur."""

from __future__ import annotations

from typing import NamedTuple

from flinkray.core.message import message


@message
class ProgramError:
    """An error caused by the program itself, in a form for comparison with the next error."""

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
