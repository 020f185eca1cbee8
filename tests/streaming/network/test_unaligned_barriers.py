"""Barriers that overtake what is under way: which side has what belongs to the checkpoint."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    NetworkInputGate,
    NetworkSettings,
    ResultPartition,
    decode_elements,
    encode_elements,
)
from flinkray.streaming.network.buffers import WaitingBarrier
from flinkray.streaming.network.input_channels import LocalInputChannel
from flinkray.streaming.records.elements import (
    END_OF_INPUT,
    Barrier,
    Block,
    Columns,
    Element,
    Watermark,
)
from flinkray.streaming.records.in_flight import InFlight, kept
from flinkray.testing import ManualClock
from tests.streaming.network.networks import (
    PATIENCE,
    Reading,
    Writing,
    in_background,
    network,
    numbers,
    read,
)
from tests.streaming.network.test_channels import STORY, shown
from tests.streaming.network.test_receiving import memory_files

NARROW = NetworkSettings(
    segment_size=512,
    buffers_per_channel=1,
    floating_buffers_per_gate=1,
    max_buffers_per_channel=2,
)
"""Most of what is written waits for credit."""


def unaligned(checkpoint_id: int = 1) -> Barrier:
    return Barrier(checkpoint_id, 0, unaligned=True)


def stored(elements: Sequence[InFlight]) -> list[object]:
    """As it is read from a checkpoint, to be compared."""
    return [shown(element) for element in decode_elements(encode_elements(elements))]


def overtaken(partition: ResultPartition, barrier: Barrier) -> list[Sequence[InFlight]]:
    """Of each subpartition."""
    settled: list[Any] = []
    partition.barrier(barrier, settled.append)
    (of_subpartitions,) = settled
    return [of_subpartitions.get(index, ()) for index in range(len(partition.subpartitions))]


@contextmanager
def channel(
    is_local: bool, buffer_timeout: float | None = 0
) -> Iterator[tuple[ResultPartition, Callable[..., Reading]]]:
    """A partition with one subpartition, and what makes the task that reads it."""
    with network() as make:
        producer = make("producer")
        consumer = producer if is_local else make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=buffer_timeout)
        source = ChannelSource("p", 0, producer.address)

        def reads(*restored: Element) -> Reading:
            gate = consumer.create_gate("Sink", [source])
            if restored:
                gate.restore(0, restored)
            return Reading(gate)

        yield partition, reads


class Arrivals:
    """Of each buffer that comes to a gate, listed or not."""

    def __init__(self, gate: NetworkInputGate, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gate = gate
        self._came = threading.Event()
        self._has_data = gate.has_data
        monkeypatch.setattr(gate, "has_data", self._told)

    def _told(self, number: int) -> None:
        self._has_data(number)
        self._came.set()

    def wait_for(self, buffers: int) -> None:
        """Until so many wait."""
        while self._gate.metrics().queued_buffers < buffers:
            assert self._came.wait(PATIENCE), "nothing came"
            self._came.clear()


# --- the sender -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_sender_sends_the_elements_that_a_barrier_overtook_after_the_barrier(
    is_local: bool,
) -> None:
    """ST-06."""
    with channel(is_local, buffer_timeout=None) as (partition, reads):
        for element in STORY[:3]:
            partition.subpartitions[0].put(element)
        (kept_here,) = overtaken(partition, unaligned())
        assert stored(kept_here) == [shown(element) for element in STORY[:3]]
        partition.subpartitions[0].put(END_OF_INPUT)
        reading = reads()
        assert reading.next() == (0, unaligned())
        assert reading.gate.in_flight(0) == []
        assert [shown(element) for element in reading.rest()] == [shown(e) for e in STORY[:3]]


def test_overtaken_local_elements_are_stored_unchanged() -> None:
    """ST-06: although the reading task changes the values later, also those that were encoded."""
    with channel(is_local=True) as (partition, reads):
        (subpartition,) = partition.subpartitions
        subpartition.put(Block([["encoded"]]))  # nobody reads yet
        reading = reads()
        subpartition.put(Block([["as it is"]]))
        (kept_here,) = overtaken(partition, unaligned())
        subpartition.put(END_OF_INPUT)
        reading.next()
        for block in reading.rest_of_records():
            assert isinstance(block, Block)
            block.values[0].append("changed")
        assert stored(kept_here) == [shown(Block([["encoded"]])), shown(Block([["as it is"]]))]


def test_barrier_reports_overtaken_elements_only_for_subpartitions_with_elements() -> None:
    with network() as make:
        partition = make("producer").create_partition("p", "Source", 3, buffer_timeout=None)
        partition.subpartitions[1].put(Block([1]))
        settled: list[Any] = []
        partition.barrier(Barrier(1, 0), settled.append)
        assert settled.pop() == {}
        partition.barrier(unaligned(2), settled.append)
        assert list(settled.pop()) == [1]


# --- the receiver ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_elements_overtaken_by_two_barriers_belong_to_both_checkpoints(is_local: bool) -> None:
    """Elements not yet taken are part of both checkpoints; each element is polled once."""
    with channel(is_local) as (partition, reads):
        (subpartition,) = partition.subpartitions
        reading = reads()
        subpartition.put(Block([1]))
        subpartition.put(Block([2]))
        found = []
        for checkpoint_id in (1, 2):
            (of_sender,) = overtaken(partition, unaligned(checkpoint_id))
            assert reading.next_barrier() == (0, unaligned(checkpoint_id))
            found.append(stored([*kept(reading.gate.in_flight(0)), *of_sender]))
            subpartition.put(Block([3]))
        assert found == [
            [shown(Block([1])), shown(Block([2]))],
            [shown(Block([1])), shown(Block([2])), shown(Block([3]))],
        ]
        subpartition.put(END_OF_INPUT)
        assert [shown(element) for element in reading.rest()] == [
            shown(Block([value])) for value in (1, 2, 3, 3)
        ]
        assert reading.gate.in_flight(0) == []


@pytest.mark.parametrize("is_local", [True, False])
def test_unaligned_barrier_is_read_although_its_channel_is_blocked(is_local: bool) -> None:
    """ST-06: an aligned savepoint blocks the channel."""
    with channel(is_local) as (partition, reads):
        (subpartition,) = partition.subpartitions
        reading = reads()
        subpartition.put(Barrier(1, 0, savepoint=True))
        subpartition.put(Block([1]))
        assert reading.next() == (0, Barrier(1, 0, savepoint=True))
        reading.gate.block(0)
        (of_sender,) = overtaken(partition, unaligned(2))
        assert reading.next_barrier() == (0, unaligned(2))
        assert stored([*kept(reading.gate.in_flight(0)), *of_sender]) == [shown(Block([1]))]
        assert reading.gate.poll() is None
        reading.gate.resume_all()
        assert shown(reading.next()[1]) == shown(Block([1]))


def test_unaligned_barriers_in_an_empty_channel_leave_no_queued_bytes() -> None:
    with channel(is_local=False) as (partition, reads):
        reading = reads()
        for checkpoint_id in range(1, 4):
            overtaken(partition, unaligned(checkpoint_id))
            assert reading.next_barrier() == (0, unaligned(checkpoint_id))
        assert reading.gate.poll() is None
        left = reading.gate.metrics()
        assert (left.queued_buffers, left.queued_bytes) == (0, 0)


def test_local_channel_keeps_only_the_last_barrier_that_the_task_has_read() -> None:
    with channel(is_local=True) as (partition, reads):
        reading = reads()
        partition.subpartitions[0].put(Block([1]))
        for checkpoint_id in range(1, 4):
            overtaken(partition, unaligned(checkpoint_id))
            assert reading.next_barrier() == (0, unaligned(checkpoint_id))
            reading.gate.in_flight(0)
        (local,) = reading.gate.channels
        assert isinstance(local, LocalInputChannel)
        assert local._view is not None
        assert len(local._view._barriers) == 1


# --- time-outs ------------------------------------------------------------------------------------

NOW = 1_000_000_000
"""Seconds since 1970."""


def in_line(checkpoint_id: int = 1) -> Barrier:
    """One that has 300 milliseconds."""
    return Barrier(checkpoint_id, NOW * 1000, alignment_timeout=300)


def overdue(checkpoint_id: int = 1) -> Barrier:
    """The same, when these are over."""
    return replace(in_line(checkpoint_id), unaligned=True)


class TimedChannel:
    """Producer and consumer with one clock; nothing happens in time but what :meth:`wait` does."""

    def __init__(
        self,
        make: Callable[..., NetworkEnvironment],
        is_local: bool,
        settings: NetworkSettings = NARROW,
    ) -> None:
        self.clock = ManualClock(epoch=NOW)
        arguments: dict[str, Any] = {
            "clock": self.clock,
            "manual_timers": True,
            "settings": settings,
        }
        self._places = [make("producer", **arguments)]
        if not is_local:
            self._places.append(make("consumer", **arguments))
        self.partition = self._places[0].create_partition("p", "Source", 2, buffer_timeout=0)
        self.settled: list[dict[int, list[object]]] = []

    def reads(self, index: int = 0) -> Reading:
        source = ChannelSource("p", index, self._places[0].address)
        return Reading(self._places[-1].create_gate("Sink", [source]))

    def put(self, element: Element, index: int = 0) -> None:
        self.partition.subpartitions[index].put(element)

    def barrier(self, barrier: Barrier) -> None:
        self.partition.barrier(
            barrier,
            lambda told: self.settled.append(
                {index: stored(elements) for index, elements in told.items()}
            ),
        )

    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)
        for place in self._places:
            place.timers.run_due()


@pytest.mark.parametrize("is_local", [True, False])
def test_barrier_unsent_within_its_timeout_overtakes_waiting_elements(is_local: bool) -> None:
    """ST-08: the timeout counts from the trigger of the checkpoint; elements written after the
    barrier stay behind it."""
    with network() as make:
        channel = TimedChannel(make, is_local)
        channel.wait(100)
        channel.put(Block([1]))
        channel.put(Block([2]), 1)
        channel.barrier(in_line())
        channel.put(Block([3]))
        channel.wait(199)
        assert channel.settled == []
        channel.wait(2)
        assert channel.settled == [{0: [shown(Block([1]))], 1: [shown(Block([2]))]}]
        reading = channel.reads()
        channel.put(END_OF_INPUT)
        came = [shown(element) for element in reading.rest()]
        assert came == [overdue(), shown(Block([1])), shown(Block([3]))]
        assert channel.partition.subpartitions[0].metrics().queued_bytes == 0
        channel.wait(1000)
        assert len(channel.settled) == 1


def test_overtaken_elements_are_reported_before_the_barrier_arrives() -> None:
    """ST-08: the consumer may then read everything, and the producer may end."""
    with network() as make:
        channel = TimedChannel(make, is_local=True)
        reading = channel.reads()
        channel.put(Block([1]))
        channel.barrier(in_line())
        known: list[int] = []
        reading.gate.listen(lambda: known.append(len(channel.settled)))
        known.clear()
        channel.wait(300)
        assert known[0] == 1


def test_barrier_sent_by_racing_threads_is_reported_as_sent_once() -> None:
    """One thread sees that there is a barrier to report; another thread reports it first."""
    with network() as make:
        partition = make("producer").create_partition("p", "Source", 1)
        told: list[object] = []

        class Raced(deque[WaitingBarrier]):
            is_first = True

            def __bool__(self) -> bool:
                has_some = len(self) > 0
                if self.is_first:
                    self.is_first = False
                    in_background(partition.buffers_taken)()
                return has_some

        partition.settled = Raced([WaitingBarrier(in_line(), 0, told.append)])
        partition.buffers_taken()
        assert told == [{}]


def test_overtaking_barrier_is_sent_without_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """ST-08: its consumer reads nothing."""
    with network() as make:
        channel = TimedChannel(make, is_local=False)
        reading = channel.reads()
        arrivals = Arrivals(reading.gate, monkeypatch)
        channel.put(numbers(10_000))  # its producer owes more than all credit for that
        arrivals.wait_for(1)
        channel.put(Block([1]))
        channel.barrier(in_line())
        channel.wait(300)
        assert reading.next_barrier() == (0, overdue())
        assert channel.settled == [{0: [shown(Block([1]))]}]
        assert stored(reading.gate.in_flight(0)) == [shown(numbers(10_000))]


def test_timed_out_barrier_overtakes_elements_only_in_subpartitions_yet_to_send_it() -> None:
    """ST-08: the overtaken elements are reported when they are known for all subpartitions."""
    with network() as make:
        channel = TimedChannel(make, is_local=True)
        reading = channel.reads(0)
        for index in range(2):
            channel.put(Block([index]), index)
        channel.barrier(in_line())
        assert shown(reading.next()[1]) == shown(Block([0]))
        assert reading.next() == (0, in_line())
        assert channel.settled == []
        channel.wait(300)
        assert channel.settled == [{1: [shown(Block([1]))]}]
        assert channel.reads(1).next() == (0, overdue())


@pytest.mark.parametrize("is_local", [True, False])
def test_barrier_sent_before_its_timeout_overtakes_nothing_at_its_sender(is_local: bool) -> None:
    """ST-08: not even after the last subpartition has sent it."""
    with network() as make:
        channel = TimedChannel(make, is_local)
        channel.put(Block([1]))
        channel.barrier(in_line())
        reading = channel.reads(0)
        reading.next()
        assert reading.next() == (0, in_line())
        assert channel.settled == []
        assert channel.reads(1).next() == (0, in_line())
        assert channel.settled == [{}]
        channel.wait(1000)
        assert channel.settled == [{}]


@pytest.mark.parametrize("is_local", [True, False])
def test_barrier_written_after_its_timeout_overtakes_waiting_elements_at_once(
    is_local: bool,
) -> None:
    """ST-09"""
    with network() as make:
        channel = TimedChannel(make, is_local)
        channel.put(Block([1]))
        channel.wait(300)
        channel.barrier(in_line())
        assert channel.settled == [{0: [shown(Block([1]))]}]
        assert channel.reads().next() == (0, overdue())


def test_barriers_of_savepoints_or_without_alignment_timeout_overtake_no_elements() -> None:
    """ST-07, ST-08"""
    with network() as make:
        channel = TimedChannel(make, is_local=False)
        channel.put(Block([1]))
        for barrier in (Barrier(1, 0), Barrier(2, 0, savepoint=True, alignment_timeout=300)):
            channel.barrier(barrier)
        assert channel.settled == [{}, {}]
        channel.wait(10_000)
        reading = channel.reads()
        assert [reading.next()[1] for _ in range(3)][1:] == [
            Barrier(1, 0),
            Barrier(2, 0, savepoint=True, alignment_timeout=300),
        ]


def test_barrier_overtakes_elements_queued_at_the_receiver_when_its_timeout_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ST-08: whether its channel is blocked or not; the gate returns the barrier once."""
    with network() as make:
        channel = TimedChannel(make, is_local=False, settings=NetworkSettings())
        reading = channel.reads()
        arrivals = Arrivals(reading.gate, monkeypatch)
        channel.put(Block([1]))
        channel.put(Barrier(1, 0))
        channel.put(Block([2]))
        channel.barrier(in_line(2))
        channel.put(Block([3]))
        arrivals.wait_for(5)
        reading.next()
        assert reading.next() == (0, Barrier(1, 0))
        reading.gate.block(0)
        channel.wait(299)
        assert reading.gate.poll_overtaking() is None
        channel.wait(2)
        assert reading.gate.poll() == (0, overdue(2))
        assert stored(reading.gate.in_flight(0)) == [shown(Block([2]))]
        reading.gate.resume_all()
        channel.put(END_OF_INPUT)
        assert [shown(element) for element in reading.rest()] == [shown(Block([n])) for n in (2, 3)]


