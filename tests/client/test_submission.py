"""Large user code leaves the job graph, and is uploaded before the graph is submitted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flinkray.actors.gateways import DispatcherGateway
from flinkray.blob import BlobNotFoundError, BlobOwner, BlobServer, BlobServerGateway, BlobStore
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.submission import Submission, offload
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import DispatcherId, JobID, JobVertexID, LeaderSessionID
from flinkray.core.resources import ResourceProfile
from flinkray.ha import MemoryDirectory
from flinkray.ha.standalone import StandaloneLeaderRetrievalService
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    Invokable,
    JobFile,
    JobFileUse,
    JobGraph,
    JobVertex,
)
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time

ZERO = LeaderSessionID.standalone()


def graph(*codes: bytes) -> JobGraph:
    vertices = tuple(
        JobVertex(
            JobVertexID(bytes([index]) * 16),
            f"stage {index}",
            1,
            ResourceProfile(1.0, 2**30),
            Invokable(SPARK, code),
        )
        for index, code in enumerate(codes)
    )
    return JobGraph(JobID(bytes(16)), "job", vertices)


def codes_of(job: JobGraph) -> list[bytes | BlobKey]:
    return [vertex.invokable.code for vertex in job.vertices]


def test_code_up_to_the_size_limit_stays_in_the_job_graph() -> None:
    job = graph(b"a" * 60, b"b" * 40)
    assert offload(job, 100) == (job, {})


def test_largest_code_of_a_job_graph_is_offloaded_until_the_rest_fits_the_limit() -> None:
    codes = [b"a" * 50, b"b" * 200, b"c" * 60]
    small, blobs = offload(graph(*codes), 100)
    keys = [BlobKey.of(code) for code in codes]
    assert codes_of(small) == [codes[0], keys[1], keys[2]]
    assert blobs == {keys[1]: codes[1], keys[2]: codes[2]}
    assert small.blobs == (keys[1], keys[2])


def test_equal_code_of_two_vertices_is_offloaded_as_one_blob() -> None:
    small, blobs = offload(graph(b"a" * 200, b"a" * 200), 100)
    assert len(blobs) == len(small.blobs) == 1


def test_offloading_code_of_an_offloaded_job_graph_changes_nothing() -> None:
    small, _ = offload(graph(b"a" * 200), 100)
    assert offload(small, 100) == (small, {})


@on_virtual_time
async def test_code_that_the_cluster_lost_before_the_submission_is_uploaded_again() -> None:
    """The cluster loses code when the Dispatcher is replaced between the upload and the
    submission."""
    job = graph(b"a" * 200)
    small, blobs = offload(job, 100)
    owner = BlobOwner.of_job(job.job_id)
    network = LocalNetwork()
    masters, client = LocalRpcService("Dispatcher", network), LocalRpcService("client", network)
    server = await BlobServer.create(masters, BlobStore(MemoryDirectory()))
    server.start()
    attempts: list[tuple[BlobKey, ...]] = []

    async def submit(submitted: JobGraph) -> None:
        assert submitted == small
        attempts.append(await server.retain(owner, submitted.blobs))
        if len(attempts) == 1:
            await server.delete(owner)
            raise BlobNotFoundError(owner, *submitted.blobs)

    double = TestingGateway(DispatcherGateway, DispatcherId.of(ZERO))
    double.on(DispatcherGateway.submit_job).calling(submit).start(masters, "dispatcher")
    retriever = StandaloneLeaderRetrievalService("Dispatcher/dispatcher", ZERO)
    connection = DispatcherConnection(client, retriever, "test")
    await connection.open()
    await Submission(connection, job, 60, offload_min_size=100).make()
    assert attempts == [(), ()]
    gateway = await client.connect(server.address, BlobServerGateway)
    (key,) = blobs
    assert await gateway.get(owner, key, 0, 1000) == b"a" * 200
    await asyncio.gather(connection.close(), client.close(), masters.close())


def test_largest_file_of_a_job_is_offloaded_and_its_small_code_is_not() -> None:
    small, large = (
        JobFile(name, JobFileUse.CACHE, name.encode() * 100) for name in ("a", "words.txt")
    )
    job = replace(graph(b"code"), files=(small, large))

    offloaded, blobs = offload(job, 200)

    key = BlobKey.of(b"words.txt" * 100)
    assert offloaded.files == (small, replace(large, content=key))
    assert codes_of(offloaded) == [b"code"]
    assert blobs == {key: b"words.txt" * 100}
    assert offloaded.blobs == (key,), "kept as long as the job"
