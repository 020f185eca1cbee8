"""What a JobMaster stores of checkpoints, on simulated disks that fail at the worst moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest

import flinkray
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.actors.job_master.stored_checkpoints import (
    PATIENCE,
    CheckpointsLostError,
    StoredCheckpoints,
)
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from flinkray.checkpoint.layout import JobCheckpointStorage
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    SnapshotKind,
)
from flinkray.checkpoint.metadata_file import read_metadata, write_metadata
from flinkray.core.errors import JobError
from flinkray.core.ids import JobID, JobMasterId, TriggerID
from flinkray.ha.entries import decode_entry, encode_entry
from flinkray.ha.epoch_directory import EpochContents, EpochEntry
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import (
    AddRestoredSavepoint,
    DiscardCheckpoint,
    DiscardDirectory,
    DiscardFiles,
    ForgetCheckpoint,
    PrepareCheckpoint,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import (
    CheckpointEvent,
    CheckpointIsNotStored,
    CheckpointIsStored,
    CheckpointNotPrepared,
    CheckpointPrepared,
)
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    checkpoint_of,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.testing.simulation import Simulation, simulate
from tests.actors.resource_cluster import number

E = TypeVar("E")

JOB, OTHER_JOB = number(JobID, 1), number(JobID, 2)
DIRECTORY = f"simulated://shared/cluster/checkpoints/{JOB.hex()}"
POINTERS = f"cluster/checkpoint-pointers/{JOB.hex()}"
ON_DISK = f"cluster/checkpoints/{JOB.hex()}"
CONFIGURATION = CheckpointConfiguration(retention=CheckpointRetentionPolicy.RETAIN_ON_FAILURE)
CHECKPOINT = checkpoint_of(CONFIGURATION)
LARGE = bytes(100)


class Master:
    """What one JobMaster stores, and what it is told."""

    def __init__(
        self,
        simulation: Simulation,
        token: int = 1,
        *,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        self.disk = simulation.disk()
        service = simulation.service(f"{token} of {len(simulation.network.services)}")
        endpoint = FencedRpcEndpoint(service, f"jobmaster-{token}", number(JobMasterId, token))
        endpoint.start()
        arguments = ClusterArguments("simulated", {}, "simulated://shared/cluster")
        graph = JobGraph(
            JOB, "job", (), configuration=dict(configuration or {}), checkpoints=CONFIGURATION
        )
        self.all_told: list[CheckpointEvent] = []
        self.fenced: list[str] = []
        self._told = asyncio.Event()
        self.stored = StoredCheckpoints(
            endpoint,
            ClusterServices.create(service, arguments),
            graph,
            told=self._tell,
            on_fenced=self.fenced.append,
        )

    def _tell(self, event: CheckpointEvent) -> None:
        self.all_told.append(event)
        self._told.set()

    async def told(self, kind: type[E]) -> E:
        """The next event, which is of that kind."""
        while not self.all_told:
            self._told.clear()
            await self._told.wait()
        event = self.all_told.pop(0)
        assert isinstance(event, kind), event
        return event

    async def prepare(
        self, properties: CheckpointProperties = CHECKPOINT, target: str | None = None
    ) -> CheckpointPrepared:
        self.stored.prepare(PrepareCheckpoint(1, properties, target))
        return await self.told(CheckpointPrepared)

    async def store(
        self, checkpoint_id: int, properties: CheckpointProperties = CHECKPOINT
    ) -> CompletedCheckpoint:
        """With a file of each kind."""
        self.stored.store(StoreCheckpoint(written(checkpoint_id), properties, at(checkpoint_id)))
        event = await self.told(CheckpointIsStored)
        return CompletedCheckpoint(event.stored.metadata, properties, event.path)

    async def discard(
        self, *actions: DiscardFiles | DiscardDirectory | DiscardCheckpoint | ForgetCheckpoint
    ) -> None:
        for action in actions:
            self.stored.discard(action)
        await self.stored.discarded()

    def pointers(self) -> list[str]:
        """Return the pointers to checkpoints that the next JobMaster would find."""
        found = self.contents("checkpoint")
        data = None if found is None else self.disk.read(f"{POINTERS}/{found}")
        if data is None:
            return []
        return sorted(entry.name for entry in decode_entry(data, EpochContents).entries)

    def contents(self, kind: str) -> str | None:
        """Name of the file with those of the last owner."""
        names = [name for name in self.disk.list(POINTERS) if name.endswith(f".{kind}")]
        return max(names, default=None)

    def files(self) -> list[str]:
        """Of the job's checkpoints."""
        inside = f"{ON_DISK}/"
        return sorted(p.removeprefix(inside) for p in self.disk.paths() if p.startswith(inside))


