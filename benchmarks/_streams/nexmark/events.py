"""Nexmark's events: people, auctions and bids of an auction house, as Arrow batches.

Kinds, ids, hot sellers, auctions and bidders, prices, lengths of texts and times are distributed as
the published generator does it with its default settings (github.com/nexmark/nexmark, package
``generator``; the names of its constants are in the comments).  Random numbers come from NumPy,
seeded by batch, so that the same events come whatever the parallelism.

All events of a batch are in one column, a dense union whose three children are compact: the rows
of a kind are taken out of it without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.streaming.records.elements import Columns

from ..sources import Batches

PERSONS, AUCTIONS, BIDS = 1, 3, 46  # personProportion, auctionProportion, bidProportion
EPOCH = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1000  # FIRST_PERSON_ID, FIRST_AUCTION_ID
FIRST_CATEGORY, CATEGORIES = 10, 5
ID_LEAD = 10  # PERSON_ID_LEAD, AUCTION_ID_LEAD
HOT_GROUP = 100  # HOT_SELLER_RATIO, HOT_AUCTION_RATIO, HOT_BIDDER_RATIO
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4
IN_FLIGHT_AUCTIONS, ACTIVE_PEOPLE = 100, 1000
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
LAST_NAMES = [
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
]

Longs = npt.NDArray[np.int64]
_LETTERS = bytes(ord("a") + byte % 26 for byte in range(256))
# One in 13 characters of names and descriptions is a space.
_WORDS = bytes(ord(" ") if byte % 13 == 0 else ord("a") + byte // 13 % 26 for byte in range(256))
_TIME = pa.timestamp("ms")


@dataclass(frozen=True)
class Nexmark:
    """The settings of a run.

    Args:
        events: how many.
        rate: events in a second of event time.
        base_time: of the first event, milliseconds since the epoch.
    """

    events: int
    rate: int = 10_000
    base_time: int = 1_700_000_000_000
    seed: int = 0
    batch_events: int = EPOCH * 1000

    def batches(self) -> int:
        return -(-self.events // self.batch_events)

    def batch(self, number: int) -> pa.RecordBatch:
        """Events ``number * batch_events`` and following."""
        first = number * self.batch_events
        ids = np.arange(first, min(first + self.batch_events, self.events))
        random = np.random.Generator(np.random.SFC64([self.seed, number]))
        offsets = ids % EPOCH
        kinds = (offsets >= PERSONS).astype(np.int8) + (offsets >= PERSONS + AUCTIONS)
        children = [
            _persons(ids[kinds == 0], self, random),
            _auctions(ids[kinds == 1], self, random),
            _bids(ids[kinds == 2], self, random),
        ]
        places = np.empty(len(ids), np.int32)
        for kind, child in enumerate(children):
            places[kinds == kind] = np.arange(len(child), dtype=np.int32)
        union = pa.UnionArray.from_dense(
            pa.array(kinds, pa.int8()),
            pa.array(places),
            children,
            field_names=["person", "auction", "bid"],
        )
        return pa.RecordBatch.from_arrays([union], names=["event"])

    def times(self, ids: Longs) -> Longs:
        """Milliseconds since the epoch."""
        return self.base_time + ids * 1000 // self.rate


def people_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The people of a batch of events."""
    return pa.RecordBatch.from_struct_array(batch["event"].field(0))


def auctions_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The auctions of a batch of events."""
    return pa.RecordBatch.from_struct_array(batch["event"].field(1))


def bids_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The bids of a batch of events."""
    return pa.RecordBatch.from_struct_array(batch["event"].field(2))


def _last_person(ids: Longs) -> Longs:
    """The youngest person at each event, counted from 0."""
    return ids // EPOCH * PERSONS + np.minimum(ids % EPOCH, PERSONS - 1)


def _last_auction(ids: Longs) -> Longs:
    """The youngest auction at each event, counted from 0; before the first, -1."""
    return ids // EPOCH * AUCTIONS + np.clip(ids % EPOCH - PERSONS, -1, AUCTIONS - 1)


def _below(random: np.random.Generator, bounds: Any, size: int) -> Longs:
    """Whole numbers from 0 up to each of *bounds*, that excluded."""
    numbers: Longs = (random.random(size) * bounds).astype(np.int64)
    return numbers


def _some_person(ids: Longs, random: np.random.Generator) -> Longs:
    people = _last_person(ids) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + _below(random, active + ID_LEAD, len(ids))


def _prices(random: np.random.Generator, size: int) -> Longs:
    return np.rint(10.0 ** (random.random(size) * 6.0) * 100.0).astype(np.int64)


