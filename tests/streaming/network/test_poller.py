"""Which thread reads the connections of a process."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    NetworkInputGate,
    ProducerLostError,
    poller,
)
from flinkray.streaming.network.poller import PollingSignal
from flinkray.streaming.records.elements import END_OF_DATA, END_OF_INPUT, Barrier, Element
from tests.streaming.network.networks import PATIENCE, Writing, in_background, network, numbers


class _Task:
    """A task that reads one channel. Remembers which threads have handed data over to the task."""

    def __init__(
        self, environment: NetworkEnvironment, producer: NetworkEnvironment, partition: str = "p"
    ) -> None:
        self.signal: PollingSignal = environment.signal()
        self.readers: list[threading.Thread] = []
        self.was_told = threading.Semaphore(0)
        self.gate: NetworkInputGate = environment.create_gate(
            "Sink", [ChannelSource(partition, 0, producer.address)]
        )
        self.gate.listen(self._has_data)
        self.gate.request()

    def _has_data(self) -> None:
        self.readers.append(threading.current_thread())
        self.signal.set()
        self.was_told.release()

    def next(self) -> Element:
        while (polled := self.gate.poll()) is None:
            assert self.signal.wait(PATIENCE), "nothing came"
        return polled[1]


def _write(environment: NetworkEnvironment, name: str = "p", **arguments: Any) -> Writing:
    return Writing(environment.create_partition(name, "Source", 1, buffer_timeout=0, **arguments))


def _without_helper(environment: NetworkEnvironment) -> NetworkEnvironment:
    """Give the environment a helper that has ended, so that only tasks read."""
    helper = threading.Thread(target=int)
    helper.start()
    environment._poller._helper = helper
    return environment


def test_waiting_task_reads_its_data_in_its_own_thread() -> None:
    with network() as make:
        producer, consumer = make("producer"), _without_helper(make("consumer"))
        writing, task = _write(producer), _Task(consumer, producer)
        for count in range(1, 100):
            join = in_background(partial(writing.put, numbers(count)))
            assert len(task.next()) == count  # type: ignore[arg-type]
            join()
        assert set(task.readers) == {threading.current_thread()}


class _Looks:
    """The epoll of a poller. Something arrives when the test says so. A sleep ends at once."""

    def __init__(self, environment: NetworkEnvironment, signal: PollingSignal) -> None:
        self._epoll = environment._poller._epoll
        environment._poller._epoll = self  # type: ignore[assignment]
        self._signal = signal
        self.arrives = False
        self.sleeps: list[int] = []
        """Number of sleeps after each look."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        if timeout:
            self.sleeps[-1] += 1
            self._signal.set()
            return []
        self.sleeps.append(0)
        arrives, self.arrives = self.arrives, False
        return [(-1, 1)] if arrives else []


def test_waiting_task_stays_awake_more_rarely_the_more_often_nothing_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "AWAKE", 0.0)
    with network() as make:
        producer, consumer = make("producer"), _without_helper(make("consumer"))
        task = _Task(consumer, producer)
        task.signal.take()
        looks = _Looks(consumer, task.signal)
        for _ in range(2 + 4 + 8):
            task.signal.wait()
        assert looks.sleeps == [2, 4, 8]
        looks.arrives = True
        for _ in range(2 + 4 + 8 + 16 + 32 + 64 + 128 + 128):
            task.signal.wait()
        assert looks.sleeps[3:] == [0, 2, 4, 8, 16, 32, 64, 128, 128]


def test_waiting_task_does_not_sleep_if_its_data_arrives_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "AWAKE", PATIENCE / 2)
    with network() as make:
        producer, consumer = make("producer"), _without_helper(make("consumer"))
        writing, task = _write(producer), _Task(consumer, producer)
        poll, timeouts = consumer._poller._epoll.poll, set()

        def noting(timeout: float, most: int) -> list[tuple[int, int]]:
            timeouts.add(timeout)
            return poll(timeout, most)

        monkeypatch.setattr(_Looks(consumer, task.signal), "poll", noting)
        for count in range(1, 100):
            join = in_background(partial(writing.put, numbers(count)))
            assert len(task.next()) == count  # type: ignore[arg-type]
            join()
        assert timeouts == {0}


def test_task_reads_between_its_steps_although_another_thread_sleeps_at_the_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "POLL_INTERVAL", 0.0)
    with network() as make:
        producer, consumer = make("producer"), _without_helper(make("consumer"))
        writing, task = _write(producer), _Task(consumer, producer)
        writing.put(numbers(1))
        task.next()
        task.readers.clear()
        consumer._poller._turn.acquire()  # as a thread that sleeps
        writing.put(numbers(2))
        while task.gate.poll() is None:
            task.signal.poll()
        consumer._poller._turn.release()
        assert task.readers == [threading.current_thread()]


