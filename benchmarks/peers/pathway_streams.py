"""Pathway on the programs of ``benchmarks/streams.py``; one worker, in this process.

Started with the interpreter of Pathway's environment, which knows nothing of flinkray.  The
argument is the number of records; one line of JSON per program: its name, records and seconds of
the processor, of which the same program without records is subtracted.  Records come from Python,
by a connector, as they do into flinkray's programs, and from a table that is there already, which
takes less of Python and is no stream.
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
    count = int(sys.argv[1])
    programs = {
        "keyed sum, from Python": (streamed, keyed_sum, count // 10),
        "tumbling window, from Python": (streamed, window, count // 20),
        "keyed sum, of a table": (at_rest, keyed_sum, count),
        "tumbling window, of a table": (at_rest, window, count // 4),
    }
    for name, (read, build, number) in programs.items():
        nothing = measure(read, build, 1)
        seconds = min(measure(read, build, number) for _ in range(2)) - nothing
        print(json.dumps({"program": name, "records": number, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
