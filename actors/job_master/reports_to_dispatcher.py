"""Tells the Dispatcher when the overview of a job that it remembers is outdated, and how the job
has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    JobNotFoundError,
    JobStateError,
)
from flinkray.core.ids import JobMasterId
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.reports.job_info import JobDetails, JobResult, NumberedOverview


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
        """Return the job's present overview with its number, to be sent to the Dispatcher."""
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


log = logging.getLogger(__name__)

_RETRY_DELAY = 0.5
"""Seconds between two attempts to report the end."""


async def report_end(
    services: ClusterServices, job_master_id: JobMasterId, result: JobResult, details: JobDetails
) -> bool:
    """Report the job's end to the Dispatcher, repeatedly until the leading Dispatcher has stored it
    (returns True) or refuses it (returns False).

    If the message is too large, it is repeated with fewer and fewer details, then with shortened
    texts.
    """
    job_id = result.job_id
    job = f"job {job_id} ({result.name})"
    reductions = details.reductions()
    while True:
        try:
            dispatcher = await services.connect_to_dispatcher()
            await dispatcher.job_reached_terminal_state(job_id, job_master_id, result, details)
            return True
        except FrameTooLargeError as error:
            log.warning("%s: the report of its end has fewer details: %s", job, error)
            smaller = next(reductions, None)
            if smaller is not None:
                details = smaller
                continue
            result = result.shortened()
        except (JobNotFoundError, JobStateError) as error:
            log.warning("%s: the Dispatcher refuses the report of its end: %s", job, error)
            return False
        except FlinkRayError as error:
            log.warning("%s: cannot report its end yet: %s", job, error)
        await services.rpc_service.pause(_RETRY_DELAY)
