"""Jobs whose user code is larger than a message, on real masters with scripted Spark drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.blob import (
    BlobClient,
    BlobNotFoundError,
    BlobOwner,
    BlobServerGateway,
    blob_server_beside,
)
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.submission import Submission, offload
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FrameTooLargeError,
    JobSubmissionError,
    RecipientUnreachableError,
)
from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.ha.standalone import StandaloneLeaderRetrievalService
from flinkray.rpc import EndpointSpec
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.conftest import QUICK

MIB = 2**20
UPLOAD_TIMEOUT = 600.0
"""Seconds; the default."""
BLOB_SERVER = blob_server_beside(DISPATCHER_ADDRESS)


def large_job(*attempts: list[str], size: int = 30 * MIB) -> JobGraph:
    """A scripted job with so many bytes of code: what follows a script's JSON may be blanks."""
    graph = scripted_job(*attempts)
    (vertex,) = graph.vertices
    assert isinstance(vertex.invokable.code, bytes)
    invokable = replace(vertex.invokable, code=vertex.invokable.code.ljust(size))
    return replace(graph, vertices=(replace(vertex, invokable=invokable),))


def stored_blobs(storage: Path, job_id: JobID) -> list[str]:
    owner = BlobOwner.of_job(job_id)
    return sorted(entry.name for entry in (storage / "blobs").glob(f"{owner}.*"))


def stored(storage: Path) -> list[str]:
    """All files of the cluster."""
    return sorted(str(p.relative_to(storage)) for p in storage.rglob("*") if p.is_file())


async def until_executing(cluster: MiniCluster, job_id: JobID) -> None:
    """All executors of the job's present attempt are registered; in virtual time."""
    while True:
        vertices = (await cluster.details(job_id)).vertices
        executions = [execution for vertex in vertices for execution in vertex.executions]
        if executions and all(one.state is ExecutionState.RUNNING for one in executions):
            return
        await asyncio.sleep(0.1)


@asynccontextmanager
async def cluster_and_client(
    storage: Path,
) -> AsyncIterator[tuple[MiniCluster, DispatcherConnection]]:
    async with MiniCluster(str(storage), configuration=QUICK) as cluster:
        retriever = StandaloneLeaderRetrievalService(
            DISPATCHER_ADDRESS, LeaderSessionID.standalone()
        )
        connection = DispatcherConnection(cluster.client, retriever, "test")
        await connection.open()
        yield cluster, connection
        await connection.close()


@on_virtual_time
async def test_a_job_with_30_mb_of_code_runs_and_leaves_no_blob(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "pause 5", "finish"])
        with pytest.raises(FrameTooLargeError, match=r"travels as a blob \(flinkray\.blob\)"):
            await cluster.submit(job)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        assert len(stored_blobs(tmp_path, job.job_id)) > 1
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_a_job_with_little_code_needs_no_blob(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], size=MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_a_duplicate_submission_does_not_delete_the_running_jobs_blobs(
    tmp_path: Path,
) -> None:
    """DI-03: neither with the same code nor with other code. The job's next attempt needs its
    blobs."""
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], ["register", "finish"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        other = replace(large_job(["wait"], size=3 * MIB), job_id=job.job_id)
        for duplicate in (job, other):
            with pytest.raises(DuplicateJobSubmissionError):
                await Submission(connection, duplicate, 60).make()
        await asyncio.sleep(3 * UPLOAD_TIMEOUT / 2)
        cluster.crash("SparkDriver")
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_graph_with_a_missing_blob_is_refused_and_its_id_stays_free(
    tmp_path: Path,
) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "finish"], size=2 * MIB)
        small, blobs = offload(job, MIB)
        (key,) = blobs
        with pytest.raises(BlobNotFoundError, match=str(key)):
            await cluster.submit(small)
        await Submission(connection, job, 60).make()
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED


