"""The story of an object: what happened to it, when, and why."""

from __future__ import annotations

from collections import deque

from flinkray.core.errors import IllegalTransitionError


class Story:
    """Lines of text with times; the oldest lines are dropped beyond a limit."""

    def __init__(self, subject: str, limit: int = 50) -> None:
        self.subject = subject
        self._lines: deque[tuple[float, str]] = deque(maxlen=limit)
        self._number_of_lines = 0

    def add(self, now: float, text: str) -> None:
        """Append a line.  *now* is in monotonic seconds."""
        self._lines.append((now, text))
        self._number_of_lines += 1

    def illegal(self, wanted: str) -> IllegalTransitionError:
        """The error for a transition that is not possible; its text contains this story."""
        return IllegalTransitionError(f"{self.subject} cannot {wanted}.  Its story:\n{self}")

    def __str__(self) -> str:
        lines = [f"  {now:.3f} s: {text}" for now, text in self._lines]
        dropped = self._number_of_lines - len(self._lines)
        if dropped:
            lines.insert(0, f"  ({dropped} earlier lines were dropped)")
        return "\n".join(lines) if lines else "  (nothing has happened yet)"
