"""Pointers to completed checkpoints and the counter of their ids, in memory, in local files and
behind pyarrow."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import pytest

from flinkray.core.errors import UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.ha import (
    CheckpointIDCounter,
    CheckpointStoreFencedError,
    CompletedCheckpointPointer,
    CompletedCheckpointStore,
    Directory,
    StandaloneHaServices,
    StoreError,
    open_directory,
)
from flinkray.ha.checkpoint_stores import (
    CheckpointCount,
    CheckpointOwner,
    DurableCheckpointIDCounter,
    DurableCompletedCheckpointStore,
)
from flinkray.ha.directory import LocalDirectory
from flinkray.ha.entries import encode_entry
from flinkray.ha.epoch_directory import EpochDirectory

JOB, OTHER = JobID(b"1" * 16), JobID(b"2" * 16)


def pointer(checkpoint_id: int, job_id: JobID = JOB) -> CompletedCheckpointPointer:
    return CompletedCheckpointPointer(job_id, checkpoint_id, f"/{job_id}/{checkpoint_id}/_metadata")


@pytest.fixture
def entries(directory: Directory) -> Directory:
    """Where those of the job lie."""
    return directory.subdirectory("checkpoint-pointers").subdirectory(JOB.hex())


def store_of(services: StandaloneHaServices, owner: str) -> CompletedCheckpointStore:
    return services.get_completed_checkpoint_store(JOB, owner)


def counter_of(services: StandaloneHaServices, owner: str) -> CheckpointIDCounter:
    return services.get_checkpoint_id_counter(JOB, owner)


async def test_recovery_returns_the_checkpoints_in_the_order_of_their_ids_and_removes_none(
    services: StandaloneHaServices,
) -> None:
    """CP-28: the last checkpoint, which is restored, has the highest id, whatever was written
    last."""
    store = store_of(services, "first")
    assert (await store.recover()).records == ()
    for checkpoint_id in (9, 100, 10):
        await store.add(pointer(checkpoint_id))
    for owner in ("second", "third"):
        recovered = await store_of(services, owner).recover()
        assert recovered.records == (pointer(9), pointer(10), pointer(100))
        assert recovered.unreadable == ()


async def test_checkpoint_recovered_by_a_later_leader_is_not_removed_by_the_earlier_leader(
    services: StandaloneHaServices,
) -> None:
    """CP-28: its data stay, although the earlier leader has subsumed the checkpoint."""
    earlier, later = store_of(services, "earlier"), store_of(services, "later")
    await earlier.recover()
    await earlier.add(pointer(1))
    await later.recover()
    with pytest.raises(CheckpointStoreFencedError, match="another leader"):
        await earlier.add(pointer(2))
    with pytest.raises(CheckpointStoreFencedError) as caught:
        await earlier.remove(1)
    assert caught.value.job_id == JOB
    with pytest.raises(CheckpointStoreFencedError):
        await earlier.check()
    await later.check()
    with pytest.raises(CheckpointStoreFencedError):
        await earlier.discard()
    await later.add(pointer(3))
    assert (await later.recover()).records == (pointer(1), pointer(3))


class PausedDirectory(LocalDirectory):
    """Its writer stands still before an operation."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.operations = 0
        self.pause_before: int | None = None
        self.is_paused, self.goes_on = threading.Event(), threading.Event()

    def _operate(self) -> None:
        self.operations += 1
        if self.operations == self.pause_before:
            self.is_paused.set()
            self.goes_on.wait()

    def read(self, name: str) -> bytes | None:
        self._operate()
        return super().read(name)

    def names(self) -> list[str]:
        self._operate()
        return super().names()

    def write(self, name: str, data: bytes) -> None:
        self._operate()
        super().write(name, data)

    def delete(self, name: str) -> None:
        self._operate()
        super().delete(name)


@pytest.mark.parametrize("pause_before", range(1, 7))
async def test_paused_leader_does_not_report_a_checkpoint_that_its_successor_lacks(
    tmp_path: Path, executor: Executor, pause_before: int
) -> None:
    """Otherwise the successor would delete the files of a checkpoint whose pointer is stored
    later. The leader is paused before each operation of taking an id, adding and removing a
    pointer."""
    directory = PausedDirectory(tmp_path)
    store = DurableCompletedCheckpointStore(directory, JOB, "paused", executor)
    counter = DurableCheckpointIDCounter(directory, JOB, "paused", executor)
    await store.recover()
    await counter.start()
    await store.add(pointer(await counter.get_and_increment()))
    told, removed = [1], []

    async def go_on() -> None:
        checkpoint_id = await counter.get_and_increment()
        await store.add(pointer(checkpoint_id))
        told.append(checkpoint_id)
        await store.remove(1)
        removed.append(1)

    directory.operations, directory.pause_before = 0, pause_before
    going_on = asyncio.ensure_future(go_on())
    await asyncio.get_running_loop().run_in_executor(None, directory.is_paused.wait)
    there = LocalDirectory(tmp_path)
    successor = DurableCompletedCheckpointStore(there, JOB, "next", executor)
    next_ids = DurableCheckpointIDCounter(there, JOB, "next", executor)
    recovered = [it.checkpoint_id for it in (await successor.recover()).records]
    await next_ids.start()
    directory.goes_on.set()
    with suppress(CheckpointStoreFencedError):
        await going_on
    assert [it for it in told if it not in removed] == [it for it in told if it in recovered]
    assert await next_ids.get_and_increment() > max(told)
    later = await DurableCompletedCheckpointStore(there, JOB, "third", executor).recover()
    assert [it.checkpoint_id for it in later.records] == recovered


