"""Keyed state on the heap and on a disk, beside the bare engine.

    python benchmarks/state_backends.py [--keys N] [--cache MIB]

Text keys with values of about 100 bytes.  Times are of processor time, of all threads of the
process, in microseconds for each record or key; the bare engine writes and reads the same rows by
the thousand.  "Hot" updates go round 10,000 keys, which the cache of decoded values holds; "cold"
ones come at random.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _results import Figure, Results, parse  # noqa: E402
from state_engines import BATCH, MIB, RocksDB, key_of  # noqa: E402

from flinkray.datastream import (  # noqa: E402
    Configuration,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flinkray.datastream.state import ValueStateDescriptor  # noqa: E402
from flinkray.state import HeapKeyedStateBackend, KeyedStateBackend  # noqa: E402
from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings  # noqa: E402

VALUE = "x" * 88
HOT = 10_000
COLD = 50_000
RECORDS = 200_000
Figures = dict[str, float]


def measured(make: Callable[[], KeyedStateBackend], keys: int) -> Figures:
    """Of a backend, in microseconds."""
    figures: Figures = {}

    def timed(what: str, number: int, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        done = work()
        figures[what] = (time.process_time() - begun) / number * 1e6
        return done

    backend = make()
    state: Any = backend.state(ValueStateDescriptor("state"))

    def update(numbers: Iterator[int] | range) -> None:
        for number in numbers:
            backend.context.key = f"key-{number:08d}"
            before = state.value() or VALUE
            state.update(before[:88] + f"{number % 1000:03d}")

    generator = random.Random(7)
    timed("first update of a key", keys, lambda: update(range(keys)))
    timed("hot update", RECORDS, lambda: update(number % HOT for number in range(RECORDS)))
    timed("cold update", COLD, lambda: update(generator.randrange(keys) for _ in range(COLD)))
    begun = time.perf_counter()
    capture = backend.capture(1)
    figures["capture, ms"] = (time.perf_counter() - begun) * 1e3
    whole = timed("snapshot, a key", keys, capture.write)
    update(range(0, keys, 100))
    changes = timed("snapshot of 1 % changed, a key changed", keys // 100, lambda: later(backend))
    restored = make()

    def restore() -> None:
        restored.restore([whole, changes])
        restored.state(ValueStateDescriptor("state"))

    timed("restore, a key", keys, restore)
    for one in (backend, restored):
        one.close()
    return figures


def later(backend: KeyedStateBackend) -> Any:
    """What has changed since the first capture."""
    return backend.capture(2, since=1).write()


def bare(folder: Path, keys: int, cache: int) -> Figures:
    """RocksDB alone: what is written and read of each of these."""
    engine = RocksDB(folder, cache)
    value = VALUE.encode() + b"000"
    begun = time.process_time()
    for begin in range(0, keys, BATCH):
        engine.write((key_of(n), value) for n in range(begin, begin + BATCH))
    written = time.process_time()
    generator = random.Random(7)
    for _ in range(COLD):
        engine.get(key_of(generator.randrange(keys)))
    read = time.process_time()
    engine.scan(b"", None)
    scanned = time.process_time()
    engine.close()
    return {
        "first update of a key": (written - begun) / keys * 1e6,
        "cold update": (read - written) / COLD * 1e6,
        "snapshot, a key": (scanned - read) / keys * 1e6,
        "restore, a key": (written - begun) / keys * 1e6,
    }


class Count(KeyedProcessFunction[int, int, int]):
    """Reads and writes a value for each record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield count


def program(backend: str) -> float:
    """Microseconds a record, of a keyed program in one process."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.configure(Configuration.from_dict({"state.backend.type": backend}))
    numbers = env.set_parallelism(1).from_collection(list(range(RECORDS)))
    counted = numbers.key_by(lambda number: number % HOT).process(Count())
    begun = time.process_time()
    assert sum(1 for _ in counted.execute_and_collect()) == RECORDS
    return (time.process_time() - begun) / RECORDS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--cache", type=int, default=32, help="MiB, for the engine and for values")
    options = parse(parser)
    keys, cache = options.keys, options.cache * MIB
    results = Results(options, "rocksdict")
    print(f"{keys:,} keys, {options.cache} MiB for the engine, and as much for values\n")
    with tempfile.TemporaryDirectory() as folder:
        settings = DiskSettings((folder,), memory_bytes=cache, cache_bytes=cache)
        heap = measured(HeapKeyedStateBackend, keys)
        disk = measured(lambda: DiskKeyedStateBackend(settings=settings), keys)
        engine = bare(Path(folder) / "bare", keys, cache)
    program("hashmap")
    heap["keyed program, a record"] = program("hashmap")
    disk["keyed program, a record"] = program("rocksdb")
    print("| us | heap | disk | disk / heap | bare engine | disk / bare |")
    print("|---|---|---|---|---|---|")
    for what, of_heap in heap.items():
        of_engine = engine.get(what)
        columns = [f"{of_heap:.2f}", f"{disk[what]:.2f}", f"{disk[what] / max(of_heap, 1e-3):.1f}"]
        columns += (
            ["", ""]
            if of_engine is None
            else [
                f"{of_engine:.2f}",
                f"{disk[what] / of_engine:.1f}",
            ]
        )
        print(f"| {what} |", " | ".join(columns), "|")
    for what in ("first update of a key", "hot update", "cold update", "keyed program, a record"):
        title = f"state on disk over the heap backend: {what}"
        shown, peer = f"{disk[what]:.2f} us, {{}}", f"the heap backend: {heap[what]:.2f} us"
        ratio = disk[what] / heap[what]
        results.add(Figure(what, title, ratio, unit="x", shown=shown, peer=peer))
    results.raw = {"heap": heap, "disk": disk, "bare engine": engine}
    results.end()


if __name__ == "__main__":
    main()
