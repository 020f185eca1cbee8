"""Writing what jobs print."""

from __future__ import annotations

import sys


def write_text(text: str) -> None:
    """To standard output, at once, with escapes for what it cannot show; as with ``print``, nowhere
    if there is none."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
