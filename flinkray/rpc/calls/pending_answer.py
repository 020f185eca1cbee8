"""What a connection knows of a request until its answer is here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import RpcTimeoutError
from flinkray.rpc.calls.metrics import MethodRecorder

if TYPE_CHECKING:
    from flinkray.rpc.calls.connection import ClientConnection


class PendingAnswer:
    """A request that waits for its answer."""

    __slots__ = (
        "_connection",
        "_recorder",
        "_sequence",
        "begun",
        "future",
        "is_over",
        "timeout",
        "what",
    )

    def __init__(
        self,
        connection: ClientConnection,
        sequence: int,
        what: str,
        timeout: float | None,
        begun: float,
        future: asyncio.Future[Any],
        recorder: MethodRecorder,
    ) -> None:
        self._connection = connection
        self._recorder = recorder
        self._sequence = sequence
        self.what = what
        """How errors name the call."""
        self.timeout = timeout
        self.begun = begun
        """In the loop's time."""
        self.future = future
        """Only until it is done: deadlines keep this object for longer than its caller."""
        self.is_over = False

    def expire(self) -> None:
        self.fail(RpcTimeoutError(f"{self.what}: no answer within {self.timeout:g} s"))

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self.is_over = True
        self._connection.forget(self._sequence)

    def answered(self, at: float) -> None:
        self.is_over = True
        seconds = at - self.begun
        self._recorder.seconds += seconds
        self._recorder.buckets[int(seconds * 1e6).bit_length()] += 1

    def succeed(self, value: object) -> None:
        self.future.set_result(value)
        del self.future

    def fail(self, error: Exception) -> None:
        self.give_up()
        if not self.future.done():
            self._recorder.failures += 1
            self.future.set_exception(error)
        del self.future


class Resolution(PendingAnswer):
    """A request for an endpoint's number, which is followed from the moment the answer is here.

    Not when its caller runs again: the notice of the endpoint's end may come before.
    """

    __slots__ = ()

    def succeed(self, value: object) -> None:
        match value:
            case (int(number), str()):
                self._connection.followed.add(number)
        super().succeed(value)
