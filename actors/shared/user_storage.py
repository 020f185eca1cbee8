"""Work on storage that users have named, which may never answer."""

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
"""Seconds until storage is told to hang."""
MOST_THREADS = 16


@dataclass(slots=True, eq=False)
class _Work:
    function: Callable[[str], Any]
    location: str
    deadline: float
    answer: asyncio.Future[Any]


class UserStorage:
    """Lives on an endpoint's main thread, and has threads of its own.

    Where a mount hangs, opening a file blocks for ever, and nothing ends the thread that does it.
    So these are apart from those of the process, which its other work needs; work that is under way
    already is joined, however often it is asked for; and work that finds no thread free waits.
    """

    def __init__(self, rpc_service: RpcService) -> None:
        self._service = rpc_service
        self._known: dict[tuple[Callable[[str], Any], str], _Work] = {}
        """Until it has ended, also when nobody waits for it any more."""
        self._queued: deque[_Work] = deque()
        self._threads = 0

    async def run(self, function: Callable[[str], T], location: str) -> T:
        """What the function answers for that location; it is called in a thread.

        Raises:
            StorageHangsError: it has not answered for :data:`PATIENCE` seconds.  It goes on.
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
        with suppress(RuntimeError):  # the process ends
            self._service.loop.call_soon_threadsafe(self._ended, work, answer, error)

    def _ended(self, work: _Work, answer: Any, error: Exception | None) -> None:
        self._threads -= 1
        del self._known[work.function, work.location]
        if error is None:
            work.answer.set_result(answer)
        else:
            work.answer.set_exception(error)
            work.answer.exception()  # perhaps nobody waits any more
        self._begin()
