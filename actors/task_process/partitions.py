"""Results of tasks, stored in their process until others have read them."""

from __future__ import annotations

import asyncio
from collections import deque

from flinkray.actors.gateways.task_process import (
    READ_WAIT,
    JobPartition,
    PartitionData,
    ResultPartitionNotFoundError,
)
from flinkray.rpc.time_limit import within

BUFFERED_BYTES = 256 * 2**10
"""Bytes that a pipelined subpartition holds. With more, the writer waits for the reader."""


class _Subpartition:
    """The buffers that were written to one subpartition, numbered from 0, for one reader."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._first = 0
        self._buffers: deque[bytes] = deque()
        self._size = 0
        self._is_finished = False
        self._is_read = False
        self._is_removed = False
        self._committed = self._told = 0
        self._changed: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        while not self._is_kept and self._size >= BUFFERED_BYTES:
            await self._change()
        self._buffers.append(data)
        self._size += len(data)
        self._notify()

    def finish(self) -> None:
        self._is_finished = True
        self._notify()

    def remove(self) -> None:
        self._is_removed = True
        self._notify()

    def begin_at(self, position: int) -> None:
        self._first = position

    def commit(self, position: int) -> None:
        self._committed = position
        self._notify()

    @property
    def first(self) -> int:
        return self._first

    async def read(self, position: int, max_bytes: int) -> PartitionData | None:
        if not self._is_kept:
            while self._first < position and self._buffers:
                self._size -= len(self._buffers.popleft())
                self._first += 1
            self._notify()
        if position < self._first:
            return None
        if not self._has(position):
            try:
                await within(READ_WAIT, self._wait_for(position))
            except asyncio.TimeoutError:
                return PartitionData((), is_end=False, committed=self._committed)
            if self._is_removed:
                return None
        chosen: list[bytes] = []
        size = 0
        for number in range(position - self._first, len(self._buffers)):
            data = self._buffers[number]
            if chosen and size + len(data) > max_bytes:
                break
            chosen.append(data)
            size += len(data)
        is_end = self._is_finished and position + len(chosen) == self._first + len(self._buffers)
        if is_end and not chosen:
            self._is_read = True
            self._notify()
        self._told = self._committed
        return PartitionData(tuple(chosen), is_end, self._committed)

    async def wait_until_read(self) -> None:
        while not self._is_read:
            await self._change()

    def _has(self, position: int) -> bool:
        is_there = position < self._first + len(self._buffers)
        is_over = self._is_finished or self._is_removed
        return is_over or is_there or self._told != self._committed

    async def _wait_for(self, position: int) -> None:
        while not self._has(position):
            await self._change()

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None


class HeldPartition:
    """The buffers of the partition that one attempt produces, stored in this process.
    Pipelined: the size is bounded, and each buffer can be read once. Blocking: everything stays
    until it is released, and can be read again.
    """

    def __init__(self, number_of_subpartitions: int, *, is_pipelined: bool) -> None:
        self._is_pipelined = is_pipelined
        self._subpartitions = [
            _Subpartition(not is_pipelined) for _ in range(number_of_subpartitions)
        ]

    @property
    def number_of_subpartitions(self) -> int:
        return len(self._subpartitions)

    async def write(self, subpartition: int, data: bytes) -> None:
        """Add a buffer. Waits while the reader of a pipelined subpartition is behind."""
        await self._subpartitions[subpartition].write(data)

    def begin_at(self, subpartition: int, position: int) -> None:
        """Number the buffers of a subpartition from *position* on, instead of from 0.
        Must be called before the first write.
        """
        self._subpartitions[subpartition].begin_at(position)

    def commit(self, subpartition: int, position: int) -> None:
        """Note that buffers before number *position* are never written again, because the task will
        not be restored to a state before them."""
        self._subpartitions[subpartition].commit(position)

    def first_unread(self, subpartition: int) -> int:
        """Return the number of the first buffer that the reader has not confirmed."""
        return self._subpartitions[subpartition].first

    def finish(self) -> None:
        """Mark the partition as complete: no more buffers will be written."""
        for subpartition in self._subpartitions:
            subpartition.finish()

    def remove(self) -> None:
        """Drop the partition. Readers that wait for a buffer get the error at once."""
        for subpartition in self._subpartitions:
            subpartition.remove()

    async def read(self, subpartition: int, position: int, max_bytes: int) -> PartitionData | None:
        """Return buffers as :meth:`TaskProcessGateway.read_partition` does. None if the requested
        ones are gone."""
        return await self._subpartitions[subpartition].read(position, max_bytes)

    async def wait_until_read(self) -> None:
        """Wait until all readers of a pipelined partition have read all of it."""
        if self._is_pipelined:
            for subpartition in self._subpartitions:
                await subpartition.wait_until_read()


class ResultPartitions:
    """All partitions that other processes read from this process by messages."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._partitions: dict[JobPartition, HeldPartition] = {}

    def add(self, partition_id: JobPartition, partition: HeldPartition) -> None:
        """Let other processes read a partition, until :meth:`remove`."""
        self._partitions[partition_id] = partition

    def remove(self, partition_id: JobPartition) -> None:
        """Remove a partition. Idempotent. Waiting readers of its buffers get an error at once."""
        partition = self._partitions.pop(partition_id, None)
        if partition is not None:
            partition.remove()

    def __len__(self) -> int:
        return len(self._partitions)

    async def read(
        self, partition_id: JobPartition, subpartition: int, position: int, max_bytes: int
    ) -> PartitionData:
        """Read buffers of a partition. Raises ResultPartitionNotFoundError if it is not here."""
        partition = self._partitions.get(partition_id)
        if partition is None or not 0 <= subpartition < partition.number_of_subpartitions:
            raise ResultPartitionNotFoundError(partition_id.partition, self._where)
        data = await partition.read(subpartition, position, max_bytes)
        if data is None:
            raise ResultPartitionNotFoundError(partition_id.partition, self._where)
        return data
