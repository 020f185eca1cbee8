"""How frames share one stream.

On the wire each frame has its length before it (four bytes, big-endian).  A large frame travels in
fragments, which have the top bit of their length set and begin with the number of the large frame
and its total size; so others get in between, and no large frame holds up more than its own lane.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from flinkray.core.errors import RpcConnectionError

LENGTH = struct.Struct(">I")
_FRAGMENT = struct.Struct(">III")
_FRAGMENT_HEAD = struct.Struct(">II")
FRAGMENT_BIT = 1 << 31

FRAGMENT_SIZE = 65_536
"""Bytes of a large frame that travel together; larger frames are large frames."""
LARGEST_FRAGMENT = FRAGMENT_SIZE + _FRAGMENT_HEAD.size
MAX_LARGE_FRAMES = 8
"""Large frames of one connection that are under way at the same time; with the frame limit, what
bounds the memory that the other side needs to put them together."""


class _LargeFrame:
    """A frame that leaves in fragments."""

    __slots__ = ("_number", "_position", "_view", "lane", "size")

    def __init__(self, number: int, lane: object, frame: bytes) -> None:
        self._number = number
        self._view = memoryview(frame)
        self._position = 0
        self.lane = lane
        self.size = len(frame)

    def next_fragment(self) -> tuple[bytes, memoryview]:
        """Head and body."""
        begin = self._position
        self._position = min(begin + FRAGMENT_SIZE, self.size)
        body = self._view[begin : self._position]
        length = FRAGMENT_BIT | (len(body) + _FRAGMENT_HEAD.size)
        return _FRAGMENT.pack(length, self._number, self.size), body

    @property
    def is_sent(self) -> bool:
        return self._position == self.size


class FrameSplitter:
    """The sending side: frames by lanes in, bytes for the stream out.

    Small frames and fragments of large ones take turns, fragment by fragment.
    """

    def __init__(self) -> None:
        self._small: list[bytes] = []
        """Lengths and frames in turn."""
        self.small_bytes = 0
        """Bytes of small frames that have to be written yet."""
        self.large_bytes = 0
        """Bytes of frames that are large, or behind one, and have to be written yet."""
        self._lanes: dict[object, deque[bytes]] = {}
        """What is behind the large frame of a lane; there is a lane only while it has one."""
        self._under_way: deque[_LargeFrame] = deque()
        self._next: deque[_LargeFrame] = deque()
        """Large frames of other lanes, until there are fewer under way."""
        self._numbers = 0

    def __bool__(self) -> bool:
        return bool(self._small or self._under_way)

    def put(self, frame: bytes, lane: int | None) -> None:
        """Queue a frame behind those of its lane."""
        if self._lanes and lane in self._lanes:
            self._lanes[lane].append(frame)
            self.large_bytes += len(frame)
        elif len(frame) <= FRAGMENT_SIZE:
            self._small.append(LENGTH.pack(len(frame)))
            self._small.append(frame)
            self.small_bytes += len(frame)
        else:
            key = object() if lane is None else lane
            self._lanes[key] = deque()
            self.large_bytes += len(frame)
            self._begin(key, frame)

    def take(self, size: int) -> list[bytes | memoryview]:
        """What to write next: about *size* bytes."""
        if not self._under_way and self.small_bytes <= size:
            small, self._small = self._small, []
            self.small_bytes = 0
            return small  # type: ignore[return-value]
        taken: list[bytes | memoryview] = []
        while size > 0 and (self._small or self._under_way):
            size -= self._take_small(taken)
            if self._under_way:
                size -= self._take_fragment(taken)
        return taken

    def _take_small(self, taken: list[bytes | memoryview]) -> int:
        size = count = 0
        while count < len(self._small) and size < FRAGMENT_SIZE:
            size += len(self._small[count + 1])
            count += 2
        taken += self._small[:count]
        del self._small[:count]
        self.small_bytes -= size
        return size

    def _take_fragment(self, taken: list[bytes | memoryview]) -> int:
        large = self._under_way.popleft()
        head, body = large.next_fragment()
        taken += (head, body)
        self.large_bytes -= len(body)
        if not large.is_sent:
            self._under_way.append(large)
        else:
            if self._next:
                self._under_way.append(self._next.popleft())
            self._go_on_with(large.lane)
        return len(body)

    def _go_on_with(self, lane: object) -> None:
        behind = self._lanes.pop(lane)
        while behind:
            frame = behind.popleft()
            if len(frame) > FRAGMENT_SIZE:
                self._lanes[lane] = behind
                self._begin(lane, frame)
                return
            self.large_bytes -= len(frame)
            self.put(frame, None)

    def _begin(self, lane: object, frame: bytes) -> None:
        self._numbers = (self._numbers + 1) & 0xFFFF_FFFF
        large = _LargeFrame(self._numbers, lane, frame)
        if len(self._under_way) < MAX_LARGE_FRAMES:
            self._under_way.append(large)
        else:
            self._next.append(large)


@dataclass(slots=True)
class _PartialFrame:
    """A large frame of which more has to come."""

    total: int
    missing: int
    parts: list[bytes]


class FragmentJoiner:
    """The receiving side of large frames."""

    def __init__(self, max_frame_size: int) -> None:
        self._max_frame_size = max_frame_size
        self._frames: dict[int, _PartialFrame] = {}
        """By number."""

    def add(self, fragment: bytes) -> bytes | None:
        """The large frame, once it is whole.

        Raises:
            RpcConnectionError: this cannot be a fragment of a frame within the limits.
        """
        if len(fragment) <= _FRAGMENT_HEAD.size:
            raise RpcConnectionError("a fragment without content came")
        number, total = _FRAGMENT_HEAD.unpack_from(fragment)
        body = fragment[_FRAGMENT_HEAD.size :]
        frame = self._frames.get(number)
        if frame is None:
            if total > self._max_frame_size:
                raise RpcConnectionError(
                    f"a frame of {total} bytes came, the limit is {self._max_frame_size}"
                )
            if len(self._frames) >= MAX_LARGE_FRAMES:
                raise RpcConnectionError(f"more than {MAX_LARGE_FRAMES} large frames came at once")
            frame = self._frames[number] = _PartialFrame(total, total, [])
        if total != frame.total or len(body) != min(FRAGMENT_SIZE, frame.missing):
            raise RpcConnectionError("a fragment came that does not fit to those before it")
        frame.parts.append(body)
        frame.missing -= len(body)
        if frame.missing > 0:
            return None
        del self._frames[number]
        return b"".join(frame.parts)
