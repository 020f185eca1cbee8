"""A cluster in the threads of this process, for one program, without Ray."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from weakref import WeakSet

from flinkray.actors.shared.chain_code import forget_here
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.loop_thread import LoopThread
from flinkray.core.config import Configuration
from flinkray.core.ids import LeaderSessionID
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
from flinkray.scheduler.graph.job_graph import JobGraph

CLUSTER_ID = "in-process"
_PREFIX = "flinkray-in-process-"


def cluster_for(job: JobGraph) -> ClusterClient:
    """Start a cluster that has the slots of a job, and return its client.

    The job was made with ``runs_here``. The cluster ends when the client is closed, or when the
    interpreter ends. Its storage is a temporary folder that ends with it: what shall remain needs a
    directory of its own (``execution.checkpointing.dir``).

    Raises:
        OSError: there is no temporary folder that can be written to.
    """
    groups: dict[str, int] = {}
    resources: dict[str, float] = {}
    for vertex in job.vertices:
        group = vertex.slot_sharing_group
        groups[group] = max(groups.get(group, 0), vertex.parallelism)
        resources |= dict.fromkeys(vertex.slot_profile.extended, float(MOST_MEMORY))
    slots = str(sum(groups.values()))
    configuration = {
        NUMBER_OF_TASK_SLOTS.key: slots,
        TASK_EXECUTOR_CPU_CORES.key: slots,
        SLOTS_PER_TASK_PROCESS.key: slots,
        PRESTARTED_TASK_PROCESSES.key: "0",
    }
    root = Path(tempfile.gettempdir())
    sweep_locked_folders(root, _PREFIX, time.time())
    folder = LockedFolder(root, _PREFIX)
    node = ResourceProfile(MOST_CORES, MOST_MEMORY, resources)
    cluster = LocalCluster(str(folder.path), node, configuration=configuration)
    loop = LoopThread("flinkray cluster")

    def after_close() -> None:
        folder.remove()
        forget_here(job.job_id.hex())

    try:
        client = loop.run(_start(cluster, loop, configuration, after_close))
    except BaseException:
        loop.close()
        after_close()
        raise
    _open.add(client)
    return client


async def _start(
    cluster: LocalCluster,
    loop: LoopThread,
    configuration: Mapping[str, str],
    after_close: Callable[[], None],
) -> ClusterClient:
    await cluster.__aenter__()
    connection = await connection_to(cluster, CLUSTER_ID)

    async def end() -> None:
        try:
            await (await cluster.dispatcher()).shut_down_cluster()
        finally:
            await connection.close()
            await cluster.__aexit__(None, None, None)

    return ClusterClient(
        loop,
        connection,
        CLUSTER_ID,
        on_close=end,
        after_close=after_close,
        configuration=Configuration(configuration),
    )


async def connection_to(cluster: LocalCluster, cluster_id: str) -> DispatcherConnection:
    """Return an open connection to the Dispatcher of a LocalCluster on this event loop."""
    retriever = StandaloneLeaderRetrievalService(DISPATCHER_ADDRESS, LeaderSessionID.standalone())
    connection = DispatcherConnection(cluster.client, retriever, cluster_id)
    await connection.open()
    return connection


def close_soon(client: ClusterClient) -> None:
    """Begin to close a client; from any thread, also that of its own event loop."""
    threading.Thread(target=client.close, name="end of the flinkray cluster").start()


_open: WeakSet[ClusterClient] = WeakSet()
"""The clients whose clusters may still run."""


def _close_all() -> None:
    for client in tuple(_open):
        client.close()


# Not atexit: by then no thread pool takes work any more, and files are deleted in one.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