def at(checkpoint_id: int) -> str:
    return f"{DIRECTORY}/chk-{checkpoint_id}"


def written(checkpoint_id: int) -> CheckpointMetadata:
    """Of a checkpoint with an exclusive and a shared file, which are there."""
    storage = JobCheckpointStorage("simulated://shared/cluster/checkpoints", JOB, 0)
    writer = storage.checkpoint_writer(checkpoint_id)
    with writer.exclusive() as output:
        output.write(LARGE)
        exclusive = output.finish()
    with writer.shared() as output:
        output.write(LARGE)
        shared = output.finish()
    state = OperatorSubtaskState(
        (OperatorStateHandle(exclusive, ()),),
        (KeyedStateHandle(0, 127, (KeyedStatePart(shared, is_whole=True),)),),
    )
    subtask = CheckpointedSubtask(0, state)
    operator = CheckpointedOperator("ab" * 16, "sum", None, 1, 128, (subtask,))
    return CheckpointMetadata(JOB, checkpoint_id, 1_000, SnapshotKind.CHECKPOINT, (operator,))


def wanted(
    request: int,
    target: str | None = "simulated://shared/mine",
    kind: SnapshotType = SnapshotType.SAVEPOINT,
) -> SnapshotRequest:
    return SnapshotRequest(number(TriggerID, request), kind, target)


def shared_files(checkpoint: CompletedCheckpoint) -> tuple[FileState, ...]:
    (operator,) = checkpoint.metadata.operators
    return tuple(operator.subtasks[0].state.shared_files())


def failing(*places: str) -> Callable[[str, str], bool]:
    """Changes there fail; the operation may have had its effect."""
    return lambda what, path: what != "read" and any(place in path for place in places)


# --- ids and directories --------------------------------------------------------------------------


@simulate(seeds=3)
async def test_checkpoint_ids_rise_across_job_masters(simulation: Simulation) -> None:
    first, second = Master(simulation, 1), Master(simulation, 2)
    await first.stored.recover()
    assert await first.prepare() == CheckpointPrepared(1, 1, at(1))
    assert (await first.prepare()).checkpoint_id == 2
    await second.stored.recover()
    assert (await second.prepare()).checkpoint_id == 3


@simulate(seeds=3)
async def test_each_savepoint_gets_its_own_directory_in_the_requested_directory(
    simulation: Simulation,
) -> None:
    where = "execution.checkpointing.savepoint-dir"
    master = Master(simulation, configuration={where: "simulated://shared/savepoints"})
    await master.stored.recover()
    by_default = f"simulated://shared/savepoints/savepoint-{JOB.hex()[:6]}-000000000000"
    assert await master.stored.place_of_savepoint(wanted(1, None)) == by_default
    named = f"simulated://shared/mine/savepoint-{JOB.hex()[:6]}-000000000000"
    assert await master.stored.place_of_savepoint(wanted(2)) == named
    assert (await master.prepare(savepoint(), named)).directory == named


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (None, "execution.checkpointing.savepoint-dir"),
        ("http://[::1/savepoints", "is no directory"),
        ("/savepoints\0", "is no directory"),
        ("file:savepoints", "is no directory"),
        ("unheard-of://somewhere", "pyarrow has no file system for it"),
    ],
)
@simulate(seeds=1)
async def test_savepoint_without_a_target_directory_that_can_be_used_is_refused(
    simulation: Simulation, target: str | None, cause: str
) -> None:
    """E2E-06"""
    master = Master(simulation)
    await master.stored.recover()
    with pytest.raises((JobError, CheckpointStorageError), match=re.escape(cause)):
        await master.stored.place_of_savepoint(wanted(1, target))


