"""Tells JobMasters why slots are missing, whenever the reasons change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from flinkray.actors.resource_manager.driver import ResourceManagerDriver
from flinkray.actors.resource_manager.registrations import Members
from flinkray.actors.resource_manager.worker_lifecycle import WorkerLifecycle
from flinkray.core.ids import JobID
from flinkray.rpc import RpcEndpoint, TimerHandle
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.shared.slots import ResourceShortage

Shortages = tuple[ResourceShortage, ...]

REFRESH_INTERVAL = 1.0
"""Seconds between two looks for shortages. Ray itself tries to place groups about as often."""
SHORTEST_INTERVAL = 0.1
"""Shortest time in seconds between two looks, while many events happen."""


class ShortageReporter:
    """Reports shortages of slots to JobMasters. Looks for shortages only while slots are missing.

    A shortage that no node could ever end is reported at once, other shortages after ``delay``
    seconds.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        slot_manager: SlotManager,
        driver: ResourceManagerDriver,
        launcher: WorkerLifecycle,
        members: Members,
        notify: Callable[[JobID, Shortages], None],
        delay: float,
    ) -> None:
        self._endpoint = endpoint
        self._slot_manager = slot_manager
        self._driver = driver
        self._launcher = launcher
        self._members = members
        self._notify = notify
        self._delay = delay
        self._is_looking = False
        self._changed = False
        """Whether slots have changed since the last look began."""
        self._next_look: TimerHandle | None = None
        self._last_look = -inf
        self._short_since: dict[JobID, float] = {}
        self._told: dict[JobID, Shortages] = {}

    def slots_changed(self) -> None:
        """Look for shortages again, soon. Must be called after every event of the SlotManager."""
        self._changed = True
        if not self._is_looking and (self._slot_manager.has_shortage or self._short_since):
            now = self._endpoint.clock.monotonic()
            self._look_after(max(0.0, self._last_look + SHORTEST_INTERVAL - now))

    @property
    def jobs_short(self) -> int:
        """The number of jobs that were short of slots when this object last looked for
        shortages."""
        return len(self._short_since)

    def _look_after(self, delay: float) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._endpoint.schedule_run_async(delay, self._look)

    def forget(self, job_id: JobID) -> None:
        """Drop what was reported for a job that has lost its JobMaster.

        The next JobMaster is sent all shortages, each after the usual delay.
        """
        self._short_since.pop(job_id, None)
        self._told.pop(job_id, None)

    async def _look(self) -> None:
        self._is_looking, self._changed, self._next_look = True, False, None
        cluster = replace(
            await self._driver.cluster_resources(),
            pending_groups=await self._launcher.pending_groups(),
            groups=await self._launcher.groups_placed_anew(),
        )
        now = self._last_look = self._endpoint.clock.monotonic()
        next_look = REFRESH_INTERVAL
        for job_id in tuple(self._members.job_masters):
            shortages = self._slot_manager.shortages(job_id, now, cluster)
            if not shortages:
                self._short_since.pop(job_id, None)
                if self._told.pop(job_id, None):
                    self._notify(job_id, ())
                continue
            due = self._short_since.setdefault(job_id, now) + self._delay
            if any(shortage.unfulfillable for shortage in shortages) or now >= due:
                if shortages != self._told.get(job_id):
                    self._told[job_id] = shortages
                    self._notify(job_id, shortages)
            else:
                next_look = min(next_look, max(SHORTEST_INTERVAL, due - now))
        self._is_looking = False
        if self._short_since:
            self._look_after(next_look)
        if self._changed:
            self.slots_changed()
