"""The transports that never leave a process: what they keep, for whom, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.rpc.wire.transport import WRITE_HIGH_WATER, MemoryTransport, OpeningTransport
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.peers import Recorder

CLOSED = "the connection was closed"
CLOSED_THERE = "the connection was closed by the other side"


def joined() -> tuple[MemoryTransport, Recorder, MemoryTransport, Recorder]:
    near, far = MemoryTransport.pair(asyncio.get_running_loop())
    here, there = Recorder(), Recorder()
    near.attach(here)
    far.attach(there)
    return near, here, far, there


@on_virtual_time
async def test_receiver_attached_late_gets_the_earlier_frames_and_the_end() -> None:
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
    assert receiver.story == [b"one", b"two", CLOSED_THERE]


@on_virtual_time
async def test_receiver_attached_late_gets_the_reason_of_an_earlier_break_off() -> None:
    near, far = MemoryTransport.pair(asyncio.get_running_loop())
    far.attach(Recorder())
    far.break_off("the process died")
    await asyncio.sleep(1)
    receiver = Recorder()
    near.attach(receiver)
    await asyncio.sleep(1)
    assert receiver.story == ["the process died"]


@on_virtual_time
async def test_frame_counts_as_unsent_until_the_receiver_is_called_in_the_next_turn() -> None:
    near, _, _, there = joined()
    assert not near.has_unsent
    near.send(b"one")
    near.send(b"two")
    assert near.has_unsent
    assert there.story == []
    await asyncio.sleep(0)
    assert there.story == [b"one", b"two"]
    assert not near.has_unsent


@on_virtual_time
async def test_frame_sent_before_a_close_arrives_and_both_sides_are_told_of_the_end() -> None:
    near, here, far, there = joined()
    near.send(b"last words")
    near.close()
    near.close()
    near.send(b"too late")
    assert not near.has_unsent
    await asyncio.sleep(1)
    assert there.story == [b"last words", CLOSED_THERE]
    assert here.story == [CLOSED]
    far.send(b"too late")
    far.close()
    await asyncio.sleep(1)
    assert (len(here.story), len(there.story)) == (1, 2)
    late = Recorder()
    near.attach(late)
    assert late.story == [CLOSED]


@on_virtual_time
async def test_frames_in_transit_arrive_before_the_end_of_the_connection() -> None:
    near, here, far, there = joined()
    near.send(b"from here")
    far.send(b"from there")
    near.close()
    await asyncio.sleep(1)
    assert here.story == [b"from there", CLOSED]
    assert there.story == [b"from here", CLOSED_THERE]


@on_virtual_time
async def test_side_that_breaks_off_a_connection_neither_receives_nor_sends_any_more() -> None:
    near, here, far, there = joined()
    near.send(b"on its way")
    far.send(b"on its way")
    near.break_off("the process died")
    near.break_off("again")
    assert not far.has_unsent  # what nobody will get is not on its way
    near.send(b"too late")
    late = Recorder()
    near.attach(late)
    await asyncio.sleep(1)
    assert here.story == late.story == []
    assert there.story == [b"on its way", "the process died"]
    assert not far.has_unsent
    far.send(b"too late")
    far.break_off("for its own reason")
    await asyncio.sleep(1)
    assert here.story == []
    assert there.story == [b"on its way", "the process died"]


@on_virtual_time
async def test_paused_receiver_gets_no_frame_until_it_resumes() -> None:
    near, _, far, _ = joined()
    receiver = Recorder(far.pause_reading)
    far.attach(receiver)
    for frame in (b"one", b"two", b"three"):
        near.send(frame)
    near.close()
    await asyncio.sleep(1)
    assert receiver.story == [b"one"]
    far.resume_reading()
    far.resume_reading()
    assert receiver.story == [b"one"]  # not within the call
    await asyncio.sleep(1)
    assert receiver.story == [b"one", b"two"]
    far.resume_reading()
    await asyncio.sleep(1)
    assert receiver.story == [b"one", b"two", b"three"]
    far.resume_reading()
    await asyncio.sleep(1)
    assert receiver.story == [b"one", b"two", b"three", CLOSED_THERE]


@on_virtual_time
async def test_receiver_that_breaks_off_gets_no_further_frame() -> None:
    near, here, far, _ = joined()
    receiver = Recorder(lambda: far.break_off("enough"))
    far.attach(receiver)
    near.send(b"one")
    near.send(b"two")
    await asyncio.sleep(1)
    assert receiver.story == [b"one"]
    assert here.story == ["enough"]


@on_virtual_time
async def test_senders_wait_above_the_high_water_mark_until_half_of_it_is_sent() -> None:
    near, _, far, _ = joined()
    receiver = Recorder(far.pause_reading)
    far.attach(receiver)
    half = WRITE_HIGH_WATER // 2
    near.send(bytes(half))
    near.send(bytes(half))
    assert not near.is_congested
    await near.drain()  # at once
    near.send(b"x")
    assert near.is_congested
    waiting = [asyncio.ensure_future(near.drain()) for _ in range(2)]
    await asyncio.sleep(1)  # one frame was read, and a byte too many is left
    assert not any(one.done() for one in waiting)
    far.resume_reading()
    await asyncio.sleep(1)
    assert all(one.done() for one in waiting)
    assert not near.is_congested
    near.send(bytes(WRITE_HIGH_WATER - 1))
    assert not near.is_congested
    near.send(b"x")
    assert near.is_congested
    far.resume_reading()
    await asyncio.sleep(1)
    far.resume_reading()
    await asyncio.sleep(1)
    assert not near.is_congested  # of what is left nothing matters


@on_virtual_time
async def test_senders_resume_at_exactly_half_of_the_high_water_mark() -> None:
    near, _, far, _ = joined()
    far.attach(Recorder(far.pause_reading))
    near.send(bytes(WRITE_HIGH_WATER // 2 + 1))
    near.send(bytes(WRITE_HIGH_WATER // 2))
    assert near.is_congested
    await asyncio.sleep(1)
    assert not near.is_congested


@pytest.mark.parametrize("end", ["close here", "close there", "break here", "break there"])
@on_virtual_time
async def test_sender_that_waits_for_room_resumes_when_the_connection_ends(end: str) -> None:
    near, _, far, _ = joined()
    far.pause_reading()
    near.send(bytes(WRITE_HIGH_WATER + 1))
    waiting = asyncio.ensure_future(near.drain())
    await asyncio.sleep(1)
    assert not waiting.done()
    side = near if end.endswith("here") else far
    if end.startswith("close"):
        side.close()
    else:
        side.break_off("enough")
    await asyncio.wait_for(waiting, 1)
    assert not near.is_congested


@on_virtual_time
async def test_cancelled_sender_does_not_stop_other_waiting_senders() -> None:
    near, _, far, _ = joined()
    far.pause_reading()
    near.send(bytes(WRITE_HIGH_WATER + 1))
    impatient, patient = (asyncio.ensure_future(near.drain()) for _ in range(2))
    await asyncio.sleep(1)
    impatient.cancel()
    await asyncio.sleep(1)
    assert not patient.done()
    far.resume_reading()
    await asyncio.wait_for(patient, 1)


# --- until a connection is open -------------------------------------------------------------------


@on_virtual_time
async def test_frames_sent_while_a_connection_opens_are_sent_in_their_lanes() -> None:
    opening = OpeningTransport(asyncio.get_running_loop())
    assert opening.has_unsent  # what is yet to be opened is in use
    assert opening.is_congested
    opening.send(b"one", 1)
    opening.send(b"two")
    opening.send_parts([b"th", b"ree"], 3)
    waiting = asyncio.ensure_future(opening.drain())
    await asyncio.sleep(1)
    assert not waiting.done()
    assert opening.take() == [(b"one", 1), (b"two", None), (b"three", 3)]
    await asyncio.wait_for(waiting, 1)
    assert not opening.is_congested
    assert opening.take() == []


@pytest.mark.parametrize("by_force", [True, False])
@on_virtual_time
async def test_sender_waiting_for_an_opening_connection_resumes_when_it_is_abandoned(
    by_force: bool,
) -> None:
    opening = OpeningTransport(asyncio.get_running_loop())
    opening.send(b"one", 1)
    waiting = asyncio.ensure_future(opening.drain())
    await asyncio.sleep(1)
    if by_force:
        opening.break_off("enough")
    else:
        opening.close()
    await asyncio.wait_for(waiting, 1)
    assert opening.take() == []
