"""Files that travel with jobs, where user code runs: unpacked, to be imported, found by name."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import io
import os
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from flinkray.actors.shared.archives import unpack
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID
from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

Fetch = Callable[[BlobKey], Awaitable[bytes]]

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
    return sweep_locked_folders(_root(), _prefix(cluster_id), time.time())


def _root() -> Path:
    return Path(tempfile.gettempdir())


def _prefix(cluster_id: str) -> str:
    """Of the names of a cluster's folders; an id may hold what a name must not."""
    return f"flinkray-files-{hashlib.sha256(cluster_id.encode()).hexdigest()[:16]}-"


class _Unpacked:
    """In a folder of their own."""

    def __init__(self, folder: LockedFolder) -> None:
        self._folder = folder
        self.imports: list[str] = []
        self.cached: dict[str, str] = {}
        self.archives = folder.path / _ARCHIVES_FOLDER
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
        inside = f"{self._folder.path}/"
        for name, module in tuple(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(inside):
                del sys.modules[name]
        self._folder.remove()


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
        folder = LockedFolder(_root(), _prefix(self._cluster_id))
        unpacked = _Unpacked(folder)
        try:
            _write(folder.path, self._files, self._contents, unpacked)
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
