"""Registers a TaskExecutor at the ResourceManager, and again whenever the registration is lost.
If no registration succeeds before a timeout, the TaskExecutor ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.gateways.messages import (
    TaskExecutorRegistration,
    TaskExecutorRegistrationSuccess,
)
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leader_connection import LeaderConnection
from flinkray.actors.shared.notifications import tell
from flinkray.actors.shared.settings import heartbeat_settings, registration_settings
from flinkray.core import options
from flinkray.core.durations import format_duration
from flinkray.core.errors import FencingTokenError, FlinkRayError, RpcError, SlotAllocationError
from flinkray.core.ids import AllocationID, InstanceID, ResourceID, ResourceManagerId, SlotID
from flinkray.core.options import TASK_EXECUTOR_REGISTRATION_TIMEOUT
from flinkray.rpc import HeartbeatManager, RegistrationRejection, RpcEndpoint, TimerHandle
from flinkray.scheduler.shared.slots import SlotReport

log = logging.getLogger(__name__)


class ResourceManagerRegistration:
    """Registration of a TaskExecutor at the leading ResourceManager, kept up with heartbeats.
    Lives on the TaskExecutor's main thread; so do the callbacks.
    """

    def __init__(
        self,
        task_executor: RpcEndpoint,
        services: ClusterServices,
        registration: TaskExecutorRegistration,
        *,
        slots: Callable[[], SlotReport],
    ) -> None:
        """Create the registration; :meth:`start` begins it.
        *slots* returns the contents of heartbeats.
        """
        configuration = services.configuration
        self._task_executor = task_executor
        self._services = services
        self._resource_id = registration.location.resource_id
        self._slots = slots
        self._settings = registration_settings(configuration)
        self._leader: LeaderConnection[ResourceManagerGateway, TaskExecutorRegistrationSuccess] = (
            LeaderConnection(
                task_executor,
                target_name="ResourceManager",
                gateway=ResourceManagerGateway,
                token_type=ResourceManagerId,
                register=lambda manager: manager.register_task_executor(registration),
                on_connected=self._connected,
                on_lost=self._lost,
                on_rejection=self._rejected,
                settings=self._settings,
            )
        )
        self._timeout = RegistrationTimeout(
            task_executor,
            configuration.get(options.TASK_EXECUTOR_REGISTRATION_TIMEOUT),
            self._leader,
        )
        self._instance_id: InstanceID | None = None
        """Id of the registration at the present ResourceManager. None while not registered."""
        self._target: ResourceID | None = None
        heartbeat = heartbeat_settings(configuration)
        silence = f"no heartbeat from it for {heartbeat.timeout:g} s"
        self._heartbeats: HeartbeatManager[SlotReport, None] = HeartbeatManager(
            task_executor,
            heartbeat,
            payload=lambda _: slots(),
            on_timeout=lambda _: self._deaf(silence),
            on_unreachable=lambda _: self._deaf("it is unreachable"),
        )

    async def start(self) -> None:
        """Begin to register. The TaskExecutor fails if it does not succeed in time (TM-07)."""
        self._timeout.start()
        retriever = self._services.high_availability.get_resource_manager_leader_retriever()
        await self._leader.start(retriever)

    async def stop(self) -> None:
        """Disconnect from the ResourceManager, and stop following it."""
        manager = self._leader.target_gateway
        if manager is not None and self._instance_id is not None:
            try:
                await manager.disconnect_task_executor(
                    self._resource_id, self._instance_id, "it stops"
                )
            except RpcError as error:
                log.info("no goodbye to the ResourceManager: %s", error)
        await self._leader.stop()
        self._heartbeats.stop()

    def check(self, resource_manager_id: ResourceManagerId) -> None:
        """Check that this TaskExecutor is registered at the ResourceManager that requests slots
        (TM-08).

        Raises:
            SlotAllocationError: this TaskExecutor is not registered there.
        """
        manager = self._leader.target_gateway
        if manager is None or manager.fencing_token != resource_manager_id:
            raise SlotAllocationError(
                f"no slot is given: {self._resource_id} is not registered at the ResourceManager "
                f"{resource_manager_id}"
            )

    def is_led_by(self, resource_manager_id: ResourceManagerId) -> bool:
        """Return whether the ResourceManager that leads now has this id. This TaskExecutor may not
        be registered there yet."""
        return self._leader.leader_id == resource_manager_id

    def refuse_others(self, resource_manager_id: ResourceManagerId, method: str) -> None:
        """Raise FencingTokenError unless *resource_manager_id* leads, as far as is known here."""
        leader = self._leader.leader_id
        if leader != resource_manager_id:
            address = self._task_executor.address
            raise FencingTokenError(address, method, leader, resource_manager_id)

    def slot_freed(self, slot_id: SlotID, allocation_id: AllocationID) -> None:
        """Tell the ResourceManager, if registered, that a slot is free.
        A ResourceManager that leads later learns this from the slot report.
        """
        manager = self._leader.target_gateway
        if manager is not None and self._instance_id is not None:
            news = manager.notify_slot_available(self._instance_id, slot_id, allocation_id)
            tell(self._task_executor, news, "ResourceManager")

    def heartbeat_requested(
        self, resource_manager: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None:
        """Answer the ResourceManager's request for a heartbeat with the slot report."""
        if self.is_led_by(resource_manager_id):
            self._heartbeats.request_heartbeat(resource_manager, None)

    def disconnected(self, resource_manager_id: ResourceManagerId, reason: str) -> None:
        """Register again at the ResourceManager, if it leads: it has ended the registration."""
        if self.is_led_by(resource_manager_id):
            self._leader.reconnect(reason)

    async def _connected(
        self, manager: ResourceManagerGateway, success: TaskExecutorRegistrationSuccess
    ) -> None:
        self._timeout.stop()
        self._instance_id = success.instance_id
        self._target = success.resource_manager_resource_id
        self._heartbeats.monitor_target(
            self._target,
            lambda report: manager.heartbeat_from_task_executor(
                self._resource_id, success.instance_id, report
            ),
        )
        report = self._slots()
        try:
            await manager.send_slot_report(self._resource_id, success.instance_id, report)
        except Exception as error:  # noqa: BLE001 - whatever the ResourceManager has raised
            log.info("the ResourceManager did not take the slot report: %r", error)
            await self._services.rpc_service.pause(self._settings.error_delay)
            if self._instance_id == success.instance_id:
                self._leader.reconnect(f"it did not take the slot report: {error!r}")

    def _lost(self, reason: str) -> None:
        self._instance_id = None
        if self._target is not None:
            self._heartbeats.unmonitor_target(self._target)
            self._target = None
        self._timeout.start()

    def _deaf(self, reason: str) -> None:
        """Register again at a ResourceManager that does not answer heartbeats (TM-04).

        The TaskExecutor does not disconnect first, because the ResourceManager may only have been
        paused. A disconnection would make it count slots as lost that the new registration is about
        to report.
        """
        self._leader.reconnect(reason)

    def _rejected(self, rejection: RegistrationRejection) -> None:
        log.info("%s is not wanted any more: %s", self._task_executor.address, rejection.reason)
        self._task_executor.close()


class RegistrationTimeoutError(FlinkRayError):
    """Raised when the TaskExecutor was registered at no ResourceManager for too long.
    It ends then."""


class RegistrationTimeout:
    """Makes an endpoint fail if it stays unregistered for longer than a timeout."""

    def __init__(
        self, endpoint: RpcEndpoint, timeout: float, leader: LeaderConnection[Any, Any]
    ) -> None:
        """Create a timeout that does not run yet. *timeout* is in seconds.
        *leader* is the connection that knows why the endpoint is not registered.
        """
        self._endpoint = endpoint
        self._timeout = timeout
        self._leader = leader
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Start the timeout, or begin it anew if it runs."""
        self.stop()
        self._timer = self._endpoint.schedule_deadline(self._timeout, self._over)

    def stop(self) -> None:
        """Stop the timeout, because the endpoint is registered. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._endpoint.on_fatal_error(
            RegistrationTimeoutError(
                f"{self._endpoint.address} could not register at the ResourceManager within "
                f"{format_duration(self._timeout)} ({TASK_EXECUTOR_REGISTRATION_TIMEOUT.key}): "
                f"{self._leader.obstacle}"
            )
        )
