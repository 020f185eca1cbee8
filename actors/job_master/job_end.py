"""Reports the end of a job to the Dispatcher."""

from __future__ import annotations

import logging

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    JobNotFoundError,
    JobStateError,
)
from flinkray.core.ids import JobMasterId
from flinkray.scheduler.reports.job_info import JobDetails, JobResult

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.5
"""Seconds between two attempts to report the end."""


async def report_end(
    services: ClusterServices, job_master_id: JobMasterId, result: JobResult, details: JobDetails
) -> bool:
    """Report the end until the leading Dispatcher has stored it or refuses it.
    Returns whether it is stored.

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
            log.warning("%s ends without all of its details: %s", job, error)
            smaller = next(reductions, None)
            if smaller is not None:
                details = smaller
                continue
            result = result.shortened()
        except (JobNotFoundError, JobStateError) as error:
            log.warning("%s: its end is not wanted any more: %s", job, error)
            return False
        except FlinkRayError as error:
            log.warning("%s: cannot report its end yet: %s", job, error)
        await services.rpc_service.pause(_RETRY_DELAY)
