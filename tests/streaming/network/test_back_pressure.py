"""A producer that is faster than its consumer waits, and what is in between is bounded."""

from __future__ import annotations

import pytest

from flinkray.streaming.network import ChannelSource, NetworkSettings
from flinkray.streaming.network.buffers import OVERHEAD
from flinkray.streaming.network.credit import FloatingCredit, ReceiverCredit
from flinkray.streaming.network.input_channels import RemoteInputChannel
from flinkray.streaming.network.views import RemoteView
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Block, Columns, Watermark
from flinkray.testing import ManualClock
from tests.streaming.network.networks import Reading, Writing, in_background, network, numbers, read

SMALL = NetworkSettings(
    segment_size=4096,
    buffers_per_channel=2,
    floating_buffers_per_gate=2,
    max_buffers_per_channel=3,
)
BATCH = numbers(1000)
"""8,000 bytes and a little: two segments."""


@pytest.mark.parametrize("is_local", [True, False])
def test_writer_has_no_room_for_more_data_while_its_consumer_reads_nothing(is_local: bool) -> None:
    with network() as make:
        producer = make("producer", settings=SMALL)
        consumer = producer if is_local else make("consumer", settings=SMALL)
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        written = 0
        most = 0
        while written < 20:
            if not partition.has_room():
                # what the consumer has credit for leaves; then nothing does
                waiting = partition.metrics().queued_buffers
                if waiting + reading.gate.metrics().queued_buffers == written:
                    break
                continue
            partition.subpartitions[0].put(BATCH)
            written += 1
            most = max(most, partition.metrics().queued_bytes)
        assert written < 20
        assert most <= SMALL.most_queued + 8500
        received = reading.gate.metrics().queued_bytes
        assert received <= SMALL.exclusive_credit + SMALL.floating_credit + 8500


def test_writer_of_large_records_to_its_own_process_stops_at_the_queued_bytes_limit() -> None:
    with network() as make:
        process = make("process")
        partition = process.create_partition("p", "Source", 1, buffer_timeout=0)
        read(process, process)
        limit, written = 2 * NetworkSettings().most_queued, 0
        while partition.has_room() and written < 4 * limit:
            partition.subpartitions[0].put(Block([bytes(1 << 20)]))
            written += 1 << 20
        assert written <= limit


def test_memory_is_bounded_with_a_consumer_a_hundred_times_slower() -> None:
    with network() as make:
        producer = make("producer", settings=SMALL)
        consumer = make("consumer", settings=SMALL)
        writing = Writing(producer.create_partition("p", "Source", 1, buffer_timeout=0))
        most_queued = 0

        def write() -> None:
            nonlocal most_queued
            for number in range(100):
                writing.put(numbers(1000, number))
                most_queued = max(most_queued, writing.partition.metrics().queued_bytes)
            writing.put(END_OF_INPUT)

        join = in_background(write)
        reading = read(consumer, producer)
        firsts: list[int] = []
        most_received = 0
        while len(firsts) < 100:
            _, element = reading.next()
            assert isinstance(element, Columns)
            firsts.append(element.batch.column(0)[0].as_py())
            for _ in range(100):  # the time that a hundred others would take
                most_received = max(most_received, reading.gate.metrics().queued_bytes)
        join()
        assert firsts == list(range(100))
        assert most_queued <= SMALL.most_queued + 8500
        assert most_received <= SMALL.exclusive_credit + SMALL.floating_credit + 8500
        assert writing.partition.metrics().back_pressured_seconds > 0


def test_batch_larger_than_all_credit_is_sent() -> None:
    with network() as make:
        producer = make("producer", settings=SMALL)
        consumer = make("consumer", settings=SMALL)
        writing = Writing(producer.create_partition("p", "Source", 1, buffer_timeout=0))

        def write() -> None:
            for _ in range(3):
                writing.put(numbers(1_000_000))
            writing.put(END_OF_INPUT)

        join = in_background(write)
        assert sum(map(len, read(consumer, producer).rest_of_records())) == 3_000_000
        join()


def test_barrier_and_end_of_input_arrive_after_a_batch_larger_than_the_credit() -> None:
    with network() as make:
        producer = make("producer", settings=SMALL)
        consumer = make("consumer", settings=SMALL)
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        subpartition = partition.subpartitions[0]
        subpartition.put(numbers(10_000))  # more than the credit
        assert isinstance(reading.next()[1], Columns)
        for element in (Barrier(1, 0), END_OF_INPUT):
            subpartition.put(element)
        assert reading.rest() == [Barrier(1, 0)]


