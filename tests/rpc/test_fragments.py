"""Large frames among small ones."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections import Counter
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire.fragments import (
    FRAGMENT_BIT,
    FRAGMENT_HEAD,
    FRAGMENT_SIZE,
    LENGTH,
    MAX_LARGE_FRAMES,
    FragmentJoiner,
    FrameSplitter,
)
from flinkray.rpc.wire.frames import FrameStream
from tests.rpc.endpoints import EchoEndpoint, EchoGateway
from tests.rpc.peers import Recorder, came
from tests.rpc.sockets import Relay, joined

MEBIBYTE = 1_048_576
LIMIT = 10 * MEBIBYTE


def add(joiner: FragmentJoiner, fragment: bytes) -> bytes | None:
    """The large frame, once it is whole."""
    number, total = FRAGMENT_HEAD.unpack_from(fragment.ljust(FRAGMENT_HEAD.size))
    body = fragment[FRAGMENT_HEAD.size :]
    joiner.place_for(number, total, len(body))[:] = body
    frame = joiner.take(number)
    return None if frame is None else bytes(frame)


def arriving(stream: bytes, joiner: FragmentJoiner) -> list[bytes]:
    """The frames of a stream, in the order in which they are whole."""
    frames: list[bytes] = []
    position = 0
    while position < len(stream):
        (length,) = LENGTH.unpack_from(stream, position)
        begin = position + LENGTH.size
        position = begin + (length & ~FRAGMENT_BIT)
        frame: bytes | None = stream[begin:position]
        if length & FRAGMENT_BIT:
            frame = add(joiner, stream[begin:position])
        if frame is not None:
            frames.append(frame)
    return frames


def written(splitter: FrameSplitter, size: int = FRAGMENT_SIZE) -> bytes:
    """All that the splitter has, taken in portions."""
    stream = b""
    while splitter:
        stream += b"".join(splitter.take(size))
    assert splitter.small_bytes == splitter.large_bytes == 0
    return stream


sizes = st.integers(5, 200) | st.integers(FRAGMENT_SIZE - 2, 4 * FRAGMENT_SIZE)
lanes = st.none() | st.integers(0, 3)


@settings(deadline=None)
@given(
    st.lists(st.tuples(lanes, sizes, st.booleans()), max_size=25), st.integers(1, 3 * FRAGMENT_SIZE)
)
def test_frames_arrive_complete_and_in_order_within_each_lane(
    sent: list[tuple[int | None, int, bool]], portion: int
) -> None:
    splitter, joiner = FrameSplitter(), FragmentJoiner(LIMIT)
    by_lane: dict[int | None, list[bytes]] = {}
    stream = b""
    for number, (lane, size, write) in enumerate(sent):
        frame = struct.pack(">I", number) + bytes([number]) * (size - 4)
        by_lane.setdefault(lane, []).append(frame)
        splitter.put(frame, lane)
        if write:
            stream += b"".join(splitter.take(portion))
    stream += written(splitter, portion)
    arrived = arriving(stream, joiner)
    assert sorted(arrived) == sorted(frame for frames in by_lane.values() for frame in frames)
    for lane, frames in by_lane.items():
        if lane is not None:
            assert [frame for frame in arrived if frame in frames] == frames


def test_number_of_unfinished_large_frames_is_limited_and_small_ones_pass() -> None:
    splitter, joiner = FrameSplitter(), FragmentJoiner(LIMIT)
    for lane in range(3 * MAX_LARGE_FRAMES):
        splitter.put(bytes(3 * FRAGMENT_SIZE), lane)
    splitter.put(b"small", None)
    arrived = arriving(written(splitter), joiner)  # the joiner would refuse one too many
    assert len(arrived) == 3 * MAX_LARGE_FRAMES + 1
    assert arrived[0] == b"small"


def fragment(number: int, total: int, size: int) -> bytes:
    return struct.pack(">II", number, total) + bytes(size)


@pytest.mark.parametrize(
    ("fragments", "reason"),
    [
        ([b""], "without content"),
        ([b"\0" * 8], "without content"),
        ([fragment(1, LIMIT + 1, FRAGMENT_SIZE)], f"limit is {LIMIT}"),
        ([fragment(1, 100_000, 1)], "does not fit"),
        ([fragment(1, 100_000, FRAGMENT_SIZE), fragment(1, 100_001, 34_464)], "does not fit"),
        ([fragment(1, 100_000, FRAGMENT_SIZE)] * 2, "does not fit"),
        (
            [fragment(1, 100_000, FRAGMENT_SIZE), fragment(1, 200_000, FRAGMENT_SIZE)],
            "does not fit",
        ),
        ([fragment(1, 10, 11)], "does not fit"),
        ([fragment(1, 0, 1)], "does not fit"),
        (
            [fragment(n, 100_000, FRAGMENT_SIZE) for n in range(MAX_LARGE_FRAMES + 1)],
            f"more than {MAX_LARGE_FRAMES}",
        ),
    ],
)
def test_fragments_that_cannot_follow_each_other_are_refused_with_the_reason(
    fragments: list[bytes], reason: str
) -> None:
    joiner = FragmentJoiner(LIMIT)
    for one in fragments[:-1]:
        assert add(joiner, one) is None
    with pytest.raises(RpcConnectionError, match=reason):
        add(joiner, fragments[-1])


async def test_large_argument_does_not_delay_a_call_to_another_endpoint() -> None:
    relay = Relay(bytes_per_turn=16_384)
    async with joined(relay) as here:
        large, small = EchoEndpoint(here.host, "large"), EchoEndpoint(here.host, "small")
        large.start()
        small.start()
        to_large = await here.caller.connect(large.address, EchoGateway)
        to_small = await here.caller.connect(small.address, EchoGateway)
        answer = asyncio.ensure_future(to_large.echo(bytes(8 * MEBIBYTE)))
        behind = asyncio.ensure_future(to_large.notes())
        await relay.until(MEBIBYTE)
        assert await to_small.echo("ping") == "ping"
        assert relay.passed < 3 * MEBIBYTE
        assert not behind.done()
        assert await answer == bytes(8 * MEBIBYTE)
        assert await behind == ()
        assert here.host.refused_frames == here.connection.refused_frames == 0


async def test_large_answer_does_not_delay_a_small_answer() -> None:
    relay = Relay(bytes_per_turn=16_384)
    async with joined(relay) as here:
        endpoint = EchoEndpoint(here.host)
        endpoint.start()
        echo = await here.caller.connect(endpoint.address, EchoGateway)
        large = asyncio.ensure_future(echo.bytes_of_length(8 * MEBIBYTE))
        assert await echo.echo("ping") == "ping"
        assert await echo.echo("pong") == "pong"
        assert not large.done()
        assert len(await large) == 8 * MEBIBYTE


@settings(deadline=None)
@given(
    sent=st.lists(st.tuples(lanes, sizes), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 14) | st.integers(1, 3 * FRAGMENT_SIZE), min_size=1),
    pauses_after=st.sets(st.integers(1, 12), max_size=3),
)
def test_frames_arrive_complete_wherever_the_stream_is_cut_or_paused(
    sent: list[tuple[int | None, int]], cuts: list[int], pauses_after: set[int]
) -> None:
    splitter = FrameSplitter()
    frames = []
    for number, (lane, size) in enumerate(sent):
        frame = struct.pack(">I", number) + bytes([number + 1]) * (size - 4)
        frames.append(frame)
        splitter.put_parts((frame[:3], frame[3:]), lane)
    stream = written(splitter)

    async def feed() -> list[bytes | str]:
        incoming = FrameStream(LIMIT)

        def pause() -> None:
            if len(received.story) in pauses_after:
                incoming.pause_reading()

        received = Recorder(pause)
        incoming.attach(received)
        position, cut = 0, cycle(cuts)
        while position < len(stream):
            size = next(cut) if len(stream) < 100_000 else max(next(cut), len(stream) // 50)
            came(incoming, stream[position : position + size])
            position += size
            incoming.resume_reading()
            await asyncio.sleep(0)
        for _ in pauses_after:
            incoming.resume_reading()
            await asyncio.sleep(0)
        return received.story

    assert Counter(asyncio.run(feed())) == Counter(frames)


async def test_large_frame_that_was_partly_received_is_freed_when_the_connection_is_lost() -> None:
    splitter = FrameSplitter()
    splitter.put(bytes(MEBIBYTE), None)
    incoming = FrameStream(LIMIT)
    received = Recorder()
    incoming.attach(received)
    came(incoming, written(splitter)[: MEBIBYTE // 2 + 1000])
    (partial,) = (weakref.ref(frame.content) for frame in incoming._joiner._frames.values())
    incoming.connection_lost(None)
    assert received.story == ["the connection was closed by the other side"]
    assert partial() is None


def test_memory_of_a_received_large_frame_is_reused_for_the_next_until_it_is_freed() -> None:
    joiner = FragmentJoiner(LIMIT)

    def receive(number: int, byte: bytes, size: int) -> memoryview:
        position = 0
        while position < size:
            portion = min(FRAGMENT_SIZE, size - position)
            joiner.place_for(number, size, portion)[:] = byte * portion
            position += portion
        frame = joiner.take(number)
        assert frame is not None
        return frame

    first = receive(1, b"a", 200_000)
    assert receive(1, b"e", 200_000).obj is first.obj
    second = receive(2, b"b", 150_000)
    assert second.obj is first.obj
    assert second == b"b" * 150_000
    assert len(receive(3, b"c", 300_000)) == 300_000
    joiner.give_back()
    assert receive(4, b"d", 200_000).obj is not first.obj
