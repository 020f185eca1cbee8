"""Implements leader election among contenders in one process (SPEC HA-01 to HA-06)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha.directory import Directory
from flinkray.ha.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionError,
    LeaderRetrievalListener,
    LeaderRetrievalService,
)
from flinkray.ha.services import AbstractNonHaServices


class EmbeddedLeaderService:
    """Elects the leader of one component in this process, and tells listeners about the leader.
    Everything runs on one event loop.

    The contender that has waited longest gets leadership. ``has_leadership`` is true from that
    decision on, even if the contender has not been told yet."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._waiting: list[EmbeddedLeaderElection] = []
        self._leader: EmbeddedLeaderElection | None = None
        self._leader_session: LeaderSessionID | None = None
        self._confirmed: tuple[str, LeaderSessionID] | None = None
        self._listeners: list[EmbeddedLeaderRetrievalService] = []
        self._closed = False

    def create_election(self, session_id: LeaderSessionID | None = None) -> EmbeddedLeaderElection:
        """Return a new election; *session_id* is the session of its first grant (None: a new
        one)."""
        return EmbeddedLeaderElection(self, session_id)

    def create_retriever(self) -> EmbeddedLeaderRetrievalService:
        return EmbeddedLeaderRetrievalService(self)

    async def grant_leadership(self) -> None:
        """Elect a leader after :meth:`revoke_leadership`, for tests. No effect while there is a
        leader."""
        self._elect()

    async def revoke_leadership(self) -> None:
        """Take leadership away from the leader, for tests. There is no leader until
        :meth:`grant_leadership`, or until a contender joins or leaves."""
        election = self._leader
        if election is not None:
            self._depose()
            self._waiting.insert(0, election)

    def close(self) -> None:
        """Close the service: every contender loses leadership and gets an error, the last event."""
        if self._closed:
            return
        self._closed = True
        ended = LeaderElectionError(f"the election of the {self._component} was closed")
        elections = list(self._waiting)
        if self._leader is not None:
            elections.append(self._leader)
            self._depose()
        self._waiting.clear()
        for election in elections:
            election._service_closed(ended)
        self._listeners.clear()

    # --- for the elections and retrievers of this service

    def _join(self, election: EmbeddedLeaderElection) -> None:
        if self._closed:
            raise LeaderElectionError(f"the election of the {self._component} is closed")
        self._waiting.append(election)
        self._elect()

    def _leave(self, election: EmbeddedLeaderElection) -> None:
        if election in self._waiting:
            self._waiting.remove(election)
        if election is self._leader:
            self._depose()
            self._elect()

    def _confirm(
        self, election: EmbeddedLeaderElection, session_id: LeaderSessionID, address: str
    ) -> None:
        if election is self._leader and session_id == self._leader_session:
            self._publish((address, session_id))

    def _leads(self, election: EmbeddedLeaderElection, session_id: LeaderSessionID) -> bool:
        return election is self._leader and session_id == self._leader_session

    def _listen(self, retriever: EmbeddedLeaderRetrievalService) -> None:
        self._listeners.append(retriever)
        if self._confirmed is not None:
            retriever._leader_changed(*self._confirmed)

    def _unlisten(self, retriever: EmbeddedLeaderRetrievalService) -> None:
        if retriever in self._listeners:
            self._listeners.remove(retriever)

    def _elect(self) -> None:
        if self._leader is None and self._waiting and not self._closed:
            self._leader = self._waiting.pop(0)
            self._leader_session = self._leader._next_session()
            self._leader._granted(self._leader_session)

    def _depose(self) -> None:
        assert self._leader is not None
        election, self._leader, self._leader_session = self._leader, None, None
        election._revoked()
        self._publish(None)

    def _publish(self, confirmed: tuple[str, LeaderSessionID] | None) -> None:
        if confirmed == self._confirmed:
            return
        self._confirmed = confirmed
        address, session_id = confirmed or (None, None)
        for retriever in list(self._listeners):
            retriever._leader_changed(address, session_id)


