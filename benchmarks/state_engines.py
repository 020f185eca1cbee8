"""Engines for keyed state on disk: RocksDB (rocksdict), LMDB (lmdb), SlateDB (slatedb).

    python benchmarks/state_engines.py [--keys N] [--cache MIB] [--engines NAME ...]

Each engine, in a process of its own, holds text keys under two bytes of key group, with values of
100 bytes: more than twice what its cache is given.  Writes go without a log and without fsync, as
state does that is recovered from checkpoints.  Memory is what the process has for itself
(RssAnon), and what it has mapped of files (RssFile), which the kernel may take back.

A *snapshot* is a point in time that can be read while writes go on.  A *checkpoint* is the
engine's own: files that stay as they are.  Its second one follows a change of 1 % of the keys; how
many bytes it has that the first has not is what an incremental checkpoint would upload.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _results import Figure, Results, parse  # noqa: E402

GROUPS = 128
BATCH = 1_000
POINTS = 50_000
MIB = 1 << 20
Entry = tuple[bytes, bytes]


def key_of(number: int) -> bytes:
    """Text keys, spread over the key groups."""
    text = b"key-%08d" % number
    return struct.pack(">H", hashlib.blake2b(text, digest_size=1).digest()[0] % GROUPS) + text


def value_of(number: int) -> bytes:
    """100 bytes, of which a quarter says something."""
    return hashlib.sha256(b"%d" % number).hexdigest()[:25].encode() + b"x" * 75


class Engine(ABC):
    """What is measured of one.  Blocking, as the functions of a stream program are."""

    def __init__(self, folder: Path, cache: int) -> None:
        self.folder = folder
        self.cache = cache

    @abstractmethod
    def write(self, entries: Iterable[Entry]) -> None: ...

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    @abstractmethod
    def scan(self, begin: bytes, end: bytes | None, snapshot: Any = None) -> int:
        """How many entries there are."""

    @abstractmethod
    def snapshot(self) -> Any: ...

    @abstractmethod
    def checkpoint(self, folder: Path) -> dict[str, int]:
        """Files, with their sizes."""

    @abstractmethod
    def close(self) -> None: ...


class RocksDB(Engine):
    """rocksdict."""

    def __init__(self, folder: Path, cache: int) -> None:
        import rocksdict

        super().__init__(folder, cache)
        self._module = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(cache // 4)
        options.set_max_write_buffer_number(2)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(cache // 2))
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # In parts: of a large file, one index or filter is too large for a small cache to keep.
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        self._db = rocksdict.Rdict(str(folder), options)
        writes = rocksdict.WriteOptions()
        setattr(writes, "disable_wal", True)  # noqa: B010 - the stubs say that it is a method
        self._writes = writes
        self._db.set_write_options(writes)

    def write(self, entries: Iterable[Entry]) -> None:
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        self._db.write(batch, self._writes)

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._db.get(key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found: Sequence[bytes | None] = self._db.get(list(keys)) or []
        return found

    def scan(self, begin: bytes, end: bytes | None, snapshot: Any = None) -> int:
        number = 0
        iterator = snapshot or self._db.iter()
        iterator.seek(begin)
        while iterator.valid():
            key, value = iterator.key(), iterator.value()
            if (end is not None and key >= end) or not value:
                break
            number += 1
            iterator.next()
        return number

    def snapshot(self) -> Any:
        """An iterator: those of rocksdict's own snapshots show what there is later (0.3.29)."""
        return self._db.iter()

    def checkpoint(self, folder: Path) -> dict[str, int]:
        self._module.Checkpoint(self._db).create_checkpoint(str(folder))
        return {p.name: p.stat().st_size for p in folder.iterdir() if p.suffix == ".sst"}

    def close(self) -> None:
        self._db.close()


