"""Records a run: a hash of all events, and the last lines of its story as text."""

from __future__ import annotations

import re
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from hashlib import blake2b

_CHUNK = 8192

_OF_A_KIND = 3
"""How many lines of one kind the end of a story shows.

Lines of one kind differ only in the numbers of calls, as the lines of repeated calls do; without
this limit the end of a story would show nothing else.
"""
_NUMBER_OF_CALL = re.compile(r"#\d+")


class Trace:
    """Computes a hash of all events, by which two runs can be compared. ``append`` takes one
    number: the process that ran, the time, or the checksum of a frame."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._numbers = array("d")
        self.append = self._numbers.append

    def fold(self) -> None:
        """Add the numbers that were appended to the hash if there are many, to free their
        memory."""
        if len(self._numbers) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(self._numbers.tobytes())
        del self._numbers[:]

    def hexdigest(self) -> str:
        """Return the hash of all events so far."""
        digest = self._hash.copy()
        digest.update(self._numbers.tobytes())
        return digest.hexdigest()


class SimulationStory:
    """Keeps the last lines of a run's story (its log), and formats them only when they are read."""

    def __init__(self, length: int) -> None:
        self._entries: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=length)
        self.count = 0
        """The number of all lines written so far."""

    def add(self, now: float, process: str, line: str, *args: object) -> None:
        """Add a line; *line* is formatted with *args* like a log line."""
        self.count += 1
        self._entries.append((now, process, line, args))

    def lines(self) -> Iterator[str]:
        """Yield the lines as texts: virtual time in seconds, process, event."""
        if self.count > len(self._entries):
            yield f"... {self.count - len(self._entries)} lines before"
        width = max((len(process) for _, process, _, _ in self._entries), default=0)
        for now, process, line, args in self._entries:
            yield _shown(now, process, width, _text(line, args))

    def text(self) -> str:
        return "\n".join(self.lines())

    def end(self, last: int) -> Iterator[str]:
        """Yield the last *last* lines as texts, in the order of time. Of lines of one process that
        differ only in the numbers by which calls are identified, only the latest three count."""
        kinds: Counter[tuple[str, str]] = Counter()
        shown: list[tuple[float, str, str]] = []
        left_out: dict[int, int] = {}
        """How many lines were left out, by the number of lines shown after them."""
        seen = 0
        for now, process, line, args in reversed(self._entries):
            if len(shown) == last:
                break
            seen += 1
            text = _text(line, args)
            kind = process, _NUMBER_OF_CALL.sub("#", text)
            kinds[kind] += 1
            if kinds[kind] > _OF_A_KIND:
                left_out[len(shown)] = left_out.get(len(shown), 0) + 1
            else:
                shown.append((now, process, text))
        if self.count > seen:
            yield f"... {self.count - seen} lines before"
        width = max((len(process) for _, process, _ in shown), default=0)
        for place in range(len(shown), -1, -1):
            if place in left_out:
                yield f"... {left_out[place]} more of kinds that are below"
            if place:
                yield _shown(*shown[place - 1][:2], width, shown[place - 1][2])


def _text(line: str, args: tuple[object, ...]) -> str:
    return line % args if args else line


def _shown(now: float, process: str, width: int, text: str) -> str:
    return f"{now:12.6f}  {process:<{width}}  {text}"
