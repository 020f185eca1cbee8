"""Asking again and again about many things, at a bounded rate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_PAUSE = 4.0
"""As many times as a look took it pauses before the next one."""


class SharedPoll(Generic[K, V]):
    """Looks after all that somebody waits for by one look at a time.

    However many there are, looking takes a fifth of the time: a look at a thousand that takes a
    second is followed by one after four seconds.
    """

    def __init__(
        self,
        look: Callable[[tuple[K, ...]], Awaitable[Mapping[K, V]]],
        *,
        shortest_pause: float,
        now: Callable[[], float],
    ) -> None:
        """*look* answers for those keys of which there is something to say.  *shortest_pause* in
        seconds; *now* in monotonic seconds."""
        self._look = look
        self._shortest_pause = shortest_pause
        self._now = now
        self._waiting: dict[K, list[asyncio.Future[V]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def answer_for(self, key: K) -> V:
        """Returns when a look has an answer for the key.

        Raises:
            whatever a look has raised.
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
