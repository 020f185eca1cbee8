"""Time to live: when a stored value counts as expired."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from flinkray.core.durations import Duration, Time

from flinkray.core.durations import milliseconds


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
class CleanupStrategies:
    """Where expired values are removed besides on access."""

    in_full_snapshot: bool = False
    in_background: bool = True


class _Names:
    """PyFlink's programs write ``StateTtlConfig.UpdateType``."""

    UpdateType = UpdateType
    StateVisibility = StateVisibility
    TtlTimeCharacteristic = TtlTimeCharacteristic
    CleanupStrategies = CleanupStrategies


@dataclass(frozen=True)
class StateTtlConfig(_Names):
    """How long values live; made by :meth:`new_builder`.

    Expired values are removed when they are accessed.  Values of list state expire one by one, and
    so do the entries of map state.
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
        return StateTtlConfigBuilder(milliseconds(ttl))

    def get_ttl(self) -> int:
        """Milliseconds."""
        return self.ttl

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


class StateTtlConfigBuilder:
    """Builds a :class:`StateTtlConfig`; each call returns the builder."""

    def __init__(self, ttl: int) -> None:
        if ttl <= 0:
            raise ValueError(f"time to live must be positive, got {ttl} ms")
        self._ttl = ttl
        self._update_type = UpdateType.OnCreateAndWrite
        self._visibility = StateVisibility.NeverReturnExpired
        self._in_full_snapshot = False
        self._in_background = True

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
        self._in_full_snapshot = True
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool
    ) -> StateTtlConfigBuilder:
        """Accepted for PyFlink's programs; heap state removes what is expired on access."""
        if cleanup_size < 0:
            raise ValueError(f"cleanup_size must not be negative, got {cleanup_size}")
        self._in_background = True
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int,
        periodic_compaction_time: Time | Duration | None = None,
    ) -> StateTtlConfigBuilder:
        """Accepted for PyFlink's programs; there is no RocksDB."""
        return self

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        self._in_background = False
        return self

    def build(self) -> StateTtlConfig:
        return StateTtlConfig(
            self._ttl,
            self._update_type,
            self._visibility,
            cleanup_strategies=CleanupStrategies(self._in_full_snapshot, self._in_background),
        )
