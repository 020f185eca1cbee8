"""Implements the high availability services on ZooKeeper, which decides who leads and who may
write."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha.directory import Directory, Entries
from flinkray.ha.leader_election import (
    DriverLeaderElection,
    DriverLeaderRetrievalService,
    LeaderElection,
    LeaderRetrievalService,
)
from flinkray.ha.services import (
    BLOBS,
    CHECKPOINT_POINTERS,
    JOB_GRAPHS,
    JOB_RESULTS,
    AbstractHaServices,
)
from flinkray.ha.stores import StoreError
from flinkray.ha.zookeeper.client import ZooKeeperClient
from flinkray.ha.zookeeper.directory import ZooKeeperDirectory
from flinkray.ha.zookeeper.leader_drivers import ZooKeeperElectionDriver, ZooKeeperRetrievalDriver
from flinkray.rpc import RpcService

LEADERS = "leader"
DISPATCHER = f"{LEADERS}/dispatcher"
RESOURCE_MANAGER = f"{LEADERS}/resource_manager"
STORES = "stores"


class ZooKeeperHaServices(AbstractHaServices):
    """Provides one process with elections and stores on ZooKeeper.

    A store's writes are fenced by an election that this process has won: the Dispatcher's election
    for graphs, results and the leftovers of ended jobs, a JobMaster's election for its job's
    checkpoints. Below the root are ``leader/<component>`` and ``stores/…`` of exactly one cluster.

    Args:
        client: started, with the cluster's own root.
        storage: holds contents and blobs.
        processes: the RPC service, which reports the death of other contenders before their
            sessions end. None: only the end of a session shows that a contender is dead.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        storage: Directory,
        executor: Executor,
        processes: RpcService | None = None,
    ) -> None:
        super().__init__(executor)
        self._client = client
        self._storage = storage
        self._processes = processes
        self._drivers: dict[str, ZooKeeperElectionDriver] = {}
        """The drivers of this process's contenders, by component."""
        self._elections: dict[str, LeaderElection] = {}

    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(DISPATCHER)

    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService:
        return self._retriever(RESOURCE_MANAGER)

    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        return self._retriever(_job_master(job_id))

    def get_dispatcher_leader_election(self) -> LeaderElection:
        return self._election(DISPATCHER)

    def get_resource_manager_leader_election(self) -> LeaderElection:
        return self._election(RESOURCE_MANAGER)

    def get_job_master_leader_election(
        self, job_id: JobID, session_id: LeaderSessionID
    ) -> LeaderElection:
        return self._election(_job_master(job_id), session_id)

    async def cleanup_job(self, job_id: JobID) -> None:
        """Leave this process's election for the job, then remove the job's election data."""
        component = _job_master(job_id)
        election = self._elections.pop(component, None)
        if election is not None:
            await election.close()
        try:
            await self._delete(self._client.path(component))
        except (KazooException, OSError) as error:
            raise StoreError(f"cannot delete who led job {job_id}: {error!r}") from error

    async def close(self) -> None:
        """End all elections and retrievals, and the session.

        Other contenders can take over the leaderships of this process at once.
        """
        if not self._closed:
            await super().close()
            await self._leave_elections()
            await self._client.close()

    async def close_and_cleanup_all_data(self) -> None:
        """Leave the elections and delete all data: pointers first, then their targets.

        Raises KazooException (ZooKeeper fails: nothing else is deleted) or OSError. After an error,
        call this again.
        """
        await self._leave_elections()
        await self._delete(self._client.path())
        loop = asyncio.get_running_loop()
        for name in (JOB_GRAPHS, JOB_RESULTS, CHECKPOINT_POINTERS, BLOBS):
            directory = self._storage.subdirectory(name)
            await loop.run_in_executor(self._executor, directory.delete_all)
        await self.close()

    def _of_dispatcher(self) -> Directory:
        return self._fenced_by(DISPATCHER)

    def _of_job_master(self, job_id: JobID) -> Directory:
        return self._fenced_by(_job_master(job_id))

    def _job_entries(self, name: str, suffixes: tuple[str, ...]) -> Entries:
        return self._of_dispatcher().subdirectory(name)

    def _blobs(self) -> Directory:
        return self._storage.subdirectory(BLOBS)

    def _fenced_by(self, component: str) -> Directory:
        def fence() -> str | None:
            driver = self._drivers.get(component)
            return None if driver is None else driver.fence

        return ZooKeeperDirectory(self._client, self._client.path(STORES), self._storage, fence)

    def _election(
        self, component: str, session_id: LeaderSessionID | None = None
    ) -> LeaderElection:
        self._check_running()

        def make_driver() -> ZooKeeperElectionDriver:
            driver = self._drivers[component] = ZooKeeperElectionDriver(
                self._client, component, self._processes
            )
            return driver

        election = self._elections[component] = DriverLeaderElection(make_driver, session_id)
        return election

    async def _leave_elections(self) -> None:
        for election in self._elections.values():
            await election.close()

    def _retriever(self, component: str) -> LeaderRetrievalService:
        self._check_running()
        return DriverLeaderRetrievalService(
            lambda: ZooKeeperRetrievalDriver(self._client, component)
        )

    async def _delete(self, path: str) -> None:
        def delete(zk: KazooClient) -> None:
            try:
                zk.delete(path, recursive=True)
            except NoNodeError:
                return

        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, lambda: self._client.ask(delete))


def _job_master(job_id: JobID) -> str:
    return f"{LEADERS}/{job_id.hex()}"
