"""Storage that hangs holds up nobody for longer than its patience, and no other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from flinkray.actors.shared import user_storage
from flinkray.actors.shared.user_storage import MOST_THREADS, UserStorage
from flinkray.checkpoint.errors import CheckpointNotFoundError, StorageHangsError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing.waiting import eventually

LONG = 60.0


class Mount:
    """Its server is away until it is told to be there."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.calls: list[str] = []

    def read(self, location: str) -> str:
        self.calls.append(location)
        assert self.is_there.wait(LONG)
        return f"read {location}"


@pytest.fixture
def mount() -> Iterator[Mount]:
    mount = Mount()
    yield mount
    mount.is_there.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_storage, "PATIENCE", 0.01)


async def test_error_names_hanging_storage_and_repeated_reads_use_one_thread(
    mount: Mount, impatient: None
) -> None:
    network = LocalNetwork()
    storage = UserStorage(LocalRpcService("dispatcher", network))
    for _ in range(3):
        with pytest.raises(StorageHangsError, match=r"^/stale: its storage has not answered"):
            await storage.run(mount.read, "/stale")
    assert mount.calls == ["/stale"]
    mount.is_there.set()

    async def is_read() -> bool:
        try:
            return await storage.run(mount.read, "/stale") == "read /stale"
        except StorageHangsError:
            return False

    await eventually(is_read, LONG, "the storage to be there again")
    await network.close()


async def test_hanging_storage_blocks_no_thread_of_the_shared_executor(
    mount: Mount, impatient: None
) -> None:
    network = LocalNetwork()
    service = LocalRpcService("dispatcher", network)
    storage = UserStorage(service)
    places = [f"/stale/{number}" for number in range(2 * MOST_THREADS)]
    told = await asyncio.gather(
        *(storage.run(mount.read, place) for place in places), return_exceptions=True
    )
    assert all(isinstance(error, StorageHangsError) for error in told)
    assert len(mount.calls) <= MOST_THREADS
    assert await service.run_blocking(str.upper, "others go on") == "OTHERS GO ON"
    await network.close()


async def test_storage_work_above_the_thread_limit_waits_and_errors_reach_the_caller(
    mount: Mount,
) -> None:
    network = LocalNetwork()
    storage = UserStorage(LocalRpcService("dispatcher", network))
    places = [f"/slow/{number}" for number in range(2 * MOST_THREADS)]
    reading = [asyncio.ensure_future(storage.run(mount.read, place)) for place in places]
    mount.is_there.set()
    assert await asyncio.gather(*reading) == [f"read {place}" for place in places]

    def missing(location: str) -> None:
        raise CheckpointNotFoundError(location, "it is not there")

    with pytest.raises(CheckpointNotFoundError):
        await storage.run(missing, "/nowhere")
    await network.close()
