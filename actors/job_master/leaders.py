"""The leaders at which a JobMaster is registered: the Dispatcher and the ResourceManager."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, Protocol

from flinkray.actors.gateways import DispatcherGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import (
    JobMasterRegistrationSuccess,
    JobMasterToDispatcherRegistrationSuccess,
    job_master_resource_id,
)
from flinkray.actors.job_master.reports_to_dispatcher import OverviewNews
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leader_connection import LeaderConnection
from flinkray.actors.shared.settings import heartbeat_settings, registration_settings
from flinkray.blob import blob_server_beside
from flinkray.core.errors import FencingTokenError, RpcError
from flinkray.core.ids import DispatcherId, JobMasterId, ResourceID, ResourceManagerId
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatManager,
    RegistrationFailure,
    RegistrationRejection,
)
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds
from flinkray.scheduler.job.job_scheduler import JobScheduler

log = logging.getLogger(__name__)


class LeadersListener(Protocol):
    """Callbacks for events of the Dispatcher and ResourceManager, on the JobMaster's
    main thread.
    """

    def resource_manager_connected(self, manager: ResourceManagerGateway) -> None:
        """Called when the JobMaster is registered at the ResourceManager."""

    def resource_manager_lost(self) -> None:
        """Called when the JobMaster is no longer registered at the ResourceManager."""

    def bounds_changed(self, bounds: tuple[ParallelismBounds, ...]) -> None:
        """Called when the Dispatcher has sent parallelism bounds of an elastic job's vertices."""

    def cancel_requested(self) -> None:
        """Called when the Dispatcher's answer to the registration says that the job is to be
        cancelled."""

    def registration_rejected(self, rejection: RegistrationRejection) -> None:
        """Called when a Dispatcher or ResourceManager refuses this JobMaster for good.
        Another JobMaster leads the job then.
        """


