"""Waiting for what another process does, where nothing tells when it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INTERVAL = 0.05


def wait_until(condition: Callable[[], T], timeout: float, what: str) -> T:
    """Ask *condition* again and again until it is true; returns what it returned.

    Args:
        timeout: seconds.
        what: completes "waited 10 s for …".

    Raises:
        AssertionError: it was not true in time.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {value!r}")
        pause.wait(_INTERVAL)
