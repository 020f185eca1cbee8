"""Simulates disks, whose crashes come at the worst moment, as storage and for pyarrow."""

from __future__ import annotations

import asyncio
import errno
import io
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Protocol
from weakref import proxy

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, PyFileSystem

from flinkray.checkpoint import locations
from flinkray.checkpoint.files import Buffer, InputFile, OutputFile, StateFiles
from flinkray.ha.directory import Directory, FileDirectory, FileSystem
from flinkray.testing.simulation.errors import ProcessDied
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.step_threads import StepThread, pause_thread


@dataclass(slots=True, eq=False)
class _File:
    data: bytes
    written: int
    """The number of the last write, for the order of listings."""
    durable: bytes | None = None
    """The durable content; None: nothing is durable yet."""


class SimulatedDisk(FileSystem):
    """A simulated disk with the guarantees of a POSIX file system.

    Other processes see what a process has written at once, and it survives the process's death; if
    a process dies in the middle of a write, a beginning of the data stays. When the power fails,
    content that was not synced is lost or torn, and the last name changes since the last sync of
    their directory are undone.

    All operations raise OSError while the disk fails. Call them as blocking work
    (:meth:`RpcService.run_blocking`), which then takes as long as the operations say.
    """

    def __init__(self, name: str, random: Random, tell: Callable[..., None]) -> None:
        """Make an empty disk. *tell* is called with each line that the disk adds to the story (the
        log of the run)."""
        self.name = name
        self.failing = 0.0
        """The fraction of operations that fail, some of them after they took effect."""
        self.slowness = 0.0
        """The longest time that an operation takes, in seconds."""
        self.slow_for = math.inf
        """The most seconds that all operations of one piece of blocking work take together.

        After that time the slow disk is repaired.
        """
        self.is_full = False
        """Whether the disk is full: a file that is being written is cut short."""
        self.reorders = 0.0
        """The fraction of power losses that keep random unsynced name changes."""
        self.late_listing = 0.0
        """Seconds for which :meth:`listed_late` may omit new files and list deleted files."""
        self.torn = 0.0
        """The fraction of changes in the middle of which the changing process is killed."""
        self.spares: tuple[str, ...] = ()
        """Prefixes of the names of processes that are never killed this way."""
        self.intercept: Callable[[str, str], bool] | None = None
        """Called for each operation (such as ``"sync"``) and path.

        It returns whether the operation must fail after it took effect.
        """
        self.changes = 0
        """How many times something has changed, or become durable."""
        self.losses = 0
        """How many times existing data may have been lost."""
        self._tell = tell
        self._random = random
        self._writes = 0
        self._entries: dict[str, _File] = {}
        self._durable_entries: dict[str, _File] = {}
        self._unsynced: dict[str, list[tuple[str, _File | None, int]]] = {}
        """Name changes by directory, in order; the changes of one operation share a number."""
        self._operations = 0
        self._recent: deque[tuple[float, str]] = deque()
        """Times and paths of recent name changes, for late listings."""
        self._directories: dict[str, bool] = {"": True}
        """For each directory: whether its name in its parent is durable."""

    # --- what a process does ----------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        fails_after = self._operate("make", path)
        self._need_directory(_split(path)[0])
        if path not in self._directories:
            self._need_room(path)
        self._directories.setdefault(path, False)
        self._end("make", path, fails_after)

    def read(self, path: str) -> bytes | None:
        self._operate("read", path)
        file = self._entries.get(path)
        return None if file is None else file.data

    def list(self, directory: str) -> list[str]:
        self._operate("list", directory)
        found = [
            (file.written, path)
            for path, file in self._entries.items()
            if _split(path)[0] == directory
        ]
        return [_split(path)[1] for _, path in sorted(found)]

    def write(self, path: str, data: bytes) -> None:
        fails_after = self._operate("write", path)
        self._need_directory(_split(path)[0])
        if not data:
            self._need_room(path)  # an empty file has only a name: it is there or not
        self._writes += 1
        file = self._entries.get(path)
        is_torn = self._is_killed()
        if is_torn or self.is_full:
            data = data[: self._random.randint(0, len(data))]
        if file is None:
            self._link(path, _File(data, self._writes))
        else:
            file.data, file.written = data, self._writes
        if is_torn:
            self._kill(f"in the middle of writing {self.url(path)}")
        self._need_room(path)
        self._end("write", path, fails_after)

    def sync(self, path: str) -> None:
        fails_after = self._operate("sync", path)
        file = self._entries.get(path)
        if file is not None:
            file.durable = file.data
        self._end("sync", path, fails_after)

    def rename(self, path: str, new_path: str) -> None:
        fails_after = self._operate("rename", path)
        if self._is_killed():
            self._kill(f"before renaming {self.url(path)}")
        file = self._entries.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.url(path))
        self._link(new_path, file)
        self._link(path, None, is_same=True)
        self._end("rename", path, fails_after)

    def delete(self, path: str) -> None:
        fails_after = self._operate("delete", path)
        if self._is_killed():
            self._kill(f"before deleting {self.url(path)}")
        if path in self._entries:
            self._link(path, None)
        self._end("delete", path, fails_after)

    def delete_tree(self, directory: str) -> None:
        for path in [p for p in self._entries if p.startswith(f"{directory}/")]:
            self.delete(path)

    def sync_directory(self, directory: str) -> None:
        fails_after = self._operate("sync", directory)
        directory = directory.strip("/")
        for path, is_durable in self._directories.items():
            if not is_durable and _split(path)[0] == directory:
                self._directories[path] = True
        for path, file, _ in self._unsynced.pop(directory, []):
            _put(self._durable_entries, path, file)
        self._end("sync", directory, fails_after)

    def is_directory(self, path: str) -> bool:
        self._operate("list", path)
        return path in self._directories

    def remove_directory(self, path: str) -> None:
        """Remove a directory, if it is empty; a power loss may bring it back."""
        fails_after = self._operate("delete", path)
        inside = f"{path}/"
        if path and not any(p.startswith(inside) for p in (*self._entries, *self._directories)):
            self._directories.pop(path, None)
        self._end("delete", path, fails_after)

    def unsynced(self, directory: str) -> Sequence[str]:
        """Return which of *directory* and its subdirectories have changes of file names that a
        power loss could undo."""
        inside = f"{directory}/"
        return [path for path in self._unsynced if path == directory or path.startswith(inside)]

    def holds(self, path: str) -> bool:
        """Return whether the file exists. For invariants of tests: takes no time, even if the disk
        fails."""
        return path in self._entries

    def content(self, path: str) -> bytes | None:
        """Return the content of the file; None: there is no file. For invariants of tests: takes no
        time, even if the disk fails."""
        file = self._entries.get(path)
        return None if file is None else file.data

    def paths(self) -> Iterable[str]:
        """Return the paths of all files. For invariants of tests: takes no time, even if the disk
        fails."""
        return self._entries

    def durable_paths(self) -> Iterable[str]:
        """Return the paths of the files whose names would survive a power loss now. For invariants
        of tests."""
        return self._durable_entries

    def durable(self, path: str) -> bytes | None:
        """Return the content of the file after the worst power loss now. None: no file would
        survive, or only a torn one. For invariants of tests."""
        file = self._durable_entries.get(path)
        if file is None or not all(self._directories.get(p) for p in _parents(path)):
            return None
        return file.durable

    # --- fate -------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Lose the power of the machine for a moment: data and file names that were not synced are
        lost, completely or partly."""
        self.changes += 1
        self.losses += 1
        random = self._random
        for path, is_durable in tuple(self._directories.items()):
            if not is_durable and path in self._directories and random.random() < 0.5:
                self._lose_directory(path)
        for changes in self._unsynced.values():
            for path, file in self._survive(changes):
                _put(self._durable_entries, path, file)
        self._unsynced.clear()
        self._directories = dict.fromkeys(self._directories, True)
        self._entries = dict(self._durable_entries)
        for file in self._entries.values():
            if file.durable != file.data:
                torn = file.data[: random.randint(0, len(file.data))]
                file.data = torn if file.durable is None else random.choice((torn, file.durable))
            file.durable = file.data

    def _survive(
        self, changes: Sequence[tuple[str, _File | None, int]]
    ) -> Iterable[tuple[str, _File | None]]:
        random = self._random
        if self.reorders and random.random() < self.reorders:
            kept = {number for number in {n: None for _, _, n in changes} if random.random() < 0.5}
            return [(path, file) for path, file, number in changes if number in kept]
        return [(path, file) for path, file, _ in changes[: random.randint(0, len(changes))]]

    def listed_late(self, directory: str) -> Sequence[str]:
        """Return the result of :meth:`list`, which may be outdated: new files may be missing,
        deleted files may be there."""
        names = dict.fromkeys(self.list(directory))
        process = self._process()
        if self.late_listing and process is not None:
            since = process.time() - self.late_listing
            while self._recent and self._recent[0][0] < since:
                self._recent.popleft()
            for _, path in self._recent:
                in_directory, name = _split(path)
                if in_directory == directory and self._random.random() < 0.5:
                    if path in self._entries:
                        names.pop(name, None)
                    else:
                        names[name] = None
        return tuple(names)

    def discard(self, path: str) -> None:
        """Remove a file for good, as if somebody else had deleted it."""
        self.changes += 1
        self.losses += 1
        for entries in (self._entries, self._durable_entries):
            _put(entries, path, None)
        for changes in self._unsynced.values():
            changes[:] = [change for change in changes if change[0] != path]

    def wipe(self) -> None:
        """Remove all content, as if the disk was replaced by an empty one."""
        self._entries.clear()
        self._durable_entries.clear()
        self._unsynced.clear()
        self._directories = {"": True}

    def _lose_directory(self, lost: str) -> None:
        inside = f"{lost}/"
        for path in [p for p in self._directories if p == lost or p.startswith(inside)]:
            del self._directories[path]
            self._unsynced.pop(path, None)
        for path in [p for p in self._durable_entries if p.startswith(inside)]:
            del self._durable_entries[path]

    def _need_room(self, path: str) -> None:
        if self.is_full:
            self._tell("there is no room for %s", self.url(path))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.url(path))

    def _need_directory(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", self.url(directory))

    def url(self, path: str = "") -> str:
        return f"simulated://{self.name}/{path}"

    def _link(self, path: str, file: _File | None, *, is_same: bool = False) -> None:
        """Make the name *path* lead to *file*; None removes the name. *is_same*: whether this
        change and the one before belong to one operation, such as a rename."""
        self.losses += file is None
        self._operations += not is_same
        _put(self._entries, path, file)
        self._unsynced.setdefault(_split(path)[0], []).append((path, file, self._operations))
        if self.late_listing and (process := self._process()) is not None:
            self._recent.append((process.time(), path))

    def _operate(self, what: str, path: str) -> bool:
        """Begin the operation *what* on *path*. If the disk has such faults, it takes time or
        raises OSError. Return whether the caller must raise OSError after the operation took
        effect."""
        thread = StepThread.current()
        if thread is not None and thread.before_disk is not None:
            thread.before_disk()
        self.changes += what not in ("read", "list")
        process = self._process()
        if process is not None:
            if not process.is_alive:
                raise ProcessDied
            if self.slowness:
                cost = process.blocking_cost + self._random.uniform(0, self.slowness)
                process.blocking_cost = min(cost, self.slow_for)
        if self.intercept is not None and self.intercept(what, path):
            return True
        if not self.failing or self._random.random() >= self.failing:
            return False
        if what in ("read", "list") or self._random.random() < 0.7:
            self._fail(what, path)
        return True

    def _end(self, what: str, path: str, fails_after: bool) -> None:
        if fails_after:
            self._fail(what, path)

    def _fail(self, what: str, path: str) -> None:
        self._tell("%s of %s fails", what, self.url(path))
        raise OSError(errno.EIO, f"{what} failed", self.url(path))

    def _process(self) -> SimulatedProcess | None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return running if isinstance(running, SimulatedProcess) else None

    def _is_killed(self) -> bool:
        process = self._process()
        if self.torn == 0 or process is None or process.node == "":
            return False
        is_spared = process.name.startswith(self.spares or ("\0",))
        return not is_spared and self._random.random() < self.torn

    def _kill(self, when: str) -> None:
        process = self._process()
        if process is not None:
            process.die(f"it was killed {when}")
        raise ProcessDied


@lru_cache(4096)
def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory, name


@lru_cache(4096)
def _parents(path: str) -> tuple[str, ...]:
    """Return the directories that contain a file, innermost first."""
    directory = _split(path)[0]
    return (directory, *_parents(directory)) if directory else ()


def _put(entries: dict[str, _File], path: str, file: _File | None) -> None:
    if file is None:
        entries.pop(path, None)
    else:
        entries[path] = file


_LONGEST = 0.01
"""Seconds that an operation takes at most in a thread, while no fault slows it down."""
_PAUSES = 0.3
"""The fraction of operations during which other threads get a turn."""


class SimulatedStateFiles(StateFiles):
    """Checkpoint storage on a simulated disk. Its methods are called as blocking work."""

    def __init__(self, disk: SimulatedDisk, writer: str) -> None:
        """Create the checkpoint storage on *disk*. *writer*: part of the names of temporary files;
        no other process that writes at the same time may use the same."""
        self._disk = disk
        self._writer = writer

    def create(self, location: str) -> OutputFile:
        self._take_time()
        path = _path(location)
        self._make_durable(_folder(path))
        self._disk.write(path, b"")
        return _Output(self._disk, path)

    def _make_durable(self, folder: str) -> None:
        if folder:
            parent = _folder(folder)
            self._make_durable(parent)
            self._disk.make_directory(folder)
            self._disk.sync_directory(parent)

    def _take_time(self) -> None:
        """Let random virtual time pass, if the caller is a thread of a simulated task process: its
        other threads run meanwhile."""
        pause_thread(max(_LONGEST, self._disk.slowness), _PAUSES)

    def open(self, location: str) -> InputFile:
        self._take_time()
        data = self._disk.read(_path(location))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
        return _Input(data)

    def delete(self, location: str) -> None:
        self._take_time()
        path = _path(location)
        self._disk.delete(path)
        self._disk.sync_directory(_folder(path))

    def names(self, location: str) -> list[str]:
        return sorted(self._disk.listed_late(_path(location)))

    def sizes(self, location: str) -> dict[str, int]:
        folder = _path(location)
        contents = {n: self._disk.read(f"{folder}/{n}") for n in self._disk.list(folder)}
        return {name: len(data) for name, data in contents.items() if data is not None}

    def is_directory(self, location: str) -> bool:
        return self._disk.is_directory(_path(location))

    def remove_if_empty(self, location: str) -> None:
        self._disk.remove_directory(_path(location))

    def entries(self, location: str) -> Directory:
        return FileDirectory(self._disk, _path(location), self._writer)


class _Output:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._data = bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def close(self) -> None:
        pause_thread(max(_LONGEST, self._disk.slowness), _PAUSES)
        self._disk.write(self._path, bytes(self._data))
        self._disk.sync(self._path)
        self._disk.sync_directory(_folder(self._path))

    def discard(self) -> None:
        self._disk.delete(self._path)


class _Input:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing, because no file is open."""


