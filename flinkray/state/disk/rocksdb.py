"""Wraps RocksDB as a store of ordered key-value pairs in a folder on a local disk.

No other module imports ``rocksdict``. The data is temporary: it belongs to one attempt of one
subtask and is deleted with the attempt. Durable state is in checkpoints, so there is no write-ahead
log and no sync here. RocksDB raises plain exceptions, which become :class:`StateStorageError`.

Creating a folder removes the folders below the same directory that killed processes have left.
"""

from __future__ import annotations

import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders
from flinkray.state.errors import StateError

if TYPE_CHECKING:
    import rocksdict

Pair = tuple[bytes, bytes]

_PORTION = 512
"""Number of pairs read at once for callers that must not keep an iterator open."""
_BLOOM_BITS = 10
_LARGEST_BUFFER = 64 << 20
"""Largest size in bytes of a table in memory; RocksDB's default."""


class StateStorageError(StateError):
    """The local disk cannot store or read state; the text names the folder and a solution.
    The task fails and restarts from the latest checkpoint, perhaps on a disk with space."""

    retryable = True


@contextmanager
def disk_errors(folder: Path, what: str) -> Iterator[None]:
    """Context manager: convert RocksDB's errors to StateStorageError. Its text says *what* failed,
    and names the folder."""
    try:
        yield
    except Exception as error:
        # RocksDB raises plain exceptions, or a class of rocksdict if the database is closed.
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        raise StateStorageError(
            f"state cannot be {what} in {folder}: {error}; give the disk room, or name another "
            "directory by state.backend.rocksdb.localdir"
        ) from error


@dataclass(frozen=True)
class EngineMemory:
    """Sizes in bytes of the memory that all engines of a process share."""

    total: int
    write_buffer_ratio: float


class _Shared:
    """The memory that all engines of a process share: one block cache. Tables that are being filled
    count toward its size."""

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
    """Return the module ``rocksdict``. Raises StateError if it is not installed."""
    try:
        import rocksdict
    except ImportError as error:
        raise StateError(
            "state.backend.type: rocksdb needs the package rocksdict, which is not installed where "
            "this task runs: pip install 'flinkray[rocksdb]'"
        ) from error
    return rocksdict