async def test_checkpoint_store_or_counter_that_has_not_recovered_refuses_changes(
    services: StandaloneHaServices, entries: Directory
) -> None:
    with pytest.raises(CheckpointStoreFencedError):
        await store_of(services, "nobody").add(pointer(1))
    with pytest.raises(CheckpointStoreFencedError):
        await counter_of(services, "nobody").get_and_increment()
    assert entries.names() == []


async def test_checkpoint_store_whose_ownership_record_was_deleted_refuses_changes(
    services: StandaloneHaServices, entries: Directory
) -> None:
    """Another leader may have taken over, and the job may have ended."""
    store = store_of(services, "first")
    await store.recover()
    await store.add(pointer(1))
    for name in entries.names():
        entries.delete(name)
    for change in (store.add(pointer(2)), store.remove(1), store.check(), store.discard()):
        with pytest.raises(CheckpointStoreFencedError):
            await change
    assert entries.names() == [], "what was written too late is deleted"


async def test_removed_checkpoint_is_not_recovered_and_may_be_removed_twice(
    services: StandaloneHaServices,
) -> None:
    store = store_of(services, "owner")
    await store.recover()
    for checkpoint_id in (1, 2):
        await store.add(pointer(checkpoint_id))
    for _ in range(2):
        await store.remove(1)
    assert (await store_of(services, "next").recover()).records == (pointer(2),)


async def test_checkpoints_and_checkpoint_ids_of_two_jobs_are_independent(
    services: StandaloneHaServices,
) -> None:
    for job_id in (JOB, OTHER):
        store = services.get_completed_checkpoint_store(job_id, "owner")
        counter = services.get_checkpoint_id_counter(job_id, "owner")
        await store.recover()
        await counter.start()
        await store.add(pointer(await counter.get_and_increment(), job_id))
        assert (await store.recover()).records == (pointer(1, job_id),)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"nonsense", "no flinkray entry"),
        (encode_entry(pointer(2))[:-1], "checksum"),
        (encode_entry(pointer(3)), "about checkpoint 3"),
        (encode_entry(pointer(2, OTHER)), f"about job {OTHER}"),
    ],
)
async def test_unreadable_pointer_of_an_old_version_is_reported_and_others_are_recovered(
    services: StandaloneHaServices, entries: Directory, data: bytes, why: str
) -> None:
    """Versions without epochs kept each pointer in a file of its own."""
    entries.write("1.checkpoint", encode_entry(pointer(1)))
    entries.write("2.checkpoint", data)
    entries.write("notes.checkpoint", b"somebody's")
    store = store_of(services, "owner")
    for _ in range(2):
        recovered = await store.recover()
        assert recovered.records == (pointer(1),)
        assert recovered.is_last_unreadable
        (error,) = recovered.unreadable
        assert why in error.reason
        assert error.location == entries.location("2.checkpoint")
    assert entries.read("2.checkpoint") == data
    await store.add(pointer(3))
    recovered = await store.recover()
    assert (len(recovered.unreadable), recovered.is_last_unreadable) == (1, False)
    await store.remove(1)
    await store.remove(2)
    assert (await store_of(services, "next").recover()).records == (pointer(3),)
    assert entries.read("1.checkpoint") is None
    assert entries.read("2.checkpoint") is None


async def test_unreadable_checkpoint_pointers_are_reported_and_stay_unchanged(
    services: StandaloneHaServices, entries: Directory
) -> None:
    """No earlier checkpoints are taken for the last ones."""
    store = store_of(services, "owner")
    await store.recover()
    await store.add(pointer(1))
    (name,) = [name for name in entries.names() if name.endswith(".checkpoint")]
    data = entries.read(name)
    assert data is not None
    entries.write(name, data[:-1])
    for _ in range(2):
        recovered = await store_of(services, "next").recover()
        assert (recovered.records, recovered.is_last_unreadable) == ((), True)
        (error,) = recovered.unreadable
        assert (error.location, error.job_id) == (entries.location(name), JOB)
        assert "checksum" in error.reason
    assert entries.read(name) == data[:-1]
    with pytest.raises(CheckpointStoreFencedError):
        await store.add(pointer(2))


