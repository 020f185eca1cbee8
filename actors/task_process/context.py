"""The context of a Python task: its identity, inputs, outputs and cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from flinkray.actors.task_process.code_failure import TaskCancelledError
from flinkray.actors.task_process.code_loop import CodeCall, CodeLoops, MainLoop
from flinkray.actors.task_process.file_results import FileInput, FileOutput
from flinkray.actors.task_process.partition_reader import PartitionReader
from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.shared.tasks import InputInformation, PartitionLocations

T = TypeVar("T")

MAX_BUFFER = 4 * 2**20
"""Largest buffer in bytes. With its surrounding data, a buffer must fit into a message."""


class OutputPartition:
    """The partition of a result that this task produces."""

    def __init__(self, partition: HeldPartition, main: MainLoop) -> None:
        self._partition = partition
        self._main = main

    @property
    def number_of_subpartitions(self) -> int:
        """The number of subpartitions: one for each subtask that reads the partition."""
        return self._partition.number_of_subpartitions

    async def write(self, subpartition: int, data: bytes) -> None:
        """Send a buffer to one of the readers. For a pipelined result, waits for a slow reader.

        Raises ValueError for more than MAX_BUFFER bytes, IndexError for a missing subpartition.
        """
        if len(data) > MAX_BUFFER:
            raise ValueError(f"a buffer of {len(data)} bytes: at most {MAX_BUFFER}, please")
        if not 0 <= subpartition < self.number_of_subpartitions:
            raise IndexError(f"no subpartition {subpartition} of {self.number_of_subpartitions}")
        buffer = bytes(data)
        await self._main.call(lambda: self._partition.write(subpartition, buffer))


class TaskInput:
    """An input of the vertex, with the partitions that this task reads."""

    def __init__(
        self,
        job_id: JobID,
        reader: PartitionReader,
        information: InputInformation,
        locations: PartitionLocations,
        subtask_index: int,
        parallelism: int,
        main: MainLoop,
    ) -> None:
        producers = information.producer_parallelism
        pattern = information.pattern
        group = distribution.group_of_consumer(pattern, producers, parallelism, subtask_index)
        self.partitions = distribution.partitions_of_group(pattern, producers, parallelism, group)
        """Indices of the producers' subtasks that this task reads."""
        self._subpartition = distribution.subpartition_of(
            pattern, producers, parallelism, subtask_index
        )
        self._job_id = job_id
        self._reader = reader
        self._locations = locations
        self._main = main

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        """Yield the buffers of one producer for this task, in order.

        Raises:
            ResultPartitionNotFoundError: the partition cannot be read, or no longer.
        """
        pieces = self._reader.pieces(self._job_id, self._locations, partition, self._subpartition)

        async def next_piece() -> tuple[bytes, ...] | None:
            return await anext(pieces, None)

        while (piece := await self._main.call(next_piece)) is not None:
            for buffer in piece:
                yield buffer

    async def read_all(self) -> list[bytes]:
        """Return the buffers of all producers, read concurrently, one producer after the other."""

        async def collect(partition: int) -> list[bytes]:
            return [data async for data in self.read(partition)]

        parts = await asyncio.gather(*map(collect, self.partitions))
        return [data for part in parts for data in part]


@dataclass(frozen=True)
class TaskContext:
    """Argument of a Python vertex's function: identity, inputs, outputs and services of a task.
    Created once for each attempt of each subtask.
    """

    job_id: JobID
    job_name: str
    vertex_name: str
    attempt_id: ExecutionAttemptID
    parallelism: int
    max_parallelism: int
    inputs: tuple[TaskInput, ...]
    """Inputs that are read through channels, in the order of the vertex's inputs."""
    outputs: tuple[OutputPartition, ...]
    """Results that are sent through channels, in the order of the vertex's results."""
    file_inputs: tuple[FileInput, ...]
    """Inputs that are read from files, in the order of the vertex's inputs."""
    file_outputs: tuple[FileOutput, ...]
    """Results that are written to files, in the order of the vertex's results."""
    _cancellation: Cancellation

    @property
    def subtask_index(self) -> int:
        return self.attempt_id.vertex.subtask_index

    @property
    def attempt_number(self) -> int:
        return self.attempt_id.attempt_number

    @property
    def is_cancelled(self) -> bool:
        """Whether the task should end as soon as possible."""
        return self._cancellation.is_requested

    def wait_until_cancelled(self, timeout: float | None = None) -> bool:
        """Wait in a non-async function, and return whether the task is cancelled.
        *timeout* is in seconds; None waits without a limit.
        """
        return self._cancellation.wait(timeout)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait in a non-async function for an async method of this context, and return its result.

        Raises:
            TaskCancelledError: the task is being cancelled.
        """
        return self._cancellation.run(coroutine)


class Cancellation:
    """Tells the code of one task, in whatever thread, that the task is cancelled."""

    def __init__(self, code_loops: CodeLoops) -> None:
        """Create a cancellation that is not requested.
        *code_loops* run the coroutines for which the code waits in its thread.
        """
        self._code_loops = code_loops
        self._requested = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._waiting: dict[CodeCall, None] = {}

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self) -> None:
        """Request the cancellation. Called on the process's main thread."""
        self._requested.set()
        for listener in self._listeners:
            listener()
        with self._lock:
            waiting = tuple(self._waiting)
        for call in waiting:
            call.cancel()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the cancellation is requested. Both calls are on the main thread."""
        self._listeners.append(callback)
        if self.is_requested:
            callback()

    def check(self) -> None:
        """Raise TaskCancelledError if the cancellation is requested. Called from any thread."""
        if self.is_requested:
            raise TaskCancelledError

    def wait(self, timeout: float | None) -> bool:
        """Wait in a thread, at most *timeout* seconds.
        Returns whether the cancellation is requested.
        """
        return self._requested.wait(timeout)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a thread, and return its result.
        Raises TaskCancelledError on cancellation.
        """
        with self._lock:
            if self.is_requested:
                coroutine.close()
                raise TaskCancelledError
            call = self._code_loops.run(lambda: coroutine)
            self._waiting[call] = None
        try:
            result: T = call.outcome.result()
            return result
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise TaskCancelledError from None
        finally:
            with self._lock:
                del self._waiting[call]