def test_barrier_read_before_its_alignment_timeout_is_not_read_again_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ST-08: a closed gate returns no barrier either."""
    with network() as make:
        channel = TimedChannel(make, is_local=False)
        reading = channel.reads()
        channel.barrier(in_line())
        assert reading.next() == (0, in_line())
        assert reading.gate.poll() is None
        channel.wait(1000)
        assert not reading.gate.has_elements()
        arrivals = Arrivals(reading.gate, monkeypatch)
        channel.barrier(replace(in_line(2), timestamp=NOW * 1000 + 1000))
        arrivals.wait_for(1)
        reading.gate.close()
        channel.wait(1000)
        assert reading.gate.poll_overtaking() is None


def test_barrier_that_arrives_after_its_alignment_timeout_is_read_as_unaligned() -> None:
    """ST-09: the clock of the sender is behind."""
    with network() as make:
        clock = ManualClock(epoch=NOW - 60)
        producer = make("producer", clock=clock, manual_timers=True)
        consumer = make("consumer", clock=ManualClock(epoch=NOW + 60), manual_timers=True)
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        gate = consumer.create_gate("Sink", [ChannelSource("p", 0, producer.address)])
        reading = Reading(gate)
        partition.barrier(in_line(), lambda _: None)
        assert reading.next_barrier() == (0, overdue())


class NotCopied:
    """Refuses to be copied."""

    def __deepcopy__(self, memo: object) -> NotCopied:
        raise ArithmeticError("no copy")


def test_writer_fails_when_elements_overtaken_by_a_barrier_cannot_be_stored() -> None:
    with network() as make:
        channel = TimedChannel(make, is_local=True)
        channel.reads()
        woken: list[int] = []
        channel.partition.listen(lambda: woken.append(1))
        channel.put(Block([NotCopied()]))
        channel.barrier(in_line())
        channel.wait(300)
        assert woken
        with pytest.raises(ArithmeticError, match="no copy"):
            channel.partition.has_room()
        assert channel.settled == []


def test_failed_partition_reports_no_overtaken_elements() -> None:
    with network() as make:
        channel = TimedChannel(make, is_local=False)
        channel.put(Block([1]))
        channel.barrier(in_line())
        channel.partition.fail("its task was cancelled")
        channel.wait(300)
        assert channel.settled == []


# --- restore --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_restored_data_in_flight_comes_before_new_elements(is_local: bool) -> None:
    """First the data of the receiver, then that of the sender. Until it is taken, it is in flight
    for the next checkpoint as well."""
    elements: list[Element] = [Block([1]), Watermark(2), Block([3]), Watermark(4), Block([5])]
    with channel(is_local) as (partition, reads):
        partition.restore(0, elements[2:4])
        partition.subpartitions[0].put(elements[4])
        partition.subpartitions[0].put(END_OF_INPUT)
        reading = reads(*elements[:2])
        assert [shown(element) for element in reading.rest()] == [shown(e) for e in elements]
    with channel(is_local) as (partition, reads):
        reading = reads(*elements[:2])
        partition.restore(0, elements[2:4])
        assert shown(reading.next()[1]) == shown(elements[0])
        (of_sender,) = overtaken(partition, unaligned())
        assert reading.next_barrier() == (0, unaligned())
        in_flight = stored([*kept(reading.gate.in_flight(0)), *of_sender])
        assert in_flight == [shown(element) for element in elements[1:4]]


# --- whatever comes -------------------------------------------------------------------------------

Channel = tuple[int, int]
"""Partition and gate."""
Flat = list[tuple[str, int]]

WAYS = ("this process", "unix socket", "tcp")


def flat(elements: Sequence[InFlight]) -> Flat:
    """Records one by one, as batches may be put together on their way."""
    found: Flat = []
    for element in decode_elements(encode_elements(elements)):
        if isinstance(element, Block):
            found += [("value", value[0]) for value in element.values]
        elif isinstance(element, Columns):
            found += [("column", number) for number in element.batch.column(0).to_pylist()]
        else:
            assert isinstance(element, Watermark)
            found.append(("watermark", element.timestamp))
    return found


@dataclass
class Cut:
    """What a checkpoint has of one channel."""

    before: int
    """Records that were put before the barrier."""
    of_sender: Sequence[InFlight] | None = None
    """None: that is not known yet."""
    taken: int = -1
    """Records that were taken before the barrier was; -1: it was not yet."""
    of_receiver: Sequence[InFlight] = ()


class Exchange:
    """Two producers, two consumers that read from both, and what passes between them.

    Args:
        producers: where each producer runs.
    """

    def __init__(
        self, name: str, producers: Sequence[NetworkEnvironment], consumer: NetworkEnvironment
    ) -> None:
        self.partitions = [
            producer.create_partition(f"{name} {number}", "Source", 2, buffer_timeout=None)
            for number, producer in enumerate(producers)
        ]
        self.gates = [
            consumer.create_gate(
                "Sink",
                [
                    ChannelSource(partition.id, index, producer.address)
                    for partition, producer in zip(self.partitions, producers, strict=True)
                ],
            )
            for index in range(2)
        ]
        self.put: dict[Channel, Flat] = defaultdict(list)
        self.taken: dict[Channel, Flat] = defaultdict(list)
        self.cuts: dict[tuple[Channel, int], Cut] = {}
        self._number = 0

    def begin(self) -> None:
        self._readings = [Reading(gate) for gate in self.gates]

    def write(self, number: int, index: int, kind: int, with_watermark: bool) -> None:
        """A batch, of one record or of many, as values or as columns."""
        elements: list[Element] = []
        self._number += 10_000
        if with_watermark:
            elements.append(Watermark(self._number))
        if kind == 0:
            elements.append(Block([[self._number], [self._number + 1]]))
        else:
            elements.append(numbers(kind, self._number))
        for element in elements:
            self.put[number, index] += flat([element])
            self.partitions[number].subpartitions[index].put(element)

    def barrier(self, number: int, barrier: Barrier) -> None:
        cuts = [Cut(len(self.put[number, index])) for index in range(2)]
        for index, cut in enumerate(cuts):
            self.cuts[(number, index), barrier.checkpoint_id] = cut

        def settled(told: Mapping[int, Sequence[InFlight]]) -> None:
            for index, cut in enumerate(cuts):
                assert cut.of_sender is None, "told twice"
                cut.of_sender = told.get(index, ())

        self.partitions[number].barrier(barrier, settled)

    def take(self, index: int, is_patient: bool) -> None:
        """One element, if there is one; *is_patient*: if there will be one."""
        if not is_patient:
            polled = self.gates[index].poll()
            if polled is not None:
                self._took(index, *polled)
        elif any(self._is_on_its_way((number, index)) for number in range(2)):
            for partition in self.partitions:
                partition.flush()
            self._took(index, *self._readings[index].next())

    def _is_on_its_way(self, channel: Channel) -> bool:
        return len(self.taken[channel]) < len(self.put[channel]) or any(
            cut.taken < 0 for (of, _), cut in self.cuts.items() if of == channel
        )

    def _took(self, index: int, number: int, element: Element) -> None:
        channel = number, index
        if isinstance(element, Barrier):
            cut = self.cuts[channel, element.checkpoint_id]
            assert cut.taken < 0, "taken twice"
            cut.taken = len(self.taken[channel])
            if element.unaligned:
                cut.of_receiver = kept(self.gates[index].in_flight(number))
            return
        self.taken[channel] += flat([element])
        if isinstance(element, Block):
            for value in element.values:  # it is the task's
                value.clear()

    def take_all(self) -> None:
        for index in range(2):
            while any(self._is_on_its_way((number, index)) for number in range(2)):
                self.take(index, is_patient=True)

    def restored(self, cuts: dict[Channel, Cut]) -> None:
        for (number, index), cut in cuts.items():
            assert cut.of_sender is not None
            of_receiver, of_sender = (
                decode_elements(encode_elements(part)) for part in (cut.of_receiver, cut.of_sender)
            )
            self.gates[index].restore(number, of_receiver)
            self.partitions[number].restore(index, of_sender)
            self.put[number, index] = flat([*of_receiver, *of_sender])

    def end(self) -> None:
        for partition in self.partitions:
            for subpartition in partition.subpartitions:
                subpartition.put(END_OF_INPUT)
        for reading in self._readings:
            assert reading.rest() == []


steps = st.one_of(
    st.tuples(
        st.just("write"), st.sampled_from([0, 1, 60, 5000]), st.booleans(), st.integers(1, 5)
    ),
    st.tuples(st.just("take"), st.booleans(), st.just(False), st.integers(1, 8)),
    st.tuples(st.just("barrier"), st.none() | st.integers(-5, 30), st.none(), st.just(1)),
    st.tuples(st.just("pass"), st.integers(1, 20), st.none(), st.just(1)),
)
scripts = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), steps), min_size=5, max_size=40)
"""Producer, consumer, and what they do how often.  Barriers are in line for some milliseconds, or
overtake at once; time passes, for all."""


def test_checkpoint_has_exactly_the_elements_before_its_barriers() -> None:
    """ST-06, ST-08: elements taken before the barrier, in flight at the receiver and kept by the
    sender are, in this order, the elements written before the barrier."""
    clock = ManualClock(epoch=1e9)
    with network() as make_one:

        def make(name: str, node_id: str) -> NetworkEnvironment:
            arguments = {"settings": NARROW, "clock": clock, "manual_timers": True}
            return make_one(name, node_id=node_id, **arguments)

        here = make("here", "one")
        places = {
            "this process": here,
            "unix socket": make("there", "one"),
            "tcp": make("far away", "another"),
        }

        def now() -> int:
            return int(clock.time() * 1000)

        ways = st.tuples(st.sampled_from(WAYS), st.sampled_from(WAYS))
        runs = count()

        @settings(max_examples=150, deadline=None)
        @given(scripts, ways, ways, st.randoms(use_true_random=False))
        def run(script: Any, way: Any, later_way: Any, random: Random) -> None:
            exchange = Exchange(f"run {next(runs)}", [places[name] for name in way], here)
            exchange.begin()
            checkpoint_id = 0
            for number, index, (step, what, also, times) in script:
                for _ in range(times):
                    if step == "write":
                        exchange.write(number, index, what, also)
                    elif step == "take":
                        exchange.take(index, is_patient=what)
                    elif step == "pass":
                        clock.advance(what / 1000)
                        for place in places.values():
                            place.timers.run_due()
                    else:
                        checkpoint_id += 1
                        barrier = Barrier(
                            checkpoint_id, now(), unaligned=what is None, alignment_timeout=what
                        )
                        exchange.barrier(number, barrier)
                        exchange.barrier(1 - number, barrier)
            exchange.take_all()
            assert exchange.taken == exchange.put
            for (channel, _), cut in exchange.cuts.items():
                assert cut.of_sender is not None
                before = exchange.put[channel][: cut.before]
                in_flight = flat([*cut.of_receiver, *cut.of_sender])
                assert exchange.taken[channel][: cut.taken] + in_flight == before
            exchange.end()
            if checkpoint_id:
                chosen = random.randint(1, checkpoint_id)
                again = Exchange(f"run {next(runs)}", [places[name] for name in later_way], here)
                again.restored({ch: cut for (ch, i), cut in exchange.cuts.items() if i == chosen})
                again.begin()
                again.write(0, 0, 1, with_watermark=True)
                again.take_all()
                assert again.taken == again.put
                again.end()

        run()
        assert memory_files() > 0  # that large batches are sent in


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_each_checkpoint_has_each_record_once_with_concurrent_reads_and_writes(
    is_local: bool, seed: int
) -> None:
    """ST-06, ST-08: each record is taken, in flight, or kept by the sender."""
    random = Random(seed)
    put_before: dict[int, int] = {}
    of_sender: dict[int, Sequence[InFlight]] = {}
    with network() as make:
        producer = make("producer", settings=NARROW)
        consumer = producer if is_local else make("consumer", settings=NARROW)
        writing = Writing(producer.create_partition("p", "Source", 1, buffer_timeout=0.001))
        all_settled = threading.Event()

        def settled(checkpoint_id: int, told: Mapping[int, Sequence[InFlight]]) -> None:
            of_sender[checkpoint_id] = told.get(0, ())
            if len(of_sender) == 60:
                all_settled.set()

        def write() -> None:
            number = 0
            for checkpoint_id in range(1, 61):
                for _ in range(random.randint(0, 30)):
                    writing.put(Block([[number]]))
                    number += 1
                put_before[checkpoint_id] = number
                now = int(producer.timers.clock.time() * 1000)
                timeout = random.choice([None, 0, 1, 3])
                barrier = Barrier(
                    checkpoint_id, now, unaligned=timeout is None, alignment_timeout=timeout
                )
                writing.partition.barrier(barrier, partial(settled, checkpoint_id))
            writing.put(END_OF_INPUT)

        join = in_background(write)
        reading = read(consumer, producer)
        taken: Flat = []
        cuts: dict[int, tuple[int, list[InFlight]]] = {}
        while not reading.gate.finished:
            _, element = reading.next()
            if element == END_OF_INPUT:
                reading.gate.end(0)
            elif isinstance(element, Barrier):
                in_flight = kept(reading.gate.in_flight(0)) if element.unaligned else []
                assert element.checkpoint_id not in cuts
                cuts[element.checkpoint_id] = len(taken), in_flight
            else:
                assert isinstance(element, Block)
                taken += flat([element])
                for value in element.values:
                    value.clear()
        join()
        assert all_settled.wait(PATIENCE)
        assert len(cuts) == 60
        for checkpoint_id, (count_taken, of_receiver) in cuts.items():
            kept_of_both = flat([*of_receiver, *of_sender[checkpoint_id]])
            before = [("value", number) for number in range(put_before[checkpoint_id])]
            assert taken[:count_taken] + kept_of_both == before
