"""Writes the text that jobs print to standard output."""

from __future__ import annotations

import sys


def write_text(text: str) -> None:
    """Write a text to standard output at once, with escapes for characters that it cannot show.

    Without a standard output the text goes nowhere, as with ``print``.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
