"""A coordinator of streams, and the task that tells it where the client finds its results."""

from __future__ import annotations

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    CollectorPlace,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    stream_coordinator_process,
)
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.task_process.stream_tasks import announce
from flinkray.core.ids import (
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.rpc import EndpointSpec, RpcService
from flinkray.rpc.wire.envelope import Envelope
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.simulation import Simulation, simulate
from flinkray.testing.simulation.link import End

JOB, MASTER = JobID(b"j" * 16), JobMasterId(b"m" * 16)
GRAPH, LATER_GRAPH = ExecutionGraphID(b"g" * 16), ExecutionGraphID(b"h" * 16)


def place(attempt: int, graph: ExecutionGraphID = GRAPH) -> CollectorPlace:
    partition = ResultPartitionID(graph, IntermediateDataSetID(b"d" * 16), 0, attempt)
    address = f"TaskProcess-{graph.short()}-{attempt}/taskprocess"
    return CollectorPlace(address, JobPartition(JOB, partition))


async def coordinator(
    service: RpcService, of: JobMasterId = MASTER, found_as: JobMasterId = MASTER
) -> StreamCoordinatorGateway:
    """*found_as*: the JobMaster whose coordinator it is taken for, by the process's name."""
    enumerators = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
    master = (
        TestingGateway(JobMasterGateway, of)
        .on(JobMasterGateway.request_job_status)
        .returning(JobStatus.RUNNING)
        .on(JobMasterGateway.keep_part)
        .returning(None)
        .start(service, "jobmaster")
    )
    spec = EndpointSpec(
        "StreamCoordinator",
        stream_coordinator_process(JOB, found_as),
        "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator",
        StreamCoordinatorArguments("cluster", JOB, of, of, enumerators, master.address, ()),
    )
    return await service.connect(await service.spawn(spec), StreamCoordinatorGateway)


@simulate(seeds=3)
async def test_result_address_whose_message_was_lost_with_the_connection_is_sent_again(
    simulation: Simulation,
) -> None:
    """Otherwise the client would wait for ever for the results of a job that runs."""
    service = simulation.service()
    gateway = await coordinator(service)
    lost: list[str] = []

    def breaks(end: End, envelope: Envelope) -> bool:
        if envelope.method != "results_are_at" or lost:
            return False
        lost.append(end.process.name)
        end.connection.break_off("the connection was reset")
        return True

    simulation.network.intercept, simulation.network.is_faulty = breaks, True
    await announce(service, MASTER, place(0))
    assert lost
    assert await gateway.find_results(None) == place(0)


@simulate(seeds=3)
async def test_late_address_of_results_of_an_earlier_attempt_is_ignored(
    simulation: Simulation,
) -> None:
    """Otherwise the client would ask a dead process for the results, for ever."""
    service = simulation.service()
    gateway = await coordinator(service)
    for said in (place(1), place(0)):
        await announce(service, MASTER, said)
    assert await gateway.find_results(None) == place(1)
    await announce(service, MASTER, place(0, LATER_GRAPH))
    assert await gateway.find_results(place(1)) == place(0, LATER_GRAPH)


@simulate(seeds=1)
async def test_result_address_from_a_task_of_another_job_master_is_ignored(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    past = JobMasterId(b"p" * 16)
    gateway = await coordinator(service, found_as=past)
    await announce(service, past, place(0))
    await gateway.results_are_at(MASTER, place(1))
    assert await gateway.find_results(None) == place(1)