async def test_checkpoint_ids_increase_across_leaders_and_past_leaders_get_none(
    services: StandaloneHaServices,
) -> None:
    first, second = counter_of(services, "first"), counter_of(services, "second")
    await first.start()
    assert [await first.get_and_increment() for _ in range(3)] == [1, 2, 3]
    await second.start()
    assert await second.get() == 4
    assert await second.get_and_increment() == 4
    with pytest.raises(CheckpointStoreFencedError):
        await first.get_and_increment()
    with pytest.raises(CheckpointStoreFencedError):
        await first.set_count(50)
    await second.set_count(50)
    await second.set_count(7)
    assert await second.get_and_increment() == 50


async def test_unreadable_checkpoint_counter_gives_no_id(
    services: StandaloneHaServices, entries: Directory
) -> None:
    """A repeated id would name the files of another checkpoint."""
    counter = counter_of(services, "owner")
    await counter.start()
    await counter.get_and_increment()
    (name,) = [name for name in entries.names() if name.endswith(".count")]
    data = entries.read(name)
    assert data is not None
    entries.write(name, data[:-1])
    for call in (counter_of(services, "next").start, counter_of(services, "next").get):
        with pytest.raises(UnreadableRecordError, match="checksum"):
            await call()


async def test_checkpoint_id_counter_stored_by_a_version_without_epochs_is_continued(
    services: StandaloneHaServices, entries: Directory
) -> None:
    entries.write("count-owner", encode_entry(CheckpointOwner(JOB, "before")))
    entries.write("count", encode_entry(CheckpointCount(JOB, 7)))
    counter = counter_of(services, "owner")
    assert await counter.get() == 7
    await counter.start()
    assert await counter.get_and_increment() == 7
    assert await counter_of(services, "next").get() == 8
    assert entries.read("count") is None


async def test_discarding_the_checkpoint_store_and_counter_of_a_job_deletes_all_entries(
    services: StandaloneHaServices, entries: Directory
) -> None:
    store, counter = store_of(services, "owner"), counter_of(services, "owner")
    await store.recover()
    await counter.start()
    await store.add(pointer(await counter.get_and_increment()))
    await store.discard()
    await counter.discard()
    assert entries.names() == []


async def test_cleanup_of_the_cluster_removes_checkpoint_pointers(
    directory: Directory, executor: Executor
) -> None:
    services = StandaloneHaServices(directory, executor)
    store = store_of(services, "owner")
    await store.recover()
    await store.add(pointer(1))
    await services.close_and_cleanup_all_data()
    again = StandaloneHaServices(directory, executor)
    assert (await store_of(again, "owner").recover()).records == ()


async def test_failing_storage_raises_a_store_error_that_names_the_location(
    tmp_path: Path, executor: Executor
) -> None:
    (tmp_path / "checkpoint-pointers").write_text("a file where a directory should be")
    services = StandaloneHaServices(open_directory(str(tmp_path)), executor)
    with pytest.raises(StoreError, match=f"checkpoint-pointers/{JOB.hex()}"):
        await store_of(services, "owner").recover()


class Unreadable(LocalDirectory):
    """One whose files can be listed and written, and not read for a while."""

    is_away = False

    def read(self, name: str) -> bytes | None:
        if self.is_away:
            raise OSError("the disk fails")
        return super().read(name)


def test_store_owner_whose_take_over_fails_repeatedly_leaves_only_one_claim_file(
    tmp_path: Path,
) -> None:
    EpochDirectory(LocalDirectory(tmp_path), "test", lambda _: False).take_over(b"first")
    directory = Unreadable(tmp_path)
    second = EpochDirectory(directory, "test", lambda _: False)
    directory.is_away = True
    for _ in range(3):
        with pytest.raises(OSError, match="the disk fails"):
            second.take_over(b"second")
    assert len([name for name in directory.names() if name.endswith("-claim")]) == 2
    directory.is_away = False
    second.take_over(b"second")
    second.write("entry", b"content")
    assert second.read("entry") == b"content"


class FailsAfterwards(LocalDirectory):
    """One whose writes have had their effect when they fail."""

    fails = False

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        if self.fails:
            raise OSError("no answer came")


def test_entry_stored_by_a_write_that_reported_failure_can_be_deleted(
    tmp_path: Path,
) -> None:
    """Otherwise the next owner has a checkpoint without files, or a job that its submitter
    believes refused."""
    directory = FailsAfterwards(tmp_path)
    first = EpochDirectory(directory, "test", lambda _: False)
    first.take_over(b"first")
    directory.fails = True
    with pytest.raises(OSError, match="no answer came"):
        first.write("entry", b"content")
    directory.fails = False
    first.delete("entry")
    second = EpochDirectory(directory, "test", lambda _: False)
    second.take_over(b"second")
    assert second.names() == []
