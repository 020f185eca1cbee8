"""A coordinator of streams that goes on without its JobMaster, and the next one that adopts it."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    AdoptedCoordinator,
    KeptPart,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    stream_coordinator_process,
)
from flinkray.actors.stream_coordinator.endpoint import StreamCoordinator
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError
from flinkray.core.ids import JobID, JobMasterId, JobVertexID
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService
from flinkray.scheduler.checkpoints.messages import CheckpointCompleted
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.kept_progress import progress_after_reset
from tests.actors.resource_cluster import number

JOB = number(JobID, 1)
FIRST, SECOND, THIRD = (number(JobMasterId, n) for n in (1, 2, 3))
ENUMERATORS = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 4)


class Surroundings:
    """A coordinator between JobMasters that come and go."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.begin(FIRST)
        self.client = LocalRpcService("client", self.network)

    def begin(self, job_master_id: JobMasterId) -> None:
        """All JobMasters of a job have one address."""
        self.network.kill("JobMaster")
        self.master = (
            TestingGateway(JobMasterGateway, job_master_id)
            .on(JobMasterGateway.request_job_status)
            .returning(JobStatus.RUNNING)
            .on(JobMasterGateway.coordinator_told)
            .returning(None)
            .on(JobMasterGateway.keep_part)
            .returning(None)
            .start(LocalRpcService("JobMaster", self.network), "jobmaster")
        )

    async def start(self, *kept: KeptPart) -> StreamCoordinatorGateway:
        spec = EndpointSpec(
            "StreamCoordinator",
            stream_coordinator_process(JOB, FIRST),
            "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator",
            StreamCoordinatorArguments(
                "cluster",
                JOB,
                FIRST,
                FIRST,
                ENUMERATORS,
                "JobMaster/jobmaster",
                (),
                takeover_timeout=20.0,
                kept=kept,
            ),
            detached=True,
        )
        address = await self.client.spawn(spec)
        await asyncio.sleep(1)
        return await self.client.connect(address, StreamCoordinatorGateway)

    @property
    def coordinators(self) -> list[StreamCoordinator]:
        endpoints = [e for s in self.network.services.values() for e in s.endpoints()]
        return [e for e in endpoints if isinstance(e, StreamCoordinator)]


async def adopted(
    coordinator: StreamCoordinatorGateway, by: JobMasterId, owner: JobMasterId = FIRST
) -> AdoptedCoordinator:
    return await coordinator.adopt(owner, by, "JobMaster/jobmaster")


@on_virtual_time
async def test_source_coordinator_obeys_the_job_master_that_adopted_it_last() -> None:
    """Tasks know the coordinator by the id of its owner, whichever JobMaster gives the orders."""
    around = Surroundings()
    coordinator = await around.start()
    await coordinator.restore(FIRST, RestoredCoordinators(3, 0, ()))
    around.begin(SECOND)
    for _ in range(2):  # the answer may be lost
        assert await adopted(coordinator, SECOND) == AdoptedCoordinator(ENUMERATORS, 3, False)

    await coordinator.request_heartbeat(SECOND)
    assert await coordinator.snapshot(SECOND, 1, 0, "nowhere") == ()
    with pytest.raises(CoordinatorReplacedError, match="takes its orders"):
        await coordinator.request_heartbeat(FIRST)
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.snapshot(FIRST, 1, 0, "nowhere")
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.restore(FIRST, RestoredCoordinators(9, 0, ()))
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.reset_subtasks(FIRST, 0, {})
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.checkpoint_ended(FIRST, CheckpointCompleted(1))
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.stop(FIRST)
    assert await coordinator.report_watermark(FIRST, "group", "member", 7) == 7
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.report_watermark(SECOND, "group", "member", 7)

    around.begin(THIRD)
    assert (await adopted(coordinator, THIRD)).restores == 3
    with pytest.raises(CoordinatorReplacedError):
        await coordinator.request_heartbeat(SECOND)


@pytest.mark.parametrize("has_called", [False, True])
@on_virtual_time
async def test_next_source_coordinator_counts_only_readers_that_called_the_last_one(
    has_called: bool,
) -> None:
    """Seed 10 of masters that die: readers that were only reset counted, too."""
    around = Surroundings()
    progress = progress_after_reset(has_called=has_called)
    coordinator = await around.start(KeptPart(number(JobVertexID, 1), 0, 1, progress))
    around.begin(SECOND)
    assert (await adopted(coordinator, SECOND)).has_readers is has_called


@on_virtual_time
async def test_source_coordinator_is_not_adopted_by_another_owner_or_from_a_living_master() -> None:
    """A JobMaster that was replaced while it started asks late."""
    around = Surroundings()
    coordinator = await around.start()
    with pytest.raises(CoordinatorReplacedError, match="lives"):
        await adopted(coordinator, SECOND)
    await coordinator.request_heartbeat(FIRST)
    around.begin(SECOND)
    with pytest.raises(CoordinatorReplacedError, match="is not that of"):
        await adopted(coordinator, SECOND, owner=SECOND)
    await adopted(coordinator, SECOND)
    with pytest.raises(CoordinatorReplacedError, match="lives"):
        await adopted(coordinator, THIRD)


@on_virtual_time
async def test_coordinator_of_a_dead_job_master_ends_when_no_other_adopts_it_in_time() -> None:
    """Also when the JobMaster that has adopted the coordinator is lost."""
    around = Surroundings()
    coordinator = await around.start()
    await asyncio.sleep(100)
    around.network.kill("JobMaster")
    await asyncio.sleep(19)
    around.begin(SECOND)
    await adopted(coordinator, SECOND)
    await asyncio.sleep(100)
    assert len(around.coordinators) == 1
    around.network.kill("JobMaster")
    await asyncio.sleep(19)
    assert len(around.coordinators) == 1
    await asyncio.sleep(2)
    assert around.coordinators == []


@on_virtual_time
async def test_coordinator_started_after_its_job_masters_death_ends() -> None:
    """The coordinator must not watch the next JobMaster, which is at the same address."""
    around = Surroundings()
    around.begin(SECOND)
    await around.start()
    await asyncio.sleep(30)
    assert around.coordinators == []


@on_virtual_time
async def test_coordinator_failure_while_no_job_master_lives_is_reported_to_the_next_one() -> None:
    """The coordinator must not end because the failure cannot be reported."""
    around = Surroundings()
    coordinator = await around.start()
    around.network.kill("JobMaster")
    (endpoint,) = around.coordinators
    endpoint._failed(FlinkRayError("no such topic"))
    await asyncio.sleep(5)
    around.begin(SECOND)
    await adopted(coordinator, SECOND)
    told, failure = await around.master.wait_for(JobMasterGateway.coordinator_told)
    assert told == ENUMERATORS
    assert failure.text == "no such topic"
    assert endpoint.is_running
