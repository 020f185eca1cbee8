"""The deaths of a job's JobMasters, and whether another one is started."""

from __future__ import annotations

from collections import deque

from flinkray.actors.shared.settings import job_master_restart_strategy
from flinkray.core.config import Configuration
from flinkray.core.options import (
    JOB_MASTER_FAILOVER_VALIDITY_INTERVAL,
    MAX_JOB_MASTER_FAILOVERS,
)
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.reports.job_info import ExceptionEntry

_DEATHS_KEPT = 16
"""As many as a JobMaster keeps of its job's failures."""


class JobMasterDeaths:
    """Those that this Dispatcher knows of.  They age: a job ends when there are too many within an
    interval, not when there were so many in its life."""

    def __init__(self, configuration: Configuration) -> None:
        self.count = 0
        """In the job's life, for people."""
        self.last: deque[ExceptionEntry] = deque(maxlen=_DEATHS_KEPT)
        self._restarts = new_restart_strategy(job_master_restart_strategy(configuration))
        self._most = configuration.get(MAX_JOB_MASTER_FAILOVERS)
        self._interval = configuration.get(JOB_MASTER_FAILOVER_VALIDITY_INTERVAL)

    def one_more(self, reason: str, at: float, now: float) -> str | None:
        """Why the job ends with this death; None: another JobMaster may be started.

        *at* in seconds since the epoch, *now* in monotonic ones.
        """
        self.count += 1
        self.last.append(ExceptionEntry(at, f"the JobMaster died: {reason}"))
        self._restarts.notify_failure(now)
        if self._restarts.can_restart():
            return None
        how_often = f"{self._most + 1} times within {self._interval:g} s" if self._most else "once"
        return (
            f"its JobMaster died {how_often}, the last time: {reason}. Its log says what killed "
            "it; jobmaster.max-failovers and jobmaster.failover-validity-interval say how often "
            "it may die"
        )
