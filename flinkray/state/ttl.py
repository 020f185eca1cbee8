"""Time to live: when a stored value counts as expired."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from flinkray.core.durations import Duration, Time, milliseconds

if TYPE_CHECKING:
    from datetime import timedelta


class UpdateType(Enum):
    """What renews a value."""

    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class StateVisibility(Enum):
    """Whether an expired value that is still there may be seen."""

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class TtlTimeCharacteristic(Enum):
    """Time to live counts processing time only."""

    ProcessingTime = 0


@dataclass(frozen=True)
class IncrementalCleanupStrategy:
    """How expired values are looked for while state is in use."""

    cleanup_size: int
    for_every_record: bool

    def get_cleanup_size(self) -> int:
        """Values that are looked at for each access to the state."""
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        """Whether as many are looked at for each record as well."""
        return self.for_every_record


@dataclass(frozen=True)
class RocksdbCompactFilterCleanupStrategy:
    """Kept for PyFlink's programs: expired values are looked for as with other backends."""

    query_time_after_num_entries: int
    periodic_compaction_time: Duration | None = None

    def get_query_time_after_num_entries(self) -> int:
        """After how many entries the time is read again."""
        return self.query_time_after_num_entries

    def get_periodic_compaction_time(self) -> Duration:
        """How old files become before they are compacted; 30 days by default."""
        return self.periodic_compaction_time or Duration.of_days(30)


class _Strategies:
    """PyFlink's programs write ``StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy``."""

    IncrementalCleanupStrategy = IncrementalCleanupStrategy
    RocksdbCompactFilterCleanupStrategy = RocksdbCompactFilterCleanupStrategy


@dataclass(frozen=True)
class CleanupStrategies(_Strategies):
    """Where expired values are removed besides on access.

    What is set has an effect even if cleanup in the background is disabled.
    """

    full_snapshot: bool = False
    background: bool = True
    incremental: IncrementalCleanupStrategy | None = None
    rocksdb: RocksdbCompactFilterCleanupStrategy | None = None

    def in_full_snapshot(self) -> bool:
        """Whether snapshots leave out what is expired."""
        return self.full_snapshot

    def is_cleanup_in_background(self) -> bool:
        """False if it was disabled."""
        return self.background

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
        """What was set, or five values for each access in the background."""
        default = IncrementalCleanupStrategy(5, False) if self.background else None
        return self.incremental or default

    def get_rocksdb_compact_filter_cleanup_strategy(
        self,
    ) -> RocksdbCompactFilterCleanupStrategy | None:
        """What was set, or 1,000 entries in the background."""
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
        """Leave what is expired out of snapshots."""
        self._full_snapshot = True
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool
    ) -> StateTtlConfigBuilder:
        """How many values are looked at for each access to the state, and whether for each record
        as well.  Time alone has them looked at, too."""
        if cleanup_size < 0:
            raise ValueError(f"cleanup_size must not be negative, got {cleanup_size}")
        self._incremental = IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int,
        periodic_compaction_time: Duration | None = None,
    ) -> StateTtlConfigBuilder:
        """Accepted for PyFlink's programs: without effect."""
        self._rocksdb = RocksdbCompactFilterCleanupStrategy(
            query_time_after_num_entries, periodic_compaction_time
        )
        return self

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Remove what is expired on access only, unless :meth:`cleanup_incrementally` is called."""
        self._background = False
        return self

    def set_ttl(self, ttl: Time | Duration | timedelta | int) -> StateTtlConfigBuilder:
        """Another time to live.

        Raises:
            ValueError: it is not positive.
        """
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
    """PyFlink's programs write ``StateTtlConfig.UpdateType``."""

    UpdateType = UpdateType
    StateVisibility = StateVisibility
    TtlTimeCharacteristic = TtlTimeCharacteristic
    CleanupStrategies = CleanupStrategies
    Builder = StateTtlConfigBuilder


@dataclass(frozen=True)
class StateTtlConfig(_Names):
    """How long values live; made by :meth:`new_builder`.

    Expired values are removed when they are accessed; those that nobody accesses are looked for in
    the background.  Values of list state expire one by one, and so do the entries of map state.
    """

    ttl: int
    """Milliseconds; a value expires ``ttl`` after it was last renewed."""
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    ttl_time_characteristic: TtlTimeCharacteristic = TtlTimeCharacteristic.ProcessingTime
    cleanup_strategies: CleanupStrategies = field(default_factory=CleanupStrategies)

    @staticmethod
    def new_builder(ttl: Time | Duration | timedelta | int) -> StateTtlConfigBuilder:
        """Start a configuration with that time to live."""
        return StateTtlConfigBuilder(ttl)

    def get_ttl(self) -> Time:
        """How long values live."""
        return Time(self.ttl)

    def get_update_type(self) -> UpdateType:
        """What renews a value."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Whether expired values may be seen."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """Always processing time."""
        return self.ttl_time_characteristic

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Where expired values are removed besides on access."""
        return self.cleanup_strategies

    def is_enabled(self) -> bool:
        """False where nothing expires."""
        return self.update_type is not UpdateType.Disabled
