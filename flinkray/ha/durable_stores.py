"""Implements the stores of job graphs and results on :class:`~flinkray.ha.directory.Entries`.

The entries may be in memory, local, on pyarrow's file systems or fenced by ZooKeeper. Blocking work
runs in the executor of the store, one operation of a store after the other, so that the conditions
that a method checks still hold when it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from concurrent.futures import Executor
from typing import Generic, TypeVar

from flinkray.core.errors import UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.ha.directory import Entries, TakenOverError
from flinkray.ha.entries import EntryDirectory
from flinkray.ha.stores import (
    JobEntry,
    JobGraphStore,
    JobResultStore,
    JobStoreFencedError,
    JobStoreStateError,
    Recovered,
    StoreError,
)
from flinkray.rpc.time_limit import retrieve

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=JobEntry)

GRAPH, DIRTY, CLEAN = ".graph", ".dirty", ".clean"
"""The suffixes of entry names."""

OnFenced = Callable[[], object]
"""A function that is called when a later owner has taken over a store."""


class Sequential:
    """Runs blocking functions in an executor, one at a time, in the order of the calls.

    If a call is cancelled, its function still runs, and the next function waits for it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        task = asyncio.ensure_future(self._run(function))
        task.add_done_callback(retrieve)  # the caller gets the error; a cancelled caller does not
        return await asyncio.shield(task)

    async def _run(self, function: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)


class _Sequential(Sequential):
    """Runs the operations of a store one at a time, as :class:`Sequential` does, and calls
    *on_fenced* when an operation fails because a later owner has taken over the store."""

    def __init__(self, executor: Executor, on_fenced: OnFenced) -> None:
        super().__init__(executor)
        self._on_fenced = on_fenced

    async def run(self, function: Callable[[], T]) -> T:
        try:
            return await super().run(function)
        except JobStoreFencedError:
            self._on_fenced()
            raise

    async def take_over(self, entries: Entries) -> None:
        def take_over() -> None:
            try:
                entries.take_over(b"a Dispatcher")
            except TakenOverError as error:
                raise JobStoreFencedError(str(error)) from error
            except OSError as error:
                raise StoreError(f"cannot take over {entries.location()}: {error}") from error

        await self.run(take_over)


def _recover(entries: EntryDirectory[RecordT], but: Set[JobID] = frozenset()) -> Recovered[RecordT]:
    records, unreadable = [], []
    wanted = [job_id for job_id in entries.job_ids() if job_id not in but]
    for record in entries.read_many(wanted):
        if isinstance(record, UnreadableRecordError):
            unreadable.append(record)
        else:
            records.append(record)
    return Recovered(tuple(records), tuple(unreadable))


class DurableJobGraphStore(JobGraphStore[RecordT]):
    """Stores each job graph in an entry of its own."""

    def __init__(
        self,
        entries: Entries,
        record_type: type[RecordT],
        executor: Executor,
        on_fenced: OnFenced,
    ) -> None:
        self._fence = entries
        self._entries = EntryDirectory(entries, record_type, GRAPH)
        self._sequential = _Sequential(executor, on_fenced)
        self._known: set[JobID] = set()

    async def take_over(self) -> None:
        await self._sequential.take_over(self._fence)

    async def put_job_graph(self, graph: RecordT) -> None:
        def put() -> None:
            if graph.job_id not in self._known and self._entries.exists(graph.job_id):
                raise JobStoreStateError(
                    graph.job_id, "its graph is stored already, and was not recovered before"
                )
            self._entries.write(graph)
            self._known.add(graph.job_id)

        await self._sequential.run(put)

    async def recover_job_graph(self, job_id: JobID) -> RecordT | None:
        graph = await self._sequential.run(lambda: self._entries.read(job_id))
        if graph is not None:
            self._known.add(job_id)
        return graph

    async def recover_job_graphs(self) -> Recovered[RecordT]:
        recovered = await self._sequential.run(lambda: _recover(self._entries))
        self._known.update(graph.job_id for graph in recovered.records)
        return recovered

    async def get_job_ids(self) -> tuple[JobID, ...]:
        return tuple(sorted(await self._sequential.run(self._entries.job_ids)))

    async def remove_job_graph(self, job_id: JobID) -> None:
        await self._sequential.run(lambda: self._entries.delete(job_id))
        self._known.discard(job_id)


class DurableJobResultStore(JobResultStore[RecordT], Generic[RecordT]):
    """Stores each job result in an entry, whose name says whether the result is dirty or clean.

    Marking a result as clean writes the clean entry before it deletes the dirty entry; when a crash
    leaves both, the result is clean.
    """

    def __init__(
        self,
        entries: Entries,
        record_type: type[RecordT],
        executor: Executor,
        on_fenced: OnFenced,
    ) -> None:
        self._fence = entries
        self._dirty = EntryDirectory(entries, record_type, DIRTY)
        self._clean = EntryDirectory(entries, record_type, CLEAN)
        self._sequential = _Sequential(executor, on_fenced)
        self._in_doubt: set[JobID] = set()
        """Jobs whose results could not be stored; such a result may exist without being durable."""

    async def take_over(self) -> None:
        await self._sequential.take_over(self._fence)

    async def create_dirty_result(self, result: RecordT) -> None:
        def create() -> None:
            job_id = result.job_id
            for state, entries in (("clean", self._clean), ("dirty", self._dirty)):
                if job_id not in self._in_doubt and entries.exists(job_id):
                    raise JobStoreStateError(job_id, f"it has a {state} result already")
            self._in_doubt.add(job_id)
            self._dirty.write(result)
            self._in_doubt.remove(job_id)

        await self._sequential.run(create)

    async def mark_result_as_clean(self, job_id: JobID) -> None:
        def mark() -> None:
            if not self._clean.exists(job_id):
                try:
                    result = self._dirty.read_as_stored(job_id)
                except UnreadableRecordError as error:
                    raise JobStoreStateError(job_id, error.text) from error
                if result is None:
                    raise JobStoreStateError(job_id, "it has no result that could be clean")
                self._clean.write_as_stored(job_id, result)
            self._dirty.delete(job_id)

        await self._sequential.run(mark)

    async def remove_result(self, job_id: JobID) -> None:
        def remove() -> None:
            self._dirty.delete(job_id)
            self._clean.delete(job_id)

        await self._sequential.run(remove)

    async def has_dirty_result(self, job_id: JobID) -> bool:
        return await self._sequential.run(
            lambda: self._dirty.exists(job_id) and not self._clean.exists(job_id)
        )

    async def has_clean_result(self, job_id: JobID) -> bool:
        return await self._sequential.run(lambda: self._clean.exists(job_id))

    async def get_result(self, job_id: JobID) -> RecordT | None:
        return await self._sequential.run(
            lambda: self._clean.read(job_id) or self._dirty.read(job_id)
        )

    async def get_dirty_results(self) -> Recovered[RecordT]:
        def recover() -> Recovered[RecordT]:
            return _recover(self._dirty, but=frozenset(self._clean.job_ids()))

        return await self._sequential.run(recover)

    async def get_clean_results(self) -> Recovered[RecordT]:
        return await self._sequential.run(lambda: _recover(self._clean))