def test_helper_answers_for_a_task_that_is_busy_with_user_code() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, task = _write(producer), _Task(consumer, producer)
        consumed = threading.Event()
        writing.put(numbers(1))
        writing.put(END_OF_DATA)
        task.next()
        task.next()
        writing.partition.on_consumed(consumed.set)
        task.gate.end_data(0)
        writing.put(END_OF_INPUT)
        assert consumed.wait(PATIENCE)  # although the task does not look at its channels


def test_helper_brings_barriers_that_overtake_to_a_task_that_is_busy() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, task = _write(producer), _Task(consumer, producer)
        writing.put(numbers(1))
        writing.partition.subpartitions[0].put_first(Barrier(1, 0, unaligned=True))
        while not task.gate._urgent:
            assert task.was_told.acquire(timeout=PATIENCE)
        assert task.gate.poll_overtaking() is not None


def test_helper_of_a_busy_producer_sends_when_credit_comes() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, task = _write(producer), _Task(consumer, producer)
        batches = 40  # of 800 kB each, far more than the credit
        subpartition = writing.partition.subpartitions[0]
        for _ in range(batches):
            subpartition.put(numbers(100_000))
        # the producer's task does nothing from here on
        assert [len(task.next()) for _ in range(batches)] == [100_000] * batches  # type: ignore[arg-type]


def test_helper_steps_aside_when_the_task_comes_back() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, task = _write(producer), _Task(consumer, producer)
        helper = consumer._poller._helper
        assert helper is not None
        while helper not in task.readers:  # the task is busy
            writing.put(numbers(1))
            assert task.was_told.acquire(timeout=PATIENCE)
            task.gate.poll()
            task.gate.poll()
        while threading.current_thread() not in task.readers:
            join = in_background(lambda: writing.put(numbers(1)))
            task.next()
            join()


def test_waiting_task_reads_for_the_other_tasks_of_its_process() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writings = [_write(producer, name) for name in "ab"]
        tasks = [_Task(consumer, producer, name) for name in "ab"]

        def run(task: _Task) -> None:
            for number in range(1, 200):
                assert len(task.next()) == number  # type: ignore[arg-type]

        joins = [in_background(partial(run, task)) for task in tasks]
        for number in range(1, 200):
            for writing in writings:
                writing.put(numbers(number))
        for join in joins:
            join()


def test_task_that_waits_behind_a_busy_task_gets_its_data() -> None:
    """The busy task had slept at the sockets, and was woken by its signal."""
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, waiting = _write(producer), _Task(consumer, producer)
        busy = consumer.signal()
        writing.put(numbers(1))
        waiting.next()
        is_over = threading.Event()

        def work() -> None:
            while not busy.wait(PATIENCE):
                assert not is_over.is_set()
            assert is_over.wait(PATIENCE)

        join_work = in_background(work)

        def read_two() -> None:
            assert [len(waiting.next()) for _ in range(2)] == [2, 3]  # type: ignore[arg-type]

        join = in_background(read_two)
        writing.put(numbers(2))
        busy.set()
        writing.put(numbers(3))
        join()
        is_over.set()
        join_work()


def test_waiting_task_wakes_up_when_its_process_closes_the_channels() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing, task = _write(producer), _Task(consumer, producer)
        writing.put(numbers(1))
        task.next()

        def fail() -> None:
            with pytest.raises(Exception, match="this process ends"):
                task.next()

        join = in_background(fail)
        consumer.close()
        join()
        assert not task.signal.wait(0.0)


@pytest.mark.parametrize("timeout", [0.0, 30 * 86_400.0])
def test_task_that_waits_for_no_time_or_for_a_month_reads_what_arrives(timeout: float) -> None:
    with network() as make:
        producer, consumer = make("producer"), _without_helper(make("consumer"))
        writing, task = _write(producer), _Task(consumer, producer)
        join = in_background(partial(writing.put, numbers(7)))
        give_up = time.monotonic() + PATIENCE
        while (polled := task.gate.poll()) is None:
            assert time.monotonic() < give_up
            task.signal.wait(timeout)
        assert len(polled[1]) == 7  # type: ignore[arg-type]
        join()


def test_helper_goes_on_after_a_frame_that_raises_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with network() as make:
        producer, other, consumer = make("producer"), make("other"), make("consumer")
        first, second = _write(producer), _write(other, "q")
        failing, task = _Task(consumer, producer), _Task(consumer, other, "q")
        first.put(numbers(1))
        failing.next()

        def refuse(*arguments: Any) -> None:
            raise MemoryError("no room for this frame")

        connection = consumer._poller._sockets
        (of_producer,) = [it for it in connection.values() if getattr(it, "peer", "") == "producer"]
        monkeypatch.setattr(of_producer, "read_frames", refuse)
        first.put(numbers(1))
        with pytest.raises(ProducerLostError, match="no room for this frame"):
            failing.next()
        second.put(numbers(3))
        assert task.was_told.acquire(timeout=PATIENCE), "the helper has ended"