@simulate(seeds=3)
async def test_savepoint_completed_by_an_earlier_job_master_is_not_taken_again(
    simulation: Simulation,
) -> None:
    """But a job that runs on in spite of the savepoint that it was to be stopped with needs another
    savepoint."""
    first, second = Master(simulation, 1), Master(simulation, 2)
    stop = wanted(1, kind=SnapshotType.SUSPEND_WITH_SAVEPOINT)
    place = await first.stored.place_of_savepoint(wanted(1))
    assert isinstance(place, str)
    metadata = replace(written(1), kind=SnapshotKind.SAVEPOINT)
    first.stored.store(StoreCheckpoint(metadata, savepoint(), place))
    await first.told(CheckpointIsStored)
    taken = await second.stored.place_of_savepoint(wanted(1))
    assert taken == SnapshotTaken(place, ("sum",))
    assert await second.stored.place_of_savepoint(stop) == f"{place}-2"


@simulate(seeds=3)
async def test_checkpoint_gets_its_id_once_failed_storage_works_again(
    simulation: Simulation,
) -> None:
    master = Master(simulation)
    await master.stored.recover()
    master.disk.intercept = failing(POINTERS)
    master.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    await asyncio.sleep(PATIENCE / 2)
    assert master.all_told == []
    master.disk.intercept = None
    assert (await master.told(CheckpointPrepared)).checkpoint_id >= 1


@simulate(seeds=3)
async def test_checkpoint_fails_when_the_checkpoint_id_counter_cannot_be_stored_in_time(
    simulation: Simulation,
) -> None:
    """CP-14"""
    master = Master(simulation)
    await master.stored.recover()
    master.disk.intercept = failing(POINTERS)
    master.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    refused = await master.told(CheckpointNotPrepared)
    assert "count" in refused.cause
    assert simulation.now >= PATIENCE


# --- storing --------------------------------------------------------------------------------------


@simulate(seeds=3)
async def test_next_job_master_recovers_the_stored_checkpoints(simulation: Simulation) -> None:
    """CP-28"""
    first, second = Master(simulation, 1), Master(simulation, 2)
    assert await first.stored.recover() == ()
    stored = [await first.store(checkpoint_id) for checkpoint_id in (9, 10)]
    assert await second.stored.recover() == tuple(stored)
    assert stored[0].properties == CHECKPOINT
    assert stored[0].metadata.flinkray_version == flinkray.__version__
    assert read_metadata(at(10)) == stored[1].metadata


@simulate(seeds=3)
async def test_next_job_master_recovers_a_savepoint_only_if_the_job_was_stopped_with_it(
    simulation: Simulation,
) -> None:
    master = Master(simulation)
    await master.stored.recover()
    await master.store(1, savepoint())
    assert master.pointers() == []
    metadata = replace(written(2), kind=SnapshotKind.SAVEPOINT)
    stopping = synchronous_savepoint(is_drain=False)
    master.stored.store(StoreCheckpoint(metadata, stopping, at(2)))
    await master.told(CheckpointIsStored)
    assert master.pointers() == ["2.checkpoint"]
    (recovered,) = await Master(simulation, 2).stored.recover()
    assert recovered.properties == savepoint(), "it is its user's"


@simulate(seeds=3)
async def test_checkpoint_is_stored_once_failed_storage_works_again(
    simulation: Simulation,
) -> None:
    master = Master(simulation)
    await master.stored.recover()
    metadata = written(1)
    for place in (f"{ON_DISK}/chk-1", POINTERS):
        master.disk.intercept = failing(place)
        master.stored.store(StoreCheckpoint(metadata, CHECKPOINT, at(1)))
        await asyncio.sleep(PATIENCE / 2)
        assert master.all_told == []
        master.disk.intercept = None
        assert (await master.told(CheckpointIsStored)).path == f"{at(1)}/_metadata"


@simulate(seeds=3)
async def test_checkpoint_whose_metadata_cannot_be_written_is_reported_as_not_stored(
    simulation: Simulation,
) -> None:
    master = Master(simulation)
    await master.stored.recover()
    metadata = written(1)
    master.disk.intercept = failing(f"{ON_DISK}/chk-1")
    master.stored.store(StoreCheckpoint(metadata, CHECKPOINT, at(1)))
    refused = await master.told(CheckpointIsNotStored)
    assert "chk-1/_metadata" in refused.cause
    assert refused.stored.metadata.checkpoint_id == 1
    assert simulation.now >= PATIENCE
    master.disk.intercept = None
    assert await Master(simulation, 2).stored.recover() == ()


