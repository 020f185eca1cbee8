"""Reads an iterator in a thread, ahead of the task that takes the records."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

from flinkray.core.values import IMMUTABLE, own
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.sizes import bytes_of

AHEAD = 8192
"""Records that are read ahead."""

AHEAD_BYTES = 1 << 25
"""Approximate limit of the memory of records read ahead, in bytes."""

_MEASURED = 16
"""The size of every 16th record is measured, to estimate the memory of all."""


class ReadingThread:
    """Thread that reads an iterator ahead of its consumer, and makes and closes the iterator
    itself.
    *wake* is called from the thread when there is something to take after there was nothing."""

    def __init__(
        self, make_iterator: Callable[[], Iterator[Any]], wake: Callable[[], None]
    ) -> None:
        self._make_iterator = make_iterator
        self._wake = wake
        self._records: deque[Any] = deque()
        self._most = AHEAD
        self._room = threading.Event()
        self._found_nothing = False
        self._closed = False
        self._ended = False
        self._failure: BaseException | None = None
        threading.Thread(
            target=copy_context().run, args=(self._run,), name="flinkray-iterator", daemon=True
        ).start()

    def take(self, most: int) -> list[Any] | None:
        """Return up to *most* records that are ready; an empty list if none is ready now. None:
        there will be no more. Raises the iterator's exception, after all records that came before
        it."""
        ended = self._ended  # read first: records before the end are ready by then
        records = self._records
        taken = [records.popleft() for _ in range(min(most, len(records)))]
        if len(records) <= self._most // 2:
            self._room.set()
        if taken:
            return taken
        if ended:
            if self._failure is not None:
                raise self._failure
            return None
        self._found_nothing = True
        if records or self._ended:  # a record came in between, without a call of ``wake``
            self._wake()
        return []

    def close(self) -> None:
        """Stop reading. A thread that waits for the next record ends when that arrives."""
        self._closed = True
        self._room.set()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - raised again where records are taken
            self._failure = error
        self._ended = True
        self._wake()

    def _read(self) -> None:
        iterator, append = self._make_iterator(), self._records.append
        try:
            for number, value in enumerate(iterator):
                if number % _MEASURED == 0:
                    size = bytes_of(Block([value]))
                    self._most = max(1, min(AHEAD, AHEAD_BYTES // max(1, size)))
                append(value if type(value) in IMMUTABLE else own(value))
                if self._found_nothing:
                    self._found_nothing = False
                    self._wake()
                if len(self._records) >= self._most:
                    self._wait_for_room()
                if self._closed:
                    return
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _wait_for_room(self) -> None:
        self._room.clear()
        while len(self._records) >= self._most and not self._closed:
            self._room.wait()
            self._room.clear()
