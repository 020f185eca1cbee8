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
from flinkray.file_results import PublishedBatches, published_location, stream_execution
from flinkray.rpc import EndpointSpec, LocalRpcService
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.sources.coordinator import END_OF_SPLITS
from flinkray.testing import TestingGateway

JOB, MASTER = JobID(b"j" * 16), JobMasterId(b"m" * 16)
GRAPH = ExecutionGraphID(b"g" * 16)


def rates(spark: Any) -> Any:
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize("restores", [0, 1])
async def test_an_end_counts_in_the_execution_that_it_was_told_in(
    tmp_path: Path, restores: int
) -> None:
    """In the next one streams have gone back to a checkpoint, and more is to come."""
    env = StreamExecutionEnvironment().set_parallelism(1)
    env.from_spark_stream(rates).print()
    stage, reader, *_ = env._job(env.get_stream_graph()).vertices
    code = reader.invokable.code
    assert isinstance(code, bytes)
    service = LocalRpcService("coordinator")
    master = (
        TestingGateway(JobMasterGateway, MASTER)
        .on(JobMasterGateway.request_job_status)
        .returning(JobStatus.RUNNING)
        .on(JobMasterGateway.keep_part)
        .returning(None)
        .start(service, "jobmaster")
    )
    arguments = StreamCoordinatorArguments(
        "cluster",
        JOB,
        MASTER,
        MASTER,
        CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0),
        master.address,
        (VertexCode(reader.vertex_id, reader.operators[0].operator_id, reader.name, code),),
        storage_dir=str(tmp_path),
        graph_id=GRAPH,
    )
    spec = EndpointSpec(
        "StreamCoordinator",
        stream_coordinator_process(JOB, MASTER),
        "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator",
        arguments,
    )
    coordinator = await service.connect(await service.spawn(spec), StreamCoordinatorGateway)
    if restores:
        await coordinator.restore(MASTER, RestoredCoordinators(restores, 3, ()))
    asks = ReaderProgress(
        MASTER, reader.vertex_id, 0, 0, 1, 1, 0, None, restores, restored_from=3 * restores
    )
    batches = PublishedBatches(published_location(str(tmp_path), JOB, stage.vertex_id))

    batches.end(stream_execution(GRAPH, restores))

    assert await asyncio.wait_for(coordinator.exchange(asks), 60) == (END_OF_SPLITS,)
    await coordinator.stop(MASTER)
