"""Implements services without elections: fixed addresses, session id zero (SPEC HA-07, HA-08).

For a cluster in which another mechanism ensures that each master exists only once. On Ray this is
the named actor, which Ray restarts under the same name.
"""

from __future__ import annotations

import asyncio
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
from flinkray.ha.services import DISPATCHER_ADDRESS, RESOURCE_MANAGER_ADDRESS, AbstractNonHaServices

UNKNOWN_ADDRESS = "UNKNOWN"
"""The address reported for a JobMaster if the caller knows none (Flink's literal)."""


class StandaloneLeaderRetrievalService(LeaderRetrievalService):
    """Reports one fixed leader (address and session) to its listener, once and for ever."""

    def __init__(self, address: str, session_id: LeaderSessionID) -> None:
        self._address = address
        self._session_id = session_id
        self._listener: LeaderRetrievalListener | None = None
        self._started = False

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if self._started:
            raise LeaderElectionError(f"retrieval of the leader at {self._address} started twice")
        self._started = True
        self._listener = listener
        asyncio.get_running_loop().call_soon(self._notify)

    async def stop(self) -> None:
        self._listener = None

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener.notify_leader_address(self._address, self._session_id)


class StandaloneLeaderElection(LeaderElection):
    """Grants leadership to its only contender at once."""

    def __init__(self, session_id: LeaderSessionID) -> None:
        self._session_id = session_id
        self._contender: LeaderContender | None = None
        self._granted = False
        self._closed = False

    async def start_leader_election(self, contender: LeaderContender) -> None:
        if self._contender is not None or self._closed:
            raise LeaderElectionError("an election takes one contender, once")
        self._contender = contender
        asyncio.get_running_loop().call_soon(self._grant)

    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        """Do nothing, because the address is fixed and known."""

    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        return self._granted and session_id == self._session_id

    async def close(self) -> None:
        self._closed = True
        self.revoke()
        self._contender = None

    def revoke(self) -> None:
        """Revoke leadership, because the stores have shown that another process leads. A second
        call does nothing."""
        if self._contender is not None and self._granted:
            self._granted = False
            self._contender.revoke_leadership()

    def _grant(self) -> None:
        if self._contender is not None:
            self._granted = True
            self._contender.grant_leadership(self._session_id)


class StandaloneHaServices(AbstractNonHaServices):
    """Provides services without elections, with fixed addresses.

    Session ids are zero, except of JobMasters whose session id is given.
    """

    elects_job_masters = False

    def __init__(
        self,
        storage: Directory,
        executor: Executor,
        *,
        dispatcher_address: str = DISPATCHER_ADDRESS,
        resource_manager_address: str = RESOURCE_MANAGER_ADDRESS,
    ) -> None:
        super().__init__(storage, executor)
        self._dispatcher_address = dispatcher_address
        self._resource_manager_address = resource_manager_address
        self._dispatchers: list[StandaloneLeaderElection] = []

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(self._dispatcher_address)

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(self._resource_manager_address)

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        self._check_running()
        return StandaloneLeaderRetrievalService(
            default_address or UNKNOWN_ADDRESS,
            default_session_id or LeaderSessionID.standalone(),
        )

    def get_dispatcher_leader_election(self) -> LeaderElection:
        election = self._election()
        self._dispatchers.append(election)
        return election

    def _dispatcher_fenced(self) -> None:
        for election in self._dispatchers:
            election.revoke()

    def get_resource_manager_leader_election(self) -> LeaderElection:
        return self._election()

    def get_job_master_leader_election(
        self, job_id: JobID, session_id: LeaderSessionID
    ) -> LeaderElection:
        self._check_running()
        return StandaloneLeaderElection(session_id)

    def _retriever(self, address: str) -> LeaderRetrievalService:
        self._check_running()
        return StandaloneLeaderRetrievalService(address, LeaderSessionID.standalone())

    def _election(self) -> StandaloneLeaderElection:
        self._check_running()
        return StandaloneLeaderElection(LeaderSessionID.standalone())
