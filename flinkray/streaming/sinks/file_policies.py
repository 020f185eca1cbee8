"""When a file sink begins a new file, and in which folder a record's file is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.errors import StreamError

DEFAULT_PART_SIZE = 128 << 20
"""Bytes (Flink's DefaultRollingPolicy, as the two below)."""
DEFAULT_INTERVAL = 60_000
BUCKET_CHECK_INTERVAL = 60_000
"""Milliseconds between two looks at the ages of files."""


@dataclass(frozen=True)
class RollingPolicy:
    """When a file is followed by a new one, besides every checkpoint; None: not for that reason.

    Ages are looked at in intervals (``bucket_check_interval``), so a file may get older by one.

    >>> RollingPolicy.default_rolling_policy(part_size=1 << 30).rollover_interval
    60000
    >>> RollingPolicy.on_checkpoint_rolling_policy()
    RollingPolicy(part_size=None, rollover_interval=None, inactivity_interval=None)
    """

    part_size: int | None = None
    """Bytes that a file has reached."""
    rollover_interval: int | None = None
    """Milliseconds since the file was begun."""
    inactivity_interval: int | None = None
    """Milliseconds since it was written to."""

    def __post_init__(self) -> None:
        for limit in (self.part_size, self.rollover_interval, self.inactivity_interval):
            if limit is not None and limit <= 0:
                raise StreamError(f"limits of a rolling policy must be positive, got {limit}")

    @staticmethod
    def default_rolling_policy(
        part_size: int = DEFAULT_PART_SIZE,
        rollover_interval: int | Duration | Time = DEFAULT_INTERVAL,
        inactivity_interval: int | Duration | Time = DEFAULT_INTERVAL,
    ) -> RollingPolicy:
        """By size, age and inactivity."""
        return RollingPolicy(
            part_size, milliseconds(rollover_interval), milliseconds(inactivity_interval)
        )

    @staticmethod
    def on_checkpoint_rolling_policy() -> RollingPolicy:
        """With checkpoints only."""
        return RollingPolicy()

    def is_full(self, size: int) -> bool:
        """Whether a file of that size is followed by a new one."""
        return self.part_size is not None and size >= self.part_size

    def is_due(self, age: int, inactive: int) -> bool:
        """Whether a file of that age (milliseconds) is."""
        too_old = self.rollover_interval is not None and age >= self.rollover_interval
        forgotten = self.inactivity_interval is not None and inactive >= self.inactivity_interval
        return too_old or forgotten

    @property
    def looks_at_time(self) -> bool:
        return self.rollover_interval is not None or self.inactivity_interval is not None


class BucketContext:
    """What a bucket assigner is told besides the record; milliseconds."""

    __slots__ = ("_now", "_timestamp", "_watermark")

    def __init__(self, now: int, watermark: int) -> None:
        self._now = now
        self._watermark = watermark
        self._timestamp: int | None = None

    def at(self, timestamp: int | None) -> BucketContext:
        """The same for the next record."""
        self._timestamp = timestamp
        return self

    def current_processing_time(self) -> int:
        return self._now

    def current_watermark(self) -> int:
        return self._watermark

    def timestamp(self) -> int | None:
        """The record's event time."""
        return self._timestamp


class BucketAssigner(ABC):
    """Says in which folder below the sink's (its *bucket*) a record is written.

    >>> BucketAssigner.date_time_bucket_assigner("yyyy/MM/dd", "UTC").get_bucket_id(
    ...     None, BucketContext(now=1_388_534_400_000, watermark=0)
    ... )
    '2014/01/01'
    """

    @abstractmethod
    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        """A relative path; empty: the sink's own folder."""

    def bucket_of_batch(self, context: BucketContext) -> str | None:
        """The bucket of all records of a batch, if it does not depend on them."""
        return None

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Everything in the sink's own folder."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> BucketAssigner:
        """By the processing time at which a record is written, in Java's notation; without a time
        zone in that of the machine."""
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    """Everything in one folder."""

    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return ""

    def bucket_of_batch(self, context: BucketContext) -> str | None:
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """By processing time; see :meth:`BucketAssigner.date_time_bucket_assigner`."""

    def __init__(self, format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> None:
        self._format = _strftime(format_str)
        self._zone_name = timezone_id
        self._zone()

    def _zone(self) -> tzinfo | None:
        if self._zone_name is None:
            return None
        if self._zone_name == "UTC":
            return timezone.utc
        try:
            return ZoneInfo(self._zone_name)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise StreamError(f"unknown time zone {self._zone_name!r}") from error

    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        moment = datetime.fromtimestamp(context.current_processing_time() / 1000, self._zone())
        return moment.strftime(self._format)

    def bucket_of_batch(self, context: BucketContext) -> str | None:
        return self.get_bucket_id(None, context)


_FIELDS = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


_PATTERN = re.compile(r"(?P<field>(?P<letter>[A-Za-z])(?P=letter)*)|'(?P<quoted>[^']*)'|%")


def _strftime(java: str) -> str:
    """Java's notation for dates, numbers only, in Python's."""

    def translated(match: re.Match[str]) -> str:
        field, quoted = match["field"], match["quoted"]
        if field is None:
            literal = "%" if quoted is None else quoted or "'"
            return literal.replace("%", "%%")
        if field not in _FIELDS:
            raise StreamError(
                f"cannot read {field!r} in the date format {java!r}; there are "
                f"{', '.join(_FIELDS)}, and text in single quotes"
            )
        return _FIELDS[field]

    return _PATTERN.sub(translated, java)
