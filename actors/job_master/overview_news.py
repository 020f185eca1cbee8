"""Tells the Dispatcher when the overview of a job that it remembers is outdated."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.reports.job_info import NumberedOverview


class OverviewNews:
    """Numbers the overviews of a job. Lives on the JobMaster's main thread.

    The Dispatcher may keep an overview until the JobMaster reports a greater number. Only the first
    change after an overview was sent is reported: it makes all sent overviews outdated.
    """

    def __init__(self, scheduler: JobScheduler, tell: Callable[[int], None]) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._number = 0
        self._given: Hashable | None = None
        """State of the newest sent overview. None: the Dispatcher knows that it must ask again."""

    @property
    def number(self) -> int:
        """The number of the present overview.
        Overviews with a smaller number are outdated. Heartbeats report the number too, because
        messages may be lost.
        """
        self.changed()
        return self._number

    def give(self) -> NumberedOverview:
        """Return the present overview for the Dispatcher, with its number.
        Remember that it was sent.
        """
        self.changed()
        self._given = self._scheduler.overview_state
        return NumberedOverview(self._number, self._scheduler.overview())

    def changed(self) -> None:
        """Report to the Dispatcher if the job's state differs from the overview that was sent last.
        Call this after each event.
        """
        if self._given is not None and self._given != self._scheduler.overview_state:
            self._given = None
            self._number += 1
            self._tell(self._number)
