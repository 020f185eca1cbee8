"""How a JobMaster that takes over learns what runs, before it decides on anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from flinkray.core.ids import AllocationID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint, TerminationWatch
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import TaskExecutorReport

log = logging.getLogger(__name__)


class Reconciliation:
    """Lives on the JobMaster's main thread.

    Collects the reports of TaskExecutors.  Whatever else happens meanwhile is kept in its order,
    and happens when it is decided what goes on.
    """

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId]) -> None:
        self._job_master = job_master
        self._reports: dict[ResourceID, TaskExecutorReport] = {}
        self._expected: dict[ResourceID, TerminationWatch] = {}
        """Those that have not reported, and are not known to be dead."""
        self._all_there: asyncio.Future[None] | None = None
        self._held: list[Callable[[], None]] = []
        self._decided: asyncio.Future[None] = job_master.rpc_service.loop.create_future()

    # --- what comes meanwhile ---------------------------------------------------------------------

    @property
    def is_decided(self) -> bool:
        """Whether this is over."""
        return self._decided.done()

    async def decided(self) -> None:
        """Return when it is."""
        await asyncio.shield(self._decided)

    def when_decided(self, happen: Callable[[], None]) -> None:
        """Now, or when it is decided: then in this order, and before anything that comes later."""
        if self.is_decided:
            happen()
        else:
            self._held.append(happen)

    def is_over(self) -> None:
        """It is decided: what was held happens now."""
        held, self._held = self._held, []
        self._decided.set_result(None)
        for happen in held:
            happen()

    # --- reports ----------------------------------------------------------------------------------

    def reported(self, report: TaskExecutorReport) -> None:
        """A TaskExecutor has registered; what it said before does not count any more."""
        resource_id = report.location.resource_id
        self._reports[resource_id] = report
        self._expect_no_more(resource_id)

    def lost(self, resource_id: ResourceID) -> None:
        """With whatever it has reported."""
        self._reports.pop(resource_id, None)

    def allocations(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """Of the slots that it has reported."""
        report = self._reports.get(resource_id)
        return () if report is None else tuple(slot.allocation_id for slot in report.slots)

    @property
    def reports(self) -> tuple[TaskExecutorReport, ...]:
        """All so far."""
        return tuple(self._reports.values())

    async def all_reported(self, places: Iterable[WorkerLocation], timeout: float) -> None:
        """Return when all of these have reported, or are known to be dead, or the time is over.

        Args:
            timeout: seconds.
        """
        for place in places:
            if place.resource_id not in self._reports and place.resource_id not in self._expected:
                self._expect(place)
        if self._expected:
            self._all_there = self._job_master.rpc_service.loop.create_future()
            await asyncio.wait([self._all_there], timeout=timeout)
        for resource_id, watch in self._expected.items():
            log.warning("%s does not report what it has: it is not waited for", resource_id)
            watch.cancel()
        self._expected.clear()

    def _expect(self, place: WorkerLocation) -> None:
        resource_id = place.resource_id

        def is_dead(reason: str) -> None:
            log.info("%s is not waited for: %s", resource_id, reason)
            self._expect_no_more(resource_id)

        self._expected[resource_id] = self._job_master.watch(place.address, is_dead)

    def _expect_no_more(self, resource_id: ResourceID) -> None:
        watch = self._expected.pop(resource_id, None)
        if watch is not None:
            watch.cancel()
            if not self._expected and self._all_there is not None and not self._all_there.done():
                self._all_there.set_result(None)
