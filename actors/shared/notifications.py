"""Sends notifications: one message without waiting for an answer, or many small notifications in
few messages."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from flinkray.core.errors import FlinkRayError, FrameTooLargeError
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)

T = TypeVar("T")


class BatchedSender(Generic[T]):
    """Sends items in batches, one message at a time.
    Items that are added while a message is under way go with the next message. So the order is
    preserved, and a busy receiver gets fewer messages. A batch that is too large for one message is
    sent in several messages.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        send: Callable[[tuple[T, ...]], Awaitable[None]],
        most: int,
        shortened: Callable[[T], T],
    ) -> None:
        """Create a sender that runs on *endpoint*'s main thread.

        Args:
            send: sends one message and returns when the next message may be sent. After a
                FrameTooLargeError the items are sent in smaller messages. Any other error ends the
                endpoint.
            most: the largest number of items in one message.
            shortened: returns a shorter version of an item that is too large for one message.
        """
        self._endpoint = endpoint
        self._send = send
        self._most = most
        self._shortened = shortened
        self._waiting: list[T] = []
        self._is_sending = False
        self._added = self._sent = 0
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, things: Iterable[T]) -> None:
        """Queue items to be sent after everything that was added before."""
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
            await self._send_in_parts(batch)
            self._sent += len(batch)
            while self._callbacks and self._callbacks[0][0] <= self._sent:
                self._callbacks.popleft()[1]()
        self._is_sending = False

    async def _send_in_parts(self, batch: tuple[T, ...]) -> None:
        try:
            await self._send(batch)
        except FrameTooLargeError as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._send_in_parts(batch[:middle])
                await self._send_in_parts(batch[middle:])
                return
            short = self._shortened(batch[0])
            if short == batch[0]:
                log.error(
                    "%s: %r is too large to be sent, and is dropped: %s",
                    self._endpoint.address,
                    short,
                    error,
                )
                return
            log.warning(
                "%s: a report is sent without details, which are too large: %s",
                self._endpoint.address,
                error,
            )
            await self._send_in_parts((short,))

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call *callback* when everything that was added before has been sent."""
        if self._added == self._sent:
            callback()
        else:
            self._callbacks.append((self._added, callback))


def tell(endpoint: RpcEndpoint, message: Coroutine[Any, Any, None], to: str) -> None:
    """Send *message* in the background on the endpoint's main thread. Does not wait for an answer.
    *to* names the receiver in log lines. An error is only logged: the watch or the heartbeats of
    the receiver report that it is lost.
    """

    async def send() -> None:
        try:
            await message
        except FlinkRayError as error:
            log.info("%s could not be told: %s", to, error)

    task = endpoint.create_task(send(), f"message to {to}")
    # in case the task was dropped before it began
    task.add_done_callback(lambda _: message.close())
