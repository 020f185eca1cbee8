"""The transport that never leaves a process: what comes before somebody receives is not lost."""

from __future__ import annotations

import asyncio

from flinkray.rpc.wire.transport import MemoryTransport
from flinkray.testing.virtual_time import on_virtual_time


class Recorder:
    """A receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.story: list[bytes | str] = []

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.story.append(bytes(frame))

    def frame_refused(self, reason: str) -> None:
        raise AssertionError(reason)

    def connection_lost(self, reason: str) -> None:
        self.story.append(reason)


@on_virtual_time
async def test_frames_and_the_end_that_came_before_the_receiver_are_given_to_it() -> None:
    near, far = MemoryTransport.pair(asyncio.get_running_loop())
    far.attach(Recorder())
    far.send(b"one")
    far.send(b"two")
    await asyncio.sleep(1)
    far.close()
    await asyncio.sleep(1)
    receiver = Recorder()
    near.attach(receiver)
    await asyncio.sleep(1)
    assert receiver.story == [b"one", b"two", "the connection was closed by the other side"]


@on_virtual_time
async def test_an_end_by_force_that_came_before_the_receiver_is_told_to_it() -> None:
    near, far = MemoryTransport.pair(asyncio.get_running_loop())
    far.attach(Recorder())
    far.break_off("the process died")
    await asyncio.sleep(1)
    receiver = Recorder()
    near.attach(receiver)
    await asyncio.sleep(1)
    assert receiver.story == ["the process died"]
