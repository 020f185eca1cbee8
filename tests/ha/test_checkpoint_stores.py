"""Pointers to completed checkpoints and the counter of their ids, in memory, in local files and
behind pyarrow."""

from __future__ import annotations

from concurrent.futures import Executor
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
from flinkray.ha.entries import encode_entry

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


async def test_recovery_gives_the_checkpoints_by_their_ids_and_removes_none(
    services: StandaloneHaServices,
) -> None:
    """CP-28: the last one, which is restored, has the highest id, whatever was written last."""
    store = store_of(services, "first")
    assert (await store.recover()).records == ()
    for checkpoint_id in (9, 100, 10):
        await store.add(pointer(checkpoint_id))
    for owner in ("second", "third"):
        recovered = await store_of(services, owner).recover()
        assert recovered.records == (pointer(9), pointer(10), pointer(100))
        assert recovered.unreadable == ()


async def test_checkpoint_that_a_later_leader_has_recovered_is_not_removed_by_an_earlier_one(
    services: StandaloneHaServices,
) -> None:
    """CP-28: its data stay, although it is subsumed for the earlier leader."""
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


async def test_store_that_has_not_recovered_changes_nothing(
    services: StandaloneHaServices, entries: Directory
) -> None:
    with pytest.raises(CheckpointStoreFencedError):
        await store_of(services, "nobody").add(pointer(1))
    with pytest.raises(CheckpointStoreFencedError):
        await counter_of(services, "nobody").get_and_increment()
    assert entries.names() == []


async def test_store_whose_owner_cannot_be_read_is_nobody_s(
    services: StandaloneHaServices, entries: Directory
) -> None:
    """Another leader may have taken over."""
    store = store_of(services, "first")
    await store.recover()
    entries.write("owner", b"no record")
    with pytest.raises(CheckpointStoreFencedError):
        await store.add(pointer(1))


async def test_removed_checkpoints_are_forgotten_and_removing_twice_is_fine(
    services: StandaloneHaServices,
) -> None:
    store = store_of(services, "owner")
    await store.recover()
    for checkpoint_id in (1, 2):
        await store.add(pointer(checkpoint_id))
    for _ in range(2):
        await store.remove(1)
    assert (await store_of(services, "next").recover()).records == (pointer(2),)


async def test_jobs_have_checkpoints_and_ids_of_their_own(services: StandaloneHaServices) -> None:
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
async def test_pointer_that_cannot_be_read_stays_and_keeps_no_other_from_being_recovered(
    services: StandaloneHaServices, entries: Directory, data: bytes, why: str
) -> None:
    store = store_of(services, "owner")
    await store.recover()
    await store.add(pointer(1))
    entries.write("2.checkpoint", data)
    entries.write("notes.checkpoint", b"somebody's")
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


async def test_ids_rise_over_all_leaders_and_each_is_given_once(
    services: StandaloneHaServices,
) -> None:
    """Whoever leads."""
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


async def test_count_that_cannot_be_read_gives_no_id(
    services: StandaloneHaServices, entries: Directory
) -> None:
    """An id that was given before would name the files of another checkpoint."""
    counter = counter_of(services, "owner")
    await counter.start()
    await counter.get_and_increment()
    data = entries.read("count")
    assert data is not None
    entries.write("count", data[:-1])
    for call in (counter.get_and_increment, counter.get, counter_of(services, "next").start):
        with pytest.raises(UnreadableRecordError, match="checksum"):
            await call()


async def test_job_that_has_ended_leaves_nothing(
    services: StandaloneHaServices, entries: Directory
) -> None:
    store, counter = store_of(services, "owner"), counter_of(services, "owner")
    await store.recover()
    await counter.start()
    await store.add(pointer(await counter.get_and_increment()))
    await store.discard()
    await counter.discard()
    assert entries.names() == []


async def test_end_of_the_cluster_removes_pointers(
    directory: Directory, executor: Executor
) -> None:
    services = StandaloneHaServices(directory, executor)
    store = store_of(services, "owner")
    await store.recover()
    await store.add(pointer(1))
    await services.close_and_cleanup_all_data()
    again = StandaloneHaServices(directory, executor)
    assert (await store_of(again, "owner").recover()).records == ()


async def test_storage_that_fails_is_an_error_that_names_the_entry(
    tmp_path: Path, executor: Executor
) -> None:
    (tmp_path / "checkpoint-pointers").write_text("a file where a directory should be")
    services = StandaloneHaServices(open_directory(str(tmp_path)), executor)
    with pytest.raises(StoreError, match=f"checkpoint-pointers/{JOB.hex()}"):
        await store_of(services, "owner").recover()
