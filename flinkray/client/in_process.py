"""Starts a cluster in the threads of this process, for one program, without Ray."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from flinkray.actors.shared.chain_code import forget_here
from flinkray.checkpoint import locations
from flinkray.client.client_session import session_of
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.loop_thread import LoopThread
from flinkray.client.process_end import at_process_end, check_process_goes_on
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import LeaderSessionID
from flinkray.core.job_options import CHECKPOINTING_DIR
from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders
from flinkray.core.options import (
    NUMBER_OF_TASK_SLOTS,
    PRESTARTED_TASK_PROCESSES,
    SLOTS_PER_TASK_PROCESS,
    TASK_EXECUTOR_CPU_CORES,
)
from flinkray.core.resources import MOST_CORES, MOST_MEMORY, ResourceProfile
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.ha.standalone import StandaloneLeaderRetrievalService
from flinkray.local_cluster.local_cluster import LocalCluster
from flinkray.rpc.time_limit import within
from flinkray.scheduler.graph.job_graph import JobGraph

CLUSTER_ID = "in-process"
_PREFIX = "flinkray-in-process-"
_ENDING_TIMEOUT = 3.0
"""Seconds that a running program has to end when its cluster is closed. A task is interrupted after
one second; threads that go on in spite of that are left alone."""


def cluster_for(job: JobGraph) -> ClusterClient:
    """Start a cluster in this process that has the slots of a job, and return its client.

    The job's graph was made by ``stream_job(..., runs_here=True)``. The cluster ends when the
    client is closed, or when the interpreter ends. Its storage is a temporary folder that is
    deleted then; checkpoints that shall remain need a directory of their own
    (``execution.checkpointing.dir``).

    Raises:
        ConfigurationError: the directory for checkpoints cannot be created.
        OSError: there is no temporary folder that can be written to.
        RuntimeError: the interpreter is ending.
    """
    check_process_goes_on()
    folder: LockedFolder | None = None
    loop: LoopThread | None = None

    def after_close() -> None:
        if folder is not None:
            folder.remove()
        forget_here(job.job_id.hex())

    try:
        _check_directory(ReadableConfig(job.configuration).get(CHECKPOINTING_DIR))
        root = Path(tempfile.gettempdir())
        sweep_locked_folders(root, _PREFIX, time.time())
        folder = LockedFolder(root, _PREFIX)
        node, configuration = _resources_for(job)
        cluster = LocalCluster(str(folder.path), node, configuration=configuration)
        loop = LoopThread("flinkray cluster")
        client = loop.run(_start(cluster, loop, configuration, after_close))
        at_process_end(client, client.close, threading.current_thread(), session_of(client).abandon)
    except BaseException:
        if loop is not None:
            loop.close()
        after_close()
        raise
    return client


def _check_directory(location: str | None) -> None:
    """Create a local directory for checkpoints, so that a program with an impossible one is refused
    before it starts. Does nothing for None and other file systems."""
    if location is None or not locations.is_local(location):
        return
    try:
        os.makedirs(location, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{CHECKPOINTING_DIR.key}: {location} cannot be created: {error.strerror}"
        ) from error


def _resources_for(job: JobGraph) -> tuple[ResourceProfile, dict[str, str]]:
    """Return the resources of one node on which every slot of the job fits, and options that give
    its TaskExecutor as many slots as the job needs."""
    groups: dict[str, int] = {}
    resources: dict[str, float] = {}
    for vertex in job.vertices:
        group = vertex.slot_sharing_group
        groups[group] = max(groups.get(group, 0), vertex.parallelism)
        resources |= dict.fromkeys(vertex.slot_profile.extended, float(MOST_MEMORY))
    slots = str(sum(groups.values()))
    return ResourceProfile(MOST_CORES, MOST_MEMORY, resources), {
        NUMBER_OF_TASK_SLOTS.key: slots,
        TASK_EXECUTOR_CPU_CORES.key: slots,
        SLOTS_PER_TASK_PROCESS.key: slots,
        PRESTARTED_TASK_PROCESSES.key: "0",
    }


async def _start(
    cluster: LocalCluster,
    loop: LoopThread,
    configuration: Mapping[str, str],
    after_close: Callable[[], None],
) -> ClusterClient:
    await cluster.__aenter__()
    connection = await connection_to(cluster, CLUSTER_ID)

    async def shut_down() -> None:
        await (await cluster.dispatcher()).shut_down_cluster()

    async def end() -> None:
        try:
            with suppress(asyncio.TimeoutError):
                await within(_ENDING_TIMEOUT, shut_down())
        finally:
            await connection.close()
            await cluster.__aexit__(None, None, None)

    return ClusterClient(
        loop,
        connection,
        CLUSTER_ID,
        on_close=end,
        after_close=after_close,
        configuration=ReadableConfig(configuration),
    )


async def connection_to(cluster: LocalCluster, cluster_id: str) -> DispatcherConnection:
    """Return an open connection to the Dispatcher of *cluster*, a cluster on the running event
    loop."""
    retriever = StandaloneLeaderRetrievalService(DISPATCHER_ADDRESS, LeaderSessionID.standalone())
    connection = DispatcherConnection(cluster.client, retriever, cluster_id)
    await connection.open()
    return connection


def close_soon(client: ClusterClient) -> None:
    """Close a client in a new thread. May be called in any thread, even in that of the client's
    event loop, where :meth:`ClusterClient.close` would wait for itself."""
    if not session_of(client).is_closed:
        threading.Thread(target=client.close, name="end of the flinkray cluster").start()
