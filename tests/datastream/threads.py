"""Nothing that runs may be left of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flinkray.testing.waiting import wait_until


@contextmanager
def none_left() -> Iterator[None]:
    """Waits at the end until all threads have ended that were not there at the beginning."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before]

    try:
        wait_until(lambda: not left(), 100, "all threads to end")
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {left()}") from None
