"""The replicas of a model, as the operator that calls them sees them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.core.error_text import summary_of, traceback_of
from flinkray.streaming.functions.models import (
    RESULT,
    ModelContext,
    ModelDescriptor,
    ModelError,
    ModelFunction,
    ModelResultError,
    ModelUnavailableError,
)
from flinkray.streaming.operators.event_loop_thread import EventLoopThread
from flinkray.streaming.records.arrow_bytes import deserialized, serialized
from flinkray.streaming.records.widening import without_views

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, None]]

UNDER_WAY_PER_REPLICA = 2
"""How many requests of a subtask each replica has: one that it computes, and the next one."""


class ModelReplicas(ABC):
    """The replicas of one model, for one subtask of the operator that calls them."""

    number: int = 0
    """How many replicas answer at present."""
    waiting: int = 0
    """How many requests of this subtask wait for a replica."""

    def __init__(self, on_failed: Callable[[BaseException], None]) -> None:
        """Create the replicas, without requests. *on_failed*: called with an exception that ends
        all calls, in any thread."""
        self.on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: deque[float] = deque(maxlen=100)
        self._answers: deque[float] = deque(maxlen=100)

    def note(self, waited: float, took: float) -> None:
        """Note the seconds for which a request waited for a replica, and then for its answer."""
        self._waits.append(waited)
        self._answers.append(took)

    def mean_wait_ms(self) -> int:
        """Return how long the last requests waited for a replica."""
        return _mean_ms(self._waits)

    def mean_answer_ms(self) -> int:
        """Return how long the last requests took, from a replica's request to its answer."""
        return _mean_ms(self._answers)

    @abstractmethod
    def run(self, work: Work) -> None:
        """Run a coroutine in the event loop of the replicas. Called from any thread."""

    def begin(self, work: Work) -> None:
        """Run a coroutine as a task of the running event loop, until it ends or :meth:`cancel`."""
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)  # an event loop does not keep them itself
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.on_failed(error)

    def cancel(self) -> None:
        """Cancel all coroutines. Called in the event loop."""
        for task in tuple(self._tasks):
            task.cancel()

    @abstractmethod
    async def infer(self, request: bytes, timeout: float) -> bytes:
        """Return the answer of one of the replicas. Called in the event loop.

        Args:
            timeout: seconds that a replica may take, its queue included. The time until a replica
                has room does not count.

        Raises:
            ModelError: the model failed for this request.
            ModelResultError: the model did not return one row per record.
            ModelUnavailableError: the replica took too long, or died.
            ModelFailedError: there are no replicas any more.
            FrameTooLargeError: the request or the answer is too large for a message.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop all coroutines. Called by the task's thread, and more than once."""


async def answered_within(seconds: float, name: str, answering: asyncio.Future[T]) -> T:
    """Return the answer of the model *name*. Raises ModelUnavailableError: it took longer than
    *seconds*; *answering* is cancelled then."""
    try:
        done, _ = await asyncio.wait([answering], timeout=seconds)
        if done:
            return answering.result()
        raise ModelUnavailableError(f"the model {name} has not answered within {seconds:g} s")
    finally:
        answering.cancel()


def _mean_ms(seconds: deque[float]) -> int:
    last = tuple(seconds)
    return round(1000 * sum(last) / len(last)) if last else 0


class LocalReplicas(ModelReplicas):
    """One replica in this process, for programs that run without a cluster. The model has a thread
    of its own, because it may compute for a long time."""

    number = 1

    def __init__(
        self, descriptor: ModelDescriptor, on_failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__(on_failed)
        self._descriptor = descriptor
        self._worker = ThreadPoolExecutor(1, f"flinkray-model {descriptor.name}")
        self._loading = self._worker.submit(self._load)
        self._room = asyncio.Semaphore(UNDER_WAY_PER_REPLICA)
        self._thread: EventLoopThread | None = EventLoopThread(
            f"flinkray-infer {descriptor.name}", on_failed
        )

    def run(self, work: Work) -> None:
        assert self._thread is not None
        self._thread.do(self.begin, work)

    async def infer(self, request: bytes, timeout: float) -> bytes:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.waiting += 1
        try:
            model = await asyncio.wrap_future(self._loading)
            await self._room.acquire()
        finally:
            self.waiting -= 1
        try:
            asked = loop.time()
            answering = loop.run_in_executor(self._worker, answer, model, request)
            contents, _ = await answered_within(timeout, self._descriptor.name, answering)
            self.note(asked - begun, loop.time() - asked)
            return contents
        finally:
            self._room.release()

    def _load(self) -> ModelFunction:
        model = self._descriptor.load()
        model.open(ModelContext(self._descriptor.name))
        return model

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end(self._close_model)

    def _close_model(self) -> None:
        if self._loading.exception() is None:
            self._worker.submit(self._loading.result().close).result()
        self._worker.shutdown(wait=False)


_WHOLE = "an Arrow RecordBatch or Array with one row per record"


def answer(model: ModelFunction, request: bytes) -> tuple[bytes, int]:
    """Return the model's answer to a request, and the number of records in it.

    Raises:
        ModelError: the model raised an exception.
        ModelResultError: the model did not return one row per record.
    """
    batch = deserialized(request)
    try:
        result = model.infer(batch)
    except Exception as error:
        text = summary_of(error)
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            text = f"the model ran out of memory with a batch of {batch.num_rows} records: {text}"
        trace = traceback_of(error, error.__traceback__)
        raise ModelError(f"{text}\n{trace}") from error
    return serialized(_checked(model, result, batch.num_rows)), batch.num_rows


def _checked(model: ModelFunction, result: Any, rows: int) -> pa.RecordBatch:
    where = f"{type(model).__qualname__}.infer"
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array):
        result = pa.RecordBatch.from_arrays([result], names=[RESULT])
    if not isinstance(result, pa.RecordBatch):
        raise ModelResultError(f"{where} returned {type(result).__name__}: return {_WHOLE}")
    if result.num_rows != rows:
        raise ModelResultError(
            f"{where} returned {result.num_rows} rows for {rows} records: return {_WHOLE}"
        )
    twice = first_twice(result.schema.names)
    if twice is not None:
        raise ModelResultError(f"{where} returned two columns named {twice!r}: rename one")
    return without_views(result)
