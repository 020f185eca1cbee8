"""Polls for many keys together at a bounded rate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_PAUSE = 4.0
"""Factor by which the pause after a look is longer than the look itself."""


class SharedPoll(Generic[K, V]):
    """Calls *look* again and again, with all keys that callers wait for, until each has an answer.

    The calls take at most a fifth of the time: after a call that takes one second, the next call
    begins four seconds later.
    """

    def __init__(
        self,
        look: Callable[[tuple[K, ...]], Awaitable[Mapping[K, V]]],
        *,
        shortest_pause: float,
        now: Callable[[], float],
    ) -> None:
        """Create a poll that looks only while callers wait.
        *look* gets all awaited keys, and returns answers for those that have one. *shortest_pause*
        is in seconds, *now* returns monotonic seconds.
        """
        self._look = look
        self._shortest_pause = shortest_pause
        self._now = now
        self._waiting: dict[K, list[asyncio.Future[V]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def answer_for(self, key: K) -> V:
        """Wait until *look* returns an answer for the key, and return the answer.
        Raises the error of *look* if it fails.
        """
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._keep_looking())
        try:
            return await future
        finally:
            self._leave(key, future)

    def _leave(self, key: K, future: asyncio.Future[V]) -> None:
        futures = self._waiting[key]
        futures.remove(future)
        if not futures:
            del self._waiting[key]
        if not self._waiting and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _keep_looking(self) -> None:
        while True:
            begun = self._now()
            keys = tuple(self._waiting)
            try:
                answers = await self._look(keys)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
                for key in keys:
                    for future in self._waiting.get(key, ()):
                        if not future.done():
                            future.set_exception(error)
            else:
                for key, answer in answers.items():
                    for future in self._waiting.get(key, ()):
                        if not future.done():
                            future.set_result(answer)
            took = self._now() - begun
            await asyncio.sleep(max(self._shortest_pause, _PAUSE * took))
