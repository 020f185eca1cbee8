"""Telling somebody of many things in few messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from flinkray.rpc import RpcEndpoint

T = TypeVar("T")

MOST_STATES = 200
"""Task states in one message: with the longest texts they have, it stays below the frame size."""


class Batches(Generic[T]):
    """Sends one message at a time: what comes up meanwhile goes together with the next.  So the
    order is kept, and the busier the receiver, the fewer the messages."""

    def __init__(
        self, endpoint: RpcEndpoint, send: Callable[[tuple[T, ...]], Awaitable[None]], most: int
    ) -> None:
        """*send* returns when the next message may go; what it raises ends the endpoint.  *most*:
        things in one message."""
        self._endpoint = endpoint
        self._send = send
        self._most = most
        self._waiting: list[T] = []
        self._is_sending = False
        self._added = self._sent = 0
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, things: Iterable[T]) -> None:
        """To be told after all that was added before."""
        before = len(self._waiting)
        self._waiting += things
        self._added += len(self._waiting) - before
        if self._waiting and not self._is_sending:
            self._is_sending = True
            self._endpoint.create_task(self._keep_sending(), "send a batch")

    async def _keep_sending(self) -> None:
        while self._waiting:
            batch = tuple(self._waiting[: self._most])
            del self._waiting[: self._most]
            await self._send(batch)
            self._sent += len(batch)
            while self._callbacks and self._callbacks[0][0] <= self._sent:
                self._callbacks.popleft()[1]()
        self._is_sending = False

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call it when all that was added before has been sent."""
        if self._added == self._sent:
            callback()
        else:
            self._callbacks.append((self._added, callback))
