"""Telling the Dispatcher when what it remembers of a job's overview holds no more."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.reports.job_info import NumberedOverview


class OverviewNews:
    """Lives on the JobMaster's main thread.

    Whoever is given an overview may keep it until he is told of a greater number: once for all
    that were given since the change before.  So a job costs nothing while nobody looks, and one
    that does not change costs nothing while many do.
    """

    def __init__(self, scheduler: JobScheduler, tell: Callable[[int], None]) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._number = 0
        self._given: Hashable | None = None
        """What the newest overview shows that was given; None: the Dispatcher knows, or was told,
        that it must ask."""

    @property
    def number(self) -> int:
        """Overviews with a smaller one hold no more.  Is told by heartbeats, too, since what is
        told may be lost."""
        self.changed()
        return self._number

    def give(self) -> NumberedOverview:
        """To who asks."""
        self.changed()
        self._given = self._scheduler.overview_state
        return NumberedOverview(self._number, self._scheduler.overview())

    def changed(self) -> None:
        """Something may have; to be called after each event."""
        if self._given is not None and self._given != self._scheduler.overview_state:
            self._given = None
            self._number += 1
            self._tell(self._number)
