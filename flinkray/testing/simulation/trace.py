"""What a run leaves behind: a hash of everything, and the end of its story in words."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b

_CHUNK = 8192


class Trace:
    """A running hash of every event.

    ``append`` takes one number; which process ran, what time it is, the checksum of a frame.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._numbers = array("d")
        self.append = self._numbers.append

    def fold(self) -> None:
        """To be called now and then, so that numbers do not pile up."""
        if len(self._numbers) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(self._numbers.tobytes())
        del self._numbers[:]

    def hexdigest(self) -> str:
        """Of all events so far."""
        digest = self._hash.copy()
        digest.update(self._numbers.tobytes())
        return digest.hexdigest()


class SimulationStory:
    """The last lines of what happened; they are put into words only when somebody reads them."""

    def __init__(self, length: int) -> None:
        self._entries: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=length)
        self.count = 0
        """Of all lines there ever were."""

    def add(self, now: float, process: str, line: str, *args: object) -> None:
        """*line* is formatted with *args* as a log line is."""
        self.count += 1
        self._entries.append((now, process, line, args))

    def lines(self, last: int | None = None) -> Iterator[str]:
        """Virtual time in seconds, process, what happened."""
        entries = list(self._entries)
        if last is not None:
            entries = entries[-last:]
        if self.count > len(entries):
            yield f"... {self.count - len(entries)} lines before"
        width = max((len(process) for _, process, _, _ in entries), default=0)
        for now, process, line, args in entries:
            text = line % args if args else line
            yield f"{now:12.6f}  {process:<{width}}  {text}"

    def text(self, last: int | None = None) -> str:
        return "\n".join(self.lines(last))