class EmbeddedLeaderElection(LeaderElection):
    """Represents one contender in an :class:`EmbeddedLeaderService`.

    Events reach the contender in the order in which they were decided.
    """

    def __init__(
        self, service: EmbeddedLeaderService, session_id: LeaderSessionID | None = None
    ) -> None:
        self._service = service
        self._proposed = session_id
        self._contender: LeaderContender | None = None
        self._told_granted = False
        self._closed = False

    async def start_leader_election(self, contender: LeaderContender) -> None:
        if self._contender is not None or self._closed:
            raise LeaderElectionError("an election takes one contender, once")
        self._contender = contender
        self._service._join(self)

    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        self._service._confirm(self, session_id, address)

    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        return self._service._leads(self, session_id)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._service._leave(self)
        self._tell_revoked()
        self._contender = None

    def _next_session(self) -> LeaderSessionID:
        proposed, self._proposed = self._proposed, None
        return proposed or LeaderSessionID.generate()

    def _granted(self, session_id: LeaderSessionID) -> None:
        self._later(lambda: self._tell_granted(session_id))

    def _revoked(self) -> None:
        self._later(self._tell_revoked)

    def _service_closed(self, error: LeaderElectionError) -> None:
        def tell() -> None:
            if self._contender is not None:
                self._contender.handle_error(error)

        self._later(tell)

    def _tell_granted(self, session_id: LeaderSessionID) -> None:
        """Tell the contender that it leads, even if leadership was revoked since the decision. In
        that case the revocation is reported next, so the contender sees every event."""
        if self._contender is not None:
            self._told_granted = True
            self._contender.grant_leadership(session_id)

    def _tell_revoked(self) -> None:
        if self._contender is not None and self._told_granted:
            self._told_granted = False
            self._contender.revoke_leadership()

    def _later(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)


class EmbeddedLeaderRetrievalService(LeaderRetrievalService):
    """Tells one listener about the leader of an :class:`EmbeddedLeaderService`."""

    def __init__(self, service: EmbeddedLeaderService) -> None:
        self._service = service
        self._listener: LeaderRetrievalListener | None = None
        self._started = False

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if self._started:
            raise LeaderElectionError("a retrieval takes one listener, once")
        self._started = True
        self._listener = listener
        self._service._listen(self)

    async def stop(self) -> None:
        self._listener = None
        self._service._unlisten(self)

    def _leader_changed(self, address: str | None, session_id: LeaderSessionID | None) -> None:
        def tell() -> None:
            if self._listener is not None:
                self._listener.notify_leader_address(address, session_id)

        asyncio.get_running_loop().call_soon(tell)


class EmbeddedHaServices(AbstractNonHaServices):
    """Provides elections and retrievals among the masters of one process. Use it on one event
    loop."""

    def __init__(self, storage: Directory, executor: Executor) -> None:
        super().__init__(storage, executor)
        self._services: dict[str, EmbeddedLeaderService] = {}

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self.dispatcher_leader_service.create_retriever()

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        return self.resource_manager_leader_service.create_retriever()

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        return self.job_master_leader_service(job_id).create_retriever()

    def get_dispatcher_leader_election(self) -> LeaderElection:
        return self.dispatcher_leader_service.create_election()

    def get_resource_manager_leader_election(self) -> LeaderElection:
        return self.resource_manager_leader_service.create_election()

    def get_job_master_leader_election(
        self, job_id: JobID, session_id: LeaderSessionID
    ) -> LeaderElection:
        return self.job_master_leader_service(job_id).create_election(session_id)

    async def cleanup_job(self, job_id: JobID) -> None:
        service = self._services.pop(_job_master(job_id), None)
        if service is not None:
            service.close()

    async def close(self) -> None:
        await super().close()
        for service in self._services.values():
            service.close()

    # --- for tests: leadership is revoked and granted here

    @property
    def dispatcher_leader_service(self) -> EmbeddedLeaderService:
        return self._service("Dispatcher")

    @property
    def resource_manager_leader_service(self) -> EmbeddedLeaderService:
        return self._service("ResourceManager")

    def job_master_leader_service(self, job_id: JobID) -> EmbeddedLeaderService:
        return self._service(_job_master(job_id))

    def _service(self, component: str) -> EmbeddedLeaderService:
        self._check_running()
        if component not in self._services:
            self._services[component] = EmbeddedLeaderService(component)
        return self._services[component]


def _job_master(job_id: JobID) -> str:
    return f"JobMaster of job {job_id}"
