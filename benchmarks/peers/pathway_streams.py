"""Pathway on the programs of ``benchmarks/streams.py``; one worker, in this process.

Started with the interpreter of Pathway's environment, which does not contain flinkray. The argument
is the least length of a run in seconds. Prints one line of JSON per program: its name, records and
seconds of processor time, less those of the same program with one record. Records come from Python
through a connector, as in flinkray's programs, and from a table in memory, which needs less Python
and is not a stream.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("PATHWAY_THREADS", "1")

import pandas as pd
import pathway as pw

KEYS = 1000
MOST = 4_000_000
"""Records that fit into memory, as dictionaries."""
EPOCH = datetime.datetime(2024, 1, 1)


class Record(pw.Schema):
    k: int
    v: int
    t: pw.DateTimeNaive


def records(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        time_of = EPOCH + datetime.timedelta(milliseconds=number // 100)
        yield {"k": number * 7919 % KEYS, "v": number, "t": time_of}


class Subject(pw.io.python.ConnectorSubject):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._records = list(records(count))

    def run(self) -> None:
        for record in self._records:
            self.next(**record)


def streamed(count: int) -> Any:
    return pw.io.python.read(Subject(count), schema=Record, autocommit_duration_ms=100)


def at_rest(count: int) -> Any:
    return pw.debug.table_from_pandas(pd.DataFrame(list(records(count)), columns=["k", "v", "t"]))


def keyed_sum(table: Any) -> Any:
    return table.groupby(table.k).reduce(table.k, total=pw.reducers.sum(table.v))


def window(table: Any) -> Any:
    windows = table.windowby(
        table.t,
        window=pw.temporal.tumbling(datetime.timedelta(seconds=1)),
        instance=table.k,
    )
    return windows.reduce(n=pw.reducers.count(), total=pw.reducers.sum(pw.this.v))


def measure(read: Callable[[int], Any], build: Callable[[Any], Any], count: int) -> float:
    pw.internals.parse_graph.G.clear()
    pw.io.null.write(build(read(count)))
    begun = time.process_time()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return time.process_time() - begun


def main() -> None:
    wanted = float(sys.argv[1])
    programs = {
        "keyed sum, from Python": (streamed, keyed_sum),
        "tumbling window, from Python": (streamed, window),
        "keyed sum, of a table": (at_rest, keyed_sum),
        "tumbling window, of a table": (at_rest, window),
    }
    for name, (read, build) in programs.items():
        nothing = measure(read, build, 1)
        number, seconds = 20_000, measure(read, build, 20_000) - nothing
        while seconds < wanted and number < MOST:
            growth = min(20.0, max(1.2, 1.2 * wanted / max(seconds, 0.01)))
            number = min(int(number * growth), MOST)
            seconds = measure(read, build, number) - nothing
        seconds = min(seconds, measure(read, build, number) - nothing)
        print(json.dumps({"program": name, "records": number, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
