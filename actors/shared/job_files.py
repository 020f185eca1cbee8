"""Files that travel with jobs, where user code runs: unpacked, to be imported, found by name."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import importlib
import io
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from flinkray.actors.shared.archives import unpack
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

Fetch = Callable[[BlobKey], Awaitable[bytes]]

_LOCK = "lock"
"""Held by the process whose files they are, as long as it lives."""

_BEING_MADE = 60.0
"""Seconds after which a folder without a lock is none that is being made."""

_ARCHIVES_FOLDER = "archives"

_ARCHIVES = (".zip", ".whl", ".egg")
"""Python imports from these as they are."""


class JobFiles:
    """Lives on the process's main thread.

    They are in a folder that this process holds a lock on, so that they can be told from those that
    a process has left which died (:func:`sweep_job_files`).
    """

    def __init__(
        self, rpc_service: RpcService, cluster_id: str, *, has_working_directory: bool = False
    ) -> None:
        """*has_working_directory*: the process, which has one job, works where archives of the job
        are unpacked, if it has any."""
        self._rpc_service = rpc_service
        self._cluster_id = cluster_id
        self._has_working_directory = has_working_directory
        self._provided: dict[JobID, asyncio.Future[_Unpacked]] = {}

    async def provide(self, job_id: JobID, files: tuple[JobFile, ...], fetch: Fetch) -> None:
        """Returns when they can be used.

        Raises:
            FlinkRayError: one cannot be fetched.
            OSError: there is no room for them.
        """
        if not files:
            return
        providing = self._provided.get(job_id)
        if providing is None or (providing.done() and _has_failed(providing)):
            providing = asyncio.ensure_future(self._provide(files, fetch))
            self._provided[job_id] = providing
        await asyncio.shield(providing)  # one task that is cancelled must not take it from others

    def cached(self, job_id: JobID) -> Mapping[str, str]:
        """Where the files are that the job's code asks for, by their names."""
        providing = self._provided.get(job_id)
        if providing is None or not providing.done() or _has_failed(providing):
            return {}
        return providing.result().cached

    def forget(self, job_id: JobID) -> None:
        """The job has nothing here any more."""
        providing = self._provided.pop(job_id, None)
        if providing is None:
            return
        if providing.done() and not _has_failed(providing):
            providing.result().remove()
        providing.cancel()

    def close(self) -> None:
        """Forget all."""
        for job_id in tuple(self._provided):
            self.forget(job_id)

    async def _provide(self, files: tuple[JobFile, ...], fetch: Fetch) -> _Unpacked:
        contents = [
            await fetch(file.content) if isinstance(file.content, BlobKey) else file.content
            for file in files
        ]
        unpacking = _Unpacking(self._cluster_id, files, contents)
        try:
            unpacked = await self._rpc_service.run_blocking(unpacking.run)
        except asyncio.CancelledError:
            unpacking.abandon()
            raise
        if self._has_working_directory:
            unpacked.enter()
        for entry in unpacked.imports:
            sys.path.insert(0, entry)
        importlib.invalidate_caches()
        return unpacked


def sweep_job_files(cluster_id: str) -> int:
    """Remove what processes of the cluster have left on this machine that died; how many folders.
    Blocks."""
    count = 0
    for folder in _root().glob(f"{_prefix(cluster_id)}*"):
        try:
            count += folder.stat().st_uid == os.getuid() and _remove_if_abandoned(folder)
        except OSError:  # somebody else removes it
            continue
    return count


def _remove_if_abandoned(folder: Path) -> bool:
    """If nobody holds its lock; one without a lock is being made, or was half removed."""
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        is_abandoned = time.time() - folder.stat().st_mtime > _BEING_MADE
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned
    with lock:
        is_abandoned = _takes(lock)
        if is_abandoned:  # held meanwhile, so that whoever has just made the folder notices
            shutil.rmtree(folder, ignore_errors=True)
        return is_abandoned


def _takes(lock: BinaryIO) -> bool:
    """Whether the lock is had now: until the file is closed, by this process and its forks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _root() -> Path:
    return Path(tempfile.gettempdir())


def _prefix(cluster_id: str) -> str:
    """Of the names of a cluster's folders; an id may hold what a name must not."""
    return f"flinkray-files-{hashlib.sha256(cluster_id.encode()).hexdigest()[:16]}-"


def _new_folder(cluster_id: str) -> tuple[Path, BinaryIO]:
    """With its lock, held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(cluster_id), dir=_root()))
        try:
            lock = (folder / _LOCK).open("wb")
        except FileNotFoundError:
            continue
        if _takes(lock) and os.fstat(lock.fileno()).st_nlink:
            return folder, lock
        lock.close()  # a sweep was faster, and removes it, or has done so


class _Unpacked:
    """In a folder of their own."""

    def __init__(
        self, folder: str, lock: BinaryIO, imports: list[str], cached: dict[str, str]
    ) -> None:
        self.folder = folder
        self._lock = lock
        self.imports = imports
        self.cached = cached
        self.archives = Path(folder, _ARCHIVES_FOLDER)
        self._left: str | None = None
        """The working directory before."""

    def enter(self) -> None:
        """Make the folder of the archives the working directory, if there are any."""
        if self.archives.exists():
            self._left = os.getcwd()
            os.chdir(self.archives)

    def remove(self) -> None:
        if self._left is not None:
            os.chdir(self._left)
        for entry in self.imports:
            if entry in sys.path:
                sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)
        inside = f"{self.folder}/"
        for name, module in tuple(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(inside):
                del sys.modules[name]
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


class _Unpacking:
    """Runs in a thread, which goes on when nobody waits for it any more."""

    def __init__(self, cluster_id: str, files: tuple[JobFile, ...], contents: list[bytes]) -> None:
        self._cluster_id = cluster_id
        self._files = files
        self._contents = contents
        self._lock = threading.Lock()
        self._unpacked: _Unpacked | None = None
        self._is_abandoned = False

    def run(self) -> _Unpacked:
        sweep_job_files(self._cluster_id)
        folder, lock = _new_folder(self._cluster_id)
        unpacked = _Unpacked(str(folder), lock, [], {})
        try:
            _write(folder, self._files, self._contents, unpacked)
        except BaseException:
            unpacked.remove()
            raise
        with self._lock:
            self._unpacked = unpacked
            if self._is_abandoned:
                unpacked.remove()
        return unpacked

    def abandon(self) -> None:
        """Leave nothing on the disk, now or when the thread has ended."""
        with self._lock:
            self._is_abandoned = True
            if self._unpacked is not None:
                self._unpacked.remove()


def _write(
    folder: Path, files: tuple[JobFile, ...], contents: list[bytes], unpacked: _Unpacked
) -> None:
    for number, (file, content) in enumerate(zip(files, contents, strict=True)):
        if file.use is JobFileUse.ARCHIVE:
            target = unpacked.archives / file.name
            unpack(content, target)
            unpacked.cached[file.name] = str(target)
            continue
        path = folder / str(number) / Path(file.name).name
        path.parent.mkdir()
        if file.is_directory:
            zipfile.ZipFile(io.BytesIO(content)).extractall(path)
        else:
            path.write_bytes(content)
        if file.is_executable:
            path.chmod(0o755)
        if file.use is JobFileUse.CACHE:
            unpacked.cached[file.name] = str(path)
        else:
            as_it_is = file.is_directory or path.suffix in _ARCHIVES
            unpacked.imports.append(str(path if as_it_is else path.parent))


def _has_failed(providing: asyncio.Future[_Unpacked]) -> bool:
    return providing.cancelled() or providing.exception() is not None
