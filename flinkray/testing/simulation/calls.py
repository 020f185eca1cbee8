"""Observes the calls that endpoints handle, and their senders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.serving import base_service, dispatch
from flinkray.rpc.serving.dispatch import HandlerCall
from flinkray.rpc.wire.envelope import unpack_request
from flinkray.testing.simulation.link import End
from flinkray.testing.simulation.process import SimulatedProcess


@dataclass(eq=False, slots=True)
class ObservedCall:
    """Describes a call that an endpoint handles, and its sender."""

    sender: SimulatedProcess
    receiver: SimulatedProcess
    endpoint: RpcEndpoint
    method: str
    arguments: tuple[Any, ...]
    frame: bytes | memoryview
    """The frame that carried the call."""

    @property
    def token(self) -> bytes | None:
        """The caller's fencing token in encoded form. None: the call has no token."""
        return unpack_request(self.frame)[5]


class CallObserver:
    """Base class of observers of calls. Its methods are called in the process that handles the
    call, in the same step of the simulation, and do nothing here."""

    def begins(self, call: ObservedCall) -> None:
        """Called before the handler of *call* runs."""

    def began(self, call: ObservedCall) -> None:
        """Called when the handler of *call* has returned or raised, or waits for the first time."""

    def succeeded(self, call: ObservedCall, result: object) -> None:
        """Called when the handler of *call* has returned *result*, before the answer is sent."""


@contextmanager
def observed_calls(observer: CallObserver) -> Iterator[None]:
    """Context manager: call the methods of *observer* for all calls that endpoints handle in the
    block."""

    class Server(dispatch.ServerConnection):
        def frame_received(self, frame: bytes | memoryview) -> None:
            self.frame = frame
            super().frame_received(frame)

    class Observed(HandlerCall):
        """A handler's call that reports its beginning and its success to the observer."""

        __slots__ = ("seen",)

        def __init__(self, connection: Server, endpoint: RpcEndpoint, *rest: Any) -> None:
            super().__init__(connection, endpoint, *rest)
            end = connection._transport
            receiver = asyncio.get_running_loop()
            assert isinstance(receiver, SimulatedProcess)
            self.seen = ObservedCall(
                end.peer.process if isinstance(end, End) else receiver,
                receiver,
                endpoint,
                self.method.name,
                self._arguments,
                connection.frame,
            )

        def begin(self) -> Any:
            observer.begins(self.seen)
            try:
                return super().begin()
            finally:
                observer.began(self.seen)

        def succeeded(self, result: object) -> None:
            observer.succeeded(self.seen, result)
            super().succeeded(result)

    with (
        patch.object(dispatch, "HandlerCall", Observed),
        patch.object(base_service, "ServerConnection", Server),
    ):
        yield