@simulate(seeds=3)
async def test_checkpoint_whose_pointer_write_has_an_unknown_outcome_is_awaited_for_ever(
    simulation: Simulation,
) -> None:
    """The next JobMaster may recover a checkpoint that was given up, and commit what tasks have
    rolled back since."""
    master = Master(simulation)
    await master.stored.recover()
    metadata = written(1)
    master.disk.intercept = failing(POINTERS)
    master.stored.store(StoreCheckpoint(metadata, CHECKPOINT, at(1)))
    await asyncio.sleep(10 * PATIENCE)
    assert master.all_told == []
    master.disk.intercept = None
    assert (await master.told(CheckpointIsStored)).stored.metadata.checkpoint_id == 1


# --- a JobMaster that was replaced ----------------------------------------------------------------


@simulate(seeds=3)
async def test_replaced_job_master_deletes_no_checkpoint(simulation: Simulation) -> None:
    """CP-28: its successor may have recovered the checkpoint."""
    past, present = Master(simulation, 1), Master(simulation, 2)
    await past.stored.recover()
    checkpoints = [await past.store(checkpoint_id) for checkpoint_id in (1, 2)]
    assert len(await present.stored.recover()) == 2
    files, pointers = past.files(), past.pointers()
    for discard in (
        DiscardCheckpoint(checkpoints[0]),
        ForgetCheckpoint(checkpoints[0]),
        DiscardFiles(shared_files(checkpoints[0])),
        DiscardDirectory(at(1)),
    ):
        zombie = Master(simulation, 1)
        await zombie.discard(discard, DiscardDirectory(at(2)))
        await zombie.stored.forget_job()
        assert len(zombie.fenced) == 1, discard
        assert (past.files(), past.pointers()) == (files, pointers), discard
    await past.stored.forget_job()
    assert len(past.fenced) == 1
    assert (past.files(), past.pointers()) == (files, pointers)
    assert (await present.prepare()).checkpoint_id == 1, "its count is not forgotten either"


@simulate(seeds=3)
async def test_replaced_job_master_reports_no_outcome_of_pending_checkpoint_writes(
    simulation: Simulation,
) -> None:
    """Its successor may have recovered the checkpoint, or not."""
    past, present = Master(simulation, 1), Master(simulation, 2)
    await past.stored.recover()
    metadata = written(1)
    past.disk.intercept = failing(".checkpoint")
    past.stored.store(StoreCheckpoint(metadata, CHECKPOINT, at(1)))
    await asyncio.sleep(1)
    past.disk.intercept = None
    await present.stored.recover()
    past.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    await asyncio.sleep(2 * PATIENCE)
    assert past.all_told == []
    assert len(past.fenced) == 1, "once, whatever it tries after that"


# --- what is not needed any more ------------------------------------------------------------------


@simulate(seeds=3)
async def test_discarding_a_checkpoint_deletes_only_its_own_files(simulation: Simulation) -> None:
    master = Master(simulation)
    await master.stored.recover()
    one, two, three = [await master.store(checkpoint_id) for checkpoint_id in (1, 2, 3)]
    await master.discard(DiscardCheckpoint(one))
    assert master.pointers() == ["2.checkpoint", "3.checkpoint"]
    files = master.files()
    assert not [file for file in files if file.startswith("chk-1/")]
    assert sum(file.startswith("shared/") for file in files) == 3

    await master.discard(DiscardFiles(shared_files(one)), ForgetCheckpoint(two))
    assert master.pointers() == ["3.checkpoint"]
    left = [file for file in files if file != shared_files(one)[0].path.split(JOB.hex() + "/")[1]]
    assert master.files() == left

    written(4)
    await master.discard(DiscardDirectory(at(4)), DiscardDirectory(at(5)))
    assert not [file for file in master.files() if file.startswith("chk-4/")]
    assert (await Master(simulation, 2).stored.recover()) == (three,)


