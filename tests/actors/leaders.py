"""Leaders that are who a test says they are."""

from __future__ import annotations

from concurrent.futures import Executor

from flinkray.core.ids import FencingToken, JobID, LeaderSessionID
from flinkray.ha import (
    LeaderRetrievalListener,
    LeaderRetrievalService,
    MemoryDirectory,
    StandaloneHaServices,
)


class ManualRetrieval(LeaderRetrievalService):
    """Tells what the test tells it."""

    async def start(self, listener: LeaderRetrievalListener) -> None:
        self.listener = listener

    async def stop(self) -> None:
        pass

    def tell(self, address: str | None, token: FencingToken | None) -> None:
        session = None if token is None else token.leader_session()
        self.listener.notify_leader_address(address, session)


class ManualLeaders(StandaloneHaServices):
    """One retrieval for all ResourceManagers, one for all JobMasters, one for all Dispatchers."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(MemoryDirectory(), executor)
        self.manager, self.master = ManualRetrieval(), ManualRetrieval()
        self.dispatcher = ManualRetrieval()

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        return self.manager

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self.dispatcher

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        return self.master


class ElectedLeaders(ManualLeaders):
    """As where there are elections: what is told of a job's JobMaster counts."""

    elects_job_masters = True
