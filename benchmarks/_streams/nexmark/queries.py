"""Nexmark's queries as programs on columns; the windows' sizes are those of the SQL version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.datastream import DataStream, WatermarkStrategy
from flinkray.datastream.common import Duration, Time
from flinkray.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows

from .events import auctions_of, bids_of, people_of

Query = Callable[[DataStream], DataStream]
"""From all events to the results."""

TEN_SECONDS = TumblingEventTimeWindows.of(Time.seconds(10))


def stamped(stream: DataStream, column: str = "dateTime") -> DataStream:
    """Event time as the SQL version declares it."""
    return stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(
            Duration.of_seconds(4)
        ).with_timestamp_column(column)
    )


def pass_through(events: DataStream) -> DataStream:
    """q0: the bids."""
    return events.map_batches(bids_of)


def currency(events: DataStream) -> DataStream:
    """q1: prices in euros, to three places."""

    def in_euros(events: pa.RecordBatch) -> pa.RecordBatch:
        bids = bids_of(events)
        # Thousandths are whole numbers, so decimals are made of them without arithmetic on
        # decimals: the unscaled value is the low half of 16 bytes.
        unscaled = np.zeros((bids.num_rows, 2), np.int64)
        np.multiply(bids["price"].to_numpy(), 908, out=unscaled[:, 0])
        euros = pa.Array.from_buffers(
            pa.decimal128(23, 3), bids.num_rows, [None, pa.py_buffer(unscaled)]
        )
        return bids.set_column(2, "price", euros)

    return events.map_batches(in_euros)


def selection(events: DataStream) -> DataStream:
    """q2: auction and price of bids for every 123rd auction."""

    def chosen(events: pa.RecordBatch) -> pa.RecordBatch:
        bids = bids_of(events).select(["auction", "price"])
        return bids.filter(pa.array(bids["auction"].to_numpy() % 123 == 0))

    return events.map_batches(chosen)


def hot_items(events: DataStream) -> DataStream:
    """q5: the auctions with most bids in the last 10 seconds, every 2 seconds."""

    def most(counts: pa.RecordBatch) -> pa.RecordBatch:
        return counts.filter(pc.equal(counts["num"], pc.max(counts["num"])))

    hop = SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(2))
    bids = stamped(events.map_batches(lambda batch: bids_of(batch).select(["auction", "dateTime"])))
    counts = bids.key_by("auction").window(hop).aggregate_columns(num="count")
    # The results of one sliding window fall into one tumbling window of the slide's size.
    top = counts.window_all(TumblingEventTimeWindows.of(Time.seconds(2))).map_batches(most)
    return top.map_batches(lambda batch: batch.select(["auction", "num"]))


def highest_bid(events: DataStream) -> DataStream:
    """q7: the highest bids of every 10 seconds."""
    return highest_bids(events.map_batches(bids_of))


def highest_bids(bids: DataStream) -> DataStream:
    """What the published query finds by joining all bids with each window's highest price.

    It takes every bid at that price whose time is *between* the window's start and end, both
    included.  So a bid at the very end, which belongs to the next window, counts too if it equals
    this one's highest price: it comes once more here, as a *guest* that makes no price.  What is
    below the highest price of its window in its own batch cannot be the window's, and need not be
    kept; that is all that is done differently, and no result depends on it.
    """
    size = TEN_SECONDS.size

    def candidates(bids: pa.RecordBatch) -> pa.Table:
        times = bids["dateTime"].cast(pa.int64()).to_numpy()
        prices = bids["price"].to_numpy()
        windows = times // size
        best = np.empty(len(prices), np.int64)
        for window in np.unique(windows):
            of_window = windows == window
            best[of_window] = prices[of_window].max()
        own, guests = prices == best, times % size == 0
        return pa.concat_tables(
            [_taking_part(bids, own, times, False), _taking_part(bids, guests, times - 1, True)]
        )

    def highest(rows: pa.RecordBatch) -> pa.RecordBatch:
        own = rows.filter(pc.invert(rows["guest"]))
        return rows.filter(pc.equal(rows["price"], pc.max(own["price"])))

    best = stamped(bids.map_batches(candidates), "time").window_all(TEN_SECONDS)
    return best.map_batches(highest).map_batches(
        lambda b: b.select(["auction", "bidder", "price", "dateTime", "extra"])
    )


def _taking_part(
    bids: pa.RecordBatch, chosen: npt.NDArray[np.bool_], times: npt.NDArray[np.int64], guest: bool
) -> pa.Table:
    rows = pa.Table.from_batches([bids.filter(pa.array(chosen))])
    rows = rows.append_column("time", pa.array(times[chosen]))
    return rows.append_column("guest", pa.array(np.full(rows.num_rows, guest)))


def new_users(events: DataStream) -> DataStream:
    """q8: people who came and opened auctions within the same 10 seconds."""
    people = stamped(
        events.map_batches(lambda batch: people_of(batch).select(["id", "name", "dateTime"]))
    )
    auctions = stamped(
        events.map_batches(lambda batch: auctions_of(batch).select(["seller", "dateTime"]))
    )
    sellers = auctions.key_by("seller").window(TEN_SECONDS).aggregate_columns(auctions="count")
    pairs = people.join(sellers).where("id").equal_to("seller").window(TEN_SECONDS).columns()
    return pairs.map_batches(lambda batch: batch.select(["id", "name", "window_start"]))


QUERIES: dict[str, Query] = {
    "q0": pass_through,
    "q1": currency,
    "q2": selection,
    "q5": hot_items,
    "q7": highest_bid,
    "q8": new_users,
}