@simulate(seeds=3)
async def test_checkpoint_files_are_deleted_only_after_their_pointer(
    simulation: Simulation,
) -> None:
    """A JobMaster that dies in between would leave a pointer to deleted files."""
    master = Master(simulation)
    await master.stored.recover()
    one, two = [await master.store(checkpoint_id) for checkpoint_id in (1, 2)]
    works_again = simulation.now + PATIENCE + 1
    fails = failing(".checkpoint")
    master.disk.intercept = lambda what, path: simulation.now < works_again and fails(what, path)
    files = master.files()
    master.stored.discard(DiscardCheckpoint(one))
    master.stored.discard(DiscardCheckpoint(two))
    await asyncio.sleep(PATIENCE / 2)
    assert master.files() == files
    await master.stored.discarded()
    assert [f for f in master.files() if f.startswith("chk-")] == [
        f for f in files if f.startswith("chk-1/")
    ], "the next ones are deleted all the same"


@simulate(seeds=3)
async def test_ended_job_leaves_only_retained_checkpoints(
    simulation: Simulation,
) -> None:
    """CP-33"""
    master = Master(simulation)
    await master.stored.recover()
    await master.prepare()
    one, two = [await master.store(checkpoint_id) for checkpoint_id in (1, 2)]
    master.stored.discard(DiscardCheckpoint(one))
    await master.stored.forget_job()
    assert master.disk.list(POINTERS) == []
    assert read_metadata(two.path) == two.metadata
    for token in (2, 3):
        later = Master(simulation, token)
        assert await later.stored.recover() == ()
        assert (await later.prepare()).checkpoint_id == 1
        if token == 2:
            await later.discard(
                DiscardDirectory(at(2)), DiscardFiles((*shared_files(one), *shared_files(two)))
            )
        await later.stored.forget_job()
    assert not master.disk.is_directory(ON_DISK)


@simulate(seeds=20)
async def test_job_master_preparing_a_checkpoint_as_its_job_ends_is_not_taken_for_replaced(
    simulation: Simulation,
) -> None:
    """A JobMaster that takes itself for replaced would end before it has reported the job's end,
    and the next JobMaster would run the job again."""
    master = Master(simulation)
    await master.stored.recover()
    for _ in range(3):
        master.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    await master.stored.forget_job()
    await asyncio.sleep(1)
    assert master.fenced == []
    assert master.disk.list(POINTERS) == []


@simulate(seeds=3)
async def test_checkpoints_are_not_discarded_before_the_job_end_is_stored(
    simulation: Simulation,
) -> None:
    """Otherwise the next JobMaster would begin the job anew."""
    master = Master(simulation)
    await master.stored.recover()
    one = await master.store(1)
    master.stored.hold()
    master.stored.discard(DiscardCheckpoint(one))
    await asyncio.sleep(60)
    assert master.pointers() == ["1.checkpoint"]
    assert read_metadata(one.path) == one.metadata
    master.stored.release()
    await master.stored.forget_job()
    assert master.pointers() == []
    assert master.files() == [path for path in master.files() if path.startswith("shared/")]


@simulate(seeds=3)
async def test_late_answer_of_a_task_does_not_stop_checkpoint_deletion_of_an_ended_job(
    simulation: Simulation,
) -> None:
    """Its state is deleted, too. Seed 37 of repeated calls: files of a checkpoint stayed."""
    master = Master(simulation)
    await master.stored.recover()
    one, two = await master.store(1), await master.store(2)
    for checkpoint in (one, two):
        master.stored.hold()
        master.stored.discard(DiscardCheckpoint(checkpoint))
        master.stored.discard(DiscardFiles(shared_files(checkpoint)))
    master.stored.release()
    master.stored.hold()  # for state that a task reports late
    master.stored.discard(DiscardFiles(shared_files(one)))
    await master.stored.forget_job()
    assert master.files() == []


@simulate(seeds=3)
async def test_job_master_with_checkpoint_work_after_the_job_end_is_not_taken_for_replaced(
    simulation: Simulation,
) -> None:
    """Otherwise the JobMaster would end, and its successor would run the ended job again."""
    master = Master(simulation)
    await master.stored.recover()
    one = await master.store(1)
    await master.stored.forget_job()
    master.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    await master.discard(DiscardDirectory(at(1)), DiscardFiles(shared_files(one)))
    assert master.files() == []
    assert not master.fenced
    assert not master.all_told


# --- recovery -------------------------------------------------------------------------------------


