"""Results of batch jobs, spilled to a file.
Consumers read a result when it is complete, any number of times, until it is released."""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any

import msgpack

from flinkray.streaming.network.buffers import OVERHEAD, Buffer
from flinkray.streaming.network.element_codec import is_end_of_input
from flinkray.streaming.network.frames import padding
from flinkray.streaming.network.result_partition import ResultPartition
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.subpartition import Subpartition, SubpartitionView
from flinkray.streaming.network.timers import Timers

_HEAD = Struct("<II")
"""Bytes of the description, bytes of the data. Both follow the head."""


def _nameless(directory: str) -> int:
    number, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return number


class SpillFile:
    """A file without a name for a partition's encoded buffers. It disappears with the process."""

    def __init__(self, directory: str) -> None:
        self._file = open(_nameless(directory), "w+b", 2**20)  # noqa: SIM115 - see close
        self._size = 0
        self._map: mmap.mmap | None = None

    def append(self, buffer: Buffer) -> int:
        """Append a buffer to the file and return its position.
        Raises OSError: writing fails, for example because the disk is full."""
        at = self._size
        described = msgpack.packb((buffer.records, buffer.is_event, buffer.descriptions))
        pad = padding(len(described))
        write = self._file.write
        write(_HEAD.pack(len(described), buffer.data_size))
        write(described)
        write(pad)
        for part in buffer.parts:
            write(part)
        self._size += _HEAD.size + len(described) + len(pad) + buffer.data_size
        return at

    def read(self, at: int) -> Buffer:
        """Return the buffer at this position. Its data lies in the mapped file."""
        if self._map is None or self._size > len(self._map):
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(self._map)
        described, size = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        records, is_event, descriptions = msgpack.unpackb(view[at : at + described], use_list=False)
        at += described + (-described & 7)
        buffer = Buffer((), records, size + OVERHEAD)
        buffer.elements = None
        buffer.is_event = is_event
        buffer.descriptions = descriptions
        buffer.parts = [view[at : at + size]] if size else []
        return buffer

    def close(self) -> None:
        """Free the disk space. Buffers that are still being read stay valid."""
        self._map = None
        self._file.close()


class BlockingPartition(ResultPartition):
    """The result of one subtask for consumers that start after the subtask has ended.
    Writing never waits for a consumer. Memory grows by only eight bytes per buffer. If a consumer
    fails, the result stays, and the next consumer reads from the beginning."""

    is_blocking = True

    def __init__(
        self,
        partition_id: Any,
        producer: str,
        subpartitions: int,
        settings: NetworkSettings,
        timers: Timers,
    ) -> None:
        self.file = SpillFile(settings.directory)
        super().__init__(partition_id, producer, subpartitions, settings, timers, None)

    def _make(self, count: int) -> tuple[Subpartition, ...]:
        return tuple(BlockingSubpartition(self, self.file, index) for index in range(count))

    def has_room(self) -> bool:
        self.check()
        return True

    def end_of_data(self) -> None:
        """Do nothing: readers start after the end of the input, so no barrier follows the data."""

    @property
    def is_processed(self) -> bool:
        """Return True: the producer waits for no consumer. Raises the errors of :meth:`check`."""
        self.check()
        return True

    def release(self) -> None:
        super().release()
        with self.lock:
            self.file.close()

    def fail(self, reason: str) -> None:
        super().fail(reason)
        with self.lock:
            self.file.close()


class BlockingSubpartition(Subpartition):
    """A subpartition of a :class:`BlockingPartition`; its buffers are in the partition's file."""

    def __init__(self, partition: BlockingPartition, file: SpillFile, index: int) -> None:
        super().__init__(partition, index)
        self._file = file
        self._places = array("Q")
        self._is_complete = False
        self._views: list[SubpartitionView] = []
        self._next: dict[SubpartitionView, Buffer] = {}

    def _keep(self, buffer: Buffer) -> None:
        self._places.append(self._file.append(buffer))
        # counted now: it is read after the task has ended
        self._note_sent(buffer.records, buffer.data_size)
        self._is_complete = is_end_of_input(buffer.descriptions)

    def _ready(self) -> Callable[[], None] | None:
        if not self._is_complete:
            return None
        ready = [view for view in self._views if self._is_ready(view)]
        if not ready:
            return None

        def notify() -> None:
            for view in ready:
                view.notify()

        return notify

    def attach(self, view: SubpartitionView) -> bool:
        self._views.append(view)
        return self._is_ready(view)

    def _is_ready(self, view: SubpartitionView) -> bool:
        buffer = self.head(view)
        return buffer is not None and view.becomes_ready(buffer)

    def head(self, view: SubpartitionView) -> Buffer | None:
        if not self._is_complete or view.position == len(self._places):
            return None
        buffer = self._next.get(view)
        if buffer is None:
            buffer = self._next[view] = self._file.read(self._places[view.position])
        return buffer

    def pop(self, view: SubpartitionView) -> Buffer:
        buffer = self._next.pop(view)
        view.position += 1
        return buffer

    def discard(self) -> list[SubpartitionView]:
        views, self._views = self._views, []
        self._next.clear()
        self._is_complete = False
        self._open = []
        return views

    def consumed(self, view: SubpartitionView) -> None:
        self._forget(view)
        super().consumed(view)

    def lost(self, view: SubpartitionView, failure: Exception) -> None:
        """Detach a consumer that has failed. The next consumer reads everything from the start."""
        self._forget(view)

    def _forget(self, view: SubpartitionView) -> None:
        with self.partition.lock:
            if view in self._views:
                self._views.remove(view)
            self._next.pop(view, None)
