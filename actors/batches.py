"""Telling somebody of many things in few messages."""

from __future__ import annotations

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

    def add(self, things: Iterable[T]) -> None:
        """To be told after all that was added before."""
        self._waiting += things
        if self._waiting and not self._is_sending:
            self._is_sending = True
            self._endpoint.create_task(self._keep_sending(), "send a batch")

    async def _keep_sending(self) -> None:
        while self._waiting:
            batch = tuple(self._waiting[: self._most])
            del self._waiting[: self._most]
            await self._send(batch)
        self._is_sending = False