@simulate(seeds=3)
async def test_recovery_waits_for_failing_storage_and_loses_no_checkpoint(
    simulation: Simulation,
) -> None:
    first, second = Master(simulation, 1), Master(simulation, 2)
    await first.stored.recover()
    stored = await first.store(1)
    first.disk.failing = 1.0
    recovery = asyncio.ensure_future(second.stored.recover())
    await asyncio.sleep(10 * PATIENCE)
    assert not recovery.done()
    first.disk.failing = 0.0
    assert await recovery == (stored,)


@simulate(seeds=3)
async def test_damaged_last_checkpoint_is_not_replaced_by_an_earlier_one(
    simulation: Simulation,
) -> None:
    """CP-28: with an earlier checkpoint, what was committed with the last one would be committed
    twice."""
    master = Master(simulation)
    await master.stored.recover()
    await master.store(1)
    last = await master.store(2)
    path = f"{ON_DISK}/chk-2/_metadata"
    whole = master.disk.read(path)
    assert whole is not None
    for damage in (whole[:-1], b"not of flinkray", None):
        if damage is None:
            master.disk.delete(path)
        else:
            master.disk.write(path, damage)
        with pytest.raises(CheckpointsLostError) as caught:
            await Master(simulation, 2).stored.recover()
        assert last.path in str(caught.value)
        assert f"Start the job anew from another one in {DIRECTORY}" in str(caught.value)
    assert master.pointers() == ["1.checkpoint", "2.checkpoint"]


@simulate(seeds=3)
async def test_unreadable_earlier_checkpoint_is_skipped_and_not_deleted(
    simulation: Simulation,
) -> None:
    master = Master(simulation)
    await master.stored.recover()
    await master.store(1)
    last = await master.store(2)
    master.disk.write(f"{ON_DISK}/chk-1/_metadata", b"not of flinkray")
    assert await Master(simulation, 2).stored.recover() == (last,)
    assert master.pointers() == ["1.checkpoint", "2.checkpoint"]


@simulate(seeds=3)
async def test_unreadable_earlier_pointer_is_skipped_and_not_deleted(
    simulation: Simulation,
) -> None:
    """The last pointer tells from where the job goes on."""
    master = Master(simulation)
    await master.stored.recover()
    await master.store(1)
    last = await master.store(2)
    name = f"{POINTERS}/{master.contents('checkpoint')}"
    data = master.disk.read(name)
    assert data is not None
    contents = decode_entry(data, EpochContents)
    damaged = EpochEntry("1.checkpoint", b"not of flinkray")
    master.disk.write(name, encode_entry(EpochContents((damaged, *contents.entries[1:]))))
    assert await Master(simulation, 2).stored.recover() == (last,)
    assert master.pointers() == ["1.checkpoint", "2.checkpoint"]


@simulate(seeds=3)
async def test_unreadable_last_pointer_or_checkpoint_count_fails_the_recovery(
    simulation: Simulation,
) -> None:
    for kind in ("checkpoint", "count"):
        master = Master(simulation)
        await master.stored.recover()
        await master.prepare()
        await master.store(1)
        name = master.contents(kind)
        assert name is not None
        master.disk.write(f"{POINTERS}/{name}", b"not of flinkray")
        with pytest.raises(CheckpointsLostError, match=name):
            await Master(simulation, 2).stored.recover()
        for left in master.disk.list(POINTERS):
            master.disk.delete(f"{POINTERS}/{left}")


@simulate(seeds=3)
async def test_next_job_master_does_not_subsume_the_savepoint_that_the_job_started_from(
    simulation: Simulation,
) -> None:
    """JM-09: also if it was a checkpoint of another job."""
    master = Master(simulation)
    await master.stored.recover()
    where = "simulated://shared/elsewhere/chk-41"
    metadata = CheckpointMetadata(OTHER_JOB, 41, 1_000, SnapshotKind.CHECKPOINT, ())
    restored = CompletedCheckpoint(metadata, savepoint(), write_metadata(where, metadata))
    master.disk.intercept = failing(POINTERS)
    master.stored.add_restored(AddRestoredSavepoint(restored))
    master.stored.prepare(PrepareCheckpoint(1, CHECKPOINT, None))
    await asyncio.sleep(2 * PATIENCE)
    master.disk.intercept = None
    assert (await master.told(CheckpointPrepared)).checkpoint_id == 42
    assert await Master(simulation, 2).stored.recover() == (restored,)
