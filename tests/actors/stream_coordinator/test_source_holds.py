"""The coordinator of a stream tells its sources to wait for others, by what is in storage."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    Holders,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    stream_coordinator_process,
)
from flinkray.actors.stream_coordinator.source_holds import SourceHolds
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID
from flinkray.file_results import (
    Epochs,
    LookUpNotes,
    epochs_location,
    look_ups_location,
    stream_execution,
)
from flinkray.rpc import EndpointSpec, LocalRpcService, RpcEndpoint
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.waiting import wait_until

JOB, MASTER = JobID(b"j" * 16), JobMasterId(b"m" * 16)
ONE, OTHER = JobVertexID(b"1" * 16), JobVertexID(b"2" * 16)
GRAPH = ExecutionGraphID(b"g" * 16)
MOST = 2


class Spark:
    """What waits for a stage."""

    def __init__(self, storage: Path, vertex_id: JobVertexID) -> None:
        self._epochs = Epochs(epochs_location(str(storage), JOB, vertex_id))
        self._last = 0

    def publish(self) -> None:
        self._last += 1
        self._epochs.publish(self._last, [])

    def take(self) -> None:
        done = self._epochs.last_done()
        self._epochs.note_done(self._epochs.published(done.checkpoint_id)[0], done)


@pytest.fixture
async def coordinator(tmp_path: Path) -> StreamCoordinatorGateway:
    service = LocalRpcService("coordinator")
    master = (
        TestingGateway(JobMasterGateway, MASTER)
        .on(JobMasterGateway.request_job_status)
        .returning(JobStatus.RUNNING)
    )
    arguments = StreamCoordinatorArguments(
        "cluster",
        JOB,
        MASTER,
        MASTER,
        CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0),
        master.start(service, "jobmaster").address,
        (),
        storage_dir=str(tmp_path),
        graph_id=GRAPH,
        max_waiting_epochs=MOST,
    )
    spec = EndpointSpec(
        "StreamCoordinator",
        stream_coordinator_process(JOB, MASTER),
        "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator",
        arguments,
    )
    return await service.connect(await service.spawn(spec), StreamCoordinatorGateway)


def unreadable(storage: Path) -> Path:
    """A file where epochs would be."""
    location = Path(epochs_location(str(storage), JOB, ONE))
    location.parent.mkdir(parents=True)
    location.touch()
    return location


async def told(
    coordinator: StreamCoordinatorGateway, known: bool | None, *takers: JobVertexID
) -> bool:
    return await asyncio.wait_for(coordinator.await_hold(MASTER, Holders(takers), known), 60)


async def test_sources_are_paused_while_too_many_batches_wait_for_spark(
    coordinator: StreamCoordinatorGateway, tmp_path: Path
) -> None:
    spark = Spark(tmp_path, ONE)
    assert not await told(coordinator, None, ONE)
    for _ in range(MOST):
        spark.publish()
    assert await told(coordinator, False, ONE)
    spark.take()
    assert not await told(coordinator, True, ONE)
    await coordinator.stop(MASTER)


async def test_source_is_paused_while_any_of_its_spark_stages_has_too_many_batches(
    coordinator: StreamCoordinatorGateway, tmp_path: Path
) -> None:
    one, other = Spark(tmp_path, ONE), Spark(tmp_path, OTHER)
    for _ in range(MOST):
        other.publish()
    assert await told(coordinator, None, ONE, OTHER)
    assert not await told(coordinator, None, ONE)
    for _ in range(MOST):
        one.publish()
    assert await told(coordinator, False, ONE)
    other.take()
    assert not await told(coordinator, None, OTHER) or not await told(coordinator, True, OTHER)
    assert await told(coordinator, None, ONE, OTHER)
    one.take()
    assert not await told(coordinator, True, ONE, OTHER)
    await coordinator.stop(MASTER)


async def test_cancelled_request_whether_a_source_is_paused_blocks_no_other_request(
    tmp_path: Path,
) -> None:
    service = LocalRpcService("coordinator")
    endpoint = RpcEndpoint(service, "holds")
    endpoint.start()
    holds = SourceHolds(endpoint, str(tmp_path), JOB, MOST, lambda: stream_execution(GRAPH, 0))
    spark, holders = Spark(tmp_path, ONE), Holders((ONE,))
    assert not await holds.await_other_than(None, holders)
    gone, stays = (asyncio.ensure_future(holds.await_other_than(False, holders)) for _ in range(2))
    await asyncio.wait([gone, stays], timeout=0)
    gone.cancel()
    await asyncio.wait([gone])
    for _ in range(MOST):
        spark.publish()
    assert await asyncio.wait_for(stays, 60)
    await service.close()


async def test_request_whether_a_source_is_paused_is_answered_once_storage_works_again(
    coordinator: StreamCoordinatorGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    location = unreadable(tmp_path)
    asking = asyncio.ensure_future(told(coordinator, None, ONE))
    await asyncio.to_thread(
        wait_until, lambda: "is behind is not known: " in caplog.text, 30, "a failure"
    )
    assert not asking.done()
    os.remove(location)
    assert not await asking
    await coordinator.stop(MASTER)


async def test_request_whether_a_source_is_paused_is_refused_for_another_job_master(
    coordinator: StreamCoordinatorGateway,
) -> None:
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.await_hold(JobMasterId(b"o" * 16), Holders((ONE,)), None)
    await coordinator.stop(MASTER)


async def test_look_up_task_that_is_full_pauses_its_sources_until_it_has_room_again(
    coordinator: StreamCoordinatorGateway, tmp_path: Path
) -> None:
    notes = LookUpNotes(look_ups_location(str(tmp_path), JOB, "planes"))
    holders = Holders((ONE,), ("planes",))

    async def asked(known: bool | None) -> bool:
        return await asyncio.wait_for(coordinator.await_hold(MASTER, holders, known), 60)

    assert not await asked(None)
    notes.note(stream_execution(GRAPH, 0), 0, 0, is_full=True)
    assert await asked(False)
    await coordinator.restore(MASTER, RestoredCoordinators(1, 3, ()))
    assert not await asked(True)
    notes.note(stream_execution(GRAPH, 1), 0, 1, is_full=True)
    assert await asked(False)
    notes.note(stream_execution(GRAPH, 1), 0, 1, is_full=False)
    assert not await asked(True)
    await coordinator.stop(MASTER)
