"""Shared memory for large bodies between processes of one node: one copy, into mapped memory.

The producing side owns the memory, which has no name, disappears with its last user, and is divided
into regions. The producer offers the memory and uses it once the other side has mapped it. Until
then, and whenever no region is free, bodies go through the socket. A region is free again when the
consumer has dropped the last Arrow buffer in it.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from flinkray.streaming.network.frames import Part

logger = logging.getLogger(__name__)

SHARED_FROM: Final = 32_768
"""Bytes. Smaller bodies go through the socket."""

_SEGMENT: Final = 4 * 2**20
"""Bytes of one segment, unless a single region is larger. Each segment costs file descriptors."""

_HEAD: Final = 4096
"""Bytes before the first region, for the token by which the other side knows the memory."""

_TOKEN_SIZE: Final = 64

_MOST_REGIONS: Final = 4096
"""Most regions in one segment. The number of a region is the segment's number times this constant,
plus its index in the segment."""

IS_AVAILABLE: Final = sys.platform == "linux"


class _Segment:
    def __init__(self, number: int, capacity: int, count: int) -> None:
        self.number = number
        self.capacity = capacity
        self.count = count
        self.file = os.memfd_create(f"flinkray-channel-{number}", os.MFD_CLOEXEC)
        os.ftruncate(self.file, self.size)
        self._memory = mmap.mmap(self.file, self.size)
        self.token = os.urandom(_TOKEN_SIZE)
        self._memory[:_TOKEN_SIZE] = self.token
        self.free = list(range(count))

    @property
    def size(self) -> int:
        return _HEAD + self.capacity * self.count

    def write(self, place: int, parts: Sequence[Part]) -> None:
        begin = _HEAD + place * self.capacity
        target = pa.py_buffer(memoryview(self._memory)[begin : begin + self.capacity])
        # Arrow's writer releases the GIL while it copies
        writer = pa.FixedSizeBufferWriter(target)
        for part in parts:
            writer.write(part)
        writer.close()


Offer = tuple[int, int, int, int, int, bytes]
"""(segment, process id, file number, bytes of a region, number of regions, token)."""


class OwnedRegions:
    """The shared memory of the producing side of a connection.
    *budget*: bytes of all regions. *offer* tells the other side of a new segment, *drop* tells it
    the numbers of segments that are not used any more."""

    def __init__(
        self,
        budget: int,
        offer: Callable[[Offer], None],
        drop: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._left = budget
        self._offer = offer
        self._drop = drop
        self._lock = threading.Lock()
        self._segments: dict[int, _Segment] = {}
        self._mapped: dict[int, list[_Segment]] = {}
        """Segments that the other side has mapped, by the size of their regions."""
        self._offered: set[int] = set()
        """Region sizes of segments that were offered and are not mapped yet."""
        self._next = 0
        self._is_refused = False

    def put(self, parts: Sequence[Part], size: int) -> int | None:
        """Copy a body to a free region and return the region's number. Not thread-safe.
        None: no region is free, so the body has to go through the socket."""
        if self._is_refused:
            return None
        capacity = max(_HEAD, 1 << (size - 1).bit_length())
        with self._lock:
            for segment in self._mapped.get(capacity, ()):
                if segment.free:
                    place = segment.free.pop()
                    break
            else:
                if capacity not in self._offered:
                    self._make(capacity)
                return None
        segment.write(place, parts)
        return segment.number * _MOST_REGIONS + place

    def _make(self, capacity: int) -> None:
        dropped = []
        while self._left < capacity:
            unused = next(
                (
                    segment
                    for segments in self._mapped.values()
                    for segment in segments
                    if len(segment.free) == segment.count and segment.capacity != capacity
                ),
                None,
            )
            if unused is None:
                break
            self._close(unused)
            dropped.append(unused.number)
        if dropped:
            self._drop(tuple(dropped))
        count = min(max(1, _SEGMENT // capacity), self._left // capacity)
        if count == 0:
            return
        try:
            segment = _Segment(self._next, capacity, count)
        except OSError as error:
            self._is_refused = True
            logger.warning("no memory is shared with another process on this node: %s", error)
            return
        self._next += 1
        self._left -= capacity * count
        self._segments[segment.number] = segment
        self._offered.add(capacity)
        self._offer((segment.number, os.getpid(), segment.file, capacity, count, segment.token))

    def answered(self, number: int, is_mapped: bool) -> None:
        """Use an offered segment, or, if the other side could not map it (*is_mapped* False), close
        it and use no shared memory any more: a process in another container cannot map any
        segment."""
        with self._lock:
            segment = self._segments.get(number)
            if segment is None:
                return
            self._offered.discard(segment.capacity)
            if is_mapped:
                self._mapped.setdefault(segment.capacity, []).append(segment)
            else:
                self._is_refused = True
                self._close(segment)

    def returned(self, numbers: Sequence[int]) -> None:
        """Mark regions as free: the consumer does not read them any more."""
        with self._lock:
            for number in numbers:
                segment = self._segments.get(number // _MOST_REGIONS)
                if segment is not None:
                    segment.free.append(number % _MOST_REGIONS)

    def _close(self, segment: _Segment) -> None:
        del self._segments[segment.number]
        mapped = self._mapped.get(segment.capacity, [])
        if segment in mapped:
            mapped.remove(segment)
        self._left += segment.capacity * segment.count
        os.close(segment.file)

    def close(self) -> None:
        """Close all segments. No body is put into shared memory any more."""
        with self._lock:
            self._is_refused = True
            for segment in tuple(self._segments.values()):
                self._close(segment)


class _Lease:
    """The owner of all Arrow buffers over a region of shared memory. When the last of them is gone,
    Python deletes this object, which tells the producer that the region is free."""

    __slots__ = ("_memory", "_number", "_returned")

    def __init__(self, memory: pa.Buffer, number: int, returned: deque[int]) -> None:
        self._memory = memory
        self._number = number
        self._returned = returned

    def __del__(self) -> None:
        # runs in any thread, with any locks held: do nothing else here
        self._returned.append(self._number)


class MappedRegions:
    """The shared memory of the consuming side of a connection."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[pa.Buffer, int]] = {}
        """(memory, bytes of a region), by segment."""
        self.returned: deque[int] = deque()
        """Numbers of regions that are free again, to be sent to the owner."""

    def map(self, offer: Offer) -> bool:
        """Map an offered segment for reading. Returns False if this process cannot map it."""
        number, process, file, capacity, count, token = offer
        try:
            opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            memory = mmap.mmap(opened, _HEAD + capacity * count, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # the file is another one
            return False
        finally:
            os.close(opened)
        if memory[:_TOKEN_SIZE] != token:
            return False
        self._segments[number] = pa.py_buffer(memory), capacity
        return True

    def body(self, number: int, size: int) -> pa.Buffer:
        """Return the body in a region, as an Arrow buffer in shared memory.
        Raises ValueError, KeyError: the region does not exist or is smaller than *size*."""
        segment, place = divmod(number, _MOST_REGIONS)
        memory, capacity = self._segments[segment]
        begin = _HEAD + place * capacity
        if not 0 <= size <= capacity or begin + capacity > memory.size:
            raise ValueError(f"{size} bytes in a region of {capacity}")
        lease = _Lease(memory, number, self.returned)
        return pa.foreign_buffer(memory.address + begin, size, lease)

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget segments that the owner does not use any more."""
        for number in numbers:
            self._segments.pop(number, None)

    def close(self) -> None:
        """Map no more segments. Buffers that are still being read stay valid."""
        self._segments.clear()
