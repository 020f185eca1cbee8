"""Large bodies between processes of one node: copied once, into memory that both have mapped.

The producing side owns the regions (memory without a name, which goes with its last user).  It
offers a region, and uses it from when the other side says that it has mapped it; until then, and
whenever none is free, bodies go through the socket as ever.  A region is free again when the last
Arrow buffer that lies in it is gone at the consumer, who may keep it as long as he likes.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from flinkray.streaming.network.frames import Part

SHARED_FROM: Final = 131_072
"""Bytes; smaller bodies go through the socket."""

_TOKEN_SIZE: Final = 64
"""Bytes at the beginning of a region, by which the other side knows that it is the right one."""

IS_AVAILABLE: Final = sys.platform == "linux"


class _Region:
    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self.file = os.memfd_create(f"flinkray-channel-{number}", os.MFD_CLOEXEC)
        os.ftruncate(self.file, _TOKEN_SIZE + capacity)
        memory = mmap.mmap(self.file, _TOKEN_SIZE + capacity)
        self.token = os.urandom(_TOKEN_SIZE)
        memory[:_TOKEN_SIZE] = self.token
        self._target = pa.py_buffer(memoryview(memory)[_TOKEN_SIZE:])

    def write(self, parts: Sequence[Part]) -> None:
        # Arrow's writer lets other threads run while it copies
        writer = pa.FixedSizeBufferWriter(self._target)
        for part in parts:
            writer.write(part)
        writer.close()


Offer = tuple[int, int, int, int, bytes]
"""Number, process id, file number, capacity, token."""


class OwnedRegions:
    """The producing side of a connection.

    Args:
        budget: bytes of all regions together.
        offer: tells the other side of a new region.
        drop: tells it that regions will not be used any more.
    """

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
        self._regions: dict[int, _Region] = {}
        self._free: dict[int, list[_Region]] = {}
        """By capacity."""
        self._offered: set[int] = set()
        """Capacities of which a region has been offered and not mapped yet."""
        self._next = 0
        self._is_refused = False

    def put(self, parts: Sequence[Part], size: int) -> int | None:
        """Copy a body to a free region: its number; None: there is none.  Not for several threads
        at once."""
        if self._is_refused:
            return None
        capacity = 1 << (size - 1).bit_length()
        with self._lock:
            free = self._free.get(capacity)
            if not free:
                if capacity not in self._offered:
                    self._make(capacity)
                return None
            region = free.pop()
        region.write(parts)
        return region.number

    def _make(self, capacity: int) -> None:
        dropped = []
        while self._left < capacity:
            largest = max((size for size, free in self._free.items() if free), default=None)
            if largest is None:
                break
            region = self._free[largest].pop()
            self._close(region)
            dropped.append(region.number)
        if dropped:
            self._drop(tuple(dropped))
        if self._left < capacity:
            return
        self._left -= capacity
        region = _Region(self._next, capacity)
        self._next += 1
        self._regions[region.number] = region
        self._offered.add(capacity)
        self._offer((region.number, os.getpid(), region.file, capacity, region.token))

    def answered(self, number: int, is_mapped: bool) -> None:
        """The other side has mapped a region, or cannot (it runs in another container)."""
        with self._lock:
            region = self._regions.get(number)
            if region is None:
                return
            self._offered.discard(region.capacity)
            if is_mapped:
                self._free.setdefault(region.capacity, []).append(region)
            else:
                self._is_refused = True
                self._close(region)

    def returned(self, numbers: Sequence[int]) -> None:
        """Nobody reads these regions any more."""
        with self._lock:
            for number in numbers:
                region = self._regions.get(number)
                if region is not None:
                    self._free.setdefault(region.capacity, []).append(region)

    def _close(self, region: _Region) -> None:
        del self._regions[region.number]
        self._left += region.capacity
        os.close(region.file)

    def close(self) -> None:
        """Nothing is put any more."""
        with self._lock:
            self._is_refused = True
            self._free.clear()
            for region in tuple(self._regions.values()):
                self._close(region)


class _Lease:
    """Kept by the Arrow buffers that lie in a region; the last of them gives it back."""

    __slots__ = ("_memory", "_number", "_returned")

    def __init__(self, memory: pa.Buffer, number: int, returned: deque[int]) -> None:
        self._memory = memory
        self._number = number
        self._returned = returned

    def __del__(self) -> None:
        # in whatever thread, with whatever locks held: nothing but this
        self._returned.append(self._number)


class MappedRegions:
    """The consuming side of a connection."""

    def __init__(self) -> None:
        self._memories: dict[int, pa.Buffer] = {}
        self.returned: deque[int] = deque()
        """Regions that are free again; to be told to the owner."""

    def map(self, offer: Offer) -> bool:
        """Whether that could be done: the owner must be visible to this process."""
        number, process, file, capacity, token = offer
        try:
            opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            memory = mmap.mmap(opened, _TOKEN_SIZE + capacity, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # something else is there
            return False
        finally:
            os.close(opened)
        if memory[:_TOKEN_SIZE] != token:
            return False
        self._memories[number] = pa.py_buffer(memory)
        return True

    def body(self, number: int, size: int) -> pa.Buffer:
        """What was put into a region.

        Raises:
            ValueError, KeyError: there is no such region, or it is smaller.
        """
        memory = self._memories[number]
        if not 0 <= size <= memory.size - _TOKEN_SIZE:
            raise ValueError(f"{size} bytes in a region of {memory.size}")
        lease = _Lease(memory, number, self.returned)
        return pa.foreign_buffer(memory.address + _TOKEN_SIZE, size, lease)

    def drop(self, numbers: Sequence[int]) -> None:
        """The owner does not use them any more."""
        for number in numbers:
            self._memories.pop(number, None)

    def close(self) -> None:
        """Nothing new comes; what is being read stays."""
        self._memories.clear()
