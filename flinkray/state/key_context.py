"""Which key state and timers are about at the moment."""

from __future__ import annotations

from typing import Any

from flinkray.state.errors import StateError


class _NoKey:
    """Refuses every look into a table, or into timers, by having no hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise StateError(
            "keyed state and timers belong to a key, and there is none here: use them where a "
            "record of the keyed stream or a timer is handled, not in open() or "
            "process_broadcast_element()"
        )


NO_KEY: Any = _NoKey()


class KeyContext:
    """The key that state is about now; for state of windows the pair of key and window."""

    __slots__ = ("key",)

    def __init__(self, key: Any = NO_KEY) -> None:
        self.key = key
