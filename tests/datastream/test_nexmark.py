"""Nexmark's queries give what DuckDB gives for the same events, and the events are as published."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from _streams.nexmark.events import Nexmark, NexmarkSource
from _streams.nexmark.queries import QUERIES, highest_bids
from _streams.nexmark.sql import SQL, tables

# 25 seconds of event time in batches that end within windows.
SETTINGS = Nexmark(50_000, rate=2000, seed=5, batch_events=3_350)


@pytest.fixture(scope="module")
def database() -> Any:
    connection = duckdb.connect(config={"threads": 1})
    for name, table in tables(SETTINGS).items():
        connection.register(name, table)
    return connection


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("query", QUERIES)
def test_nexmark_query_gives_the_results_of_duckdb(
    env: Any, database: Any, query: str, parallelism: int
) -> None:
    env.set_parallelism(parallelism)
    results = QUERIES[query](env.from_source(NexmarkSource(SETTINGS))).execute_and_collect()
    expected = Counter(database.execute(SQL[query]).fetchall())
    assert len(expected) >= 3
    assert Counter(tuple(row) for row in results) == expected


def test_bid_at_the_end_of_a_window_belongs_to_the_window_as_in_nexmark_query_7(env: Any) -> None:
    """Query 7 says ``BETWEEN`` start and end, both of them included."""
    times_and_prices = [
        (1_000, 50), (2_000, 90), (9_999, 90),
        (10_000, 90),  # at the end of the first window, and alone highest in no other
        (10_000, 70), (12_000, 95),
        (20_000, 10),  # the end of the second window, below its price, and highest in the third
        (40_000, 5),  # the end of a window without bids
    ]  # fmt: skip
    times, prices = zip(*times_and_prices, strict=True)
    numbers = range(len(times))
    bids = pa.table(
        {
            "auction": list(numbers),
            "bidder": [100 + n for n in numbers],
            "price": list(prices),
            "dateTime": pa.array(times, pa.timestamp("ms")),
            "extra": [f"bid {n}" for n in numbers],
        }
    )
    connection = duckdb.connect(config={"threads": 1})
    connection.register("bid", bids)
    expected = connection.execute(SQL["q7"]).fetchall()
    assert sorted(row[0] for row in expected) == [1, 2, 3, 5, 6, 7]
    results = [tuple(row) for row in highest_bids(env.from_arrow(bids)).execute_and_collect()]
    assert sorted(results) == sorted(expected)


def test_same_seed_makes_the_same_events() -> None:
    assert SETTINGS.batch(2).equals(SETTINGS.batch(2))
    other = Nexmark(50_000, rate=2000, seed=6, batch_events=3_350)
    assert not SETTINGS.batch(2).equals(other.batch(2))
