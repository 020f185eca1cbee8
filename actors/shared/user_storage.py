"""Runs operations on storage that users have named and that may never answer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from flinkray.checkpoint.errors import StorageHangsError
from flinkray.rpc import RpcService

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds without an answer after which the storage counts as hanging."""
MOST_THREADS = 16


@dataclass(slots=True, eq=False)
class _Work:
    function: Callable[[str], Any]
    location: str
    deadline: float
    answer: asyncio.Future[Any]


class UserStorage:
    """Runs operations in its own threads.
    Lives on an endpoint's main thread.

    If a mount hangs, opening a file blocks for ever, and nothing can end the thread. So these
    threads are separate from the threads that the process needs for its other work. A call for an
    operation that is already under way joins that operation. An operation that finds no free thread
    waits.
    """

    def __init__(self, rpc_service: RpcService) -> None:
        self._service = rpc_service
        self._known: dict[tuple[Callable[[str], Any], str], _Work] = {}
        """Operations that have not ended, even if nobody waits for them any more."""
        self._queued: deque[_Work] = deque()
        self._threads = 0

    async def run(self, function: Callable[[str], T], location: str) -> T:
        """Call *function* for the location in a thread and return the result.

        Raises:
            StorageHangsError: the storage has not answered for :data:`PATIENCE` seconds. The
                operation continues in its thread.
        """
        if not self._service.has_threads:
            return await self._service.run_blocking(function, location)
        loop = self._service.loop
        work = self._known.get((function, location))
        if work is None:
            deadline = loop.time() + PATIENCE
            work = _Work(function, location, deadline, loop.create_future())
            self._known[function, location] = work
            self._queued.append(work)
            self._begin()
        await asyncio.wait([work.answer], timeout=max(0.0, work.deadline - loop.time()))
        if not work.answer.done():
            raise StorageHangsError(
                location,
                f"its storage has not answered for {PATIENCE:g} s: does it hang, or is it away? "
                "Mend that (a stale mount?), or name another place",
            )
        answer: T = work.answer.result()
        return answer

    def _begin(self) -> None:
        while self._queued and self._threads < MOST_THREADS:
            work = self._queued.popleft()
            self._threads += 1
            name = f"storage of users: {work.function.__name__}"
            threading.Thread(target=self._call, args=(work,), name=name, daemon=True).start()

    def _call(self, work: _Work) -> None:
        answer, error = None, None
        try:
            answer = work.function(work.location)
        except Exception as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with suppress(RuntimeError):  # the process is ending
            self._service.loop.call_soon_threadsafe(self._ended, work, answer, error)

    def _ended(self, work: _Work, answer: Any, error: Exception | None) -> None:
        self._threads -= 1
        del self._known[work.function, work.location]
        if error is None:
            work.answer.set_result(answer)
        else:
            work.answer.set_exception(error)
            work.answer.exception()  # mark the error as seen: perhaps nobody waits any more
        self._begin()
