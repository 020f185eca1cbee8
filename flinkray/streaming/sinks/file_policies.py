"""Policies of file sinks: when a new file begins, and in which folder a record is written."""

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
"""Bytes. This default and the two below are those of Flink's DefaultRollingPolicy."""
DEFAULT_INTERVAL = 60_000
BUCKET_CHECK_INTERVAL = 60_000
"""Milliseconds between two checks of the ages of files."""


@dataclass(frozen=True)
class RollingPolicy:
    """Says when a sink begins a new file, besides at every checkpoint.
    None in a field: this limit does not exist.

    Ages are checked at intervals (``bucket_check_interval``).

    >>> RollingPolicy.default_rolling_policy(part_size=1 << 30).rollover_interval
    60000
    >>> RollingPolicy.on_checkpoint_rolling_policy()
    RollingPolicy(part_size=None, rollover_interval=None, inactivity_interval=None)
    """

    part_size: int | None = None
    """Largest size of a file in bytes."""
    rollover_interval: int | None = None
    """Longest time in milliseconds since the file was begun."""
    inactivity_interval: int | None = None
    """Longest time in milliseconds since the last write."""

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
        """Return a policy that begins new files by size, age and inactivity."""
        return RollingPolicy(
            part_size, milliseconds(rollover_interval), milliseconds(inactivity_interval)
        )

    @staticmethod
    def on_checkpoint_rolling_policy() -> RollingPolicy:
        """Return a policy that begins new files only at checkpoints."""
        return RollingPolicy()

    def is_full(self, size: int) -> bool:
        """Return whether *size* bytes have reached the limit, so that a new file begins."""
        return self.part_size is not None and size >= self.part_size

    def is_due(self, age: int, inactive: int) -> bool:
        """Return whether a file must be closed because it is too old, or was not written for too
        long. *age*, *inactive*: milliseconds since the file was begun and since its last record."""
        too_old = self.rollover_interval is not None and age >= self.rollover_interval
        forgotten = self.inactivity_interval is not None and inactive >= self.inactivity_interval
        return too_old or forgotten

    @property
    def looks_at_time(self) -> bool:
        return self.rollover_interval is not None or self.inactivity_interval is not None


class BucketContext:
    """Tells a bucket assigner the times that belong to a record, in milliseconds."""

    __slots__ = ("_now", "_timestamp", "_watermark")

    def __init__(self, now: int, watermark: int) -> None:
        self._now = now
        self._watermark = watermark
        self._timestamp: int | None = None

    def at(self, timestamp: int | None) -> BucketContext:
        """Set the event time of the next record (None: it has none), and return this context."""
        self._timestamp = timestamp
        return self

    def current_processing_time(self) -> int:
        return self._now

    def current_watermark(self) -> int:
        return self._watermark

    def timestamp(self) -> int | None:
        """Return the event time of the record. None: the record has no event time."""
        return self._timestamp


class BucketAssigner(ABC):
    """Chooses the folder (*bucket*) below the sink's folder for each record.

    >>> BucketAssigner.date_time_bucket_assigner("yyyy/MM/dd", "UTC").get_bucket_id(
    ...     None, BucketContext(now=1_388_534_400_000, watermark=0)
    ... )
    '2014/01/01'
    """

    @abstractmethod
    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        """Return the bucket as a relative path. Empty: the sink's own folder."""

    def bucket_of_batch(self, context: BucketContext) -> str | None:
        """Return the bucket for all records of a batch. None: the bucket depends on the record."""
        return None

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Return an assigner that puts all records into the sink's own folder."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> BucketAssigner:
        """Return an assigner that names buckets by the processing time of the write.
        The format is in Java's notation. Without a time zone, the machine's zone is used."""
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    """Puts all records into one folder."""

    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return ""

    def bucket_of_batch(self, context: BucketContext) -> str | None:
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """Chooses the bucket by processing time (:meth:`BucketAssigner.date_time_bucket_assigner`)."""

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
    """Return the date format *java*, in Java's notation (numbers only), in Python's notation."""

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