def _texts(random: np.random.Generator, lengths: Longs, alphabet: bytes = _LETTERS) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = random.bytes(int(offsets[-1])).translate(alphabet)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def _names(random: np.random.Generator, size: int, longest: int) -> pa.Array:
    return _texts(random, 3 + _below(random, longest - 3, size), _WORDS)


def _extra(random: np.random.Generator, used: Any, wanted: int, size: int) -> pa.Array:
    """Text that fills events up to *wanted* bytes on the average, give or take a fifth."""
    room = np.broadcast_to(np.asarray(wanted - used), (size,))
    spread = np.rint(np.maximum(room, 0) * 0.2)
    lengths = np.maximum(room, 0) - spread + _below(random, 2 * spread, size)
    return _texts(random, lengths.astype(np.int64))


def _choice(random: np.random.Generator, words: list[str], size: int) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), size)))


def _lengths(texts: pa.Array) -> Longs:
    return np.diff(np.frombuffer(texts.buffers()[1], np.int32)[: len(texts) + 1])


def _persons(ids: Longs, settings: Nexmark, random: np.random.Generator) -> pa.StructArray:
    size = len(ids)
    full_names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    name = _choice(random, full_names, size)
    users = _names(random, size, 7).to_pylist()
    hosts = _names(random, size, 5).to_pylist()
    email = pa.array(
        [f"{user.strip()}@{host.strip()}.com" for user, host in zip(users, hosts, strict=True)],
        pa.string(),
    )
    digits = random.integers(0, 10_000, (size, 4)).tolist()
    card = pa.array([" ".join(f"{part:04}" for part in row) for row in digits], pa.string())
    city, state = _choice(random, CITIES, size), _choice(random, STATES, size)
    used = 8 + sum(_lengths(texts) for texts in (name, email, card, city, state))
    return pa.StructArray.from_arrays(
        [
            pa.array(_last_person(ids) + FIRST_ID),
            name,
            email,
            card,
            city,
            state,
            pa.array(settings.times(ids), _TIME),
            _extra(random, used, PERSON_BYTES, size),
        ],
        names=["id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"],
    )


def _auctions(ids: Longs, settings: Nexmark, random: np.random.Generator) -> pa.StructArray:
    size = len(ids)
    hot = random.integers(0, HOT_SELLERS, size) > 0
    hot_seller = _last_person(ids) // HOT_GROUP * HOT_GROUP
    seller = np.where(hot, hot_seller, _some_person(ids, random)) + FIRST_ID
    initial = _prices(random, size)
    times = settings.times(ids)
    horizon = settings.times(ids + IN_FLIGHT_AUCTIONS * EPOCH // AUCTIONS) - times
    expires = times + 1 + _below(random, np.maximum(horizon * 2, 1), size)
    item, description = _names(random, size, 20), _names(random, size, 100)
    used = 8 + _lengths(item) + _lengths(description) + 5 * 8
    return pa.StructArray.from_arrays(
        [
            pa.array(_last_auction(ids) + FIRST_ID),
            item,
            description,
            pa.array(initial),
            pa.array(initial + _prices(random, size)),
            pa.array(times, _TIME),
            pa.array(expires, _TIME),
            pa.array(seller),
            pa.array(FIRST_CATEGORY + random.integers(0, CATEGORIES, size)),
            _extra(random, used, AUCTION_BYTES, size),
        ],
        names=[
            "id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires",
            "seller", "category", "extra",
        ],
    )  # fmt: skip


def _bids(ids: Longs, settings: Nexmark, random: np.random.Generator) -> pa.StructArray:
    size = len(ids)
    last = _last_auction(ids)
    oldest = np.maximum(last - IN_FLIGHT_AUCTIONS, 0)
    some_auction = oldest + _below(random, last - oldest + 1 + ID_LEAD, size)
    hot = random.integers(0, HOT_AUCTIONS, size) > 0
    auction = np.where(hot, last // HOT_GROUP * HOT_GROUP, some_auction)
    hot = random.integers(0, HOT_BIDDERS, size) > 0
    hot_bidder = _last_person(ids) // HOT_GROUP * HOT_GROUP + 1
    bidder = np.where(hot, hot_bidder, _some_person(ids, random))
    return pa.StructArray.from_arrays(
        [
            pa.array(auction + FIRST_ID),
            pa.array(bidder + FIRST_ID),
            pa.array(_prices(random, size)),
            pa.array(settings.times(ids), _TIME),
            _extra(random, 4 * 8, BID_BYTES, size),
        ],
        names=["auction", "bidder", "price", "dateTime", "extra"],
    )


class NexmarkSource(Batches):
    """The events in batches of columns, which the subtasks make in turn."""

    def __init__(self, settings: Nexmark) -> None:
        super().__init__(settings.batches())
        self._settings = settings

    def batch(self, number: int) -> Columns:
        return Columns(self._settings.batch(number))
