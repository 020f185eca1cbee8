"""Running a program in the slots of a cluster."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from flinkray.actors.settings import default_restart_strategy
from flinkray.client import ClusterClient
from flinkray.client.job_handle import JobHandle
from flinkray.client.job_result import JobExecutionResult as ClusterJobResult
from flinkray.client.stream_job import stream_job
from flinkray.client.stream_results import StreamResults
from flinkray.core.config import Configuration
from flinkray.core.errors import JobStateError
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.datastream.job_client import CloseableIterator, JobClient, JobExecutionResult
from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.scheduler.job_graph import JobFile
from flinkray.streaming.graph import StreamGraph


def submit(
    cluster: ClusterClient,
    graph: StreamGraph,
    groups: dict[str, SlotSharingGroup],
    settings: dict[str, str],
    files: tuple[JobFile, ...],
) -> JobHandle:
    """Begin to run a program.

    Args:
        settings: the program's configuration; of it ``restart-strategy.*`` counts.
        files: that its functions import from or ask for.

    Raises:
        ConfigurationError: the restart strategy is none that there is.
        StreamError: something in it cannot be sent to the cluster.
        JobSubmissionError: it could never run.
    """
    profiles = {
        name: profile
        for name, group in groups.items()
        if (profile := slot_profile(group)) is not None
    }
    restarts = {k: v for k, v in settings.items() if k.startswith("restart-strategy.")}
    strategy = default_restart_strategy(Configuration(restarts)) if restarts else None
    job = stream_job(graph, slot_profiles=profiles, restart_strategy=strategy, files=files)
    return cluster.submit(job)


def slot_profile(group: SlotSharingGroup) -> ResourceProfile | None:
    """What a slot of the group must have; None: nothing in particular."""
    if group.cpu_cores is None:
        return None
    parts = (group.task_heap_memory, group.task_off_heap_memory, group.managed_memory)
    memory = sum(part.get_bytes() for part in parts if part is not None)
    return ResourceProfile(group.cpu_cores, memory, group.get_external_resources())


def run(handle: JobHandle) -> JobExecutionResult:
    """Wait for the end.

    Raises:
        JobExecutionError: the program failed; the text begins with the user's traceback.
        JobCancelledError: somebody has cancelled it.
    """
    return _told(handle.result())


def _told(result: ClusterJobResult) -> JobExecutionResult:
    return JobExecutionResult(result.job_id, result.net_runtime)


class ClusterJobClient(JobClient):
    """A program in the slots of a cluster; it goes on when its client is gone."""

    def __init__(self, cluster: ClusterClient, handle: JobHandle) -> None:
        self._cluster = cluster
        self._handle = handle
        self._ended: Future[JobExecutionResult] | None = None

    def get_job_id(self) -> JobID:
        return self._handle.job_id

    def get_job_status(self) -> Future[str]:
        job_id = self._handle.job_id
        return self._cluster.start(self._status(job_id))

    async def _status(self, job_id: JobID) -> str:
        status = await self._cluster.ask(
            f"get the status of job {job_id}", lambda gateway: gateway.request_job_status(job_id)
        )
        return status.value

    def cancel(self) -> Future[None]:
        return self._cluster.start(self._cancel())

    async def _cancel(self) -> None:
        job_id = self._handle.job_id
        with suppress(JobStateError):  # it has ended
            await self._cluster.ask(
                f"cancel job {job_id}", lambda gateway: gateway.cancel_job(job_id)
            )
        await self._cluster.job_result(job_id)

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        if self._ended is None:
            self._ended = self._cluster.start(self._result())
        return self._ended

    async def _result(self) -> JobExecutionResult:
        return _told(ClusterJobResult.of(await self._cluster.job_result(self._handle.job_id)))


class ClusterResults(CloseableIterator):
    """Results of a program on a cluster, which is held up while nobody takes them."""

    def __init__(self, cluster: ClusterClient, handle: JobHandle) -> None:
        self._cluster = cluster
        self._handle = handle
        self._values: deque[Any] = deque()
        self._is_closed = False
        self._results = cluster.run(self._open())

    async def _open(self) -> StreamResults:
        job_id = self._handle.job_id
        return StreamResults(self._cluster.rpc_service, job_id, self._cluster.job_result(job_id))

    def __next__(self) -> Any:
        while not self._values:
            batch = None if self._is_closed else self._cluster.run(self._results.next())
            if batch is None:
                self._is_closed = True
                raise StopIteration
            self._values.extend(batch)
        return self._values.popleft()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._values.clear()
            self._cluster.run(self._end())

    async def _end(self) -> None:
        self._results.close()
        job_id = self._handle.job_id
        try:
            await self._cluster.ask(
                f"cancel job {job_id}", lambda gateway: gateway.cancel_job(job_id)
            )
        except JobStateError:
            return  # it has ended
        await self._cluster.job_result(job_id)
