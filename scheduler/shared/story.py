"""Defines Story, the recent history of an object, for error texts."""

from __future__ import annotations

from collections import deque

from flinkray.core.errors import IllegalTransitionError


class Story:
    """Records what happened to an object, as lines of text with times. Keeps the last *limit*
    lines.  *subject* names the object."""

    def __init__(self, subject: str, limit: int = 50) -> None:
        self.subject = subject
        self._lines: deque[tuple[float, str]] = deque(maxlen=limit)
        self._number_of_lines = 0

    def add(self, now: float, text: str) -> None:
        """Add a line to the history.  *now* is in monotonic seconds."""
        self._lines.append((now, text))
        self._number_of_lines += 1

    def illegal(self, wanted: str) -> IllegalTransitionError:
        """Return an error which says that the subject cannot do *wanted*. The text contains the
        history."""
        return IllegalTransitionError(f"{self.subject} cannot {wanted}.  Its story:\n{self}")

    def __str__(self) -> str:
        lines = [f"  {now:.3f} s: {text}" for now, text in self._lines]
        dropped = self._number_of_lines - len(self._lines)
        if dropped:
            lines.insert(0, f"  ({dropped} earlier lines were dropped)")
        return "\n".join(lines) if lines else "  (nothing has happened yet)"
