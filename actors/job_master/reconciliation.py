"""Collects reports of TaskExecutors while a JobMaster takes over, before it makes decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import AllocationID, JobID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint, TerminationWatch
from flinkray.scheduler.shared.taking_over import TaskExecutorReport

log = logging.getLogger(__name__)


_ASK_AGAIN = 1.0
"""Seconds until a TaskExecutor that has not registered is asked again."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A TaskExecutor whose report is awaited: it has not reported, and is not known to be dead."""

    watch: TerminationWatch
    asking: asyncio.Task[None]


class Reconciliation:
    """Collects the reports of TaskExecutors while a JobMaster takes over a job.

    Lives on the JobMaster's main thread. Other events are held back, and processed in their order
    once the JobMaster has decided which tasks continue.
    """

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId], job_id: JobID) -> None:
        self._job_master = job_master
        self._job_id = job_id
        self._reports: dict[ResourceID, TaskExecutorReport] = {}
        self._expected: dict[ResourceID, _Expected] = {}
        self._all_there: asyncio.Future[None] | None = None
        self._silent: list[ResourceID] = []
        """TaskExecutors that may live, but gave no report or were lost after their report."""
        self._held: list[Callable[[], None]] = []
        self._decided: asyncio.Future[None] = job_master.rpc_service.loop.create_future()

    # --- what comes meanwhile ---------------------------------------------------------------------

    @property
    def is_decided(self) -> bool:
        """Whether the JobMaster has decided which tasks continue.
        Until then events are held back.
        """
        return self._decided.done()

    async def decided(self) -> None:
        """Return when the JobMaster has decided which tasks continue."""
        await asyncio.shield(self._decided)

    def when_decided(self, happen: Callable[[], None]) -> None:
        """Call *happen* now, or once the decision is made.
        Held calls run in their order, before later events.
        """
        if self.is_decided:
            happen()
        else:
            self._held.append(happen)

    def is_over(self) -> None:
        """End the reconciliation, because the JobMaster has decided which tasks continue.
        The events that were held back are processed now.
        """
        held, self._held = self._held, []
        self._decided.set_result(None)
        for happen in held:
            happen()

    # --- reports ----------------------------------------------------------------------------------

    def reported(self, report: TaskExecutorReport) -> None:
        """Note the report of a TaskExecutor, in place of its earlier report.
        It is not awaited any more.
        """
        resource_id = report.location.resource_id
        self._reports[resource_id] = report
        self._expect_no_more(resource_id)

    def lost(self, resource_id: ResourceID) -> None:
        """Drop the report of a lost TaskExecutor. It counts as silent from now on."""
        if self._reports.pop(resource_id, None) is not None:
            self._silent.append(resource_id)

    def allocations(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """Return the allocations of the slots that the TaskExecutor has reported."""
        report = self._reports.get(resource_id)
        return () if report is None else tuple(slot.allocation_id for slot in report.slots)

    @property
    def reports(self) -> tuple[TaskExecutorReport, ...]:
        """All reports of TaskExecutors that have arrived so far."""
        return tuple(self._reports.values())

    @property
    def all_have_answered(self) -> bool:
        """Whether the tasks and slots of all TaskExecutors are known.
        False if a TaskExecutor did not answer in time, or was lost after its report.
        """
        return not self._silent

    async def all_reported(
        self, places: Mapping[ResourceID, str], patience: float, longest: float
    ) -> None:
        """Return when each TaskExecutor has reported, has nothing of the job, or is given up.
        A TaskExecutor is given up if it is dead, or silent for too long. The TaskExecutors are
        asked to register, so that neither Dispatcher nor ResourceManager is needed.

        Args:
            places: addresses of the TaskExecutors.
            patience: seconds to wait for a TaskExecutor that does not answer.
            longest: seconds to wait for a TaskExecutor that answers but does not register.
        """
        for resource_id, address in places.items():
            if resource_id not in self._reports and resource_id not in self._expected:
                self._expect(resource_id, address, patience)
        if self._expected:
            self._all_there = self._job_master.rpc_service.loop.create_future()
            with suppress(asyncio.TimeoutError):
                await self._job_master.rpc_service.deadlines.within(longest, self._all_there)
        for resource_id in tuple(self._expected):
            log.warning("%s answers, and does not report what it has", resource_id)
            self._silent.append(resource_id)
            self._expect_no_more(resource_id)

    def _expect(self, resource_id: ResourceID, address: str, patience: float) -> None:
        def is_dead(reason: str) -> None:
            log.info("%s is not waited for: %s", resource_id, reason)
            self._expect_no_more(resource_id)

        watch = self._job_master.watch(address, is_dead)
        asking = self._job_master.create_task(
            self._keep_asking(resource_id, address, patience), f"ask {resource_id} what it has"
        )
        self._expected[resource_id] = _Expected(watch, asking)

    async def _keep_asking(self, resource_id: ResourceID, address: str, patience: float) -> None:
        """Ask a TaskExecutor to register, until it says that it has no slots of the job.
        Gives up after *patience* seconds without an answer. A report ends this task.
        """
        now = self._job_master.counted_time
        answered_at = now()
        while (left := answered_at + patience - now()) > 0:
            try:
                asked = self._ask(address)
                has_slots = await self._job_master.rpc_service.deadlines.within(left, asked)
            except (FlinkRayError, asyncio.TimeoutError) as error:
                log.info("%s is asked again what it has: %s", resource_id, error)
            else:
                answered_at = now()
                if not has_slots:
                    break
            await self._job_master.rpc_service.pause(_ASK_AGAIN)
        else:
            log.warning("%s does not answer: it is not waited for", resource_id)
            self._silent.append(resource_id)
        self._expect_no_more(resource_id)

    async def _ask(self, address: str) -> bool:
        master = self._job_master
        executor = await master.connect(address, TaskExecutorGateway)
        return await executor.take_over_job(self._job_id, master.address, master.fencing_token)

    def _expect_no_more(self, resource_id: ResourceID) -> None:
        expected = self._expected.pop(resource_id, None)
        if expected is not None:
            expected.watch.cancel()
            expected.asking.cancel()
            if not self._expected and self._all_there is not None and not self._all_there.done():
                self._all_there.set_result(None)
