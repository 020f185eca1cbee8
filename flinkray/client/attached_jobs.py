"""Jobs that are cancelled when their client ends; the client's heartbeats show that it still
lives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from flinkray.actors.gateways import DispatcherGateway
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.core import client_options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RpcError
from flinkray.core.ids import JobID
from flinkray.core.options import BLOB_OFFLOAD_MIN_SIZE
from flinkray.scheduler.graph.job_graph import AttachedClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientSettings:
    """Settings of a client, with times in seconds: how it sends heartbeats, how it ends its
    attached jobs (jobs that are cancelled when the client ends), and which code it uploads."""

    heartbeat_interval: float
    heartbeat_timeout: float
    shutdown_on_attached_exit: bool
    close_timeout: float
    offload_min_size: int
    """Value of the option ``blob.offload.minsize``, in bytes."""

    @classmethod
    def of(cls, configuration: ReadableConfig) -> ClientSettings:
        """Read the settings from a configuration."""
        return cls(
            configuration.get(client_options.CLIENT_HEARTBEAT_INTERVAL),
            configuration.get(client_options.CLIENT_HEARTBEAT_TIMEOUT),
            configuration.get(client_options.SHUTDOWN_ON_ATTACHED_EXIT),
            configuration.get(client_options.CLIENT_CLOSE_TIMEOUT),
            configuration.get(BLOB_OFFLOAD_MIN_SIZE),
        )

    def attached_client(self, reason: str) -> AttachedClient:
        """Return the record that a job's graph carries if the job is to end with this client. If
        this client ends or sends no heartbeats, the cluster cancels the job and gives *reason* as
        the cause."""
        program = os.path.basename(sys.argv[0]) if sys.argv else ""
        name = f"{program or 'Python'}, process {os.getpid()} on {socket.gethostname()}"
        return AttachedClient(name, self.heartbeat_timeout, reason)


class AttachedJobs:
    """The jobs that are cancelled when this client ends, and their heartbeats. Jobs are added and
    removed from any thread. The client's event loop sends the heartbeats, so they are not late when
    other threads are busy or blocked."""

    def __init__(self, connection: DispatcherConnection, interval: float) -> None:
        self._connection = connection
        self._interval = interval
        self._job_ids: set[JobID] = set()
        self._beating: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[JobID]:
        return iter(tuple(self._job_ids))

    def add(self, job_id: JobID) -> None:
        """Add a job that is cancelled when this client ends. Idempotent."""
        self._job_ids.add(job_id)

    def discard(self, job_id: JobID) -> None:
        """Remove a job that has ended, or that is not to end with the client any more.
        Idempotent."""
        self._job_ids.discard(job_id)

    def begin_heartbeats(self) -> None:
        """Start to send heartbeats for all attached jobs, if none are sent yet. The sending stops
        when no attached job is left. Called on the client's event loop."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        clock = self._connection.rpc_service.clock
        while self._job_ids:
            next_time = clock.monotonic() + self._interval
            try:
                await self._connection.ask("report a heartbeat", self._report, self._interval)
            except RpcError as error:
                log.info("the Dispatcher does not hear that this client lives: %s", error)
            await asyncio.sleep(max(0.0, next_time - clock.monotonic()))

    async def _report(self, dispatcher: DispatcherGateway) -> None:
        await dispatcher.heartbeat_from_client(tuple(self))
