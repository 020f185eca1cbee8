"""Each side of a transport over calls alone: what it sends, keeps and says of its end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc.wire.call_transport import (
    MAX_AHEAD,
    MAX_OPEN,
    NO_BATCH,
    NOBODY,
    ROUND,
    SILENCE,
    WINDOW,
    AnsweringStream,
    CallingStream,
    Carrier,
)
from flinkray.rpc.wire.frames import MAX_HANDSHAKE_FRAME
from flinkray.rpc.wire.transport import WRITE_HIGH_WATER
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.peers import Recorder

LIMIT = 2_000_000
CLOSED = "the connection was closed by the other side"


async def soon() -> None:
    """What is to be done in the loop's next turns is done."""
    await asyncio.sleep(0.001)


class Calling:
    """A calling side whose calls the test answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, bool, list[bytes]]] = []
        self.calls: dict[int, asyncio.Future[bytes]] = {}
        self.stream = CallingStream(b"id", self._call, LIMIT)

    def _call(self, request: bytes) -> asyncio.Future[bytes]:
        connection_id, number, oldest, is_last, frames = msgpack.unpackb(request)
        assert connection_id == b"id"
        self.requests.append((number, oldest, is_last, frames))
        self.calls[number] = asyncio.get_running_loop().create_future()
        return self.calls[number]

    def take(self) -> list[tuple[int, int, bool, list[bytes]]]:
        """Number, oldest open number, whether it is the last, and frames, of new requests."""
        requests, self.requests = self.requests, []
        return requests

    async def answer(
        self, number: int, batch: int = NO_BATCH, *frames: bytes, end: str | None = None
    ) -> None:
        self.calls[number].set_result(msgpack.packb((batch, frames, end)))
        await soon()

    async def begun(self, then: Callable[[], None] | None = None) -> Recorder:
        """After the first request; number 2 is open."""
        receiver = Recorder(then)
        self.stream.attach(receiver)
        self.stream.send(b"hello")
        await soon()
        assert self.take() == [(1, 1, False, [b"hello"])]
        await self.answer(1)
        assert self.take() == [(2, 2, False, [])]
        return receiver


@on_virtual_time
async def test_first_call_of_a_connection_is_sent_alone_and_later_several_at_once() -> None:
    calling = Calling()
    calling.stream.send(b"one")
    calling.stream.send(b"two")
    assert calling.take() == []  # what is sent in one turn travels together
    await soon()
    assert calling.take() == [(1, 1, False, [b"one", b"two"])]
    assert not calling.stream.has_unsent
    calling.stream.send(b"three")
    await soon()
    assert calling.take() == []
    assert calling.stream.has_unsent
    await calling.answer(1)
    assert calling.take() == [(2, 2, False, [b"three"])]
    for number in range(WINDOW):
        calling.stream.send(bytes([number]))
        await soon()
    assert calling.take() == [(3 + n, 2, False, [bytes([n])]) for n in range(WINDOW - 1)]
    await calling.answer(5)
    assert calling.take() == [(WINDOW + 2, 2, False, [bytes([WINDOW - 1])])]
    await calling.answer(2)
    await calling.answer(3)
    calling.stream.send(b"last")
    await soon()
    assert calling.take() == [(WINDOW + 3, 4, False, [b"last"])]


@on_virtual_time
async def test_one_call_is_always_open_so_that_the_called_side_can_send_frames() -> None:
    calling = Calling()
    await soon()
    assert calling.take() == []  # nobody has begun yet
    receiver = await calling.begun()
    await calling.answer(2, 1, b"a", b"b")
    assert receiver.story == [b"a", b"b"]
    assert calling.take() == [(3, 3, False, [])]
    calling.stream.send(b"x")
    await soon()
    assert calling.take() == [(4, 3, False, [b"x"])]
    await calling.answer(3)
    assert calling.take() == []


@on_virtual_time
async def test_call_carries_many_small_frames_or_one_large_frame() -> None:
    calling = Calling()
    await calling.begun()
    half, large = bytes(WRITE_HIGH_WATER // 2), bytes(WRITE_HIGH_WATER + 1)
    for frame in (half, half, b"1", large, b"2", half, half):
        calling.stream.send(frame)
    await soon()
    assert [frames for *_, frames in calling.take()] == [
        [half, half], [b"1"], [large], [b"2", half], [half],
    ]  # fmt: skip


@on_virtual_time
async def test_senders_wait_above_the_high_water_mark_until_half_of_it_is_sent() -> None:
    calling = Calling()
    await calling.begun()
    for _ in range(WINDOW - 1):  # until no further call may be open
        calling.stream.send(b"x")
        await soon()
    half = WRITE_HIGH_WATER // 2
    calling.stream.send(bytes(half))
    calling.stream.send(bytes(half))
    assert not calling.stream.is_congested
    calling.stream.send(bytes(half + 1))
    assert calling.stream.is_congested
    waiting = asyncio.ensure_future(calling.stream.drain())
    await calling.answer(2)
    assert not waiting.done()  # one byte too many is left
    assert calling.stream.is_congested
    await calling.answer(3)
    assert waiting.done()
    assert not calling.stream.is_congested
    for _ in range(2):  # and counting goes on from there
        calling.stream.send(bytes(half))
    assert not calling.stream.is_congested
    calling.stream.send(b"x")
    assert calling.stream.is_congested
    await calling.answer(4)
    assert not calling.stream.is_congested


@on_virtual_time
async def test_answers_are_read_in_the_order_of_their_numbers() -> None:
    calling = Calling()
    receiver = await calling.begun()
    calling.stream.send(b"x")
    await soon()
    calling.stream.send(b"y")
    await soon()
    await calling.answer(2, 3, b"third")
    await calling.answer(3, 2, b"second")
    assert receiver.story == []
    await calling.answer(4, 1, b"first")
    assert receiver.story == [b"first", b"second", b"third"]


@on_virtual_time
async def test_end_of_a_connection_is_reported_after_the_frames_sent_before_it() -> None:
    calling = Calling()
    receiver = await calling.begun()
    calling.stream.send(b"x")
    await soon()
    calling.take()
    await calling.answer(3, 2, b"beyond the end")
    await calling.answer(2, 1, b"last words", end="it is over")
    assert receiver.story == [b"last words", "it is over"]
    calling.stream.send(b"too late")
    await soon()
    assert calling.take() == []  # no good-bye to who has ended it
    with pytest.raises(RpcConnectionError, match="it is over"):
        await calling.stream.receive()


@on_virtual_time
async def test_side_whose_peer_does_not_know_the_connection_sends_no_goodbye() -> None:
    calling = Calling()
    receiver = await calling.begun()
    await calling.answer(2, NOBODY, end="no such connection")
    assert receiver.story == ["no such connection"]
    assert calling.take() == []


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda call: call.cancel(), "NoneType: None"),
        (
            lambda call: call.set_exception(ConnectionError("the actor died\npages of text")),
            "ConnectionError: the actor died",
        ),
    ],
)
@on_virtual_time
async def test_failed_call_ends_the_connection_and_is_not_followed_by_another_call(
    fails: Callable[[asyncio.Future[bytes]], object], told: str
) -> None:
    calling = Calling()
    receiver = await calling.begun()
    calling.stream.send(b"x")
    await soon()
    calling.take()
    fails(calling.calls[2])
    await soon()
    fails(calling.calls[3])  # and another one changes nothing
    await soon()
    assert receiver.story == [f"the call that carried the connection failed: {told}"]
    assert calling.take() == []


@on_virtual_time
async def test_closing_a_connection_sends_its_remaining_frames_and_one_goodbye() -> None:
    calling = Calling()
    receiver = await calling.begun()
    calling.stream.send(b"last")
    calling.stream.send(b"words")
    calling.stream.close()
    calling.stream.close()
    assert receiver.story == ["the connection was closed"]
    await soon()
    assert calling.take() == [(3, 2, True, [b"last", b"words"])]
    assert not calling.stream.has_unsent
    await calling.answer(2, 1, b"too late")
    assert receiver.story == ["the connection was closed"]


@pytest.mark.parametrize("is_cancelled", [True, False])
@on_virtual_time
async def test_lost_goodbye_raises_no_error(is_cancelled: bool) -> None:
    calling = Calling()
    await calling.begun()
    calling.stream.close()
    good_bye = calling.calls.pop(3)
    if is_cancelled:
        good_bye.cancel()
    else:
        good_bye.set_exception(ConnectionError("the actor died"))
    await soon()
    del good_bye
    gc.collect()  # what nobody has asked for would be reported now
    await soon()


@pytest.mark.parametrize("by_force", [True, False])
@on_virtual_time
async def test_aborting_a_connection_sends_a_goodbye_and_drops_unsent_frames(
    by_force: bool,
) -> None:
    calling = Calling()
    receiver = await calling.begun()
    calling.stream.send(b"dropped")
    if by_force:
        calling.stream.break_off("given up")
    else:
        calling.stream.abort("given up")
    assert receiver.story == ([] if by_force else ["given up"])
    await soon()
    assert calling.take() == [(3, 2, True, [])]
    calling.stream.abort("again")
    assert calling.take() == []
    late = Recorder()
    calling.stream.attach(late)
    assert late.story == ["given up"]


@on_virtual_time
async def test_connection_aborted_before_its_first_answer_sends_no_goodbye() -> None:
    calling = Calling()
    calling.stream.send(b"hello")
    await soon()
    calling.take()
    calling.stream.abort("given up")
    await soon()
    assert calling.take() == []


@pytest.mark.parametrize("size", [MAX_HANDSHAKE_FRAME, MAX_HANDSHAKE_FRAME + 1])
@on_virtual_time
async def test_handshake_frame_larger_than_its_limit_is_refused(size: int) -> None:
    calling = Calling()
    receiving = asyncio.ensure_future(calling.stream.receive())
    calling.stream.send(b"hello")
    await soon()
    assert not receiving.done()
    await calling.answer(1, 1, bytes(size))
    if size == MAX_HANDSHAKE_FRAME:
        assert await receiving == bytes(size)
    else:
        with pytest.raises(RpcConnectionError, match="no frame of at most 4096 bytes"):
            await receiving


@pytest.mark.parametrize("frame", [bytes(LIMIT), bytes(LIMIT + 1), "text", None])
@on_virtual_time
async def test_frame_larger_than_the_frame_limit_is_refused(frame: Any) -> None:
    calling = Calling()
    receiver = await calling.begun()
    await calling.answer(2, 1, frame, b"next")
    if frame == bytes(LIMIT):
        assert receiver.story == [frame, b"next"]
    else:
        assert receiver.story == [f"what came is no frame of at most {LIMIT} bytes"]


@on_virtual_time
async def test_handshake_frames_are_read_one_by_one_and_later_frames_by_the_receiver() -> None:
    calling = Calling()
    calling.stream.send(b"hello")
    await soon()
    await calling.answer(1, 1, b"one", b"two", b"three")
    assert await calling.stream.receive() == b"one"
    assert await calling.stream.receive() == b"two"
    receiver = Recorder()
    calling.stream.attach(receiver)
    assert receiver.story == [b"three"]


@on_virtual_time
async def test_receiver_that_breaks_off_while_it_is_attached_gets_no_further_frame() -> None:
    calling = Calling()
    calling.stream.send(b"hello")
    await soon()
    await calling.answer(1, 1, b"one", b"two")
    receiver = Recorder(lambda: calling.stream.break_off("enough"))
    calling.stream.attach(receiver)
    assert receiver.story == [b"one"]


@on_virtual_time
async def test_paused_receiver_gets_no_frame_until_it_resumes() -> None:
    calling = Calling()
    receiver = await calling.begun(calling.stream.pause_reading)
    await calling.answer(2, 1, b"one", b"two", b"three")
    assert receiver.story == [b"one"]
    calling.stream.resume_reading()
    assert receiver.story == [b"one"]  # not within the call
    await soon()
    assert receiver.story == [b"one", b"two"]
    calling.stream.resume_reading()
    calling.stream.resume_reading()
    await soon()
    assert receiver.story == [b"one", b"two", b"three"]


@on_virtual_time
async def test_receiver_that_breaks_off_gets_no_further_frame() -> None:
    calling = Calling()
    receiver = await calling.begun(lambda: calling.stream.break_off("enough"))
    await calling.answer(2, 1, b"one", b"two")
    assert receiver.story == [b"one"]


# --- the called side ------------------------------------------------------------------------------


class Answering:
    """A called side to which the test makes the calls."""

    def __init__(self) -> None:
        self.forgotten: list[float] = []
        self.loop = asyncio.get_running_loop()
        self.stream = AnsweringStream(lambda: self.forgotten.append(self.loop.time()), LIMIT)
        self.receiver = Recorder()
        self.stream.attach(self.receiver)
        self.answers: dict[int, asyncio.Future[bytes]] = {}

    async def request(
        self, number: int, *frames: bytes, oldest: int = 1, is_last: bool = False
    ) -> None:
        self.answers[number] = self.stream.answer((b"id", number, oldest, is_last, frames))
        await soon()

    def told(self) -> dict[int, tuple[int, list[bytes], str | None]]:
        """Batch, frames and end of all requests that were answered."""
        return {
            number: tuple(msgpack.unpackb(answer.result()))
            for number, answer in self.answers.items()
            if answer.done()
        }


EMPTY: tuple[int, list[bytes], str | None] = (NO_BATCH, [], None)


@on_virtual_time
async def test_oldest_open_request_is_answered_empty_when_too_many_are_open() -> None:
    answering = Answering()
    for number in range(1, MAX_OPEN + 1):
        await answering.request(number)
    assert answering.told() == {}
    await answering.request(MAX_OPEN + 1)
    assert answering.told() == {1: EMPTY}
    await answering.request(MAX_OPEN + 2)
    assert answering.told() == {1: EMPTY, 2: EMPTY}


@on_virtual_time
async def test_answering_side_forgets_a_stream_without_a_request_for_the_silence_limit() -> None:
    answering = Answering()
    await asyncio.sleep(SILENCE)
    assert answering.forgotten == []
    await asyncio.sleep(2 * ROUND)
    assert len(answering.forgotten) == 1
    assert answering.receiver.story == [f"nothing came for {SILENCE:g} s"]


@on_virtual_time
async def test_paused_side_answers_waiting_requests_only_when_it_resumes() -> None:
    answering = Answering()
    answering.stream.pause_reading()
    for number in range(1, MAX_OPEN + 3):
        await answering.request(number, bytes([number]))
    await asyncio.sleep(10 * ROUND)  # the other side may have sent all that it may
    assert answering.told() == {}
    assert answering.receiver.story == []
    answering.stream.resume_reading()
    await soon()
    assert answering.told() == {1: EMPTY, 2: EMPTY}
    assert answering.receiver.story == [bytes([n]) for n in range(1, MAX_OPEN + 3)]


@on_virtual_time
async def test_frames_are_sent_with_the_oldest_open_request_in_numbered_batches() -> None:
    answering = Answering()
    answering.stream.send(b"early")
    await soon()
    await answering.request(1)
    assert answering.told() == {1: (1, [b"early"], None)}
    await answering.request(3)
    await answering.request(2)
    answering.stream.send(b"a")
    answering.stream.send(b"b")
    await soon()
    assert answering.told()[2] == (2, [b"a", b"b"], None)
    assert 3 not in answering.told()
    answering.stream.send(b"c")
    await soon()
    assert answering.told()[3] == (3, [b"c"], None)


@on_virtual_time
async def test_repeated_request_gets_the_same_answer_and_its_frames_are_read_once() -> None:
    answering = Answering()
    await answering.request(1, b"one")
    first = answering.answers[1]
    await answering.request(1, b"one")
    assert not first.done()
    answering.stream.send(b"said")
    await soon()
    assert first.result() == answering.answers[1].result()
    assert answering.told() == {1: (1, [b"said"], None)}
    await answering.request(1, b"one")
    assert answering.told() == {1: (1, [b"said"], None)}
    await answering.request(3, b"three", oldest=1)
    waiting = answering.answers[3]
    await answering.request(3, b"three", oldest=1)
    assert not waiting.done()
    await answering.request(2, b"two", oldest=1)
    await answering.request(1, b"one", oldest=1)
    assert answering.told()[1] == (1, [b"said"], None)
    await answering.request(4, oldest=2)  # the other side has the first answer
    await answering.request(1, b"one", oldest=2)
    assert answering.told()[1] == EMPTY
    assert answering.receiver.story == [b"one", b"two", b"three"]


@on_virtual_time
async def test_repeated_request_before_its_turn_is_answered_and_its_frames_are_read_once() -> None:
    answering = Answering()
    for number in range(2, MAX_OPEN + 3):
        await answering.request(number, bytes([number]))
    assert answering.told() == {2: EMPTY}
    await answering.request(2, bytes([2]))
    assert answering.told() == {2: EMPTY}
    await answering.request(1, bytes([1]))
    assert answering.receiver.story == [bytes([n]) for n in range(1, MAX_OPEN + 3)]


@on_virtual_time
async def test_request_that_arrives_too_far_ahead_of_a_missing_one_ends_the_connection() -> None:
    answering = Answering()
    await answering.request(1)
    await answering.request(MAX_AHEAD + 1)
    assert answering.receiver.story == []
    await answering.request(MAX_AHEAD + 2)
    reason = f"request {MAX_AHEAD + 2} came, and 2 has not"
    assert answering.receiver.story == [reason]
    assert answering.told() == {
        1: (1, [], reason), MAX_AHEAD + 1: EMPTY, MAX_AHEAD + 2: EMPTY,
    }  # fmt: skip


@on_virtual_time
async def test_end_of_a_stream_is_sent_once_after_its_last_frames_answering_every_request() -> None:
    answering = Answering()
    for number in (1, 2, 3, 4):
        await answering.request(number)
    answering.stream.send(b"last words")
    answering.stream.close()
    assert answering.receiver.story == [CLOSED]
    await soon()
    assert answering.told() == {
        1: (1, [b"last words"], None),
        2: (2, [], CLOSED),
        3: EMPTY,
        4: EMPTY,
    }
    await answering.request(5)
    assert answering.told()[5] == EMPTY


@on_virtual_time
async def test_end_of_a_stream_without_an_open_request_is_sent_with_the_next_requests() -> None:
    answering = Answering()
    answering.stream.send(b"last words")
    answering.stream.close()
    assert answering.stream.has_unsent
    await answering.request(1, b"not read any more")
    assert answering.told() == {1: (1, [b"last words"], None)}
    await answering.request(2)
    await answering.request(3)
    assert answering.told() == {1: (1, [b"last words"], None), 2: (2, [], CLOSED), 3: EMPTY}
    assert answering.receiver.story == [CLOSED]


@on_virtual_time
async def test_last_request_ends_the_connection_once_its_frames_are_read() -> None:
    answering = Answering()
    await answering.request(2, b"last words", is_last=True)
    assert answering.receiver.story == []
    await answering.request(1, b"before")
    assert answering.receiver.story == [b"before", b"last words", CLOSED]
    assert answering.told() == {1: (1, [], CLOSED), 2: EMPTY}


@on_virtual_time
async def test_frames_after_a_frame_that_is_too_large_are_not_read() -> None:
    answering = Answering()
    await answering.request(2, b"next")
    await answering.request(1, bytes(LIMIT + 1))
    assert answering.receiver.story == [f"what came is no frame of at most {LIMIT} bytes"]


@on_virtual_time
async def test_open_request_is_answered_after_a_while_and_silence_ends_the_connection() -> None:
    answering = Answering()
    await answering.request(1)
    await answering.request(2)
    await asyncio.sleep(ROUND - 1)
    assert answering.told() == {}
    await asyncio.sleep(2)
    assert answering.told() == {1: EMPTY}
    assert answering.receiver.story == []
    assert answering.forgotten == []
    await asyncio.sleep(ROUND)
    reason = f"nothing came for {SILENCE:g} s"
    assert answering.receiver.story == [reason]
    assert answering.told()[2] == (1, [], reason)
    assert answering.forgotten == [pytest.approx(2 * ROUND)]
    await asyncio.sleep(10 * ROUND)
    assert len(answering.forgotten) == 1


@on_virtual_time
async def test_silence_as_long_as_the_limit_does_not_end_the_connection() -> None:
    answering = Answering()
    answering.loop.call_at(
        answering.stream._next_round + ROUND - SILENCE,
        lambda: answering.stream.answer((b"id", 1, 1, False, ())),
    )
    await asyncio.sleep(2 * ROUND + 1)
    assert answering.receiver.story == []
    await asyncio.sleep(ROUND)
    assert answering.receiver.story == [f"nothing came for {SILENCE:g} s"]


@on_virtual_time
async def test_frames_for_a_request_that_was_cancelled_are_sent_when_it_is_repeated() -> None:
    answering = Answering()
    await answering.request(1)
    answering.answers.pop(1).cancel()
    answering.stream.send(b"said")
    await soon()
    await answering.request(1)
    assert answering.told() == {1: (1, [b"said"], None)}


@on_virtual_time
async def test_silence_of_the_peer_is_counted_from_its_last_request() -> None:
    answering = Answering()
    for number in range(1, 11):
        await answering.request(number)
        await asyncio.sleep(SILENCE - 1)
    assert answering.receiver.story == []
    assert answering.forgotten == []
    await asyncio.sleep(SILENCE + ROUND)
    assert answering.receiver.story == [f"nothing came for {SILENCE:g} s"]


@on_virtual_time
async def test_silence_of_the_peer_is_counted_from_the_end_of_a_pause_in_reading() -> None:
    answering = Answering()
    await answering.request(1)
    answering.stream.pause_reading()
    await asyncio.sleep(10 * ROUND)
    answering.stream.resume_reading()
    await asyncio.sleep(SILENCE - 1)
    assert answering.receiver.story == []
    assert answering.forgotten == []
    await asyncio.sleep(2 * ROUND)
    assert answering.receiver.story == [f"nothing came for {SILENCE:g} s"]


@on_virtual_time
async def test_connection_that_has_ended_is_forgotten_after_the_silence_limit() -> None:
    streams: list[AnsweringStream] = []
    carrier = Carrier(streams.append, lambda: LIMIT)
    answer = asyncio.ensure_future(carrier.carry(msgpack.packb((b"id", 1, 1, False, ()))))
    await soon()
    (stream,) = streams
    stream.attach(Recorder())
    stream.close()
    assert msgpack.unpackb(await answer) == [1, [], CLOSED]
    again = asyncio.ensure_future(carrier.carry(msgpack.packb((b"id", 2, 1, False, ()))))
    assert msgpack.unpackb(await again) == [NO_BATCH, [], None]
    await asyncio.sleep(SILENCE + 2 * ROUND)
    assert carrier._streams == {}
    late = await carrier.carry(msgpack.packb((b"id", 3, 1, False, ())))
    assert msgpack.unpackb(late) == [NOBODY, [], CLOSED]
    assert len(streams) == 1


@pytest.mark.parametrize(("number", "is_last"), [(2, False), (0, False), (1, True)])
@on_virtual_time
async def test_connection_is_created_only_by_request_number_1_that_is_not_also_the_last(
    number: int, is_last: bool
) -> None:
    streams: list[AnsweringStream] = []
    carrier = Carrier(streams.append, lambda: LIMIT)
    answer = await carrier.carry(msgpack.packb((b"id", number, 1, is_last, ())))
    assert msgpack.unpackb(answer) == [NOBODY, [], CLOSED]
    assert streams == []


@on_virtual_time
async def test_each_connection_carried_by_ray_calls_has_its_own_stream_and_frame_limit() -> None:
    streams: list[AnsweringStream] = []
    limits = [10, 20]
    carrier = Carrier(streams.append, lambda: limits.pop(0))
    calls = [
        asyncio.ensure_future(carrier.carry(msgpack.packb((name, 1, 1, False, (name,)))))
        for name in (b"a", b"b")
    ]
    await soon()
    receivers = [Recorder(), Recorder()]
    for stream, receiver in zip(streams, receivers, strict=True):
        stream.attach(receiver)
        stream.answer((b"", 2, 1, False, (bytes(20),)))
    await soon()
    assert receivers[0].story == [b"a", "what came is no frame of at most 10 bytes"]
    assert receivers[1].story == [b"b", bytes(20)]
    assert not calls[1].done()
    calls[1].cancel()
