"""Watches that report once that an endpoint has terminated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from flinkray.core.errors import RpcError

if TYPE_CHECKING:
    from flinkray.rpc.calls.connection import ClientConnection


class TerminationWatch:
    """Calls a function once, with the reason, when an endpoint or a process ends, on the loop of
    the watching service. Methods marked "for services" are only called by an RpcService."""

    def __init__(self, address: str, on_terminated: Callable[[str], None]) -> None:
        self.address = address
        self._on_terminated: Callable[[str], None] | None = on_terminated
        self._on_end: Callable[[], None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the watch has neither fired nor been cancelled."""
        return self._on_terminated is not None

    def cancel(self) -> None:
        """Stop the watch: the callback is not called after this; idempotent."""
        self._on_terminated = None
        self._end()

    def fire(self, reason: str) -> None:
        """Report the end of the watched endpoint; for services.

        Has no effect if the watch was cancelled or has fired.
        """
        callback, self._on_terminated = self._on_terminated, None
        if callback is not None:
            self._end()
            callback(reason)

    def on_end(self, release: Callable[[], None]) -> None:
        """Call *release* when the watch fires or is cancelled; for services.

        If that has already happened, *release* is called at once.
        """
        if self.is_active:
            self._on_end = release
        else:
            release()

    async def keep(
        self,
        reached: Callable[[], Awaitable[tuple[ClientConnection, int]]],
        successor_of: Callable[[ClientConnection], ClientConnection],
    ) -> None:
        """Wait until the watched endpoint has ended, then :meth:`fire`; for services.

        *reached* connects and returns (connection, endpoint number). The number
        :data:`CONTROL_LANE` means that the whole process is watched. *successor_of* replaces a lost
        connection.
        """
        try:
            connection, number = await reached()
            while True:
                reason = await connection.until_end_of(number)
                if not connection.is_lost or connection.has_ended(number):
                    break
                connection = successor_of(connection)
        except RpcError as error:
            reason = str(error)
        self.fire(reason)

    def kept_by(self, task: asyncio.Task[None]) -> None:
        """Make *task*, which runs :meth:`keep`, part of this watch; for services. Cancelling the
        watch cancels *task*. If *task* fails, the watch fires."""

        def ended(task: asyncio.Task[None]) -> None:
            # better to notify the watcher too early than never
            if not task.cancelled() and task.exception() is not None:
                self.fire(f"watching it failed: {task.exception()!r}")

        def cancel() -> None:
            task.cancel()

        self.on_end(cancel)
        task.add_done_callback(ended)

    def _end(self) -> None:
        release, self._on_end = self._on_end, None
        if release is not None:
            release()
