"""Bytewax on the programs of ``benchmarks/streams.py``; one worker in this process.

Started with the interpreter of the peers' environment, which does not contain flinkray. The
argument is the least length of a run in seconds. Prints one line of JSON per program: its name,
records and seconds of processor time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import accumulate, chain, islice, repeat
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

KEYS = 1000
BATCH = 4096
EPOCH = datetime(2024, 1, 1, tzinfo=timezone.utc)


class Records(DynamicSource):
    """The elements of an iterable, in batches."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = values

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return Partition(iter(self._values))


class Partition(StatelessSourcePartition):
    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def next_batch(self) -> list[Any]:
        batch = list(islice(self._values, BATCH))
        if not batch:
            raise StopIteration
        return batch


class Nowhere(DynamicSink):
    """Drops everything."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return Drop()


class Drop(StatelessSinkPartition):
    def write_batch(self, items: list[Any]) -> None:
        return None


def map_each(flow: Any, count: int) -> Any:
    return op.map("map", op.input("in", flow, Records(range(count))), lambda x: x * 2)


def map_batch(flow: Any, count: int) -> Any:
    numbers = op.input("in", flow, Records(range(count)))
    return op.flat_map_batch("map", numbers, lambda batch: [x * 2 for x in batch])


def keyed_sum(flow: Any, count: int) -> Any:
    pairs = [(str(number * 7919 % KEYS), number) for number in range(KEYS)]
    records = chain.from_iterable(repeat(pairs, count // KEYS))

    def add(total: Any, value: int) -> Any:
        total = (total or 0) + value
        return total, total

    return op.stateful_map("sum", op.input("in", flow, Records(records)), add)


class Total(op.StatefulBatchLogic):
    """The sum of one key, for the values that come together."""

    def __init__(self, total: Any) -> None:
        self._total = total or 0

    def on_batch(self, values: list[int]) -> Any:
        totals = list(accumulate(values, initial=self._total))
        self._total = totals[-1]
        return totals[1:], False

    def snapshot(self) -> Any:
        return self._total


def keyed_sum_by_batch(flow: Any, count: int) -> Any:
    pairs = [(str(number * 7919 % KEYS), number) for number in range(KEYS)]
    records = chain.from_iterable(repeat(pairs, count // KEYS))
    return op.stateful_batch("sum", op.input("in", flow, Records(records)), Total)


def window(flow: Any, count: int) -> Any:
    pairs = [
        (str(number * 7919 % KEYS), (number, EPOCH + timedelta(milliseconds=number // 100)))
        for number in range(count)
    ]
    clock = win.EventClock(lambda value: value[1], timedelta(0))
    windower = win.TumblingWindower(length=timedelta(seconds=1), align_to=EPOCH)
    folded = win.fold_window(
        "window",
        op.input("in", flow, Records(pairs)),
        clock,
        windower,
        lambda: (0, 0),
        lambda total, value: (total[0] + 1, total[1] + value[0]),
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    )
    return folded.down


def measure(build: Callable[[Any, int], Any], count: int) -> float:
    flow = Dataflow("benchmark")
    op.output("out", build(flow, count), Nowhere())
    begun = time.process_time()
    run_main(flow)
    return time.process_time() - begun


def main() -> None:
    wanted = float(sys.argv[1])
    programs = {
        "map, Python function": map_each,
        "map, function of batches": map_batch,
        "keyed sum, state": keyed_sum,
        "keyed sum, batches of a key": keyed_sum_by_batch,
        "tumbling window, Python": window,
    }
    for name, build in programs.items():
        records, seconds = 20_000, measure(build, 20_000)
        while seconds < wanted:
            records = int(records * min(20.0, max(1.2, 1.2 * wanted / seconds)))
            seconds = measure(build, records)
        seconds = min(seconds, measure(build, records))
        print(json.dumps({"program": name, "records": records, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
