"""What is answered for snapshots of a job that has ended, and which savepoints may be deleted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from flinkray.actors.dispatcher.job_snapshots import (
    JobSnapshots,
    dispose_savepoint,
    taken_at_the_end,
)
from flinkray.actors.dispatcher.managed_job import JobMasterDeaths, ManagedJob
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import ArchivedJob
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.metadata import CheckpointMetadata, SnapshotKind
from flinkray.checkpoint.metadata_file import read_metadata, write_metadata
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import JobStateError, JobSubmissionError, RpcTimeoutError
from flinkray.core.ids import DispatcherId, JobID, LeaderSessionID, TriggerID
from flinkray.core.job_options import STATE_RECOVERY_PATH
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService, RpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing import TestingGateway

T = TypeVar("T")

STOP = SnapshotRequest(TriggerID(b"\1" * 16), SnapshotType.SUSPEND_WITH_SAVEPOINT)
ENDED = JobResult(JobID(bytes(16)), "a job", JobStatus.FINISHED, 1.0)
STOPPED = ENDED.with_savepoint("/savepoints/a", STOP.trigger_id)


def test_repeated_stop_request_for_an_ended_job_returns_the_savepoint_again() -> None:
    assert taken_at_the_end(STOPPED, STOP) == SnapshotTaken("/savepoints/a")


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (ENDED, SnapshotType.SAVEPOINT, "no savepoint can be taken"),
        (ENDED, SnapshotType.CHECKPOINT, "no checkpoint can be taken"),
        (ENDED, SnapshotType.SUSPEND_WITH_SAVEPOINT, "it cannot be stopped with a savepoint"),
        (ENDED, SnapshotType.TERMINATE_WITH_SAVEPOINT, "it cannot be stopped with a savepoint"),
        (
            STOPPED,
            SnapshotType.SUSPEND_WITH_SAVEPOINT,
            "it cannot be stopped with a savepoint; it was stopped with the savepoint "
            "/savepoints/a",
        ),
    ],
)
def test_new_snapshot_request_after_a_stop_with_savepoint_is_refused(
    result: JobResult, kind: SnapshotType, text: str
) -> None:
    request = SnapshotRequest(TriggerID(b"\2" * 16), kind)
    with pytest.raises(JobStateError, match=re.escape(f"it has ended (FINISHED): {text}") + "$"):
        taken_at_the_end(result, request)


# --- the end of savepoints ------------------------------------------------------------------------

OF_JOB, OTHER = JobID(b"\1" * 16), JobID(b"\2" * 16)
SILENT, NOT_YET = "a JobMaster that is silent", "one that has not read what it begins with"
NONE, OTHERS = "none", "one that needs another savepoint"
NEEDS, HAS_OWN = "one that needs it", "one that has a checkpoint"


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    """The directory of one that was taken of the first job."""
    directory = tmp_path / "savepoint-1"
    metadata = CheckpointMetadata(OF_JOB, 1, 0, SnapshotKind.SAVEPOINT, ())
    write_metadata(str(directory), metadata)
    return str(directory)


def managed(job_id: JobID, savepoint: str, *, is_given: bool, job_master: str) -> ManagedJob:
    graph = JobGraph(
        job_id, "a job", (), configuration={STATE_RECOVERY_PATH.key: savepoint} if is_given else {}
    )
    loop = asyncio.get_running_loop()
    accepted, ended, told = loop.create_future(), loop.create_future(), loop.create_future()
    configuration = ReadableConfig()
    deaths = JobMasterDeaths(configuration)
    job = ManagedJob(graph, 0.0, deaths, accepted, ended, told, configuration)
    if job_master != NONE:
        asked = TestingGateway(JobMasterGateway).on(JobMasterGateway.request_savepoint_in_use)
        job.gateway = {
            SILENT: lambda: asked.raising(RpcTimeoutError("request_savepoint_in_use")),
            NOT_YET: lambda: asked.raising(JobStateError(job_id, "not read yet")),
            NEEDS: lambda: asked.returning(f"{savepoint}/_metadata"),
            HAS_OWN: lambda: asked.returning(None),
            OTHERS: lambda: asked.returning(f"{savepoint}-another/_metadata"),
        }[job_master]().gateway
    return job


def is_there(savepoint: str) -> bool:
    return Path(savepoint).exists()


async def dispose(savepoint: str, *jobs: ManagedJob) -> None:
    network = LocalNetwork()
    service = LocalRpcService("dispatcher", network)
    token = DispatcherId.of(LeaderSessionID.standalone())
    dispatcher = FencedRpcEndpoint(service, "dispatcher", token)
    dispatcher.start()
    try:
        managed = {job.job_id: job for job in jobs}
        await JobSnapshots(dispatcher, managed, UserStorage(service)).dispose(savepoint)
    finally:
        await network.close()


@pytest.mark.parametrize(
    ("job_id", "is_given", "job_master", "is_needed"),
    [
        (OTHER, True, NEEDS, True),
        (OTHER, True, HAS_OWN, False),
        (OTHER, True, NONE, True),
        (OTHER, True, SILENT, True),
        (OTHER, True, NOT_YET, True),
        (OTHER, False, NONE, False),
        (OTHER, False, NOT_YET, False),
        (OF_JOB, False, NEEDS, True),
        (OF_JOB, False, HAS_OWN, False),
        (OF_JOB, False, OTHERS, False),
        (OF_JOB, False, NONE, True),
        (OF_JOB, False, SILENT, True),
        (OF_JOB, False, NOT_YET, True),
    ],
)
async def test_savepoint_from_which_a_job_may_restart_cannot_be_deleted(
    job_id: JobID, is_given: bool, job_master: str, is_needed: bool, savepoint: str
) -> None:
    """The job started from the savepoint; or the job was to be stopped with the savepoint, did not
    stop, and runs on."""
    job = managed(job_id, savepoint, is_given=is_given, job_master=job_master)
    if is_needed:
        with pytest.raises(JobStateError, match=f"would go on from {savepoint} after a failure"):
            await dispose(savepoint, job)
    else:
        await dispose(savepoint, job)
    assert is_there(savepoint) is is_needed


class PausedStorage(UserStorage):
    """Waits at the first call of one function, with the answer in hand or before it is asked."""

    def __init__(self, service: RpcService, function: object, *, after: bool) -> None:
        super().__init__(service)
        self._function = function
        self._after = after
        self.waits, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def run(self, function: Callable[[str], T], location: str) -> T:
        is_at_it = function is self._function and not self.waits.is_set()
        if is_at_it and not self._after:
            await self._pause()
        answer = await super().run(function, location)
        if is_at_it and self._after:
            await self._pause()
        return answer

    async def _pause(self) -> None:
        self.waits.set()
        await self.may_go_on.wait()


@pytest.mark.parametrize("is_given_first", [True, False])
async def test_savepoint_is_not_deleted_while_a_job_is_starting_from_it(
    is_given_first: bool, savepoint: str
) -> None:
    """Otherwise the job would be accepted, and fail because its savepoint is gone."""
    network = LocalNetwork()
    service = LocalRpcService("dispatcher", network)
    token = DispatcherId.of(LeaderSessionID.standalone())
    dispatcher = FencedRpcEndpoint(service, "dispatcher", token)
    dispatcher.start()
    graph = JobGraph(OTHER, "a job", (), configuration={STATE_RECOVERY_PATH.key: savepoint})
    function: object = read_metadata if is_given_first else dispose_savepoint
    storage = PausedStorage(service, function, after=is_given_first)
    snapshots = JobSnapshots(dispatcher, {}, storage)
    if is_given_first:
        first = asyncio.ensure_future(snapshots.check_given(graph))
        await storage.waits.wait()
        with pytest.raises(JobStateError, match="is what a job is about to start from"):
            await snapshots.dispose(f"{savepoint}/_metadata")
    else:
        first = asyncio.ensure_future(snapshots.dispose(f"{savepoint}/_metadata"))
        await storage.waits.wait()
        with pytest.raises(JobSubmissionError, match="is being deleted"):
            await snapshots.check_given(graph)
    storage.may_go_on.set()
    await first
    assert is_there(savepoint) is is_given_first
    await network.close()


async def test_savepoint_of_an_ended_job_can_be_deleted(savepoint: str) -> None:
    """DI-10: disposing of the savepoint deletes its files."""
    job = managed(OF_JOB, savepoint, is_given=True, job_master=NEEDS)
    job.outcome = ArchivedJob(ENDED, job.details())
    await dispose(savepoint, job)
    assert not is_there(savepoint)