def _path(location: str) -> str:
    return locations.path_of(location).strip("/")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class Disk(Protocol):
    """Interface to the needed part of :class:`~flinkray.testing.simulation.disk.SimulatedDisk`."""

    def make_directory(self, path: str) -> None: ...
    def read(self, path: str) -> bytes | None: ...
    def list(self, directory: str) -> list[str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def sync(self, path: str) -> None: ...
    def rename(self, path: str, new_path: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def delete_tree(self, directory: str) -> None: ...
    def sync_directory(self, directory: str) -> None: ...
    def unsynced(self, directory: str) -> Sequence[str]: ...


def arrow_file_system(disk: Disk) -> PyFileSystem:
    """Return a file system of pyarrow on *disk*, for Parquet files. Use it in blocking work."""
    return PyFileSystem(_DiskHandler(disk))


class _DiskHandler(FileSystemHandler):  # type: ignore[misc]
    """An Arrow file system that behaves like an object store.

    A file exists, and is durable, when it is closed. Deleted files are gone for good. Selectors see
    the files directly in a directory.

    The handler refers to its disk weakly. A disk refers to its whole run, which refers to the user
    of the file system; the garbage collector could not free this cycle, because it does not see
    references through Arrow."""

    def __init__(self, disk: Disk) -> None:
        self._disk: Disk = proxy(disk)

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        data = self._disk.read(path)
        if data is None:
            return FileInfo(path, FileType.NotFound)
        return FileInfo(path, FileType.File, size=len(data))

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        folder = selector.base_dir.strip("/")
        return [self._info(f"{folder}/{name}") for name in self._disk.list(folder)]

    def create_dir(self, path: str, recursive: bool) -> None:
        parts = path.split("/")
        for depth in range(1 if recursive else len(parts), len(parts) + 1):
            self._disk.make_directory("/".join(parts[:depth]))
            self._disk.sync_directory("/".join(parts[: depth - 1]))

    def delete_dir(self, path: str) -> None:
        self._disk.delete_tree(path)
        for folder in self._disk.unsynced(path):  # also the changes of an earlier, failed attempt
            self._disk.sync_directory(folder)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(errno.EPERM, "somebody wants to delete all of a disk")

    def delete_file(self, path: str) -> None:
        self._disk.delete(path)
        self._disk.sync_directory(_folder(path))

    def move(self, src: str, dest: str) -> None:
        self._disk.rename(src, dest)
        self._disk.sync_directory(_folder(dest))

    def copy_file(self, src: str, dest: str) -> None:
        self._write(dest, self._read(src))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._read(path))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._read(path))

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Unwritten(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise OSError(errno.ENOTSUP, "files are written as a whole", path)

    def _read(self, path: str) -> bytes:
        data = self._disk.read(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return data

    def _write(self, path: str, data: bytes) -> None:
        self._disk.write(path, data)
        self._disk.sync(path)
        self._disk.sync_directory(_folder(path))


class _Unwritten(io.BytesIO):
    """A file that is being written. Its content is on the disk only after it is closed."""

    def __init__(self, handler: _DiskHandler, path: str) -> None:
        super().__init__()
        self._handler = handler
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            # The garbage collector closes files that a killed process left open, maybe after the
            # run.
            with suppress(ReferenceError):
                self._handler._write(self._path, data)
