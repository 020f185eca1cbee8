"""Points in time of keyed state: while they are taken, and as they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.serializers import SerializerSnapshot


class TableSnapshot(NamedTuple):
    """What one table held, or what had changed in it."""

    kind: str
    namespaced: bool
    whole: bool
    """Everything; else what changed since the snapshot before."""
    groups: Mapping[int, bytes]
    """Key group -> frames (:mod:`flinkray.state.serializers`)."""
    serializer: SerializerSnapshot
    """Of these frames."""


class ColumnarSnapshot(NamedTuple):
    """The same of a columnar table."""

    kind: str
    namespaced: bool
    whole: bool
    """Everything; else what changed since the snapshot before."""
    removed: int | None
    """What the snapshots before have of namespaces up to this one is gone (where there are no
    namespaces, everything), before what this one has comes."""
    groups: Mapping[int, bytes]
    """Key group -> frames (:mod:`flinkray.state.columnar_snapshots`)."""
    pickled: tuple[str, ...] = ()
    """Types of keys that nothing but pickle covers."""


@dataclass(frozen=True)
class KeyedSnapshot:
    """A point in time of the keyed state of one subtask."""

    key_groups: KeyGroupRange
    """Those that the subtask had."""
    tables: Mapping[str, TableSnapshot]
    timers: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    """Queue -> key group -> its timers, always all of them."""
    columns: Mapping[str, ColumnarSnapshot] = field(default_factory=dict)
    """By name."""


class StateCapture(ABC):
    """A point in time that is not written yet; the task goes on meanwhile.

    It costs memory for what changes after it, until it is written or released.

    Args:
        is_whole: everything is in it; else what had changed since the capture that was named.
    """

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole

    @abstractmethod
    def write(self) -> KeyedSnapshot:
        """Serialise it; from any thread, once."""

    @abstractmethod
    def release(self) -> None:
        """Nobody is going to write it; from any thread."""