@pytest.mark.parametrize("are_taken", [True, False])
def test_ten_thousand_barriers_do_not_change_the_memory_limit_of_a_channel(are_taken: bool) -> None:
    """Whether the consumer reads the barriers and then stops reading, or stops before they
    arrive."""
    with network() as make:
        producer, consumer = (make(name, settings=SMALL) for name in ("producer", "consumer"))
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        subpartition = partition.subpartitions[0]
        for checkpoint_id in range(10_000):
            subpartition.put(Barrier(checkpoint_id, 0))
            if are_taken:
                assert reading.next() == (0, Barrier(checkpoint_id, 0))
        written = 0
        while partition.has_room():
            subpartition.put(BATCH)
            written += 1
        assert written < 20
        received = reading.gate.metrics().queued_bytes
        assert received <= SMALL.exclusive_credit + SMALL.floating_credit + 8500
        view = subpartition.view
        assert isinstance(view, RemoteView)
        assert view.credit <= SMALL.exclusive_credit + SMALL.floating_credit


def test_full_channel_does_not_delay_other_channels_of_the_connection() -> None:
    with network() as make:
        producer = make("producer", settings=SMALL)
        consumer = make("consumer", settings=SMALL)
        full = producer.create_partition("full", "Source", 1, buffer_timeout=0)
        free = producer.create_partition("free", "Source", 1, buffer_timeout=0)
        slow = consumer.create_gate("Slow", [ChannelSource("full", 0, producer.address)])
        slow.request()
        while full.has_room():
            full.subpartitions[0].put(BATCH)
        for number in range(50):
            free.subpartitions[0].put(Block([number]))
            free.subpartitions[0].put(Watermark(number))
        free.subpartitions[0].put(END_OF_INPUT)
        assert len(read(consumer, producer, "free").rest()) == 100
        assert consumer.number_of_connections == 1


def test_metric_of_back_pressured_time_is_the_time_in_which_the_writer_has_no_room() -> None:
    clock = ManualClock()
    with network() as make:
        producer = make("producer", settings=SMALL, clock=clock, manual_timers=True)
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        while partition.has_room():
            partition.subpartitions[0].put(BATCH)
        clock.advance(2.5)
        assert partition.metrics().back_pressured_seconds == 2.5
        partition.subpartitions[0].put(END_OF_INPUT)
        Reading(producer.create_gate("Sink", [ChannelSource("p", 0, producer.address)])).rest()
        clock.advance(1.0)
        assert partition.has_room()
        clock.advance(1.0)
        assert partition.metrics().back_pressured_seconds == 3.5


# --- the books ------------------------------------------------------------------------------------


def test_receiver_returns_credit_to_the_sender_in_few_messages() -> None:
    credit = ReceiverCredit(1000, FloatingCredit(0))
    grants = []
    for _ in range(100):
        credit.on_received(100, 0)
        grants.append(credit.on_taken(100))
    assert sum(grants) == 10_000
    assert len([grant for grant in grants if grant]) == 20


def test_channels_with_a_backlog_borrow_floating_credit_and_return_it() -> None:
    floating = FloatingCredit(500)
    busy, other = ReceiverCredit(100, floating), ReceiverCredit(100, floating)
    assert busy.on_received(100, backlog=300) == 300
    assert other.on_received(100, backlog=900) == 200
    assert floating.free == 0
    busy.on_received(300, backlog=0)
    busy.on_taken(400)
    assert floating.free == 300
    other.close()
    assert floating.free == 500


def test_buffer_that_arrives_in_a_closed_channel_uses_no_floating_credit() -> None:
    """The buffer was on its way when the task ended."""
    with network() as make:
        producer, consumer = (make(name, settings=SMALL) for name in ("producer", "consumer"))
        reading = read(consumer, producer)
        (channel,) = reading.gate.channels
        assert isinstance(channel, RemoteInputChannel)
        reading.gate.close()
        channel.received(1, 10_000, False, ((5, 1),), None)
        assert channel.credit.floating.free == SMALL.floating_credit
        assert channel.metrics().queued_bytes == 0


def test_credit_of_a_large_batch_is_returned_only_when_the_task_takes_the_batch() -> None:
    credit = ReceiverCredit(100, FloatingCredit(0))
    assert credit.on_received(10_000, backlog=10_000) == 0
    assert credit.in_use == 10_000
    assert credit.on_taken(10_000) == 10_000
    assert credit.in_use == 0


def test_queued_bytes_of_a_small_buffer_include_its_memory_overhead() -> None:
    with network() as make:
        partition = make("producer").create_partition("p", "Source", 1, buffer_timeout=0)
        partition.subpartitions[0].put(Watermark(1))
        assert partition.metrics().queued_bytes == OVERHEAD
