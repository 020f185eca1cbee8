"""Frames that come again, as no socket brings them, but whatever carries frames might."""

from __future__ import annotations

import pytest

from flinkray.rpc import LocalRpcService
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, Kind, frame_of, unpack
from flinkray.rpc.wire.transport import MemoryTransport
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint


class Answers:
    """The receiver of a peer that makes its frames itself."""

    def __init__(self) -> None:
        self.sequences: list[int] = []

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.sequences.append(unpack(frame).sequence)

    def frame_refused(self, reason: str) -> None:
        raise AssertionError(reason)

    def connection_lost(self, reason: str) -> None:
        """When the service closes."""


def note(kind: Kind, sequence: int, target: int) -> bytes:
    payload = codec.encode((sequence,))
    parts = (PROTOCOL_VERSION, int(kind), sequence, target, "note", None, None, None, payload)
    frame = frame_of(parts, 1000)
    assert isinstance(frame, bytes)
    return frame


@pytest.mark.parametrize("kind", [Kind.ASK, Kind.TELL])
@on_virtual_time
async def test_frame_that_is_repeated_or_late_is_refused_for_its_endpoint(
    kind: Kind,
) -> None:
    service = LocalRpcService("host")
    first, second = EchoEndpoint(service, "first"), EchoEndpoint(service, "second")
    first.start()
    second.start()
    near, far = MemoryTransport.pair(service.loop)
    peer = service.new_peer(far, "peer#1")
    far.attach(peer)
    answers = Answers()
    near.attach(answers)
    for sequence, target in [(1, 1), (1, 1), (4, 1), (3, 1), (4, 1), (2, 2), (5, 1), (2, 2)]:
        peer.frame_received(note(kind, sequence, target))
    # a new connection begins a new order
    other_near, other_far = MemoryTransport.pair(service.loop)
    other = service.new_peer(other_far, "peer#1")
    other.frame_received(note(kind, 1, 1))
    await service.close()
    assert first.seen == [1, 4, 5, 1]
    assert second.seen == [2]
    assert service.refused_frames == 4
    assert sorted(answers.sequences) == ([1, 2, 4, 5] if kind is Kind.ASK else [])
    other_near.break_off("the test is over")