class LMDB(Engine):
    """lmdb."""

    def __init__(self, folder: Path, cache: int) -> None:
        import lmdb

        super().__init__(folder, cache)
        self._env = lmdb.open(
            str(folder),
            map_size=64 << 30,
            sync=False,
            metasync=False,
            writemap=True,
            map_async=True,
            readahead=False,
        )

    def write(self, entries: Iterable[Entry]) -> None:
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(entries)

    def get(self, key: bytes) -> bytes | None:
        with self._env.begin() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with self._env.begin() as transaction:
            return [transaction.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes | None, snapshot: Any = None) -> int:
        transaction = snapshot or self._env.begin()
        number = 0
        with transaction.cursor() as cursor:
            if cursor.set_range(begin):
                for key, _ in cursor:
                    if end is not None and key >= end:
                        break
                    number += 1
        if snapshot is None:
            transaction.abort()
        return number

    def snapshot(self) -> Any:
        return self._env.begin()

    def checkpoint(self, folder: Path) -> dict[str, int]:
        folder.mkdir()
        self._env.copy(str(folder), compact=True)
        return {f"{folder.name}-{p.name}": p.stat().st_size for p in folder.iterdir()}

    def close(self) -> None:
        self._env.close()


class SlateDB(Engine):
    """slatedb, with a directory in place of an object store."""

    def __init__(self, folder: Path, cache: int) -> None:
        from slatedb import uniffi

        super().__init__(folder, cache)
        self._module = uniffi
        self._loop = asyncio.new_event_loop()
        settings = uniffi.Settings.default()
        settings.set("wal_enabled", "false")
        settings.set("l0_sst_size_bytes", str(cache // 4))
        settings.set("max_unflushed_bytes", str(cache // 2))
        settings.set("compactor_options.poll_interval", '"100ms"')
        builder = uniffi.DbBuilder(str(folder).lstrip("/"), uniffi.ObjectStore.resolve("file:///"))
        builder.with_settings(settings)
        builder.with_db_cache(
            uniffi.DbCache.new_moka_cache(
                uniffi.MokaCacheOptions(
                    max_capacity=cache // 2, time_to_live=None, time_to_idle=None
                )
            ),
            1,
        )
        self._db = self._run(builder.build())

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def write(self, entries: Iterable[Entry]) -> None:
        batch = self._module.WriteBatch()
        for key, value in entries:
            batch.put(key, value)
        self._run(self._db.write(batch))

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._run(self._db.get(key))
        return found

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        async def all_of_them() -> list[bytes | None]:
            return list(await asyncio.gather(*(self._db.get(key) for key in keys)))

        found: Sequence[bytes | None] = self._run(all_of_them())
        return found

    def scan(self, begin: bytes, end: bytes | None, snapshot: Any = None) -> int:
        async def count() -> int:
            source = self._db if snapshot is None else snapshot
            found = await source.scan(
                self._module.KeyRange(
                    start=begin, start_inclusive=True, end=end, end_inclusive=False
                )
            )
            number = 0
            while batch := await found.next_batch(BATCH):
                number += len(batch)
            return number

        number: int = self._run(count())
        return number

    def snapshot(self) -> Any:
        return self._run(self._db.snapshot())

    def checkpoint(self, folder: Path) -> dict[str, int]:
        self._run(self._db.flush())
        return {
            str(path.relative_to(self.folder)): path.stat().st_size
            for path in self.folder.rglob("*.sst")
        }

    def close(self) -> None:
        self._run(self._db.shutdown())


ENGINES: dict[str, type[Engine]] = {"rocksdict": RocksDB, "lmdb": LMDB, "slatedb": SlateDB}


def memory(field: str) -> float:
    """MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def measured(name: str, keys: int, cache: int, folder: Path) -> dict[str, float]:
    """Of one engine."""
    figures: dict[str, float] = {}
    generator = random.Random(7)
    order = list(range(keys))
    generator.shuffle(order)
    before = memory("RssAnon")

    def timed(what: str, number: int = 1) -> Any:
        return _Timer(figures, what, number)

    with timed("open, ms"):
        engine = ENGINES[name](folder / "db", cache)
    most = 0.0
    with timed("batch writes, k/s", keys):
        for begin in range(0, keys, BATCH):
            engine.write((key_of(n), value_of(n)) for n in order[begin : begin + BATCH])
            most = max(most, memory("RssAnon"))
    points = [key_of(generator.randrange(keys)) for _ in range(POINTS)]
    if name == "slatedb":
        points = points[: POINTS // 5]
    with timed("point reads, k/s", len(points)):
        assert all(engine.get(key) for key in points)
    with timed("reads of absent keys, k/s", len(points)):
        assert not any(engine.get(key + b"-") for key in points)
    with timed("reads by the thousand, k/s", len(points)):
        for begin in range(0, len(points), BATCH):
            assert all(engine.get_many(points[begin : begin + BATCH]))
    with timed("read, change, write by the thousand, k/s", len(points)):
        for begin in range(0, len(points), BATCH):
            part = points[begin : begin + BATCH]
            found = engine.get_many(part)
            engine.write(
                (key, bytes(reversed(value or b""))) for key, value in zip(part, found, strict=True)
            )
    scanned = 0
    begun = time.process_time()
    for group in range(0, GROUPS, 16):
        scanned += engine.scan(struct.pack(">H", group), struct.pack(">H", group + 1))
    figures["scan of a key group, k/s"] = scanned / (time.process_time() - begun) / 1e3
    with timed("snapshot taken, ms"):
        snapshot = engine.snapshot()
    engine.write((key_of(n), value_of(n + 1)) for n in order[:BATCH])
    with timed("scan of a snapshot, k/s", keys):
        assert engine.scan(b"", None, snapshot) == keys
    del snapshot
    with timed("checkpoint, ms"):
        first = engine.checkpoint(folder / "first")
    figures["checkpoint, MB"] = sum(first.values()) / 1e6
    for begin in range(0, keys // 100, BATCH):
        engine.write((key_of(n), value_of(n + 2)) for n in order[begin : begin + BATCH])
    with timed("checkpoint after 1 % changed, ms"):
        second = engine.checkpoint(folder / "second")
    new = sum(size for file, size in second.items() if file not in first)
    figures["of it new, MB"] = new / 1e6
    figures["RssAnon at most while writing, MiB over the start"] = most - before
    figures["RssAnon at the end, MiB over the start"] = memory("RssAnon") - before
    figures["RssFile at the end, MiB"] = memory("RssFile")
    engine.close()
    with timed("open again, ms"):
        engine = ENGINES[name](folder / "db", cache)
    assert engine.get(key_of(order[-1])) is not None
    engine.close()
    return figures


class _Timer:
    """Rates are those of processor time, of all threads of the process: on a machine that is
    shared, they are the same from run to run."""

    def __init__(self, figures: dict[str, float], what: str, number: int) -> None:
        self._figures, self._what, self._number = figures, what, number
        self._clock = time.process_time if what.endswith("k/s") else time.perf_counter

    def __enter__(self) -> None:
        self._begun = self._clock()

    def __exit__(self, *_: object) -> None:
        seconds = self._clock() - self._begun
        rate = self._what.endswith("k/s")
        self._figures[self._what] = self._number / seconds / 1e3 if rate else seconds * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--cache", type=int, default=64, help="MiB for each engine")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parse(parser, "folder")
    if options.one is not None:
        figures = measured(options.one, options.keys, options.cache * MIB, options.folder)
        print(json.dumps(figures))
        return
    results = Results(options, *options.engines)
    print(f"{options.keys:,} keys, {options.cache} MiB of cache\n")
    columns = {}
    for name in options.engines:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            command = [sys.executable, __file__, "--one", name, "--folder", folder]
            command += ["--keys", str(options.keys), "--cache", str(options.cache)]
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=os.environ
            )
        columns[name] = json.loads(done.stdout.splitlines()[-1])
    print("| |", " | ".join(columns), "|")
    print("|---|" + "---|" * len(columns))
    for what in next(iter(columns.values())):
        print(f"| {what} |", " | ".join(f"{of[what]:,.1f}" for of in columns.values()), "|")
    chosen, *others = options.engines
    for what in ("batch writes, k/s", "point reads, k/s"):
        peer = ", ".join(f"{name} {columns[name][what]:,.1f}" for name in others)
        title = f"engines for state on disk, {chosen}: {what}"
        results.add(Figure(what, title, columns[chosen][what], peer=peer))
    results.raw = columns
    results.end()


if __name__ == "__main__":
    main()
