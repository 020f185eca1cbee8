"""The TaskExecutors that are registered at a JobMaster, with watches and heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    TaskExecutorHeartbeat,
    job_master_resource_id,
)
from flinkray.core.errors import RpcError, UnknownTaskExecutorError
from flinkray.core.ids import AllocationID, JobID, JobMasterId, ResourceID
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatSender,
    HeartbeatSettings,
    TerminationWatch,
)
from flinkray.scheduler.shared.slots import WorkerLocation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Connection:
    location: WorkerLocation
    gateway: TaskExecutorGateway
    watch: TerminationWatch


class TaskExecutorConnections:
    """Holds the connections to the TaskExecutors that are registered at the JobMaster *owner*.
    All methods and callbacks run on the JobMaster's main thread.
    """

    def __init__(
        self,
        owner: FencedRpcEndpoint[JobMasterId],
        job_id: JobID,
        settings: HeartbeatSettings,
        *,
        allocations: Callable[[ResourceID], tuple[AllocationID, ...]],
        on_lost: Callable[[ResourceID, str], None],
    ) -> None:
        """Create the collection of connections, without connections.
        *allocations*: returns the job's allocations on a TaskExecutor, for heartbeats (JM-08).
        *on_lost*: called when a connection ended without :meth:`remove` or :meth:`remove_all`.
        """
        self._owner = owner
        self._job_id = job_id
        self._settings = settings
        self._allocations = allocations
        self._on_lost = on_lost
        self._connections: dict[ResourceID, _Connection] = {}
        self._heartbeats: HeartbeatSender[AllocatedSlotReport, TaskExecutorHeartbeat] | None = None

    def start(self) -> None:
        """Begin to exchange heartbeats with the connected TaskExecutors."""
        self._heartbeats = HeartbeatSender(
            self._owner,
            self._settings,
            payload=self._report_for,
            on_timeout=lambda target: self.lose(target, "its heartbeat timed out"),
            on_unreachable=lambda target: self.lose(target, "it is unreachable"),
        )

    def stop(self) -> None:
        """End heartbeats and watches, without messages or callbacks."""
        for connection in self._connections.values():
            connection.watch.cancel()
        self._connections.clear()
        if self._heartbeats is not None:
            self._heartbeats.stop()

    async def add(self, location: WorkerLocation) -> None:
        """Connect to a TaskExecutor, unless connected (JM-02).

        A TaskExecutor that was restarted under its old name first loses its old connection (JM-01).
        Raises RpcConnectionError if no TaskExecutor is at the address.
        """
        resource_id = location.resource_id
        known = self._connections.get(resource_id)
        if known is not None and known.location == location:
            return
        if known is not None:
            self.lose(resource_id, "it was started anew")
        gateway = await self._owner.connect(location.address, TaskExecutorGateway)
        if resource_id in self._connections:
            return  # a repeated call was faster
        watch = self._owner.watch(gateway, lambda reason: self.lose(resource_id, reason))
        self._connections[resource_id] = _Connection(location, gateway, watch)
        assert self._heartbeats is not None
        token = self._owner.fencing_token
        job_master = job_master_resource_id(self._owner.rpc_service.process_name, token)
        self._heartbeats.monitor_target(
            resource_id,
            lambda report: gateway.heartbeat_from_job_master(job_master, token, report),
        )

    def is_connected(self, resource_id: ResourceID) -> bool:
        return resource_id in self._connections

    def get(self, resource_id: ResourceID) -> TaskExecutorGateway:
        """Return the gateway of a TaskExecutor.
        Raises UnknownTaskExecutorError if not connected.
        """
        connection = self._connections.get(resource_id)
        if connection is None:
            raise UnknownTaskExecutorError(f"{resource_id} is not (any more) connected")
        return connection.gateway

    @property
    def locations(self) -> tuple[WorkerLocation, ...]:
        """The locations of all connected TaskExecutors."""
        return tuple(connection.location for connection in self._connections.values())

    def heartbeat(self, resource_id: ResourceID, payload: TaskExecutorHeartbeat) -> None:
        """Note a TaskExecutor's heartbeat, so that the TaskExecutor does not count as silent."""
        if self._heartbeats is not None:
            self._heartbeats.receive_heartbeat(resource_id, payload)

    def lose(self, resource_id: ResourceID, reason: str) -> None:
        """Give up a broken connection to a TaskExecutor: remove it and call *on_lost*.
        Idempotent.
        """
        if self._remove(resource_id, reason):
            self._on_lost(resource_id, reason)

    def remove(self, resource_id: ResourceID, reason: str) -> None:
        """Disconnect a TaskExecutor after sending it the reason. Idempotent."""
        self._remove(resource_id, reason)

    def remove_all(self, reason: str) -> None:
        """Disconnect all TaskExecutors, and send them the reason."""
        for resource_id in tuple(self._connections):
            self._remove(resource_id, reason)

    def _remove(self, resource_id: ResourceID, reason: str) -> bool:
        connection = self._connections.pop(resource_id, None)
        if connection is None:
            return False
        connection.watch.cancel()
        if self._heartbeats is not None:
            self._heartbeats.unmonitor_target(resource_id)
        self._owner.create_task(self._say_goodbye(connection, reason))
        return True

    async def _say_goodbye(self, connection: _Connection, reason: str) -> None:
        try:
            await connection.gateway.disconnect_job_master(
                self._job_id, self._owner.fencing_token, reason
            )
        except RpcError as error:
            log.info("no goodbye to %s: %s", connection.location.resource_id, error)

    def _report_for(self, resource_id: ResourceID) -> AllocatedSlotReport:
        return AllocatedSlotReport(self._job_id, self._allocations(resource_id))
