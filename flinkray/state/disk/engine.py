"""RocksDB, as far as state needs it: ordered bytes on a local disk.

Nothing else imports ``rocksdict``.  What is here is scratch: it belongs to one attempt of one
subtask, and is gone with it.  Checkpoints are what is kept, so nothing is logged and nothing synced
here.  RocksDB's own errors have no class of their own: they become :class:`StateStorageError`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flinkray.core.locked_folders import LockedFolder
from flinkray.state.errors import StateError

if TYPE_CHECKING:
    import rocksdict

Pair = tuple[bytes, bytes]

_PORTION = 512
"""Pairs that are read at once by whoever must not keep an iterator."""
_BLOOM_BITS = 10
_LARGEST_BUFFER = 64 << 20
"""Bytes of a table in memory, as RocksDB has it by default."""


class StateStorageError(StateError):
    """The local disk does not take or give state; the text names the folder and the way out.
    The task fails, and goes on from its latest checkpoint where there is room."""


@contextmanager
def storage_errors(folder: Path, what: str) -> Iterator[None]:
    """Errors of RocksDB name the folder."""
    try:
        yield
    except Exception as error:
        # RocksDB's errors are plain exceptions, or its own of a closed database.
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        raise StateStorageError(
            f"state cannot be {what} in {folder}: {error}; give the disk room, or name another "
            "directory by state.backend.rocksdb.localdir"
        ) from error


@dataclass(frozen=True)
class EngineMemory:
    """What all engines of a process have together, in bytes."""

    total: int
    write_buffer_ratio: float


class _Shared:
    """One cache, in which also the tables count that are being filled."""

    def __init__(self, memory: EngineMemory) -> None:
        module = load_module()
        self.cache = module.Cache(memory.total)
        size = max(int(memory.total * memory.write_buffer_ratio), 1 << 20)
        self.buffers = module.WriteBufferManager.new_write_buffer_manager_with_cache(
            size, False, self.cache
        )
        self.buffer_size = min(max(size // 4, 1 << 18), _LARGEST_BUFFER)


_shared: dict[EngineMemory, _Shared] = {}
_shared_lock = threading.Lock()


def _shared_of(memory: EngineMemory) -> _Shared:
    with _shared_lock:
        if memory not in _shared:
            _shared[memory] = _Shared(memory)
        return _shared[memory]


def load_module() -> Any:
    """Raises StateError: it is not installed."""
    try:
        import rocksdict
    except ImportError as error:
        raise StateError(
            "state.backend.type: rocksdb needs the package rocksdict, which is not installed where "
            "this task runs: pip install 'flinkray[rocksdb]'"
        ) from error
    return rocksdict


class Engine:
    """One database, in a folder of its own.  From any thread; batches and iterators from one.

    It is closed, and its folder is removed, when its owner and all who read snapshots of it have
    released it.

    Raises:
        StateStorageError: by all methods.
    """

    def __init__(self, folder: LockedFolder, memory: EngineMemory) -> None:
        module = self._module = load_module()
        self._folder = folder
        shared = _shared_of(memory)
        options = module.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_manager(shared.buffers)
        options.set_write_buffer_size(shared.buffer_size)
        options.set_compression_type(module.DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        table = module.BlockBasedOptions()
        table.set_block_cache(shared.cache)
        table.set_bloom_filter(_BLOOM_BITS, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # In parts: of a large file, one index or filter is too large for a small cache to keep.
        table.set_index_type(module.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        self._writes = module.WriteOptions()
        self._writes.disable_wal = True
        self._lock = threading.Lock()
        self._holders = 1
        self.path = folder.path
        weakref.finalize(self, folder.remove)  # of one that nobody has closed
        try:
            with storage_errors(folder.path, "kept"):
                self._db: rocksdict.Rdict = module.Rdict(str(folder.path / "db"), options)
                self._db.set_write_options(self._writes)
        except StateStorageError:
            folder.remove()
            raise

    # --- holders ------------------------------------------------------------------------------

    def hold(self) -> None:
        """It stays until one more has released it."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """The last one closes it."""
        with self._lock:
            self._holders -= 1
            is_last = self._holders == 0
        if is_last:
            try:
                with storage_errors(self.path, "closed"):
                    self._db.close()
            finally:
                self._folder.remove()

    # --- pairs --------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """What is there."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:  # on the path of every miss, hence without a context
            with storage_errors(self.path, "read"):
                raise error
        return found

    def batch(self) -> rocksdict.WriteBatch:
        """What is to be written at once."""
        batch: rocksdict.WriteBatch = self._module.WriteBatch(raw_mode=True)
        return batch

    def write(self, batch: rocksdict.WriteBatch) -> None:
        """All of it, or nothing."""
        with storage_errors(self.path, "written"):
            self._db.write(batch, self._writes)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Everything from *begin* up to but not including *end*."""
        with storage_errors(self.path, "written"):
            self._db.delete_range(begin, end, self._writes)

    def scan(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        """In order, as it is now."""
        reads = self._module.ReadOptions()
        reads.set_iterate_upper_bound(end)
        with storage_errors(self.path, "read"):
            yield from self._db.items(from_key=begin, read_opt=reads)

    def scan_in_portions(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        """In order, for those who take their time: what has come or gone meanwhile may be seen or
        not."""
        while True:
            portion = list(islice(self.scan(begin, end), _PORTION))
            yield from portion
            if len(portion) < _PORTION:
                return
            begin = portion[-1][0] + b"\x00"

    def reader(self) -> Reader:
        """Of what there is now, for many short ranges."""
        with storage_errors(self.path, "read"):
            return Reader(self.path, self._db.iter())

    def snapshot(self) -> Snapshot:
        """This moment; the engine is held by it."""
        return Snapshot(self)

    def estimated_number(self) -> int:
        """Of pairs."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0


class Reader:
    """Reads one moment, a range after the other; from one thread at a time."""

    def __init__(self, path: Path, iterator: rocksdict.RdictIter) -> None:
        self._path = path
        self._iterator = iterator

    def scan(self, prefix: bytes) -> Iterator[Pair]:
        """What begins with it, in order; to the end before the next call."""
        iterator = self._iterator
        with storage_errors(self._path, "read"):
            iterator.seek(prefix)
            while iterator.valid():
                key: bytes = iterator.key()
                if not key.startswith(prefix):
                    return
                yield key, iterator.value()
                iterator.next()
            iterator.status()

    def scan_place(self, place: bytes) -> Iterator[Pair]:
        """The rows of a place.  Those of a text that goes on with a zero begin with its bytes as
        well, and with 0xff after them, which no row's own part begins with."""
        end = len(place)
        return takewhile(lambda pair: pair[0][end : end + 1] != b"\xff", self.scan(place))


class Snapshot:
    """A moment of an engine, until it is released; for one thread, which may be any.

    It is an iterator, since one sees the moment at which it was made.  (Iterators of rocksdict's
    own snapshots show what there is when they are made: 0.3.29.)
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader: Reader | None = engine.reader()
        engine.hold()

    def scan(self, prefix: bytes) -> Iterator[Pair]:
        """What begins with it, in order; to the end before the next call."""
        assert self._reader is not None
        return self._reader.scan(prefix)

    def scan_place(self, place: bytes) -> Iterator[Pair]:
        """The rows of a place, in the same way."""
        assert self._reader is not None
        return self._reader.scan_place(place)

    def release(self) -> None:
        """Once is enough; nothing of it is read any more."""
        with self._engine._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            del reader
            self._engine.release()


def after(prefix: bytes) -> bytes:
    """The first bytes that follow all that begin with *prefix*."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1])
