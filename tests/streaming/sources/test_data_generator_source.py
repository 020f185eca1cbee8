"""Generated records."""

from __future__ import annotations

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.source import NOTHING_NOW, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of, rest_of


def test_generator_keeps_its_rate_over_all_subtasks() -> None:
    clock = ManualClock()
    env = StreamExecutionEnvironment(clock=clock).set_parallelism(2)
    source = DataGeneratorSource(lambda n: n * n, 100, records_per_second=10)
    results = env.from_source(source).execute_and_collect()
    assert sorted(results) == [n * n for n in range(100)]
    assert clock.time() == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_data_generator_without_a_rate_makes_records_on_demand(parallelism: int) -> None:
    assert sorted(read(DataGeneratorSource(str, 5), parallelism)) == list("01234")


def test_data_generator_makes_only_the_records_that_are_due_by_its_rate() -> None:
    clock = ManualClock()
    source = DataGeneratorSource(lambda n: n, 100, records_per_second=10)
    reader = source.create_reader(ReaderContext(0, 2, clock))
    reader.add_splits([Slice(0, 50)])
    assert reader.poll(10) is NOTHING_NOW
    assert reader.next_poll_time() == pytest.approx(clock.time() + 0.2)
    clock.advance(0.6)
    polled = reader.poll(10)
    assert list(polled.values) == [0, 1, 2]  # type: ignore[union-attr]
    assert reader.poll(10) is NOTHING_NOW
    assert reader.snapshot_state(1) == [Slice(3, 50)]


def test_restored_data_generator_continues_at_its_snapshot() -> None:
    source = DataGeneratorSource(lambda n: n * n, 10)
    reader = reader_of(source, Slice(2, 6))
    assert list(reader.poll(1).values) == [4]
    assert rest_of(reader_of(source, *reader.snapshot_state(1))) == [9, 16, 25]


@pytest.mark.parametrize(("count", "rate"), [(-1, None), (1, 0.0), (1, -2.0)])
def test_negative_counts_and_rates_are_refused(count: int, rate: float | None) -> None:
    with pytest.raises(StreamError, match="records_per_second"):
        DataGeneratorSource(str, count, rate)
