"""Time to live: determines when a stored value is expired."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from flinkray.core.durations import Duration, Time, milliseconds

if TYPE_CHECKING:
    from datetime import timedelta


class UpdateType(Enum):
    """Says which accesses begin a value's time to live anew."""

    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class StateVisibility(Enum):
    """Says whether a program may read an expired value as long as the value is not removed."""

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class TtlTimeCharacteristic(Enum):
    """The kind of time that decides when values expire: always processing time."""

    ProcessingTime = 0


@dataclass(frozen=True)
class IncrementalCleanupStrategy:
    """Says how many values are examined for expiry at each access to the state."""

    cleanup_size: int
    for_every_record: bool

    def get_cleanup_size(self) -> int:
        """Return the number of values that are examined for each access to the state."""
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        """Return whether :meth:`get_cleanup_size` values are examined for each record, too."""
        return self.for_every_record


@dataclass(frozen=True)
class RocksdbCompactFilterCleanupStrategy:
    """Accepted for PyFlink programs, without effect: expired values are removed as with any
    other backend."""

    query_time_after_num_entries: int
    periodic_compaction_time: Duration | None = None

    def get_query_time_after_num_entries(self) -> int:
        """Return the number of entries after which the time is read again."""
        return self.query_time_after_num_entries

    def get_periodic_compaction_time(self) -> Duration:
        """Return the age at which old files are compacted; 30 days by default."""
        return self.periodic_compaction_time or Duration.of_days(30)


class _Strategies:
    """Makes names such as ``StateTtlConfig.CleanupStrategies`` work, as in PyFlink."""

    IncrementalCleanupStrategy = IncrementalCleanupStrategy
    RocksdbCompactFilterCleanupStrategy = RocksdbCompactFilterCleanupStrategy


@dataclass(frozen=True)
class CleanupStrategies(_Strategies):
    """Says when expired values are removed, in addition to their removal on access.
    A strategy that the program has set works even if cleanup in the background is disabled."""

    full_snapshot: bool = False
    background: bool = True
    incremental: IncrementalCleanupStrategy | None = None
    rocksdb: RocksdbCompactFilterCleanupStrategy | None = None

    def in_full_snapshot(self) -> bool:
        """Return whether snapshots leave out expired values."""
        return self.full_snapshot

    def is_cleanup_in_background(self) -> bool:
        """Return whether cleanup in the background is enabled."""
        return self.background

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
        """Return the strategy that was set; by default five values for each access.
        None if none was set and cleanup in the background is disabled."""
        default = IncrementalCleanupStrategy(5, False) if self.background else None
        return self.incremental or default

    def get_rocksdb_compact_filter_cleanup_strategy(
        self,
    ) -> RocksdbCompactFilterCleanupStrategy | None:
        """Return the strategy that was set; by default one with 1,000 entries.
        None if none was set and cleanup in the background is disabled."""
        default = RocksdbCompactFilterCleanupStrategy(1000) if self.background else None
        return self.rocksdb or default


class StateTtlConfigBuilder:
    """Builds a :class:`StateTtlConfig`; each call returns the builder."""

    def __init__(self, ttl: Time | Duration | timedelta | int) -> None:
        self.set_ttl(ttl)
        self._update_type = UpdateType.OnCreateAndWrite
        self._visibility = StateVisibility.NeverReturnExpired
        self._full_snapshot = False
        self._background = True
        self._incremental: IncrementalCleanupStrategy | None = None
        self._rocksdb: RocksdbCompactFilterCleanupStrategy | None = None

    def set_update_type(self, update_type: UpdateType) -> StateTtlConfigBuilder:
        self._update_type = update_type
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnReadAndWrite)

    def set_state_visibility(self, visibility: StateVisibility) -> StateTtlConfigBuilder:
        self._visibility = visibility
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, characteristic: TtlTimeCharacteristic
    ) -> StateTtlConfigBuilder:
        if characteristic is not TtlTimeCharacteristic.ProcessingTime:
            raise ValueError(f"time to live counts processing time, not {characteristic!r}")
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        return self.set_ttl_time_characteristic(TtlTimeCharacteristic.ProcessingTime)

    def cleanup_full_snapshot(self) -> StateTtlConfigBuilder:
        """Leave expired values out of snapshots."""
        self._full_snapshot = True
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool
    ) -> StateTtlConfigBuilder:
        """Set how many values are examined for each access to the state, or also for each record.
        Values are examined as time passes, too."""
        if cleanup_size < 0:
            raise ValueError(f"cleanup_size must not be negative, got {cleanup_size}")
        self._incremental = IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int,
        periodic_compaction_time: Duration | None = None,
    ) -> StateTtlConfigBuilder:
        """Accepted for PyFlink programs; has no effect."""
        self._rocksdb = RocksdbCompactFilterCleanupStrategy(
            query_time_after_num_entries, periodic_compaction_time
        )
        return self

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Remove expired values on access only, unless :meth:`cleanup_incrementally` is called."""
        self._background = False
        return self

    def set_ttl(self, ttl: Time | Duration | timedelta | int) -> StateTtlConfigBuilder:
        """Set the time to live. Raises ValueError if the time is not positive."""
        self._ttl = milliseconds(ttl)
        if self._ttl <= 0:
            raise ValueError(f"time to live must be positive, got {self._ttl} ms")
        return self

    def build(self) -> StateTtlConfig:
        return StateTtlConfig(
            self._ttl,
            self._update_type,
            self._visibility,
            cleanup_strategies=CleanupStrategies(
                self._full_snapshot, self._background, self._incremental, self._rocksdb
            ),
        )


class _Names:
    """Makes names like ``StateTtlConfig.UpdateType`` work, as in PyFlink."""

    UpdateType = UpdateType
    StateVisibility = StateVisibility
    TtlTimeCharacteristic = TtlTimeCharacteristic
    CleanupStrategies = CleanupStrategies
    Builder = StateTtlConfigBuilder


@dataclass(frozen=True)
class StateTtlConfig(_Names):
    """The time to live of a state's values, and how expired values are treated.

    Build a configuration with :meth:`new_builder`. Expired values are removed when they are
    accessed. Expired values that are not accessed are searched for in the background. Elements of
    list state expire one by one, and so do entries of map state.
    """

    ttl: int
    """Time to live in milliseconds; a value expires this long after its last renewal."""
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    ttl_time_characteristic: TtlTimeCharacteristic = TtlTimeCharacteristic.ProcessingTime
    cleanup_strategies: CleanupStrategies = field(default_factory=CleanupStrategies)

    @staticmethod
    def new_builder(ttl: Time | Duration | timedelta | int) -> StateTtlConfigBuilder:
        """Return a builder of a configuration with that time to live."""
        return StateTtlConfigBuilder(ttl)

    def get_ttl(self) -> Time:
        """Return the time to live."""
        return Time(self.ttl)

    def get_update_type(self) -> UpdateType:
        """Return which accesses renew a value."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Return whether expired values may be seen."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """Return the time characteristic, which is always processing time."""
        return self.ttl_time_characteristic

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Return when expired values are removed, in addition to removal on access."""
        return self.cleanup_strategies

    def is_enabled(self) -> bool:
        """Return whether values expire at all; False with ``UpdateType.Disabled``."""
        return self.update_type is not UpdateType.Disabled
