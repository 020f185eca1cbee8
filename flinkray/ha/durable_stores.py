"""The stores on a :class:`~flinkray.ha.directory.Directory`: in memory, local, or behind pyarrow.

Blocking work runs in the executor that the store was given, one operation of a store after the
other, so that what a method checks is still true when it writes.
"""

from __future__ import annotations

from collections.abc import Set
from concurrent.futures import Executor
from typing import Generic, TypeVar

from flinkray.core.errors import UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.ha.directory import Directory
from flinkray.ha.entries import EntryDirectory
from flinkray.ha.sequential import Sequential
from flinkray.ha.stores import (
    JobEntry,
    JobGraphStore,
    JobResultStore,
    JobStoreStateError,
    Recovered,
)

RecordT = TypeVar("RecordT", bound=JobEntry)


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
    """Job graphs, one entry each."""

    def __init__(
        self, directory: Directory, record_type: type[RecordT], executor: Executor
    ) -> None:
        self._entries = EntryDirectory(directory, record_type, ".graph")
        self._sequential = Sequential(executor)
        self._known: set[JobID] = set()

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
    """Job results; the name of an entry says whether it is dirty.

    Marking clean writes the clean entry before it deletes the dirty one; when a crash leaves both,
    the result is clean.
    """

    def __init__(
        self, directory: Directory, record_type: type[RecordT], executor: Executor
    ) -> None:
        self._dirty = EntryDirectory(directory, record_type, ".dirty")
        self._clean = EntryDirectory(directory, record_type, ".clean")
        self._sequential = Sequential(executor)
        self._in_doubt: set[JobID] = set()
        """Jobs whose results could not be stored: they may be there, and not durable."""

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
