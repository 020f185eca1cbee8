"""What the demo's kill rests on: a stream that waits for it, a comparison that sees mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flights_kill
import flights_stream
import pyarrow as pa
import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import END_OF_INPUT, NOTHING_NOW, ReaderContext
from flinkray.testing.manual_clock import ManualClock


def test_replay_source_emits_the_second_half_of_its_flights_only_after_the_kill(
    tmp_path: Path,
) -> None:
    gate, clock, count = tmp_path / "killed", ManualClock(), 10 * flights_kill.FLIGHTS_AT_ONCE
    source = flights_kill.Replay(pa.table({"flight": range(count)}), gate)

    def read(reader: Any) -> list[int]:
        read: list[int] = []
        while (polled := reader.poll(1)) not in (NOTHING_NOW, END_OF_INPUT):
            read += polled.batch["flight"].to_pylist()
        return read

    reader = source.create_reader(ReaderContext(0, 1, clock))
    reader.add_splits([0])
    reader.notify_no_more_splits()
    assert read(reader) == [], "there is a pace"
    clock.advance(1000.0)
    assert read(reader) == list(range(count // 2))
    gate.touch()
    restored = source.create_reader(ReaderContext(0, 1, clock))
    restored.add_splits(reader.snapshot_state(1))
    restored.notify_no_more_splits()
    assert restored.poll(1) is NOTHING_NOW
    clock.advance(1000.0)
    assert read(restored) == list(range(count // 2, count))
    assert restored.poll(1) is END_OF_INPUT


@pytest.mark.parametrize(
    "mistake",
    [
        lambda days: days[1:],
        lambda days: [*days, days[0]],
        lambda days: [*days[1:], days[1]],
        lambda days: [*days[1:], type(days[0])(**{**days[0].as_dict(), "flights": 1})],
    ],
    ids=["lost", "twice", "one for another", "another number"],
)
def test_check_of_flight_days_finds_lost_repeated_replaced_and_changed_days(
    mistake: Callable[[list[Any]], list[Any]],
) -> None:
    flights = flights_stream.read_flights().slice(0, 10_000)
    env = StreamExecutionEnvironment.get_execution_environment()
    events = env.from_arrow(flights, batch_rows=1000)
    days = list(flights_stream.delays_per_airport(events).execute_and_collect())
    flights_kill.compare(days[::-1], flights)
    with pytest.raises(flights_kill.NotSurvivedError, match="are not the"):
        flights_kill.compare(mistake(days), flights)
