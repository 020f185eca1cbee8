"""A local cluster in which everything takes its time, and of which everything is written down.

All times are virtual and come, as all else that is random, from one seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from flinkray.actors.cluster_services import ClusterServices
from flinkray.actors.messages import ClusterArguments
from flinkray.actors.resource_manager import ResourceManager, lead_resource_manager
from flinkray.actors.resource_manager_driver import WorkerGroup, WorkerGroupRequest
from flinkray.actors.task_executor import TaskExecutor
from flinkray.actors.task_executor_arguments import TaskExecutorArguments
from flinkray.actors.task_executor_host import TaskExecutorHost
from flinkray.actors.task_runners import TaskRunner
from flinkray.core.ids import JobID, JobMasterId, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.ha import StoreError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.job_graph import SPARK
from flinkray.scheduler.tasks import TaskDeploymentDescriptor
from flinkray.testing.local_workers import LocalResourceManagerDriver
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.simulation import SimulatedExecutor, SimulatedProcess

T = TypeVar("T")

LONGEST_STEP = 0.02
"""Seconds that a start, a blocking call or a clean-up takes at most."""
LONGEST_MESSAGE = 0.003
"""Seconds that a message takes at most."""


class SlowStorage(SimulatedExecutor):
    """Does the blocking calls, which are those of the stores; each takes a while."""

    def __init__(self, random: Random) -> None:
        def duration() -> tuple[float, float]:
            before, after = sorted(random.uniform(0, LONGEST_STEP) for _ in range(2))
            return before, after - before

        super().__init__(duration)
        self.works_from = 0.0
        """Until that time all of them fail."""

    def run(
        self, process: SimulatedProcess, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        def work() -> T:
            if process.time() < self.works_from:
                raise StoreError("the storage fails")
            return function(*args)

        return super().run(process, work)


class Processes(dict[str, LocalRpcService]):
    """The processes of a network; *changed* is called with the name of each that comes or goes."""

    def __init__(self, changed: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._changed = changed

    def __setitem__(self, name: str, service: LocalRpcService) -> None:
        super().__setitem__(name, service)
        self._changed(name, True)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._changed(name, False)


class ChaosCluster(MiniCluster):
    """Keeps a story of what happens, and a list of what must not."""

    masters: ClassVar[dict[str, str]] = {
        **MiniCluster.masters,
        "ResourceManager": f"{__name__}:create_slow_resource_manager",
    }
    _of_network: ClassVar[WeakKeyDictionary[LocalNetwork, ChaosCluster]] = WeakKeyDictionary()

    def __init__(
        self,
        random: Random,
        storage_dir: Path,
        *nodes: ResourceProfile,
        configuration: dict[str, str],
    ) -> None:
        super().__init__(str(storage_dir), *nodes, configuration=configuration)
        if not nodes:
            self.workers.nodes.clear()
        self.random = random
        self.storage = SlowStorage(random)
        self.story: list[str] = []
        self.problems: list[str] = []
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever a process has come or gone."""
        self._results = storage_dir / "job-results"
        self._of_network[self.network] = self
        self.network.services = Processes(self._process_changed)
        self.network.start_delay = self.some_time
        self.longest_message = LONGEST_MESSAGE
        self.network.latency = lambda: random.uniform(0, self.longest_message)
        self.network.restart_delay = random.uniform(0, 5 * LONGEST_STEP)
        self.workers.factory = f"{__name__}:create_scripted_task_executor"
        self._log = _Log(self)

    @classmethod
    def of(cls, network: LocalNetwork) -> ChaosCluster:
        return cls._of_network[network]

    async def __aenter__(self) -> ChaosCluster:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._nobody_retrieved)
        self._log.begin()
        await super().__aenter__()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._log.end()
        await super().__aexit__(exception_type, exception, traceback)

    def some_time(self) -> float:
        return self.random.uniform(0, LONGEST_STEP) if self.random.random() < 0.8 else 0.0

    def tell(self, text: str) -> None:
        """Add to the story."""
        self.story.append(f"{self._loop.time():9.4f}  {text}")

    def problem(self, text: str) -> None:
        """Something happened that must never."""
        self.tell(f"!!! {text}")
        self.problems.append(text)

    def _nobody_retrieved(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problem(f"unhandled: {context.get('message')} {context.get('exception')!r}")

    def _process_changed(self, name: str, is_up: bool) -> None:
        self.tell(f"{'+' if is_up else '-'} {name}")
        if is_up:
            self._look_at_new(name)
        self.on_change()

    def _look_at_new(self, name: str) -> None:
        kind, _, rest = name.partition("-")
        job = rest[: 2 * JobID.SIZE]
        if kind == "SparkDriver":
            # a past JobMaster's may be there for a moment yet if orphans do not die at once
            has_orphans = self.network.orphan_delay is not None
            drivers = self.processes(name.rpartition("-")[0] if has_orphans else f"{kind}-{job}")
            if len(drivers) > 1:
                self.problem(f"two Spark drivers of one job: {drivers}")
        if kind in ("JobMaster", "SparkDriver") and any(
            (self._results / f"{job}.{state}").exists() for state in ("dirty", "clean")
        ):
            self.problem(f"{name} is started though the job has a result")

    def leftovers_of(self, job_id: JobID) -> list[str]:
        """Processes and worker groups that the job has now."""
        groups = [g.group.name for g in self.workers.groups.values() if g.group.job_id == job_id]
        return [name for name in self.processes() if job_id.hex() in name] + groups


class _Log(logging.Handler):
    """Log lines become part of the story; errors are problems."""

    def __init__(self, cluster: ChaosCluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster
        self._logger = logging.getLogger("flinkray")
        self._level = self._logger.level

    def begin(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def end(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name.removeprefix('flinkray.')}: {record.getMessage()}"
        if record.levelno >= logging.ERROR and not self._is_expected(text):
            self._cluster.problem(text)
        else:
            self._cluster.tell(text)

    def _is_expected(self, text: str) -> bool:
        if "jobmaster failed" in text and "SlotPool" in text and "died" in text:
            return True  # so often in a row that the JobMaster gives up
        now = asyncio.get_running_loop().time()
        is_recent = now < self._cluster.storage.works_from + 10 * LONGEST_STEP
        return is_recent and "restarting Dispatcher failed" in text


class SlowDriver(LocalResourceManagerDriver):
    """What Ray is asked for takes a while, before and after it has happened."""

    def __init__(self, rpc_service: LocalRpcService, arguments: ClusterArguments) -> None:
        super().__init__(rpc_service, arguments)
        self._chaos = ChaosCluster.of(rpc_service.network)

    async def _wait(self) -> None:
        await asyncio.sleep(self._chaos.some_time())

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroup:
        await self._wait()
        group = await super().create_worker_group(request)
        await self._wait()
        return group

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        await super().wait_until_placed(group)
        await self._wait()

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        await self._wait()
        await super().release_worker_group(group)
        await self._wait()

    async def occupied_bundles(self, group: WorkerGroupId) -> dict[int, ResourceID]:
        occupied = await super().occupied_bundles(group)
        await self._wait()
        return occupied

    async def recover(self) -> tuple[WorkerGroup, ...]:
        groups = await super().recover()
        await self._wait()
        return groups


async def create_slow_resource_manager(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> ResourceManager:
    """Factory."""
    driver = SlowDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)


class _SlowTask(TaskRunner):
    """Does nothing until it is cancelled; cleaning up takes a while."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster

    async def run(self, descriptor: TaskDeploymentDescriptor, job_master_id: JobMasterId) -> None:
        await asyncio.get_running_loop().create_future()

    async def clean_up(self, job_id: JobID) -> None:
        await asyncio.sleep(self._cluster.some_time())


async def create_scripted_task_executor(
    rpc_service: LocalRpcService, arguments: TaskExecutorArguments
) -> TaskExecutor:
    """Factory."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    host = TaskExecutorHost.find(arguments.node)
    runner = _SlowTask(ChaosCluster.of(rpc_service.network))
    return TaskExecutor(rpc_service, services, arguments, host, {SPARK: runner})
