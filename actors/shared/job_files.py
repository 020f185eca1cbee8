"""Files that travel with jobs, where user code runs: unpacked, to be imported, found by name."""

from __future__ import annotations

import asyncio
import importlib
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

Fetch = Callable[[BlobKey], Awaitable[bytes]]

_ARCHIVES = (".zip", ".whl", ".egg")
"""Python imports from these as they are."""


class JobFiles:
    """Lives on the process's main thread.

    A process has one import path and one set of modules: jobs that have tasks in one process at
    the same time should not bring different modules of one name.  What a job has brought is
    forgotten with it, so that later jobs import their own.
    """

    def __init__(self, rpc_service: RpcService) -> None:
        self._rpc_service = rpc_service
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
        unpacked = await self._rpc_service.run_blocking(_unpack, files, contents)
        for entry in unpacked.imports:
            sys.path.insert(0, entry)
        importlib.invalidate_caches()
        return unpacked


class _Unpacked:
    """In a folder of their own."""

    def __init__(self, folder: str, imports: list[str], cached: dict[str, str]) -> None:
        self.folder = folder
        self.imports = imports
        self.cached = cached

    def remove(self) -> None:
        for entry in self.imports:
            if entry in sys.path:
                sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)
        inside = f"{self.folder}/"
        for name, module in tuple(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(inside):
                del sys.modules[name]
        shutil.rmtree(self.folder, ignore_errors=True)


def _unpack(files: tuple[JobFile, ...], contents: list[bytes]) -> _Unpacked:
    folder = Path(tempfile.mkdtemp(prefix="flinkray-files-"))
    imports: list[str] = []
    cached: dict[str, str] = {}
    for number, (file, content) in enumerate(zip(files, contents, strict=True)):
        path = folder / str(number) / Path(file.name).name
        path.parent.mkdir()
        if file.is_directory:
            zipfile.ZipFile(io.BytesIO(content)).extractall(path)
        else:
            path.write_bytes(content)
        if file.is_executable:
            path.chmod(0o755)
        if file.use is JobFileUse.CACHE:
            cached[file.name] = str(path)
        else:
            as_it_is = file.is_directory or path.suffix in _ARCHIVES
            imports.append(str(path if as_it_is else path.parent))
    return _Unpacked(str(folder), imports, cached)


def _has_failed(providing: asyncio.Future[_Unpacked]) -> bool:
    return providing.cancelled() or providing.exception() is not None
