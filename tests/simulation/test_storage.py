"""Simulated disks and the stores on them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.checkpoint.state_files import files_at
from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.file_results import ResultDirectory
from flinkray.ha import JobStoreStateError, StandaloneHaServices, StoreError, open_directory
from flinkray.ha.directory import Directory
from flinkray.testing.simulation import Simulation, simulate
from flinkray.testing.simulation.disk import arrow_file_system
from tests.simulation.stored_jobs import StoredJobs

OLD, NEW = b"old " * 10, b"new " * 10


@stored("tests.test_storage.Record")
@message
class Record:
    """What is stored."""

    job_id: JobID
    text: str


async def writer(simulation: Simulation, write: Callable[[Directory], None]) -> None:
    """A process that writes in a blocking call."""
    service = simulation.service("writer")
    await service.run_blocking(write, open_directory("simulated://node-0/data"))


@simulate(seeds=5)
async def test_simulated_directory_lists_entries_in_the_order_of_their_first_writes(
    simulation: Simulation,
) -> None:
    directory = open_directory("simulated://shared/data")
    for name in ("b", "a", "c", "b"):
        directory.write(name, name.encode())
    directory.delete("c")
    directory.delete("c")
    assert directory.names() == ["a", "b"]
    assert (directory.read("a"), directory.read("c")) == (b"a", None)
    directory.subdirectory("sub").write("x", b"")
    assert directory.names() == ["a", "b"]
    assert directory.subdirectory("sub").location("x") == "simulated://shared/data/sub/x"
    directory.delete_all()
    assert directory.names() == directory.subdirectory("sub").names() == []


@simulate(seeds=5)
async def test_job_graph_stored_on_the_simulated_storage_is_recovered_by_a_later_store(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    record = Record(JobID.generate(), "a job")
    for _ in range(2):
        storage = open_directory("simulated://shared/cluster")
        services = StandaloneHaServices(storage, service.executor)
        store = services.get_job_graph_store(Record)
        if not (await store.recover_job_graphs()).records:
            await store.put_job_graph(record)
    assert (await store.recover_job_graphs()).records == (record,)


@simulate(seeds=3)
async def test_job_result_whose_name_could_not_be_synced_is_stored_again(
    simulation: Simulation,
) -> None:
    """Seed 4 of the whole cluster: the next attempt found the result, and the end of the job was
    acknowledged although a power loss could remove it."""
    record = Record(JobID.generate(), "a job")
    service = simulation.service()
    services = StandaloneHaServices(open_directory("simulated://shared/c"), service.executor)
    store = services.get_job_result_store(Record)
    disk = simulation.disk()
    disk.intercept = lambda what, path: (what, path) == ("sync", "c/job-results")
    with pytest.raises(StoreError):
        await store.create_dirty_result(record)
    disk.intercept = None

    await store.create_dirty_result(record)

    assert StoredJobs(disk, "c").result_in("dirty", record.job_id, durable=True) is not None
    with pytest.raises(JobStoreStateError, match="dirty result already"):
        await store.create_dirty_result(record)


@simulate(seeds=30)
async def test_entry_has_its_old_or_its_new_content_after_a_power_failure_during_a_write(
    simulation: Simulation,
) -> None:
    await writer(simulation, lambda directory: directory.write("entry", OLD))
    disk = simulation.disk("node-0")
    disk.torn = 0.3

    async def change() -> None:
        await writer(simulation, lambda directory: directory.write("entry", NEW))

    simulation.network.services.pop("writer")
    simulation.start("changer", change)
    await asyncio.sleep(simulation.random.uniform(0, 0.005))
    simulation.crash_node("node-0")
    assert open_directory("simulated://node-0/data").read("entry") in (OLD, NEW)


def test_file_being_written_in_place_is_torn_if_the_process_of_its_writer_dies() -> None:
    async def program(simulation: Simulation) -> bytes | None:
        disk = simulation.disk("node-0")
        disk.write("file", OLD)
        disk.torn = 1.0

        async def change() -> None:
            service = simulation.service("changer")
            await service.run_blocking(disk.write, "file", NEW)

        process = simulation.start("changer", change)
        await asyncio.sleep(1)
        assert process.exit_code is not None
        assert "in the middle of writing simulated://node-0/file" in process.exit_code
        return disk.read("file")

    left = {simulation.run(program(simulation)) for simulation in map(Simulation, range(20))}
    assert len(left) > 5
    assert all(data is not None and NEW.startswith(data) for data in left)


def test_unsynced_file_is_lost_or_torn_by_a_power_loss() -> None:
    async def program(simulation: Simulation) -> tuple[bytes | None, ...]:
        disk = simulation.disk("node-0")
        disk.make_directory("d")
        disk.sync_directory("")
        disk.write("d/synced", OLD)
        disk.sync("d/synced")
        disk.write("d/changed", OLD)
        disk.sync("d/changed")
        disk.sync_directory("d")
        disk.write("d/changed", NEW)
        disk.write("d/new", NEW)
        simulation.crash_node("node-0")
        return disk.read("d/synced"), disk.read("d/changed"), disk.read("d/new")

    outcomes = [simulation.run(program(simulation)) for simulation in map(Simulation, range(40))]
    assert {synced for synced, _, _ in outcomes} == {OLD}
    changed = {changed for _, changed, _ in outcomes}
    assert OLD in changed
    assert len(changed) > 3
    assert all(data == OLD or NEW.startswith(data or b"?") or data == b"" for data in changed)
    new = {new for _, _, new in outcomes}
    assert None in new
    assert len(new) > 3


def test_directory_whose_name_was_not_synced_may_be_lost_with_its_synced_files() -> None:
    async def program(simulation: Simulation) -> bytes | None:
        disk = simulation.disk("node-0")
        disk.make_directory("d")
        disk.write("d/file", OLD)
        disk.sync("d/file")
        disk.sync_directory("d")
        assert disk.durable("d/file") is None
        simulation.crash_node("node-0")
        return disk.read("d/file")

    left = {simulation.run(program(simulation)) for simulation in map(Simulation, range(20))}
    assert left == {None, OLD}


@simulate(seeds=5)
async def test_entry_written_to_a_directory_is_durable_with_all_directories_it_created(
    simulation: Simulation,
) -> None:
    disk = simulation.disk("shared")
    directory = open_directory("simulated://shared/a/b/c")
    directory.write("entry", OLD)
    assert disk.durable("a/b/c/entry") == OLD
    directory.write("entry", NEW)
    assert disk.durable("a/b/c/entry") == NEW
    disk.write("a/b/c/entry", OLD)
    assert disk.durable("a/b/c/entry") == NEW
    directory.delete("entry")
    assert disk.durable("a/b/c/entry") is None


@simulate(seeds=10)
async def test_disk_of_a_killed_process_is_kept_or_lost_as_requested(
    simulation: Simulation,
) -> None:
    async def idle() -> None:
        await asyncio.sleep(1000)

    directory = open_directory("simulated://worker-1/data")
    directory.write("entry", OLD)
    simulation.start("worker-1", idle)
    simulation.crash("worker-1")
    assert directory.read("entry") == OLD
    simulation.start("worker-1", idle)
    simulation.crash("worker-1", keep_disk=False)
    assert directory.read("entry") is None


@simulate(seeds=5, nodes=2)
async def test_disk_of_a_crashed_node_is_kept_or_lost_as_requested(simulation: Simulation) -> None:
    directory = open_directory("simulated://node-1/data")
    directory.write("entry", OLD)
    simulation.crash_node("node-1")
    simulation.restart_node("node-1")
    assert directory.read("entry") == OLD
    simulation.crash_node("node-1")
    simulation.restart_node("node-1", keep_disk=False)
    assert directory.read("entry") is None


@simulate(seeds=10)
async def test_failing_disk_raises_an_error_before_or_after_the_write_took_effect(
    simulation: Simulation,
) -> None:
    directory = open_directory("simulated://shared/data")
    disk = simulation.disk("shared")
    disk.failing = 1.0
    with pytest.raises(OSError, match=r"simulated://shared/data"):
        directory.write("entry", NEW)
    disk.failing = 0.5
    failed_and_written = 0
    for number in range(40):
        name = f"entry-{number}"
        try:
            disk.write(name, NEW)
        except OSError:
            disk.failing = 0.0
            failed_and_written += disk.read(name) is not None
            disk.failing = 0.5
    assert failed_and_written > 0
    assert "fails" in simulation.story.text()


@simulate(seeds=5)
async def test_write_to_a_slow_disk_takes_virtual_time(simulation: Simulation) -> None:
    service = simulation.service()
    directory = open_directory("simulated://shared/data")
    simulation.disk("shared").slowness = 10.0
    await service.run_blocking(directory.write, "entry", NEW)
    assert simulation.now > 1.0


@simulate(seeds=5)
async def test_second_deletion_of_a_half_deleted_result_survives_power_loss(
    simulation: Simulation,
) -> None:
    """Seed 5412 of the whole cluster: files deleted by the first attempt came back with a power
    loss, after the second attempt had made the end of the job final."""
    disk = simulation.disk()
    for name in ("a", "b"):
        directory = ResultDirectory(f"simulated://shared/results/{name}")
        directory.create()
        directory.seal()
    disk.intercept = lambda what, path: (what, path) == ("delete", "results/b/_manifest.json")
    with pytest.raises(OSError, match="delete failed"):
        ResultDirectory("simulated://shared/results").delete()
    disk.intercept = None
    assert not disk.holds("results/a/_manifest.json")

    ResultDirectory("simulated://shared/results").delete()

    disk.lose_power()
    assert not [path for path in disk.paths() if path.startswith("results/")]


def test_blocking_work_is_slow_only_as_long_as_its_disk_is_slow() -> None:
    """Seed 5607 of the whole cluster: a result of many operations was still being written 60 s
    after the last fault."""

    async def program(simulation: Simulation) -> float:
        disk = simulation.disk()
        disk.make_directory("d")
        disk.slowness, disk.slow_for = 5.0, 10.0

        def work() -> None:
            for i in range(50):
                disk.write(f"d/{i}", OLD)

        begin = simulation.now
        await simulation.service("writer").run_blocking(work)
        return simulation.now - begin

    took = [simulation.run(program(simulation)) for simulation in map(Simulation, range(5))]
    assert all(10.0 <= seconds < 16.0 for seconds in took)


def test_a_parquet_file_left_open_by_a_killed_process_is_dropped_after_the_run() -> None:
    """Seeds from 500,000 on of the whole cluster: the garbage collector closed the file after its
    disk was gone, and pytest failed because of a warning."""
    simulation = Simulation(0)
    writer = pq.ParquetWriter(
        "left.parquet", pa.schema({}), filesystem=arrow_file_system(simulation.disk())
    )
    assert writer.is_open
    del simulation
    gc.collect()
    del writer


@simulate(seeds=5)
async def test_deleted_file_does_not_come_back_when_its_directory_is_synced(
    simulation: Simulation,
) -> None:
    """Seed 19316 of the whole cluster: the writer of the file had died while it wrote."""
    disk = simulation.disk("shared")
    disk.make_directory("results")
    disk.write("results/part", NEW)
    disk.discard("results/part")
    disk.sync_directory("results")
    disk.lose_power()
    assert not disk.holds("results/part")


@simulate(seeds=20)
async def test_state_file_is_durable_once_closed_and_never_partial(
    simulation: Simulation,
) -> None:
    location = "simulated://shared/a/b/state"
    files = files_at(location)
    for is_closed in (False, True):
        output = files.create(location)
        output.write(NEW)
        if is_closed:
            output.close()
        simulation.disk().lose_power()
        if is_closed:
            file = files.open(location)
            assert (file.size, file.read(4, 100)) == (len(NEW), NEW[4:])
        elif files.names("simulated://shared/a/b"):
            assert files.open(location).size == 0
    output = files.create("simulated://shared/a/b/another")
    output.discard()
    assert files.names("simulated://shared/a/b") == ["state"]


@simulate(seeds=5)
async def test_empty_checkpoint_directory_is_removed(
    simulation: Simulation,
) -> None:
    folder = "simulated://shared/a/b"
    files = files_at(folder)
    files.create(f"{folder}/state").close()
    for location in (folder, "simulated://shared/a"):
        files.remove_if_empty(location)
        assert files.is_directory(location)
    files.delete(f"{folder}/state")
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/state")
    for location in (folder, folder, "simulated://shared/a"):
        files.remove_if_empty(location)
        assert not files.is_directory(location)
