"""Offers a TaskExecutor's slots to the SlotPools of their jobs, and compares the slots with the
lists in the JobMasters' heartbeats (TM-16)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flinkray.actors.gateways import JobMasterGateway, SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_address
from flinkray.actors.gateways.messages import AllocatedSlotReport
from flinkray.actors.task_executor.job_connections import JobLeaderService
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import AllocationID, JobID, JobMasterId
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.slots import SlotOfferAnswer, WorkerLocation
from flinkray.scheduler.task_slots.task_slot_table import (
    Offering,
    SlotDifference,
    SlotTableAction,
    TaskSlotTable,
)

log = logging.getLogger(__name__)

OFFER_RETRY_DELAY = 0.2
"""Seconds until slots that the SlotPool could not take are offered again."""


class SlotOffering:
    """Offers slots, with one offer at a time per job. Lives on the endpoint's main thread."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        location: WorkerLocation,
        table: TaskSlotTable,
        job_leaders: JobLeaderService,
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        self._endpoint = endpoint
        self._location = location
        self._table = table
        self._job_leaders = job_leaders
        self._carry_out = carry_out
        self._offering: set[JobID] = set()

    def offer(self, job_id: JobID) -> None:
        """Begin to offer the job's unused slots, if the job's JobMaster is registered here."""
        if job_id not in self._offering and self._job_leaders.job_master(job_id) is not None:
            self._offering.add(job_id)
            self._endpoint.create_task(self._keep_offering(job_id), f"offer slots to job {job_id}")

    async def _keep_offering(self, job_id: JobID) -> None:
        """Offer the job's unused slots repeatedly, until the SlotPool has answered (TM-13) or the
        JobMaster is lost."""
        try:
            while True:
                master = self._job_leaders.job_master(job_id)
                offering = self._table.offer_slots(job_id)
                if master is None or offering is None:
                    return
                try:
                    answer = await self._answer(master, offering)
                except FlinkRayError as error:
                    log.info("job %s did not take its slots yet: %s", job_id, error)
                    await self._endpoint.rpc_service.pause(OFFER_RETRY_DELAY)
                    continue
                now = self._endpoint.counted_time()
                self._carry_out(self._table.offer_answered(offering, answer.accepted, now))
        finally:
            self._offering.discard(job_id)

    async def _answer(self, master: JobMasterGateway, offering: Offering) -> SlotOfferAnswer:
        """Offer the slots to the SlotPool of *master*, and return its answer."""
        token = master.fencing_token
        assert isinstance(token, JobMasterId)
        address = slot_pool_address(offering.job_id, token)
        pool = await self._endpoint.connect(address, SlotPoolGateway, token)
        return await pool.offer_slots(self._location, offering.offers)


class SlotComparison:
    """Finds slots that only the TaskExecutor or only the JobMaster knows.
    A slot that only the TaskExecutor knows is found when it is missing in two lists of the
    JobMaster in a row. One list may be late: the JobMaster may have just accepted the slot.
    """

    def __init__(self, table: TaskSlotTable) -> None:
        self._table = table
        self._missed: dict[JobID, frozenset[AllocationID]] = {}
        """Active slots that the JobMaster's last heartbeat did not list."""

    def compare(self, report: AllocatedSlotReport) -> SlotDifference:
        """Compare the slots here with the JobMaster's list. Returns the slots that only one side
        knows: the caller reports those that only the JobMaster knows to it as failed, and frees the
        others."""
        difference = self._table.compare_with_job_master(report.job_id, report.allocations)
        missed = frozenset(difference.unknown_there)
        twice = missed & self._missed.get(report.job_id, frozenset())
        self._missed[report.job_id] = missed
        return SlotDifference(difference.unknown_here, tuple(sorted(twice)))

    def forget(self, job_id: JobID) -> None:
        """Drop the earlier lists for a job that has no slot here any more."""
        self._missed.pop(job_id, None)
