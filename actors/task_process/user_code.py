"""Loads user code in a task process: once, and for as long as a slot uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flinkray.actors.task_process.code_failure import CodeFailedError, CodeFailure, outcome_of
from flinkray.blob import BlobCache, BlobClient, BlobOwner
from flinkray.core.blobs import BlobKey
from flinkray.core.errors import RpcConnectionError
from flinkray.core.ids import AllocationID, JobID
from flinkray.rpc import RpcService
from flinkray.user_code import load_function

UserFunction = Callable[..., Any]


_Key = tuple[JobID, bytes | BlobKey]


@dataclass(frozen=True, slots=True)
class CodeOrigin:
    """Pickled function of a vertex, or the key under which a blob server has it."""

    job_id: JobID
    code: bytes | BlobKey
    blob_server: str | None
    """Address of the blob server; needed if ``code`` is a key."""


class UserCode:
    """Loads the functions of vertices.
    A function is unpickled when the first task of a job here needs it. As long as a slot that has
    used it is not freed, later attempts get the same function object, with the same module-level
    state (TM-25).
    """

    def __init__(self, rpc_service: RpcService) -> None:
        self._rpc_service = rpc_service
        self._blobs: dict[str, BlobCache] = {}
        """Address of a blob server -> cache of its blobs."""
        self._functions: dict[_Key, asyncio.Future[UserFunction]] = {}
        self._users: dict[_Key, set[AllocationID]] = {}

    async def load(self, allocation_id: AllocationID, origin: CodeOrigin) -> UserFunction:
        """Return the code, loaded on first use.

        Raises:
            CodeFailedError: the code cannot be unpickled here.
            FlinkRayError: the code cannot be fetched.
        """
        key = (origin.job_id, origin.code)
        self._users.setdefault(key, set()).add(allocation_id)
        loading = self._functions.get(key)
        if loading is None or (loading.done() and _has_failed(loading)):
            loading = self._functions[key] = asyncio.ensure_future(self._load(origin))
        # if one waiting task is cancelled, the others still get the code
        return await asyncio.shield(loading)

    def free(self, allocation_id: AllocationID) -> None:
        """Note that a slot is freed, and drop the functions that no other slot uses."""
        for key, users in tuple(self._users.items()):
            users.discard(allocation_id)
            if not users:
                del self._users[key]
                self._functions.pop(key).cancel()

    async def close(self) -> None:
        """Drop all functions and cached blobs, and cancel downloads under way."""
        for loading in self._functions.values():
            loading.cancel()
        self._functions.clear()
        self._users.clear()
        for cache in self._blobs.values():
            await cache.close()

    async def _load(self, origin: CodeOrigin) -> UserFunction:
        code = origin.code
        if isinstance(code, BlobKey):
            code = await self.fetch(origin.job_id, code, origin.blob_server)
        # imports of the code may take long, and are user code
        loaded: UserFunction | CodeFailure = await self._rpc_service.run_blocking(
            outcome_of, load_function, code
        )
        if isinstance(loaded, CodeFailure):
            raise CodeFailedError(loaded)
        return loaded

    async def fetch(self, job_id: JobID, key: BlobKey, blob_server: str | None) -> bytes:
        """Return the content of a blob that travels with a job.

        Raises:
            FlinkRayError: the blob cannot be fetched.
        """
        if blob_server is None:
            raise RpcConnectionError(f"job {job_id}: no blob server is known to have its code")
        cache = self._blobs.get(blob_server)
        if cache is None:
            cache = BlobCache(BlobClient(self._rpc_service, blob_server))
            self._blobs[blob_server] = cache
        return await cache.get(BlobOwner.of_job(job_id), key)


def _has_failed(loading: asyncio.Future[UserFunction]) -> bool:
    return loading.cancelled() or loading.exception() is not None
