"""The coordinator of a stream that reads micro-batches knows which execution of it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    ReaderProgress,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.file_results import (
    MicroBatch,
    PublishedBatches,
    published_location,
    stream_execution,
)
from flinkray.rpc import EndpointSpec, LocalRpcService
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.sources.coordinator import END_OF_SPLITS
from flinkray.testing import TestingGateway

JOB, MASTER = JobID(b"j" * 16), JobMasterId(b"m" * 16)
GRAPH = ExecutionGraphID(b"g" * 16)


def rates(spark: Any) -> Any:
    return spark.readStream.format("rate").load()


class Streams:
    """A coordinator of a stream that reads micro-batches below a folder, and its JobMaster."""

    def __init__(self, storage: Path) -> None:
        env = StreamExecutionEnvironment().set_parallelism(1)
        env.from_spark_stream(rates).print()
        stage, self.reader, *_ = env._job(env.get_stream_graph()).vertices
        self.service = LocalRpcService("coordinator")
        self.master = (
            TestingGateway(JobMasterGateway, MASTER)
            .on(JobMasterGateway.request_job_status)
            .returning(JobStatus.RUNNING)
            .on(JobMasterGateway.keep_part)
            .returning(None)
            .on(JobMasterGateway.coordinator_told)
            .returning(None)
        )
        self.storage = str(storage)
        self.batches = PublishedBatches(published_location(self.storage, JOB, stage.vertex_id))

    async def start(self) -> StreamCoordinatorGateway:
        reader, code = self.reader, self.reader.invokable.code
        assert isinstance(code, bytes)
        arguments = StreamCoordinatorArguments(
            "cluster",
            JOB,
            MASTER,
            MASTER,
            CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0),
            self.master.start(self.service, "jobmaster").address,
            (VertexCode(reader.vertex_id, reader.operators[0].operator_id, reader.name, code),),
            storage_dir=self.storage,
            graph_id=GRAPH,
        )
        spec = EndpointSpec(
            "StreamCoordinator",
            stream_coordinator_process(JOB, MASTER),
            "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator",
            arguments,
        )
        address = await self.service.spawn(spec)
        return await self.service.connect(address, StreamCoordinatorGateway)

    def asks(self, restores: int) -> ReaderProgress:
        """For its first split, after that many restores."""
        vertex_id, from_checkpoint = self.reader.vertex_id, 3 * restores
        return ReaderProgress(
            MASTER, vertex_id, 0, 0, 1, 1, 0, None, restores, restored_from=from_checkpoint
        )


@pytest.mark.parametrize("restores", [0, 1])
async def test_readers_get_the_end_of_splits_in_the_execution_in_which_the_stream_ended(
    tmp_path: Path, restores: int
) -> None:
    """In the next execution streams have gone back to a checkpoint, and more batches come."""
    streams = Streams(tmp_path)
    coordinator = await streams.start()
    if restores:
        await coordinator.restore(MASTER, RestoredCoordinators(restores, 3, ()))
    streams.batches.end(stream_execution(GRAPH, restores))
    events = await asyncio.wait_for(coordinator.exchange(streams.asks(restores)), 60)
    assert events == (END_OF_SPLITS,)
    await coordinator.stop(MASTER)


async def test_restore_of_a_savepoint_without_the_spark_query_state_fails_without_restarts(
    tmp_path: Path,
) -> None:
    """The savepoint tells how far another job has read the micro-batches, but has no copy of what
    Spark stores for the query."""
    first = Streams(tmp_path / "first")
    coordinator = await first.start()
    first.batches.publish(MicroBatch(0, ()))
    first.batches.end()
    await asyncio.wait_for(coordinator.exchange(first.asks(0)), 60)
    states = await coordinator.snapshot(MASTER, 3, 0, str(tmp_path / "savepoint"))
    await coordinator.stop(MASTER)

    second = Streams(tmp_path / "second")
    second.batches.go_on_after(0)
    coordinator = await second.start()
    await coordinator.restore(MASTER, RestoredCoordinators(1, 3, states))
    asking = asyncio.ensure_future(coordinator.exchange(second.asks(1)))
    told = second.master.wait_for(JobMasterGateway.coordinator_told)
    _, failure, *_ = await asyncio.wait_for(told, 60)
    assert "another job read the micro-batches" in failure.text
    assert failure.suppress_restarts
    asking.cancel()
    await coordinator.stop(MASTER)
