"""A peer whose frames the test makes itself, and a receiver that keeps what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import (
    CONTROL_LANE,
    MAX_FRAME_SIZE,
    PROTOCOL_VERSION,
    Envelope,
    Kind,
    frame_of,
    unpack,
)
from flinkray.rpc.wire.fragments import FRAGMENT_BIT, FRAGMENT_HEAD, LENGTH
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.transport import FrameReceiver, Transport


class Wire(Transport):
    """Keeps what is sent and asked for; is congested or busy when the test says so."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.lanes: list[int | None] = []
        self.story: list[str] = []
        self.is_busy = False
        self.may_send = asyncio.Event()
        self.may_send.set()

    def attach(self, receiver: FrameReceiver) -> None:
        """The test hands over the frames."""

    def send(self, frame: bytes, lane: int | None = None) -> None:
        self.frames.append(frame)
        self.lanes.append(lane)

    @property
    def has_unsent(self) -> bool:
        return self.is_busy

    @property
    def is_congested(self) -> bool:
        return not self.may_send.is_set()

    async def drain(self) -> None:
        await self.may_send.wait()

    def pause_reading(self) -> None:
        self.story.append("pause")

    def resume_reading(self) -> None:
        self.story.append("resume")

    def close(self) -> None:
        self.story.append("close")

    def break_off(self, reason: str) -> None:
        self.story.append(f"break off: {reason}")


class Peer:
    """Sends requests, numbered upwards for each target, and reads the answers."""

    def __init__(self, service: BaseRpcService, identity: str = "peer#1") -> None:
        self.wire = Wire()
        self.connection = service.new_peer(self.wire, identity)
        self._numbers: dict[int, int] = {}

    def send(
        self,
        kind: Kind,
        target: int = CONTROL_LANE,
        method: str = "",
        payload: object = (),
        *,
        sequence: int | None = None,
        token: bytes | None = None,
        timeout: float | None = None,
        encoded: bytes | None = None,
    ) -> int:
        """Returns the size of the frame.  *encoded* goes in the place of the payload."""
        if sequence is None:
            sequence = self._numbers.get(target, 0) + 1
        self._numbers[target] = sequence
        encoded = codec.encode(payload) if encoded is None else encoded
        parts = (
            PROTOCOL_VERSION, int(kind), sequence, target, method, token, timeout, None, encoded,
        )  # fmt: skip
        frame = frame_of(parts, MAX_FRAME_SIZE)
        frame = frame if isinstance(frame, bytes) else b"".join(frame)
        self.connection.frame_received(frame)
        return len(frame)

    def ask(self, target: int, method: str, *arguments: object, **options: Any) -> int:
        return self.send(Kind.ASK, target, method, arguments, **options)

    def tell(self, target: int, method: str, *arguments: object, **options: Any) -> int:
        return self.send(Kind.TELL, target, method, arguments, **options)

    def resolve(self, endpoint_id: str, gateway: object = None, target: int = CONTROL_LANE) -> None:
        self.send(Kind.RESOLVE, target, endpoint_id, gateway)

    def take(self) -> list[tuple[Kind, int, Any]]:
        """Kind, number and value of what came since the last time; the number of a notice is that
        of the endpoint."""
        frames, self.wire.frames = self.wire.frames, []
        return [_read(unpack(frame)) for frame in frames]

    def take_error(self) -> BaseException:
        """Of the only answer that came."""
        ((kind, _, error),) = self.take()
        assert kind is Kind.ERROR
        assert isinstance(error, BaseException)
        return error


def _read(envelope: Envelope) -> tuple[Kind, int, Any]:
    number = envelope.target if envelope.kind is Kind.TERMINATED else envelope.sequence
    return envelope.kind, number, codec.decode(envelope.payload)


class Recorder:
    """A receiver that keeps what it gets; with *then*, does that with each frame."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.story: list[bytes | str] = []
        self.then = then

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.story.append(bytes(frame))
        if self.then is not None:
            self.then()

    def frame_refused(self, reason: str) -> None:
        self.story.append(f"refused: {reason}")

    def connection_lost(self, reason: str) -> None:
        self.story.append(reason)


def came(stream: FrameStream, data: bytes) -> None:
    """Pass *data* to *stream* as the event loop does with bytes that a socket has received."""
    while data:
        buffer = stream.get_buffer(-1)
        now, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(now)] = now
        stream.buffer_updated(len(now))


def framed(frame: bytes) -> bytes:
    return LENGTH.pack(len(frame)) + frame


def fragment(number: int, total: int, body: bytes, length: int | None = None) -> bytes:
    size = FRAGMENT_HEAD.size + len(body) if length is None else length
    return LENGTH.pack(FRAGMENT_BIT | size) + FRAGMENT_HEAD.pack(number, total) + body
