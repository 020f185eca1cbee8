"""How frames share one stream.

On the wire, the length of each frame precedes it (four bytes, big-endian). A large frame is sent in
fragments. A fragment has the top bit of its length set, and begins with the number and the total
size of the large frame. So other frames can be sent between fragments, and a large frame delays
only its own lane.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flinkray.core.errors import RpcConnectionError

LENGTH = struct.Struct(">I")
_FRAGMENT = struct.Struct(">III")
FRAGMENT_HEAD = struct.Struct(">II")
FRAGMENT_BIT = 1 << 31

FRAGMENT_SIZE = 65_536
"""Size of a fragment in bytes; frames above this size are large frames."""
LARGEST_FRAGMENT = FRAGMENT_SIZE + FRAGMENT_HEAD.size
MAX_LARGE_FRAMES = 8
"""How many large frames of one connection may be under way at the same time.

Together with the frame limit, this bounds the memory that the receiver needs to join fragments.
"""


class _LargeFrame:
    __slots__ = ("_missing", "_parts", "lane", "number", "size")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = deque([memoryview(part) for part in parts])
        self.size = self._missing = sum(map(len, parts))
        self.number = 0
        self.lane: object = None

    def next_fragment(self, taken: list[bytes | memoryview]) -> int:
        """Append the next fragment to *taken*; return the size of its content in bytes."""
        size = left = min(FRAGMENT_SIZE, self._missing)
        self._missing -= size
        length = FRAGMENT_BIT | (size + FRAGMENT_HEAD.size)
        taken.append(_FRAGMENT.pack(length, self.number, self.size))
        while left:
            part = self._parts[0]
            if len(part) <= left:
                taken.append(self._parts.popleft())
                left -= len(part)
            else:
                taken.append(part[:left])
                self._parts[0] = part[left:]
                left = 0
        return size

    @property
    def is_sent(self) -> bool:
        return self._missing == 0


class FrameSplitter:
    """The sending side: takes frames by lane (order is kept within a lane only), returns bytes for
    the stream.

    Small frames and fragments of large frames alternate, fragment by fragment.
    """

    def __init__(self) -> None:
        self._small: list[bytes] = []
        """Lengths and frames, alternating."""
        self.small_bytes = 0
        """Bytes of small frames that are not written yet."""
        self.large_bytes = 0
        """Bytes of large frames, and of frames queued behind them, that are not written yet."""
        self._lanes: dict[object, deque[bytes | _LargeFrame]] = {}
        """The frames queued behind the large frame of each lane.

        A lane is here only while it has a large frame.
        """
        self._under_way: deque[_LargeFrame] = deque()
        self._next: deque[_LargeFrame] = deque()
        self._numbers = 0

    def __bool__(self) -> bool:
        return bool(self._small or self._under_way)

    def put(self, frame: bytes, lane: int | None) -> None:
        """Queue a frame behind the earlier frames of its lane."""
        if len(frame) > FRAGMENT_SIZE:
            self._put_large(_LargeFrame((frame,)), lane)
        elif self._lanes and lane in self._lanes:
            self._lanes[lane].append(frame)
            self.large_bytes += len(frame)
        else:
            self._small.append(LENGTH.pack(len(frame)))
            self._small.append(frame)
            self.small_bytes += len(frame)

    def put_parts(self, parts: Sequence[bytes], lane: int | None) -> None:
        """Queue one frame, given in parts, behind the earlier frames of its lane."""
        large = _LargeFrame(parts)
        if large.size > FRAGMENT_SIZE:
            self._put_large(large, lane)
        else:
            self.put(b"".join(parts), lane)

    def _put_large(self, large: _LargeFrame, lane: int | None) -> None:
        self.large_bytes += large.size
        if lane in self._lanes:
            self._lanes[lane].append(large)
        else:
            large.lane = object() if lane is None else lane
            self._lanes[large.lane] = deque()
            self._begin(large)

    def take(self, size: int) -> list[bytes | memoryview]:
        """Remove about *size* bytes of the queued frames, and return them to be written next."""
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
        size = large.next_fragment(taken)
        self.large_bytes -= size
        if not large.is_sent:
            self._under_way.append(large)
        else:
            if self._next:
                self._under_way.append(self._next.popleft())
            self._go_on_with(large.lane)
        return size

    def _go_on_with(self, lane: object) -> None:
        behind = self._lanes.pop(lane)
        while behind:
            frame = behind.popleft()
            if isinstance(frame, _LargeFrame):
                frame.lane = lane
                self._lanes[lane] = behind
                self._begin(frame)
                return
            self.large_bytes -= len(frame)
            self.put(frame, None)

    def _begin(self, large: _LargeFrame) -> None:
        large.number = self._numbers = (self._numbers + 1) & 0xFFFF_FFFF
        if len(self._under_way) < MAX_LARGE_FRAMES:
            self._under_way.append(large)
        else:
            self._next.append(large)


@dataclass(slots=True)
class _PartialFrame:
    memory: bytearray
    content: memoryview
    """The part of *memory* that the frame takes."""
    received: int = 0


class FragmentJoiner:
    """The receiving side: joins the fragments of large frames."""

    def __init__(self, max_frame_size: int) -> None:
        self._max_frame_size = max_frame_size
        self._frames: dict[int, _PartialFrame] = {}
        self._spare: bytearray | None = None
        """The memory of an earlier frame, to be used again.

        New memory costs more than copying into it, as the system has to clear it page by page.
        """

    def place_for(self, number: int, total: int, size: int) -> memoryview:
        """Return the memory to fill with the next *size* bytes of large frame *number*, which has
        *total* bytes.

        Raises RpcConnectionError: this cannot be a fragment of a frame within the limits.
        """
        if size <= 0:
            raise RpcConnectionError("a fragment without content came")
        frame = self._frames.get(number)
        if frame is None:
            if total > self._max_frame_size:
                raise RpcConnectionError(
                    f"a frame of {total} bytes came, the limit is {self._max_frame_size}"
                )
            if len(self._frames) >= MAX_LARGE_FRAMES:
                raise RpcConnectionError(f"more than {MAX_LARGE_FRAMES} large frames came at once")
            memory, self._spare = self._spare, None
            if memory is None or len(memory) < total:
                memory = bytearray(total)
            frame = _PartialFrame(memory, memoryview(memory)[:total])
        begin = frame.received
        if total != len(frame.content) or size != min(FRAGMENT_SIZE, total - begin):
            raise RpcConnectionError("a fragment came that does not fit to those before it")
        self._frames[number] = frame
        frame.received += size
        return frame.content[begin : frame.received]

    def take(self, number: int) -> memoryview | None:
        """Return the large frame *number* if it is complete.
        Otherwise return None. Call this after the memory of :meth:`place_for` was filled.

        The frame's memory is used again: finish with the frame before the next :meth:`place_for`.
        """
        frame = self._frames[number]
        if frame.received < len(frame.content):
            return None
        del self._frames[number]
        self._spare = frame.memory
        return frame.content

    def give_back(self) -> None:
        """Release the memory that is kept for later large frames."""
        self._spare = None