class JobMasterLeaders:
    """Keeps the JobMaster registered at the leading Dispatcher and ResourceManager, with
    heartbeats. Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        scheduler: JobScheduler,
        listener: LeadersListener,
    ) -> None:
        self._scheduler = scheduler
        self.overview = OverviewNews(scheduler, self._overview_changed)
        self._job_master = job_master
        self._graph = graph
        self._services = services
        self._resource_id = job_master_resource_id(
            job_master.rpc_service.process_name, job_master.fencing_token
        )
        self._listener = listener
        registration = registration_settings(services.configuration)
        self._resource_manager: LeaderConnection[
            ResourceManagerGateway, JobMasterRegistrationSuccess
        ] = LeaderConnection(
            job_master,
            target_name="ResourceManager",
            gateway=ResourceManagerGateway,
            token_type=ResourceManagerId,
            register=lambda manager: manager.register_job_master(
                job_master.fencing_token, self._resource_id, job_master.address, graph.job_id
            ),
            on_connected=self._resource_manager_connected,
            on_lost=self._resource_manager_lost,
            on_rejection=listener.registration_rejected,
            settings=registration,
        )
        self._dispatcher: LeaderConnection[
            DispatcherGateway, JobMasterToDispatcherRegistrationSuccess
        ] = LeaderConnection(
            job_master,
            target_name="Dispatcher",
            gateway=DispatcherGateway,
            token_type=DispatcherId,
            register=self._register_at_dispatcher,
            on_connected=self._dispatcher_connected,
            on_lost=self._dispatcher_lost,
            on_rejection=listener.registration_rejected,
            settings=registration,
        )
        self._is_answer_overtaken = False
        """Whether the Dispatcher has sent newer parallelism bounds since the registration was sent.
        The answer to the registration may then have older bounds.
        """
        self._resource_manager_heartbeats = self._heartbeats_of(self._resource_manager)
        self._dispatcher_heartbeats = self._heartbeats_of(self._dispatcher)

    async def start(self) -> None:
        """Begin to register at the Dispatcher and the ResourceManager."""
        high_availability = self._services.high_availability
        await self._dispatcher.start(high_availability.get_dispatcher_leader_retriever())
        await self._resource_manager.start(
            high_availability.get_resource_manager_leader_retriever()
        )

    def _heartbeats_of(self, leader: LeaderConnection[Any, Any]) -> HeartbeatManager[None, None]:
        return HeartbeatManager(
            self._job_master,
            heartbeat_settings(self._services.configuration),
            payload=lambda target: None,
            on_timeout=lambda target: leader.reconnect("its heartbeat timed out"),
            on_unreachable=lambda target: leader.reconnect("it is unreachable"),
        )

    async def stop(self) -> ResourceManagerGateway | None:
        """Stop following the leaders. Returns the ResourceManager for :meth:`say_goodbye`; None if
        the JobMaster is not registered there."""
        self._resource_manager_heartbeats.stop()
        self._dispatcher_heartbeats.stop()
        manager = self._resource_manager.target_gateway
        await self._dispatcher.stop()
        await self._resource_manager.stop()
        return manager

    async def say_goodbye(self, manager: ResourceManagerGateway | None) -> None:
        """Disconnect from the ResourceManager *manager*, because this JobMaster stops. None: do
        nothing.

        Must be called before the job's slots are freed: otherwise the ResourceManager would give
        them to the job again.
        """
        if manager is not None:
            try:
                await manager.disconnect_job_master(
                    self._graph.job_id, self._job_master.fencing_token, "it stops"
                )
            except RpcError as error:
                log.info("%s: no goodbye to the ResourceManager: %s", self._graph.text, error)

    # --- the ResourceManager ----------------------------------------------------------------------

    def _resource_manager_connected(
        self, manager: ResourceManagerGateway, response: JobMasterRegistrationSuccess
    ) -> None:
        self._resource_manager_heartbeats.monitor_target(
            response.resource_manager_resource_id,
            lambda _: manager.heartbeat_from_job_master(
                self._graph.job_id, self._job_master.fencing_token
            ),
        )
        self._listener.resource_manager_connected(manager)

    def _resource_manager_lost(self, reason: str) -> None:
        self._resource_manager_heartbeats.stop()
        self._listener.resource_manager_lost()

    def is_led_by(self, resource_manager_id: ResourceManagerId) -> bool:
        """Return whether the ResourceManager that leads now has this id. This JobMaster may not be
        registered there yet."""
        return self._resource_manager.leader_id == resource_manager_id

    def heartbeat_from_resource_manager(
        self, resource_id: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None:
        if self.is_led_by(resource_manager_id):
            self._resource_manager_heartbeats.request_heartbeat(resource_id, None)

    def disconnected_by(self, resource_manager_id: ResourceManagerId, reason: str) -> None:
        """Register again at this ResourceManager, if it leads: it has disconnected this
        JobMaster."""
        if self.is_led_by(resource_manager_id):
            self._resource_manager.reconnect(reason)

    # --- the Dispatcher ---------------------------------------------------------------------------

    @property
    def blob_server(self) -> str | None:
        """The address of the server for the job's blobs. None before a Dispatcher is known."""
        dispatcher = self._dispatcher.leader_address
        return None if dispatcher is None else blob_server_beside(dispatcher)

    def _register_at_dispatcher(
        self, dispatcher: DispatcherGateway
    ) -> Awaitable[
        JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection
    ]:
        self._is_answer_overtaken = False
        job_master = self._job_master
        return dispatcher.register_job_master(
            self._graph.job_id, job_master.fencing_token, job_master.address
        )

    def bounds_told(self) -> None:
        """Note that a call of the Dispatcher has brought new parallelism bounds.

        A registration at the Dispatcher that is under way is repeated, because its answer may bring
        older bounds.
        """
        self._is_answer_overtaken = True

    def _dispatcher_connected(
        self, dispatcher: DispatcherGateway, response: JobMasterToDispatcherRegistrationSuccess
    ) -> None:
        if self._is_answer_overtaken:
            self._dispatcher.reconnect("it has told bounds that its answer may not have")
            return
        self._dispatcher_heartbeats.monitor_target(
            response.dispatcher_resource_id,
            lambda _: dispatcher.heartbeat_from_job_master(
                self._graph.job_id,
                self._job_master.fencing_token,
                self.overview.number,
                self._scheduler.has_deployed,
            ),
        )
        if response.bounds:
            self._listener.bounds_changed(response.bounds)
        if response.cancel_requested:
            self._listener.cancel_requested()

    def _dispatcher_lost(self, reason: str) -> None:
        self._dispatcher_heartbeats.stop()

    def _overview_changed(self, number: int) -> None:
        """Tell the Dispatcher, if registered, that overviews below *number* are outdated.

        A Dispatcher that leads later has no outdated overviews, and gets no message.
        """
        dispatcher = self._dispatcher.target_gateway
        if dispatcher is not None:
            self._job_master.create_task(
                self._tell_overview_changed(dispatcher, number), "tell of another overview"
            )

    async def _tell_overview_changed(self, dispatcher: DispatcherGateway, number: int) -> None:
        try:
            await dispatcher.job_overview_changed(
                self._graph.job_id, self._job_master.fencing_token, number
            )
        except RpcError as error:  # the next heartbeat reports it
            log.info("%s: the Dispatcher does not hear of a change: %s", self._graph.text, error)

    def refuse_other_dispatchers(self, dispatcher_id: DispatcherId, method: str) -> None:
        """Raise FencingTokenError unless *dispatcher_id* is the id of the leading Dispatcher."""
        leader = self._dispatcher.leader_id
        if leader != dispatcher_id:
            raise FencingTokenError(self._job_master.address, method, leader, dispatcher_id)

    def heartbeat_from_dispatcher(
        self, resource_id: ResourceID, dispatcher_id: DispatcherId
    ) -> None:
        if self._dispatcher.leader_id == dispatcher_id:
            self._dispatcher_heartbeats.request_heartbeat(resource_id, None)
