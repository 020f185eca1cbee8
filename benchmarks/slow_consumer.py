"""A producer that is a hundred times as fast as its consumer, in another process: what each of them
holds in memory, and how much has passed.

    python benchmarks/slow_consumer.py [--seconds 10] [--times 100] [--runner cluster]

First the consumer takes batches as fast as they come; from that follows how long a consumer that is
so many times as slow takes for one.  Then it does, and the producer writes as fast as it is let.
By a unix socket with shared memory, and by TCP.  From the fast run on, both processes' memory may
grow by what the configuration allows a channel: what waits at the producer, the credit of the
consumer, and a batch in each hand, with some room for the allocator.  Several times as much passes.

Then the same for a program on a cluster: a source that generates records, in one task process, a
keyed function with state in another one.  A first run tells their pace.  In the second the function
is slow after as many records as the first one had, and the memory of both processes is looked at
from outside, from the end of the warm-up on; a batch is what a source puts out at once, as Python
objects.

Exit status 1: memory grew by more, or the consumer did not set the pace.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from _channels.contender import Peer
from _channels.memory import Watch
from _results import Figure, Results, Section, parse
from _streams import slow_function

import flinkray
from flinkray.rpc.wire import codec
from flinkray.streaming.network import NetworkEnvironment, NetworkSettings
from flinkray.streaming.operators.source import BLOCK_RECORDS
from flinkray.streaming.records.elements import END_OF_INPUT, Columns

SECRET = b"benchmark".ljust(32)
BATCH_BYTES = 2**20
WARM_UP = 500
ALLOCATOR = 4 * 2**20
"""Bytes that allocators may keep beside what is in use."""
LEAST_PASSED = 3
"""Times the bound: memory without a bound would show."""
PACE = 0.5
"""The slow run must take at least this part of the time that the consumer alone would take."""


class Run(NamedTuple):
    """What was seen while *batches* went through."""

    batches: int
    seconds: float
    producer_growth: int | None = None
    consumer_growth: int | None = None


def bound(settings: NetworkSettings, batch: int = BATCH_BYTES) -> int:
    """Bytes that either process may hold for one channel, with batches of so many bytes."""
    credit = settings.exclusive_credit + settings.floating_credit
    return settings.most_queued + credit + 2 * batch + ALLOCATOR


class Pair:
    """This process and a consumer; *node* says whether they share one."""

    def __init__(self, node: str) -> None:
        self._environment = NetworkEnvironment("fast", SECRET, node_id="one")
        self._peer = Peer("slow_reader", node, codec.encode(self._environment.address).hex())
        self._number = 0
        rows = BATCH_BYTES // 32
        self._columns = [np.arange(first, first + rows) for first in range(4)]

    def batch(self, number: int) -> Columns:
        """One of its own each time: nothing is the same memory as the last."""
        arrays = {
            name: pa.array(column + number)
            for name, column in zip("abcd", self._columns, strict=True)
        }
        return Columns(pa.record_batch(arrays))

    def run(self, batches: int, pause: float) -> Run:
        self._number += 1
        partition = self._environment.create_partition(self._number, "Source", 1, buffer_timeout=0)
        signal = self._environment.signal()
        partition.listen(signal.set)
        partition.on_consumed(signal.set)
        put = partition.subpartitions[0].put
        with Watch() as memory:
            self._peer.say(f"{self._number} {pause}")
            begun = time.perf_counter()
            for number in range(batches):
                while not partition.has_room():
                    signal.wait()
                put(self.batch(number))
                memory.look()
            put(END_OF_INPUT)
            while not partition.is_consumed:
                signal.wait()
            seconds = time.perf_counter() - begun
        self._environment.release_partition(partition)
        return Run(batches, seconds, memory.growth, int(self._peer.line()))

    def close(self) -> None:
        self._peer.close()
        self._environment.close()


def measure(name: str, node: str, seconds: float, times: float) -> Section:
    pair = Pair(node)
    try:
        pair.run(WARM_UP // 5, 0)
        fast = pair.run(WARM_UP, 0)
        pause = times * fast.seconds / fast.batches
        least = LEAST_PASSED * bound(NetworkSettings()) // BATCH_BYTES + 1
        slow = pair.run(max(least, int(seconds / pause)), pause)
    finally:
        pair.close()
    return told(name, BATCH_BYTES, fast, slow, pause, times)


def on_a_cluster(seconds: float, times: float) -> Section:
    configuration = {"taskmanager.numberOfTaskSlots": "2"}
    ray = {"num_cpus": 2, "include_dashboard": False}
    with flinkray.connect("local", configuration=configuration, ray_options=ray) as client:
        pause = times * slow_function.run(client, 0, 0).fast / slow_function.FAST
        allowed = bound(NetworkSettings(), slow_function.BATCH_BYTES)
        least = LEAST_PASSED * allowed // slow_function.RECORD_BYTES + 1
        records = max(least, int(seconds / pause))
        seen = slow_function.run(client, records, pause)
    grown = seen.producer_growth, seen.consumer_growth
    per_batch = BLOCK_RECORDS
    fast = Run(slow_function.FAST // per_batch, seen.fast)
    slow = Run(records // per_batch, seen.slow, *grown)
    name = "program on a cluster"
    return told(name, slow_function.BATCH_BYTES, fast, slow, pause * per_batch, times)


def told(name: str, batch: int, fast: Run, slow: Run, pause: float, times: float) -> Section:
    """Both runs, of batches of so many bytes; the slow one had a *pause* at each."""
    section = Section(
        f"{name}: batches of {batch / 2**20:.1f} MiB",
        ("consumer", "batches", "seconds", "MB passed", "producer grew by, MB", "consumer by, MB"),
    )
    for title, run in (("as fast", fast), (f"{times:.0f} x slower", slow)):
        grown = (run.producer_growth, run.consumer_growth)
        section.add(
            title,
            f"{run.batches:,}",
            f"{run.seconds:.1f}",
            f"{run.batches * batch / 1e6:,.0f}",
            *("" if size is None else f"{size / 1e6:.1f}" for size in grown),
        )
    allowed = round(bound(NetworkSettings(), batch) / 1e6, 1)
    for side, size in (("producer", slow.producer_growth), ("consumer", slow.consumer_growth)):
        what = f"{name}, consumer {times:.0f} times as slow: growth of the {side}'s memory"
        figure = Figure(f"{name}: {side}", what, (size or 0) / 1e6, allowed, "MB")
        section.figures.append(figure)
    pace = slow.seconds / (slow.batches * pause)
    what = f"{name}: slow run over its consumer's own time"
    section.figures.append(Figure("", what, pace, PACE, "x", at_least=True))
    section.raw = {"as fast": fast._asdict(), "slow": slow._asdict(), "pause": pause}
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each slow run (10)")
    parser.add_argument("--times", type=float, default=100.0, help="how much slower (100)")
    parser.add_argument("--runner", choices=("channels", "cluster"), help="only this (both)")
    options = parse(parser, "runner")
    results = Results(options, "flinkray", "pyarrow")
    if options.runner != "cluster":
        for name, node in (("channel by unix socket", "one"), ("channel by TCP", "two")):
            results.show(measure(name, node, options.seconds, options.times))
    if options.runner != "channels":
        results.show(on_a_cluster(options.seconds, options.times))
    results.end()


if __name__ == "__main__":
    main()