@on_virtual_time
async def test_job_runs_on_and_keeps_its_blobs_when_the_dispatcher_dies(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], ["register", "finish"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        cluster.crash("Dispatcher")
        await asyncio.sleep(3 * UPLOAD_TIMEOUT / 2)
        cluster.crash("SparkDriver")
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_blobs_of_a_job_that_ended_while_no_dispatcher_ran_are_deleted(
    tmp_path: Path,
) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "pause 1", "finish"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        cluster.network.restart_delay = 5.0
        cluster.crash("Dispatcher")
        await asyncio.sleep(6)
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_uploaded_blob_without_a_submission_is_deleted(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, _):
        job_id = JobID.generate()
        await BlobClient(cluster.client, BLOB_SERVER).put(BlobOwner.of_job(job_id), b"x" * MIB)
        assert len(stored_blobs(tmp_path, job_id)) == 2
        await asyncio.sleep(3 * UPLOAD_TIMEOUT)
        assert stored_blobs(tmp_path, job_id) == []


@on_virtual_time
async def test_blobs_are_kept_while_the_graph_cannot_be_removed(tmp_path: Path) -> None:
    """DI-14"""
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "pause 5", "finish"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        stored = stored_blobs(tmp_path, job.job_id)
        graphs = tmp_path / "job-graphs"
        graphs.rename(tmp_path / "the graphs")
        graphs.touch()  # no directory in which something can be changed
        await asyncio.sleep(60)
        assert stored_blobs(tmp_path, job.job_id) == stored != []
        result = await cluster.result(job.job_id)
        assert result.status is JobStatus.FINISHED, "told though not all is given back"
        graphs.unlink()
        (tmp_path / "the graphs").rename(graphs)
        await eventually(
            lambda: not stored_blobs(tmp_path, job.job_id), 300, "its blobs to be gone"
        )


@on_virtual_time
async def test_blobs_of_a_refused_job_are_deleted_after_the_upload_timeout(
    tmp_path: Path,
) -> None:
    async with cluster_and_client(tmp_path) as (_, connection):
        job = large_job(["wait"], size=2 * MIB)
        (tmp_path / "job-graphs").rename(tmp_path / "the graphs")
        (tmp_path / "job-graphs").write_text("a file where the directory should be")
        with pytest.raises(JobSubmissionError, match="graph could not be stored"):
            await Submission(connection, job, 60).make()
        assert stored_blobs(tmp_path, job.job_id) != []
        (tmp_path / "job-graphs").unlink()
        (tmp_path / "the graphs").rename(tmp_path / "job-graphs")
        await asyncio.sleep(3 * UPLOAD_TIMEOUT)
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_a_dispatcher_that_stops_keeps_the_blobs_for_its_successor(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], ["register", "finish"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        stored = stored_blobs(tmp_path, job.job_id)
        await cluster.client.stop("Dispatcher")
        assert stored_blobs(tmp_path, job.job_id) == stored != []
        arguments = ClusterArguments("local", QUICK, str(tmp_path))
        factory = cluster.masters["Dispatcher"]
        await cluster.client.spawn(
            EndpointSpec("Dispatcher", "Dispatcher", factory, arguments, detached=True)
        )
        cluster.crash("SparkDriver")
        assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_stopping_dispatcher_leaves_its_running_job_running_and_reports_no_job_end(
    tmp_path: Path,
) -> None:
    """DI-12. In Flink the job would be suspended; here the job runs on."""
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        dispatcher = await cluster.dispatcher()
        asked = asyncio.ensure_future(dispatcher.request_job_result(job.job_id))
        before = stored(tmp_path)
        assert stored_blobs(tmp_path, job.job_id) != []
        await cluster.client.stop("Dispatcher")
        with pytest.raises(RecipientUnreachableError):
            await asked
        await asyncio.sleep(60)
        assert stored(tmp_path) == before
        arguments = ClusterArguments("local", QUICK, str(tmp_path))
        factory = cluster.masters["Dispatcher"]
        await cluster.client.spawn(
            EndpointSpec("Dispatcher", "Dispatcher", factory, arguments, detached=True)
        )
        await until_executing(cluster, job.job_id)
        details = await cluster.details(job.job_id)
        assert (details.restarts, details.exceptions) == (0, ())


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("finish", JobStatus.FINISHED),
        ("fail", JobStatus.FAILED),
        ("wait", JobStatus.CANCELED),
    ],
)
@on_virtual_time
async def test_ended_job_leaves_only_its_result(
    tmp_path: Path, end: str, status: JobStatus
) -> None:
    """DI-12"""
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "pause 5", end], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        assert stored_blobs(tmp_path, job.job_id) != []
        if status is JobStatus.CANCELED:
            await (await cluster.dispatcher()).cancel_job(job.job_id)
        assert (await cluster.result(job.job_id)).status is status
        [left] = [path for path in stored(tmp_path) if job.job_id.hex() in path]
        assert left.startswith("job-results/")


@on_virtual_time
async def test_a_cancelled_job_leaves_no_blob(tmp_path: Path) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        await (await cluster.dispatcher()).cancel_job(job.job_id)
        assert (await cluster.result(job.job_id)).status is JobStatus.CANCELED
        assert stored_blobs(tmp_path, job.job_id) == []


@on_virtual_time
async def test_attempt_whose_code_blob_was_lost_fails_and_its_error_names_the_blob_key(
    tmp_path: Path,
) -> None:
    async with cluster_and_client(tmp_path) as (cluster, connection):
        job = large_job(["register", "wait"], size=2 * MIB)
        await Submission(connection, job, 60).make()
        await until_executing(cluster, job.job_id)
        server = await cluster.client.connect(BLOB_SERVER, BlobServerGateway)
        await server.delete(BlobOwner.of_job(job.job_id))
        cluster.crash("SparkDriver")
        result = await cluster.result(job.job_id)
        assert result.status is JobStatus.FAILED
        assert "BlobNotFoundError" in str(result.failure)
        assert str(offload(job, MIB)[0].blobs[0]) in str(result.failure)
