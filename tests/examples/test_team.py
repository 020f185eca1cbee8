"""The team of docs/tutorial.md: a worker alone, and all of them under faults."""

from __future__ import annotations

import pytest
import team_on_ray
from team import ADDRESS, LeaderGateway, LeaderId, Worker, start_team

from flinkray.errors import FlinkRayError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing import TestingGateway, on_virtual_time
from flinkray.testing.simulation import Faults, Simulation, simulate

LEADER_ID = LeaderId(bytes(16))


@on_virtual_time
async def test_worker_registers_again_after_its_leader_has_been_restarted() -> None:
    network = LocalNetwork()
    leader = TestingGateway(LeaderGateway, LEADER_ID).on(LeaderGateway.register).returning(1)
    leader.start(LocalRpcService("leader", network), "leader")
    worker = Worker(LocalRpcService("worker-0", network), LEADER_ID)
    worker.start()
    assert await leader.wait_for(LeaderGateway.register) == ("worker-0", "worker-0/worker")
    await leader.endpoint.close()
    leader.start(leader.endpoint.rpc_service, "leader")
    await leader.wait_for(LeaderGateway.register, 2)
    await network.close()


FAULTS = Faults(
    loss=0.05,
    duplication=0.05,
    delay=0.05,
    breaks_after=0.02,
    reset_every=5.0,
    crash_every=10.0,
    hang_every=20.0,
    partition_every=10.0,
    longest=10.0,
    since=1.0,
    until=60.0,
)


@simulate(seeds=200, faults=FAULTS)
async def test_all_workers_answer_again_after_the_last_fault(simulation: Simulation) -> None:
    service = simulation.service("client")
    await start_team(service, LEADER_ID, workers=3)
    await simulation.quiet()

    async def all_are_there() -> bool:
        leader = await service.connect(ADDRESS, LeaderGateway, LEADER_ID)
        return len(await leader.team()) == 3 and await leader.square(12) == 144

    await simulation.eventually(all_are_there, within=30.0, retry_on=(FlinkRayError,))


@pytest.mark.ray
async def test_example_team_of_actors_squares_numbers_on_ray(
    ray_cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    await team_on_ray.main()
    printed = capsys.readouterr().out
    assert printed == f"worker-0, worker-1 say: {[n * n for n in range(10)]}\n"