class Engine:
    """A RocksDB database in its own folder.

    It may be used from any thread; a batch or an iterator from one thread only. The database is
    closed and its folder removed when the owner and all readers of its snapshots have released it.
    All methods raise StateStorageError if the disk fails.
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
        # Partitioned, as the index or filter of a large file is too large for a small cache.
        table.set_index_type(module.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        self._writes = module.WriteOptions()
        self._writes.disable_wal = True
        self._lock = threading.Lock()
        self._holders = 1
        self.path = folder.path
        weakref.finalize(self, folder.remove)  # for an engine that was never closed
        try:
            with disk_errors(folder.path, "kept"):
                self._db: rocksdict.Rdict = module.Rdict(str(folder.path / "db"), options)
                self._db.set_write_options(self._writes)
        except StateStorageError:
            folder.remove()
            raise

    # --- holders ------------------------------------------------------------------------------

    def hold(self) -> None:
        """Register one more user of the engine, which stays open until each user has called
        :meth:`release`."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Unregister a user of the engine. The last one closes it and removes its folder."""
        with self._lock:
            self._holders -= 1
            is_last = self._holders == 0
        if is_last:
            try:
                with disk_errors(self.path, "closed"):
                    self._db.close()
            finally:
                self._folder.remove()

    # --- pairs --------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:  # no context manager around it, as every cache miss comes here
            with disk_errors(self.path, "read"):
                raise error
        return found

    def batch(self) -> rocksdict.WriteBatch:
        batch: rocksdict.WriteBatch = self._module.WriteBatch(raw_mode=True)
        return batch

    def write(self, batch: rocksdict.WriteBatch) -> None:
        """Write a batch in one step: either all of its changes are made, or none."""
        with disk_errors(self.path, "written"):
            self._db.write(batch, self._writes)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete all keys from *begin* up to but not including *end*."""
        with disk_errors(self.path, "written"):
            self._db.delete_range(begin, end, self._writes)

    def scan(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        """Yield the pairs from *begin* up to *end*, in order, as of the beginning of the scan."""
        reads = self._module.ReadOptions()
        reads.set_iterate_upper_bound(end)
        with disk_errors(self.path, "read"):
            yield from self._db.items(from_key=begin, read_opt=reads)

    def scan_in_portions(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        """Yield the pairs from *begin* up to *end*, in order, reading some of them at a time, for
        callers that take long. Changes during the scan may be seen or not."""
        while True:
            portion = list(islice(self.scan(begin, end), _PORTION))
            yield from portion
            if len(portion) < _PORTION:
                return
            begin = portion[-1][0] + b"\x00"

    def reader(self) -> Reader:
        """Return a reader that sees the present contents, for many short ranges."""
        with disk_errors(self.path, "read"):
            return Reader(self.path, self._db.iter())

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present contents.
        The engine stays open until the snapshot is released."""
        return Snapshot(self)

    def estimated_number(self) -> int:
        """Return an estimate of the number of pairs."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0


class Reader:
    """Reads key-value pairs as they were when the reader was made, one range after another.
    Only one thread at a time may use a reader."""

    def __init__(self, path: Path, iterator: rocksdict.RdictIter) -> None:
        self._path = path
        self._iterator = iterator

    def scan(self, prefix: bytes) -> Iterator[Pair]:
        """Yield the pairs whose keys begin with *prefix*, in order. The iteration must end before
        the reader's next call."""
        iterator = self._iterator
        with disk_errors(self._path, "read"):
            iterator.seek(prefix)
            while iterator.valid():
                key: bytes = iterator.key()
                if not key.startswith(prefix):
                    return
                yield key, iterator.value()
                iterator.next()
            iterator.status()

    def scan_place(self, place: bytes) -> Iterator[Pair]:
        """Yield the rows of the encoded *place* (key, or key and window).
        A text key that continues another text with a zero byte begins with the other's bytes,
        followed by 0xff. What follows the place in a row's key never begins with 0xff, so rows of
        such longer keys are recognised and left out."""
        end = len(place)
        return takewhile(lambda pair: pair[0][end : end + 1] != b"\xff", self.scan(place))


class Snapshot:
    """The contents of an engine at one moment, until it is released; for one thread at a time.
    It uses an iterator, which sees the moment at which it was made. (Iterators of rocksdict's own
    snapshots see the moment at which the iterator is made: 0.3.29.)"""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader: Reader | None = engine.reader()
        engine.hold()

    def scan(self, prefix: bytes) -> Iterator[Pair]:
        """Yield the pairs whose keys begin with *prefix*, in order. The iteration must end before
        the snapshot's next call."""
        assert self._reader is not None
        return self._reader.scan(prefix)

    def scan_place(self, place: bytes) -> Iterator[Pair]:
        assert self._reader is not None
        return self._reader.scan_place(place)

    def release(self) -> None:
        """Release the snapshot, which is not read any more. Further calls do nothing."""
        with self._engine._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            del reader
            self._engine.release()


def after(prefix: bytes) -> bytes:
    """Return the lowest bytes that are above all keys that begin with *prefix*."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1])


_PREFIX = "flinkray-state-"


def new_state_folder(directory: str | None) -> LockedFolder:
    """Create and return a folder for the state of this process, and remove folders that dead
    processes have left. *directory* None: below the machine's temporary directory. Raises OSError:
    the directory cannot be written to."""
    root = Path(directory or tempfile.gettempdir())
    sweep_state_folders(root)
    return LockedFolder(root, _PREFIX)


def sweep_state_folders(root: Path) -> int:
    """Remove the folders of processes that have died. Returns the number of folders. Blocks."""
    return sweep_locked_folders(root, _PREFIX, time.time())
