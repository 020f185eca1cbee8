"""The current key of state and timers."""

from __future__ import annotations

from typing import Any

from flinkray.state.errors import StateError


class _NoKey:
    """Stands for "no key"; has no hash, so every access to a table or timers with it fails."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise StateError(
            "keyed state and timers belong to a key, and there is none here: use them where a "
            "record of the keyed stream or a timer is handled, not in open() or "
            "process_broadcast_element()"
        )


NO_KEY: Any = _NoKey()


class KeyContext:
    """Holds the key that handles of state and timers use now, in *key*.
    For state of windows, *key* is the pair (key, window)."""

    __slots__ = ("key",)

    def __init__(self, key: Any = NO_KEY) -> None:
        self.key = key
