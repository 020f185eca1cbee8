"""Carries out the SlotManager's decisions about worker groups and TaskExecutor processes."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flinkray.actors.resource_manager.driver import (
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupLostError,
    WorkerGroupRequest,
)
from flinkray.actors.resource_manager.shared_poll import SharedPoll
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, ResourceID, WorkerGroupId
from flinkray.rpc import RpcEndpoint, TerminationWatch
from flinkray.scheduler.resources.slot_manager_actions import StartTaskExecutor, StartWorkerGroup
from flinkray.scheduler.shared.slots import WorkerGroupOwner

log = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0
"""Seconds that a TaskExecutor of a released group has to end its tasks before it is removed."""

TASK_EXECUTOR_ENDPOINT = "taskexecutor"

_SEARCH_PAUSE = 1.0
"""Seconds between two searches for a TaskExecutor that does not answer and has not ended."""

_Recovered = tuple[WorkerGroupId, int, ResourceID]
"""(group, bundle index, resource id) of a TaskExecutor of an earlier ResourceManager."""


class TaskExecutorStartError(FlinkRayError):
    """Raised when a TaskExecutor could not be started, or ended before it registered."""

    retryable = True


class WorkerEvents(ABC):
    """Callbacks for the results of a WorkerLifecycle.
    They run on the main thread of its endpoint.
    """

    @abstractmethod
    def worker_group_started(self, request_number: int, group: WorkerGroupHandle) -> None: ...

    @abstractmethod
    def worker_group_failed(self, request_number: int, cause: str) -> None: ...

    @abstractmethod
    def worker_group_lost(self, group_id: WorkerGroupId, cause: str) -> None: ...

    @abstractmethod
    def task_executor_start_failed(
        self, group_id: WorkerGroupId, bundle_index: int, cause: str
    ) -> None:
        """Called when a TaskExecutor could not be started, or ended before it registered."""


@dataclass(slots=True)
class _GroupRequest:
    number: int
    owner: WorkerGroupOwner | None
    group: WorkerGroupHandle | None = None
    """The created group. None until the provider has answered."""
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Release:
    owner: WorkerGroupOwner | None
    task: asyncio.Task[None]


@dataclass(slots=True)
class _TaskExecutorStart:
    task: asyncio.Task[None] | None = None
    is_waiting_for_placement: bool = False
    resource_id: ResourceID | None = None
    watch: TerminationWatch | None = None
    search: asyncio.Task[None] | None = None
    """Task that looks for a TaskExecutor of an earlier ResourceManager. Ends if it is gone."""

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.registered()

    def registered(self) -> None:
        """Stop watching the started TaskExecutor. The ResourceManager watches it from now on."""
        if self.watch is not None:
            self.watch.cancel()
        if self.search is not None:
            self.search.cancel()


@dataclass(slots=True)
class _StartedGroup:
    group: WorkerGroupHandle
    starts: dict[int, _TaskExecutorStart] = field(default_factory=dict)
    """TaskExecutors that have not registered yet, by bundle."""
    occupants: dict[int, ResourceID] = field(default_factory=dict)
    """The last known TaskExecutor in each bundle: started or found there. It may be gone."""


class WorkerLifecycle:
    """Starts and releases worker groups and TaskExecutors. Lives on its endpoint's main thread.

    If a group is no longer wanted while it is being created, it is removed as soon as the provider
    has answered, so that no group is left behind.
    """

    def __init__(
        self, endpoint: RpcEndpoint, driver: ResourceManagerDriver, events: WorkerEvents
    ) -> None:
        self._endpoint = endpoint
        self._driver = driver
        self._events = events
        self._requests: dict[int, _GroupRequest] = {}
        self._groups: dict[WorkerGroupId, _StartedGroup] = {}
        self._releases: dict[WorkerGroupId, _Release] = {}
        self._gone: SharedPoll[_Recovered, bool] = SharedPoll(
            self._who_is_gone, shortest_pause=_SEARCH_PAUSE, now=endpoint.clock.monotonic
        )

    # groups

    def adopt(self, group: WorkerGroupHandle, occupied: Mapping[int, ResourceID]) -> None:
        """Take over a group of an earlier ResourceManager, with the TaskExecutors that run there,
        *occupied* (bundle index -> id). They are expected to register here."""
        started = self._groups[group.group_id] = _StartedGroup(group, occupants=dict(occupied))
        for bundle_index, resource_id in occupied.items():
            start = started.starts[bundle_index] = _TaskExecutorStart(resource_id=resource_id)
            self._watch_recovered(started, start, bundle_index, resource_id)

    def _watch_recovered(
        self,
        started: _StartedGroup,
        start: _TaskExecutorStart,
        bundle_index: int,
        resource_id: ResourceID,
    ) -> None:
        group_id = started.group.group_id

        async def search() -> None:
            await self._gone.answer_for((group_id, bundle_index, resource_id))
            if started.starts.get(bundle_index) is start:
                del started.starts[bundle_index]
                reason = "it has ended before it registered here"
                self._events.task_executor_start_failed(group_id, bundle_index, reason)

        def not_found(reason: str) -> None:
            log.info("%s is looked for: %s", resource_id, reason)  # it may still be starting
            start.search = self._endpoint.create_task(search(), f"look for {resource_id}")

        start.watch = self._endpoint.watch(f"{resource_id}/{TASK_EXECUTOR_ENDPOINT}", not_found)

    async def _who_is_gone(self, recovered: tuple[_Recovered, ...]) -> dict[_Recovered, bool]:
        groups = dict.fromkeys(group_id for group_id, _, _ in recovered)
        occupied = await self._driver.occupied_bundles(groups)
        return {one: True for one in recovered if occupied[one[0]].get(one[1]) != one[2]}

    def group_text(self, group_id: WorkerGroupId) -> str:
        """Return name and id of a group for log lines.
        Only the id if this object does not know it.
        """
        started = self._groups.get(group_id)
        return str(group_id) if started is None else started.group.text

    def start_group(self, action: StartWorkerGroup) -> None:
        request = _GroupRequest(action.request_number, action.owner)
        self._requests[request.number] = request
        wanted = WorkerGroupRequest(action.owner, action.bundles)
        request.task = self._endpoint.create_task(
            self._start_group(request, wanted), f"start worker group {request.number}"
        )

    async def _start_group(self, request: _GroupRequest, wanted: WorkerGroupRequest) -> None:
        try:
            group = request.group = await self._driver.create_worker_group(wanted)
            if not request.cancelled:
                await self._driver.wait_until_placed(group.group_id)
        except FlinkRayError as error:
            del self._requests[request.number]
            if not request.cancelled:
                name = "" if request.group is None else f"{request.group.name}: "
                self._events.worker_group_failed(request.number, f"{name}{error}")
            return
        del self._requests[request.number]
        if request.cancelled:
            self._release(group.group_id, group.text, group.owner, {})
            return
        log.info("worker group %s is placed", group.text)
        self._groups[group.group_id] = _StartedGroup(group)
        self._events.worker_group_started(request.number, group)

    def cancel_group(self, request_number: int) -> None:
        request = self._requests.get(request_number)
        if request is None:
            return
        request.cancelled = True
        if request.group is not None:
            del self._requests[request_number]
            if request.task is not None:
                request.task.cancel()
            self._release(request.group.group_id, request.group.text, request.owner, {})

    def release_group(self, group_id: WorkerGroupId) -> None:
        """Release a group, and cancel unfinished starts of its TaskExecutors. Idempotent."""
        started = self._groups.pop(group_id, None)
        if started is not None:
            for start in started.starts.values():
                start.give_up()
        if group_id in self._releases:
            return
        if started is None:
            self._release(group_id, str(group_id), None, None)
        else:
            group = started.group
            self._release(group_id, group.text, group.owner, started.occupants)

    def _release(
        self,
        group_id: WorkerGroupId,
        text: str,
        owner: WorkerGroupOwner | None,
        occupants: Mapping[int, ResourceID] | None,
    ) -> None:
        """Begin to stop the TaskExecutors of a group, and to remove the group after that.

        *text* names the group in log lines. *occupants* are its TaskExecutors by bundle index.
        None: they are not known, and the driver is asked.
        """
        task = self._endpoint.create_task(
            self._release_group(group_id, text, occupants), f"release worker group {text}"
        )
        self._releases[group_id] = _Release(owner, task)

    async def _release_group(
        self, group_id: WorkerGroupId, text: str, occupants: Mapping[int, ResourceID] | None
    ) -> None:
        try:
            if occupants is None:
                occupants = (await self._driver.occupied_bundles((group_id,)))[group_id]
            if occupants:
                stops = [
                    asyncio.ensure_future(self._stop_quietly(resource_id))
                    for resource_id in occupants.values()
                ]
                _, late = await asyncio.wait(stops, timeout=STOP_TIMEOUT)
                for stop in late:
                    stop.cancel()
            await self._driver.release_worker_group(group_id)
            log.info("worker group %s is released", text)
        except FlinkRayError as error:
            log.warning("worker group %s could not be released: %s", text, error)
        finally:
            self._releases.pop(group_id, None)

    async def _stop_quietly(self, resource_id: ResourceID) -> None:
        try:
            await self._driver.stop_task_executor(resource_id)
        except FlinkRayError as error:
            log.info("%s could not be stopped and is ended: %s", resource_id, error)

    async def released(self, job_id: JobID) -> None:
        """Wait until the releases of the job's worker groups that have begun are done."""
        while tasks := self._going(lambda owner: owner is not None and owner.job_id == job_id):
            await asyncio.wait(tasks)

    async def all_released(self) -> None:
        """Wait until the releases of worker groups that have begun are done."""
        while tasks := self._going(lambda owner: True):
            await asyncio.wait(tasks)

    def _going(
        self, concerns: Callable[[WorkerGroupOwner | None], bool]
    ) -> list[asyncio.Task[None]]:
        tasks = [release.task for release in self._releases.values() if concerns(release.owner)]
        tasks += [
            request.task
            for request in self._requests.values()
            if request.cancelled and request.task is not None and concerns(request.owner)
        ]
        return tasks

    # TaskExecutors

    def start_task_executor(self, action: StartTaskExecutor) -> None:
        """Start a TaskExecutor in a bundle. An unfinished start in this bundle is cancelled."""
        started = self._groups.get(action.group_id)
        if started is None:
            return
        earlier = started.starts.pop(action.bundle_index, None)
        if earlier is not None:
            earlier.give_up()
        start = started.starts[action.bundle_index] = _TaskExecutorStart()
        start.task = self._endpoint.create_task(
            self._start_task_executor(started, start, action),
            f"start TaskExecutor in bundle {action.bundle_index} of {started.group.name}",
        )

    async def _start_task_executor(
        self, started: _StartedGroup, start: _TaskExecutorStart, action: StartTaskExecutor
    ) -> None:
        group_id, bundle_index = action.group_id, action.bundle_index
        try:
            if action.delay > 0:
                await asyncio.sleep(action.delay)
            start.is_waiting_for_placement = True
            await self._driver.wait_until_placed(group_id)
            start.is_waiting_for_placement = False
            if started.starts.get(bundle_index) is not start:
                # an earlier start that was given up has registered after all: that TaskExecutor
                # stays
                return
            before = started.occupants.get(bundle_index)
            if before is not None:
                # it may live: silent, or still starting
                await self._driver.kill_task_executor(before)
            start.resource_id = self._driver.new_task_executor_id(started.group, bundle_index)
            started.occupants[bundle_index] = start.resource_id
            await self._spawn(start.resource_id, started.group, action)
        except WorkerGroupLostError as error:
            if self._groups.pop(group_id, None) is not None:
                log.warning("worker group %s is lost: %s", started.group.text, error)
                self._events.worker_group_lost(group_id, str(error))
            return
        except FlinkRayError as error:
            if started.starts.pop(bundle_index, None) is start:
                self._events.task_executor_start_failed(group_id, bundle_index, str(error))
            return
        if started.starts.get(bundle_index) is not start:
            return  # it has registered already

        def ended(reason: str) -> None:
            if started.starts.get(bundle_index) is start:
                del started.starts[bundle_index]
                self._events.task_executor_start_failed(group_id, bundle_index, reason)

        start.watch = self._endpoint.watch(f"{start.resource_id}/{TASK_EXECUTOR_ENDPOINT}", ended)

    async def _spawn(
        self, resource_id: ResourceID, group: WorkerGroupHandle, action: StartTaskExecutor
    ) -> None:
        try:
            await self._driver.start_task_executor(
                resource_id, group, action.bundle_index, action.number_of_slots
            )
        except Exception as error:  # whatever the new process raised while it started
            raise TaskExecutorStartError(f"{type(error).__name__}: {error}") from error

    def task_executor_registered(self, group_id: WorkerGroupId, bundle_index: int) -> None:
        """Stop watching a registered TaskExecutor, which the ResourceManager now watches."""
        started = self._groups.get(group_id)
        start = started.starts.pop(bundle_index, None) if started is not None else None
        if start is not None:
            start.registered()

    def stop_task_executor(self, resource_id: ResourceID) -> None:
        self._endpoint.create_task(self._stop_quietly(resource_id), f"stop {resource_id}")

    # why a start takes so long

    async def pending_groups(self) -> dict[int, str]:
        """Return (request number -> why its group is not placed yet, in the provider's words)."""
        pending = {
            request.number: request.group.group_id
            for request in self._requests.values()
            if request.group is not None and not request.cancelled
        }
        return {
            number: await self._driver.describe_placement(group_id)
            for number, group_id in pending.items()
        }

    async def groups_placed_anew(self) -> dict[WorkerGroupId, str]:
        """Return, for each group that has lost a node and waits for another, why it is not placed
        yet, in the provider's words."""
        waiting = [
            group_id
            for group_id, started in self._groups.items()
            if any(start.is_waiting_for_placement for start in started.starts.values())
        ]
        return {group_id: await self._driver.describe_placement(group_id) for group_id in waiting}
