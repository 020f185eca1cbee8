"""What a stream of frames does with its socket: when it writes, how much, and when it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire.fragments import (
    FRAGMENT_BIT,
    FRAGMENT_HEAD,
    FRAGMENT_SIZE,
    LENGTH,
    MAX_LARGE_FRAMES,
    FrameSplitter,
)
from flinkray.rpc.wire.frames import MAX_HANDSHAKE_FRAME, FrameStream
from flinkray.rpc.wire.transport import WRITE_HIGH_WATER
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.peers import Recorder, came, fragment, framed

KIBIBYTE = 1024
LIMIT = 1024 * KIBIBYTE
AT_ONCE = 128 * KIBIBYTE
"""Bytes that are given to a socket together."""
EARLY = 16 * KIBIBYTE
"""Bytes that are not kept until the end of the loop's turn."""


class Socket(asyncio.Transport):
    """The loop's side of a stream: keeps what is written, and what else is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.story: list[str] = []
        self.buffered = 0
        self.when_written: Callable[[], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        if self.when_written is not None:
            self.when_written()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.story.append("pause")

    def resume_reading(self) -> None:
        self.story.append("resume")

    def close(self) -> None:
        self.story.append("close")

    def abort(self) -> None:
        self.story.append("abort")

    def take(self) -> list[int]:
        """The sizes of what was written since the last time."""
        written, self.written = self.written, []
        return [len(data) for data in written]


def connected(limit: int = LIMIT) -> tuple[FrameStream, Socket]:
    stream, socket = FrameStream(limit), Socket()
    stream.connection_made(socket)
    return stream, socket


def attached(
    limit: int = LIMIT, then: Callable[[], None] | None = None
) -> tuple[FrameStream, Socket, Recorder]:
    stream, socket = connected(limit)
    receiver = Recorder(then)
    stream.attach(receiver)
    assert socket.story == ["resume"]
    socket.story.clear()
    return stream, socket, receiver


# --- writing --------------------------------------------------------------------------------------


@on_virtual_time
async def test_frames_sent_in_one_turn_of_the_loop_are_written_together() -> None:
    stream, socket = connected()
    assert not stream.has_unsent
    stream.send(b"one")
    stream.send(b"two", 1)
    stream.send_parts([b"th", b"ree"], 1)
    assert stream.has_unsent
    assert socket.written == []
    await asyncio.sleep(0)
    assert socket.written == [framed(b"one") + framed(b"two") + framed(b"three")]
    assert not stream.has_unsent
    socket.buffered = 1
    assert stream.has_unsent
    await asyncio.sleep(1)
    assert len(socket.written) == 1


@on_virtual_time
async def test_frames_of_more_than_a_number_of_bytes_are_written_at_once() -> None:
    stream, socket = connected()
    stream.send(bytes(EARLY))
    assert socket.take() == []
    stream.send(b"x")
    assert socket.take() == [EARLY + 4 + 1 + 4]
    await asyncio.sleep(0)
    assert socket.take() == []
    stream.send(b"y")  # the next turn is like the first
    await asyncio.sleep(0)
    assert socket.take() == [5]


@on_virtual_time
async def test_large_frame_is_written_over_several_turns_between_other_frames() -> None:
    stream, socket = connected()
    stream.send(bytes(5 * FRAGMENT_SIZE), 1)
    head = LENGTH.size + FRAGMENT_HEAD.size
    await asyncio.sleep(0)
    assert socket.take() == [AT_ONCE + 2 * head]
    stream.send(b"x", 2)
    assert stream.has_unsent
    await asyncio.sleep(0)
    assert socket.take() == [5 + AT_ONCE + 2 * head]
    await asyncio.sleep(0)
    assert socket.take() == [FRAGMENT_SIZE + head]
    assert not stream.has_unsent
    await asyncio.sleep(1)
    assert socket.take() == []


@on_virtual_time
async def test_full_socket_is_not_written_to_until_it_can_take_more() -> None:
    stream, socket = connected()
    stream.send(bytes(5 * FRAGMENT_SIZE), 1)
    await asyncio.sleep(0)
    assert len(socket.take()) == 1
    stream.pause_writing()
    stream.send(bytes(EARLY + 1), 2)
    await asyncio.sleep(1)
    assert socket.take() == []
    stream.resume_writing()
    assert len(socket.take()) == 1
    await asyncio.sleep(1)
    assert sum(socket.take()) > 0
    assert not stream.has_unsent
    # a socket may be full within the write, too
    stream.send(bytes(5 * FRAGMENT_SIZE), 1)
    socket.when_written = stream.pause_writing
    await asyncio.sleep(1)
    assert len(socket.take()) == 1


@on_virtual_time
async def test_senders_of_small_frames_wait_above_high_water_until_half_is_sent() -> None:
    stream, socket = connected(100 * LIMIT)
    stream.pause_writing()
    half = WRITE_HIGH_WATER // 2
    for _ in range(4):
        stream.send(bytes(half // 2))
    assert not stream.is_congested
    stream.send(b"x")
    assert stream.is_congested
    waiting = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(1)
    assert not waiting.done()
    socket.when_written = stream.pause_writing
    stream.resume_writing()
    assert socket.take() == [half + 2 * LENGTH.size]
    assert stream.is_congested  # by a byte
    stream.resume_writing()
    assert not stream.is_congested
    await asyncio.wait_for(waiting, 1)


@on_virtual_time
async def test_senders_of_small_frames_resume_at_exactly_half_of_the_high_water() -> None:
    stream, socket = connected(100 * LIMIT)
    stream.pause_writing()
    for _ in range(6):
        stream.send(bytes(WRITE_HIGH_WATER // 4))
    socket.when_written = stream.pause_writing
    stream.resume_writing()
    assert stream.is_congested
    stream.resume_writing()
    assert not stream.is_congested
    assert stream.has_unsent


@on_virtual_time
async def test_senders_of_large_frames_wait_above_one_frame_limit_until_half_is_sent() -> None:
    stream, socket = connected(LIMIT)
    stream.send(bytes(LIMIT // 2), 1)
    stream.send(bytes(LIMIT // 2), 2)
    assert not stream.is_congested
    stream.send(bytes(AT_ONCE), 3)
    assert stream.is_congested
    left = LIMIT + AT_ONCE
    while stream.is_congested:
        assert left > LIMIT // 2
        await asyncio.sleep(0)
        left -= sum(socket.take()) // FRAGMENT_SIZE * FRAGMENT_SIZE
    assert left == LIMIT // 2


@on_virtual_time
async def test_close_writes_all_remaining_frames_first() -> None:
    stream, socket = connected()
    stream.send(bytes(5 * FRAGMENT_SIZE), 1)
    stream.send(b"last words", 2)
    stream.close()
    assert socket.story == ["close"]
    head = LENGTH.size + FRAGMENT_HEAD.size
    assert sum(socket.take()) == 5 * (FRAGMENT_SIZE + head) + 4 + 10
    await asyncio.sleep(1)
    assert socket.take() == []


@on_virtual_time
async def test_nothing_is_written_after_the_connection_is_lost() -> None:
    stream, socket, receiver = attached()
    stream.pause_writing()
    stream.send(bytes(WRITE_HIGH_WATER + 1), 1)
    for _ in range(20):
        stream.send(bytes(EARLY))
    waiting = asyncio.ensure_future(stream.drain())
    assert stream.is_congested
    await asyncio.sleep(0)
    stream.connection_lost(None)
    await asyncio.wait_for(waiting, 1)
    assert not stream.is_congested
    assert not stream.has_unsent
    assert not stream._outgoing  # nor is it kept
    stream.send(b"too late")
    stream.send_parts([b"too", b"late"])
    stream.resume_writing()
    stream.close()
    socket.buffered = 1
    assert not stream.has_unsent
    await asyncio.sleep(1)
    assert socket.take() == []
    assert receiver.story == ["the connection was closed by the other side"]


@on_virtual_time
async def test_frame_stream_that_was_never_connected_ignores_all_calls() -> None:
    stream = FrameStream(LIMIT)
    assert not stream.has_unsent
    stream.pause_reading()
    stream.resume_reading()
    await asyncio.sleep(1)
    stream.close()
    stream.abort("never mind")


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "the connection was closed by the other side"),
        (OSError("no route"), "the connection broke: no route"),
    ],
)
@on_virtual_time
async def test_receiver_gets_the_reason_of_a_lost_connection_only_once(
    error: Exception | None, told: str
) -> None:
    stream, _, receiver = attached()
    stream.connection_lost(error)
    assert receiver.story == [told]
    late = Recorder()
    stream.attach(late)
    assert late.story == [told]
    with pytest.raises(RpcConnectionError, match=told):
        await stream.receive()


@on_virtual_time
async def test_first_reason_to_abort_a_stream_is_reported_and_breaking_off_reports_none() -> None:
    stream, socket, receiver = attached()
    stream.abort("the first")
    stream.abort("the second")
    assert socket.story == ["abort", "abort"]
    stream.connection_lost(OSError("what the system says"))
    assert receiver.story == ["the first"]
    stream, socket, receiver = attached()
    stream.break_off("enough")
    stream.connection_lost(None)
    came(stream, framed(b"too late"))
    assert receiver.story == []
    assert socket.story == ["abort"]


@on_virtual_time
async def test_receiver_that_breaks_off_while_it_is_attached_gets_no_further_frame() -> None:
    stream, _ = connected()
    came(stream, framed(b"one") + framed(b"two"))
    receiver = Recorder(lambda: stream.break_off("enough"))
    stream.connection_lost(None)
    stream.attach(receiver)
    assert receiver.story == [b"one"]


@on_virtual_time
async def test_receiver_attached_after_a_stream_has_ended_gets_the_earlier_frames() -> None:
    stream, socket = connected()
    came(stream, framed(b"one") + framed(b"two"))
    stream.connection_lost(None)
    receiver = Recorder()
    stream.attach(receiver)
    assert receiver.story == [b"one", b"two", "the connection was closed by the other side"]
    assert socket.story == []


# --- reading --------------------------------------------------------------------------------------


@on_virtual_time
async def test_handshake_reads_one_frame_at_a_time_however_bytes_arrive() -> None:
    stream, _ = connected()
    receiving = asyncio.ensure_future(stream.receive())
    data = framed(b"first") + framed(b"") + framed(b"third") + framed(b"rest")
    for position in range(len(data)):
        came(stream, data[position : position + 1])
        await asyncio.sleep(0)
        assert receiving.done() == (position >= 8)
    assert await receiving == b"first"
    assert await stream.receive() == b""
    assert await stream.receive() == b"third"
    receiver = Recorder()
    stream.attach(receiver)
    assert receiver.story == [b"rest"]


@on_virtual_time
async def test_handshake_frame_larger_than_its_limit_is_refused() -> None:
    stream, socket = connected()
    came(stream, framed(bytes(MAX_HANDSHAKE_FRAME)))
    assert await stream.receive() == bytes(MAX_HANDSHAKE_FRAME)
    came(stream, LENGTH.pack(MAX_HANDSHAKE_FRAME + 1))
    with pytest.raises(RpcConnectionError, match="a frame of 4097 bytes came, the limit is 4096"):
        await stream.receive()
    assert "abort" in socket.story


@on_virtual_time
async def test_stream_reads_no_bytes_after_a_handshake_frame_until_they_are_requested() -> None:
    stream, socket = connected()
    assert len(stream.get_buffer(-1)) == MAX_HANDSHAKE_FRAME
    came(stream, framed(bytes(MAX_HANDSHAKE_FRAME - 4)))
    assert socket.story == []
    came(stream, b"\0")
    assert socket.story == ["pause"]
    assert await stream.receive() == bytes(MAX_HANDSHAKE_FRAME - 4)
    receiving = asyncio.ensure_future(stream.receive())
    await asyncio.sleep(0)
    assert socket.story == ["pause", "resume"]
    came(stream, b"\0\0\1x")
    assert await receiving == b"x"
    stream.attach(Recorder())
    assert len(stream.get_buffer(-1)) > MAX_HANDSHAKE_FRAME


@on_virtual_time
async def test_handshake_fails_when_the_connection_ends() -> None:
    stream, _ = connected()
    receiving = asyncio.ensure_future(stream.receive())
    await asyncio.sleep(0)
    came(stream, b"\0\0\0\5he")
    stream.connection_lost(None)
    with pytest.raises(RpcConnectionError, match="closed by the other side"):
        await receiving


@on_virtual_time
async def test_paused_receiver_gets_no_frame_until_it_resumes() -> None:
    stream, socket = connected()
    receiver = Recorder(stream.pause_reading)
    came(stream, framed(b"one") + framed(b"two"))
    stream.attach(receiver)
    assert receiver.story == [b"one"]
    assert socket.story == ["pause"]
    came(stream, framed(b"three"))  # was on its way
    assert receiver.story == [b"one"]
    stream.resume_reading()
    stream.pause_reading()
    await asyncio.sleep(0)
    assert receiver.story == [b"one"]
    stream.resume_reading()
    stream.resume_reading()
    assert receiver.story == [b"one"]  # not within the call
    await asyncio.sleep(0)
    assert receiver.story == [b"one", b"two"]
    receiver.then = None
    stream.resume_reading()
    await asyncio.sleep(0)
    assert receiver.story == [b"one", b"two", b"three"]
    assert socket.story[-1] == "resume"
    assert socket.story.count("resume") == 1
    stream.resume_reading()
    await asyncio.sleep(0)
    assert socket.story.count("resume") == 1


@pytest.mark.parametrize("size", [1, 3, 4, 5, 6, 7, 8, 11, 12, 13, 65_536])
@on_virtual_time
async def test_frames_and_fragments_arrive_in_pieces_of_any_size(size: int) -> None:
    stream, _, receiver = attached()
    large = bytes(range(256)) * 300
    data = (
        framed(b"")
        + fragment(7, len(large), large[:FRAGMENT_SIZE])
        + framed(b"between")
        + fragment(7, len(large), large[FRAGMENT_SIZE:])
        + framed(b"x" * 100)
    )
    data = framed(b"") + framed(b"a") + data
    steps = [data[position : position + size] for position in range(0, len(data), size)]
    for step in steps:
        came(stream, step)
    assert receiver.story == [b"", b"a", b"", b"between", large, b"x" * 100]


@on_virtual_time
async def test_large_frame_completed_while_reading_is_paused_waits() -> None:
    stream, _, receiver = attached()
    large = bytes(range(256)) * 300
    came(stream, fragment(7, len(large), large[:FRAGMENT_SIZE])[:-10])
    stream.pause_reading()
    came(stream, large[FRAGMENT_SIZE - 10 : FRAGMENT_SIZE])
    came(stream, fragment(7, len(large), large[FRAGMENT_SIZE:]))
    assert receiver.story == []
    stream.resume_reading()
    await asyncio.sleep(0)
    assert receiver.story == [large]


def too_large(kind: str, size: int, limit: int) -> str:
    return f"a {kind} of {size} bytes came, the limit is {limit}"


@pytest.mark.parametrize(
    ("limit", "data", "reason"),
    [
        (LIMIT, LENGTH.pack(FRAGMENT_SIZE + 1), too_large("frame", FRAGMENT_SIZE + 1, 65_536)),
        (1000, LENGTH.pack(1001), too_large("frame", 1001, 1000)),
        (
            LIMIT,
            LENGTH.pack(FRAGMENT_BIT | (FRAGMENT_SIZE + 9)),
            too_large("fragment", FRAGMENT_SIZE + 9, 65_536),
        ),
        (LIMIT, LENGTH.pack(FRAGMENT_BIT | 8), too_large("fragment", 8, 65_536)),
        (LIMIT, LENGTH.pack(FRAGMENT_BIT), too_large("fragment", 0, 65_536)),
        (LIMIT, fragment(1, LIMIT + 1, b"x"), f"a frame of {LIMIT + 1} bytes came, the limit is"),
        (LIMIT, fragment(1, 5, b"x"), "a fragment came that does not fit to those before it"),
    ],
)
@on_virtual_time
async def test_impossible_frame_is_refused_and_later_bytes_are_not_read(
    limit: int, data: bytes, reason: str
) -> None:
    stream, socket, receiver = attached(limit)
    came(stream, framed(b"before") + data + framed(b"after"))
    came(stream, framed(b"later"))
    before, refused = receiver.story
    assert before == b"before"
    assert str(refused).startswith(f"refused: {reason}")
    assert socket.story == ["abort"]
    stream.connection_lost(None)
    assert receiver.story[2:] == [str(refused).removeprefix("refused: ")]


@on_virtual_time
async def test_fragment_that_is_too_large_is_refused_when_its_head_has_arrived() -> None:
    stream, socket, receiver = attached()
    head = fragment(1, LIMIT + 1, b"", FRAGMENT_HEAD.size + FRAGMENT_SIZE)
    came(stream, head[:-1])
    assert receiver.story == []
    came(stream, head[-1:])
    assert len(receiver.story) == 1
    assert socket.story == ["abort"]


@pytest.mark.parametrize("size", [1000, 999, 0])
@on_virtual_time
async def test_frame_up_to_the_limit_is_accepted(size: int) -> None:
    stream, _, receiver = attached(1000)
    came(stream, framed(bytes(size)))
    assert receiver.story == [bytes(size)]


@on_virtual_time
async def test_large_frame_of_one_full_and_one_smallest_fragment_is_accepted() -> None:
    stream, _, receiver = attached(FRAGMENT_SIZE + 1)
    came(stream, fragment(1, FRAGMENT_SIZE + 1, bytes(FRAGMENT_SIZE)))
    assert receiver.story == []
    came(stream, fragment(1, FRAGMENT_SIZE + 1, b"x"))
    assert receiver.story == [bytes(FRAGMENT_SIZE) + b"x"]


@on_virtual_time
async def test_unused_memory_for_large_frames_is_freed_periodically() -> None:
    stream, _, receiver = attached()

    def receive() -> None:
        came(stream, fragment(1, FRAGMENT_SIZE + 1, bytes(FRAGMENT_SIZE)))
        came(stream, fragment(1, FRAGMENT_SIZE + 1, b"x"))

    for _ in range(2):
        receive()
        await asyncio.sleep(0.6)
        assert stream._joiner._spare is not None
        receive()  # does not keep it for longer
        await asyncio.sleep(0.6)
        assert stream._joiner._spare is None
    assert len(receiver.story) == 4


# --- how frames share the stream ------------------------------------------------------------------


def lengths(splitter: FrameSplitter, size: int) -> list[int]:
    """Of what is taken: frames by their sizes, fragments by those of their bodies, negative."""
    data = b"".join(splitter.take(size))
    found: list[int] = []
    position = 0
    while position < len(data):
        (length,) = LENGTH.unpack_from(data, position)
        size = length & ~FRAGMENT_BIT
        found.append(size if size == length else FRAGMENT_HEAD.size - size)
        position += LENGTH.size + size
    assert position == len(data)
    return found


def test_small_frames_are_written_together_up_to_a_number_of_bytes() -> None:
    splitter = FrameSplitter()
    assert not splitter
    for _ in range(3):
        splitter.put(bytes(100), None)
    assert splitter
    assert splitter.small_bytes == 300
    assert lengths(splitter, 300) == [100] * 3
    assert splitter.small_bytes == 0
    assert not splitter
    for _ in range(3):
        splitter.put(bytes(40_000), None)
    assert lengths(splitter, 60_000) == [40_000, 40_000]  # the second begins before the limit
    assert splitter.small_bytes == 40_000
    assert lengths(splitter, 60_000) == [40_000]


def test_small_frames_alternate_with_fragments_of_large_frames() -> None:
    splitter = FrameSplitter()
    splitter.put(bytes(3 * FRAGMENT_SIZE + 5), 1)
    assert splitter.large_bytes == 3 * FRAGMENT_SIZE + 5
    for _ in range(3):
        splitter.put(bytes(FRAGMENT_SIZE // 2), 2)
    full = -FRAGMENT_SIZE
    assert splitter.small_bytes == 3 * FRAGMENT_SIZE // 2
    # as many small ones as one fragment has bytes, then a fragment
    assert lengths(splitter, 1) == [FRAGMENT_SIZE // 2] * 2 + [full]
    assert lengths(splitter, FRAGMENT_SIZE) == [FRAGMENT_SIZE // 2, full]
    assert (splitter.small_bytes, splitter.large_bytes) == (0, FRAGMENT_SIZE + 5)
    assert lengths(splitter, FRAGMENT_SIZE) == [full]
    assert lengths(splitter, 10 * FRAGMENT_SIZE) == [-5]
    assert splitter.large_bytes == 0
    assert lengths(splitter, 10) == []


def test_frame_larger_than_one_fragment_counts_as_large() -> None:
    splitter = FrameSplitter()
    splitter.put(bytes(FRAGMENT_SIZE), 1)
    splitter.put_parts([bytes(FRAGMENT_SIZE - 1), b"x"], 1)
    assert (splitter.small_bytes, splitter.large_bytes) == (2 * FRAGMENT_SIZE, 0)
    splitter.put(bytes(FRAGMENT_SIZE + 1), 1)
    splitter.put_parts([bytes(FRAGMENT_SIZE), b"x"], 2)
    assert (splitter.small_bytes, splitter.large_bytes) == (
        2 * FRAGMENT_SIZE,
        2 * (FRAGMENT_SIZE + 1),
    )


def test_frame_sent_after_a_large_frame_waits_for_it_only_in_the_same_lane() -> None:
    splitter = FrameSplitter()
    splitter.put(bytes(2 * FRAGMENT_SIZE), 1)
    splitter.put(b"behind", 1)
    splitter.put(bytes(FRAGMENT_SIZE + 7), 1)
    splitter.put(b"last", 1)
    splitter.put(b"of no lane", None)
    splitter.put(b"of another", 2)
    assert splitter.small_bytes == 20
    assert splitter.large_bytes == 3 * FRAGMENT_SIZE + 7 + 6 + 4
    assert lengths(splitter, 1) == [10, 10, -FRAGMENT_SIZE]
    assert lengths(splitter, 1) == [-FRAGMENT_SIZE]
    assert (splitter.small_bytes, splitter.large_bytes) == (6, FRAGMENT_SIZE + 7 + 4)
    assert lengths(splitter, 1) == [6, -FRAGMENT_SIZE]
    assert lengths(splitter, 1) == [-7]
    assert lengths(splitter, 1) == [4]
    assert (splitter.small_bytes, splitter.large_bytes) == (0, 0)
    splitter.put(b"free again", 1)
    assert lengths(splitter, 1) == [10]


def test_large_frames_without_a_lane_do_not_wait_for_each_other() -> None:
    splitter = FrameSplitter()
    for _ in range(2):
        splitter.put(bytes(2 * FRAGMENT_SIZE), None)
    splitter.put(b"small", None)
    assert lengths(splitter, 1) == [5, -FRAGMENT_SIZE]
    numbers = set()
    while splitter:
        data = b"".join(splitter.take(1))
        numbers.add(FRAGMENT_HEAD.unpack_from(data, LENGTH.size)[0])
    assert len(numbers) == 2


def test_number_of_a_large_frame_starts_again_at_zero_after_the_largest_number() -> None:
    splitter = FrameSplitter()
    splitter._numbers = 0xFFFF_FFFE
    for lane in range(3):
        splitter.put(bytes(FRAGMENT_SIZE + 1), lane)
    numbers = []
    for _ in range(3):
        data = b"".join(splitter.take(1))
        numbers.append(FRAGMENT_HEAD.unpack_from(data, LENGTH.size)[0])
    assert numbers == [0xFFFF_FFFF, 0, 1]


def test_large_frame_waits_while_the_permitted_number_of_large_frames_is_sent() -> None:
    splitter = FrameSplitter()
    for lane in range(MAX_LARGE_FRAMES + 2):
        splitter.put(bytes(2 * FRAGMENT_SIZE), lane)
    order: list[int] = []
    while splitter:
        data = b"".join(splitter.take(1))
        order.append(FRAGMENT_HEAD.unpack_from(data, LENGTH.size)[0])
    ranks = {number: rank for rank, number in enumerate(dict.fromkeys(order))}
    first = list(range(MAX_LARGE_FRAMES))
    next_ones = [MAX_LARGE_FRAMES, MAX_LARGE_FRAMES + 1]
    assert [ranks[number] for number in order] == [*first, *first, *next_ones, *next_ones]
