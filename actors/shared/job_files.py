"""Files that travel with jobs. Archives among them are unpacked where user code runs, to be
imported or opened."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import io
import os
import stat
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from flinkray.core.blobs import BlobKey
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

Fetch = Callable[[BlobKey], Awaitable[bytes]]

_ARCHIVES_FOLDER = "archives"

_ARCHIVES = (".zip", ".whl", ".egg")
"""Suffixes of archives from which Python imports without unpacking them."""


class JobFiles:
    """The unpacked files of jobs in this process.
    Lives on the process's main thread.

    The files are in a folder that this process holds a lock on. The lock tells them apart from the
    files of a process that has died (:func:`sweep_job_files`).
    """

    def __init__(
        self, rpc_service: RpcService, cluster_id: str, *, has_working_directory: bool = False
    ) -> None:
        """Create the collection of job files, without files.
        *has_working_directory*: the process serves one job, and its working directory becomes the
        folder in which the job's archives are unpacked, if the job has archives.
        """
        self._rpc_service = rpc_service
        self._cluster_id = cluster_id
        self._has_working_directory = has_working_directory
        self._provided: dict[JobID, asyncio.Future[_Unpacked]] = {}

    async def provide(self, job_id: JobID, files: tuple[JobFile, ...], fetch: Fetch) -> None:
        """Fetch and unpack the files of a job, and return when they can be used.

        Raises:
            FlinkRayError: a file cannot be fetched.
            OSError: the disk has no room for the files.
        """
        if not files:
            return
        providing = self._provided.get(job_id)
        if providing is None or (providing.done() and _has_failed(providing)):
            providing = asyncio.ensure_future(self._provide(files, fetch))
            self._provided[job_id] = providing
        # if one waiting task is cancelled, the others still get the files
        await asyncio.shield(providing)

    def cached(self, job_id: JobID) -> Mapping[str, str]:
        """Return (name -> path) of the job's cached files and archives. Empty before
        :meth:`provide`."""
        providing = self._provided.get(job_id)
        if providing is None or not providing.done() or _has_failed(providing):
            return {}
        return providing.result().cached

    def forget(self, job_id: JobID) -> None:
        """Remove the files of the job and stop importing from them."""
        providing = self._provided.pop(job_id, None)
        if providing is None:
            return
        if providing.done() and not _has_failed(providing):
            providing.result().remove()
        providing.cancel()

    def close(self) -> None:
        """Remove the files of all jobs."""
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
    """Remove the files that dead processes of the cluster have left on this machine.
    Blocks. Returns the number of removed folders.
    """
    return sweep_locked_folders(_root(), _prefix(cluster_id), time.time())


def _root() -> Path:
    return Path(tempfile.gettempdir())


def _prefix(cluster_id: str) -> str:
    """Return the prefix of a cluster's folder names.
    It contains a digest, because the id may hold characters that a file name must not.
    """
    return f"flinkray-files-{hashlib.sha256(cluster_id.encode()).hexdigest()[:16]}-"


class _Unpacked:
    """The files of one job, unpacked in their own folder."""

    def __init__(self, folder: LockedFolder) -> None:
        self._folder = folder
        self.imports: list[str] = []
        self.cached: dict[str, str] = {}
        self.archives = folder.path / _ARCHIVES_FOLDER
        self._left: str | None = None
        """The earlier working directory, if :meth:`enter` has changed it."""

    def enter(self) -> None:
        """Change the working directory to the folder of the archives, if there are archives."""
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
    """Unpacks files in a thread. The thread continues even if its waiting caller was cancelled."""

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
        """Remove the unpacked files, now or as soon as the thread has ended."""
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


class ArchiveError(FlinkRayError):
    """Raised when a file to be unpacked is not an archive, or is a broken archive."""


def is_archive(path: str) -> bool:
    """Return whether :func:`unpack` can unpack the file, judged by the file's beginning and end."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def unpack(content: bytes, folder: Path) -> None:
    """Unpack an archive into *folder*, which is created if absent.
    Files keep their permissions, and links stay links.

    Raises:
        ArchiveError: the content is not an archive, or a member leads out of the folder.
        OSError: the disk has no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO(content)
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                for member in packed.infolist():
                    _unpack_member(packed, member, folder)
            return
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            # As the tarfile manual recommends: Python versions without filters unpack as before.
            archive.extraction_filter = getattr(tarfile, "tar_filter", lambda member, path: member)
            archive.extractall(folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ArchiveError(f"it is no zip or tar archive, or a broken one: {error}") from error


def _unpack_member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Extract one member with its permissions and links, which ``ZipFile.extract`` ignores."""
    mode = member.external_attr >> 16
    path = Path(packed.extract(member, folder))
    if stat.S_ISLNK(mode):
        target = path.read_text()
        path.unlink()
        path.symlink_to(target)
    elif not member.is_dir() and mode & 0o111:
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)
