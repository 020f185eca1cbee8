"""What a Dispatcher remembers of what a JobMaster has said of its job."""

from __future__ import annotations

from flinkray.scheduler.reports.job_info import JobOverview, NumberedOverview


class RememberedOverview:
    """Of one JobMaster; of another, and when it registers anew, there is another one.

    An overview holds until the JobMaster tells of a greater number.  That may be lost, so it holds
    no longer than the JobMaster is heard, whose heartbeats tell the number, too.

    Times are monotonic seconds.
    """

    def __init__(self, lifetime: float, now: float) -> None:
        """*lifetime*: how long a JobMaster may be silent, in seconds."""
        self._lifetime = lifetime
        self._heard_at = now
        self._number = 0
        self._overview: JobOverview | None = None

    def heard(self, number: int, now: float) -> None:
        """The JobMaster lives; overviews with a smaller number hold no more."""
        self._heard_at = now
        if number > self._number:
            self._number, self._overview = number, None

    def answered(self, answer: NumberedOverview) -> None:
        """It was asked; that it holds no more may have come before the answer."""
        if answer.number >= self._number:
            self._number, self._overview = answer.number, answer.overview

    def get(self, now: float) -> JobOverview | None:
        """None: the JobMaster is to be asked."""
        return self._overview if now - self._heard_at <= self._lifetime else None
