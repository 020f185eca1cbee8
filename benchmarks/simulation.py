"""How fast a large cluster is simulated: a ResourceManager and 1,000 TaskExecutors for one hour.

The real endpoints register and exchange heartbeats, each in a simulated process of its own, while
5 % of all messages are lost.

    python benchmarks/simulation.py [--task-executors N] [--minutes M] [--loss SHARE] [--profile]

Exit status 1: the goal was missed, or not all were registered in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from _results import Figure, Results, parse

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor import NodeAddress, TaskExecutorArguments
from flinkray.actors.resource_manager.driver import (
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupRequest,
)
from flinkray.actors.resource_manager.endpoint import lead_resource_manager
from flinkray.core.ids import LeaderSessionID, ResourceID, ResourceManagerId, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.ha.services import RESOURCE_MANAGER_ADDRESS
from flinkray.rpc import EndpointSpec, RpcEndpoint, RpcService
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.testing.simulation import Conditions, Simulation

GOAL = 60.0
"""Seconds for one hour of 1,000 TaskExecutors."""
GROUP = WorkerGroupId("given")
PROFILE = ResourceProfile(1.0, 2**30)


class GivenWorkers(ResourceManagerDriver):
    """The workers are there already, and no others can be had."""

    def __init__(self, names: list[ResourceID]) -> None:
        self._names = names

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        raise NotImplementedError("nobody asks for workers")

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        return

    async def describe_placement(self, group: WorkerGroupId) -> str:
        return "placed"

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        raise NotImplementedError("nobody releases workers")

    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        return self._names[bundle_index]

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        return

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        raise NotImplementedError("nobody stops workers")

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        raise NotImplementedError("nobody kills workers")

    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        return {group: dict(enumerate(self._names)) for group in groups}

    async def cluster_resources(self) -> ClusterResources:
        total = PROFILE.times(len(self._names))
        return ClusterResources(total=total, available=ResourceProfile(0.0), nodes=(total,))

    async def dashboard_url(self) -> str | None:
        return None

    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        return (WorkerGroupHandle(GROUP, "given", None, (PROFILE,) * len(self._names)),)


_names: list[ResourceID] = []
"""Of the TaskExecutors; for the ResourceManager's factory."""


async def create_resource_manager(
    rpc_service: RpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Factory."""
    return await lead_resource_manager(rpc_service, arguments, GivenWorkers(_names))


async def cluster(simulation: Simulation, arguments: ClusterArguments, seconds: float) -> int:
    """Let it live for so long; returns how many TaskExecutors are registered in the end."""
    service = simulation.service("client")
    factory = f"{__name__}:create_resource_manager"
    await service.spawn(EndpointSpec("ResourceManager", "ResourceManager", factory, arguments))
    await asyncio.gather(*(service.spawn(_task_executor(name, arguments)) for name in _names))
    await asyncio.sleep(seconds - simulation.now)
    token = ResourceManagerId.of(LeaderSessionID.standalone())
    manager = await service.connect(RESOURCE_MANAGER_ADDRESS, ResourceManagerGateway, token)
    return len((await manager.request_resource_overview()).task_executors)


def _task_executor(name: ResourceID, cluster: ClusterArguments) -> EndpointSpec:
    arguments = TaskExecutorArguments(
        resource_id=name,
        worker_group=GROUP,
        bundle_index=_names.index(name),
        total_profile=PROFILE,
        number_of_slots=1,
        cluster=cluster,
        node=NodeAddress("node-0", "127.0.0.1"),
    )
    factory = "flinkray.actors.task_executor.endpoint:create_task_executor"
    return EndpointSpec("TaskExecutor", name, factory, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task-executors", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0, help="of virtual time")
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parse(parser)
    results = Results(options, "msgpack")
    # warnings of each registration that has to be repeated would be most of the output
    logging.disable(logging.WARNING)
    _names[:] = [
        ResourceID(f"TaskExecutor-given-{number}-{number}")
        for number in range(options.task_executors)
    ]
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory() as storage:
        configuration = {"resourcemanager.taskmanager-timeout": "7 d"}
        simulation = Simulation(
            options.seed,
            time_limit=seconds + 60,
            conditions=Conditions(loss=options.loss),
            log_level=logging.CRITICAL,
        )
        profile = cProfile.Profile()
        wall, cpu = time.perf_counter(), time.process_time()
        if options.profile:
            profile.enable()
        main_program = cluster(
            simulation, ClusterArguments("bench", configuration, storage), seconds
        )
        registered = simulation.run(main_program)
        profile.disable()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    frames, steps = simulation.network.frames, simulation.scheduler.steps
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{options.task_executors:,} TaskExecutors, {options.minutes:g} virtual minutes, "
        f"{options.loss:.0%} of the messages lost: {registered:,} are registered in the end\n\n"
        f"wall clock             {wall:8.1f} s\n"
        f"processor              {cpu:8.1f} s\n"
        f"virtual per wall       {seconds / wall:8.1f} s/s\n"
        f"messages received      {frames:8,}    {frames / wall:,.0f}/s, "
        f"{cpu / frames * 1e6:.1f} us of processor each\n"
        f"callbacks run          {steps:8,}    {steps / wall:,.0f}/s\n"
        f"largest memory         {memory:8.0f} MiB"
    )
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    if registered != options.task_executors:
        sys.exit("not all TaskExecutors are registered")
    if options.task_executors == 1000 and options.minutes == 60 and not options.profile:
        what = "1,000 simulated TaskExecutors for one virtual hour, 5 % of messages lost"
        results.add(Figure("hour", what, wall, GOAL, "s"))
    results.end()


if __name__ == "__main__":
    # by its name, under which simulated processes find the factory
    import simulation as this_module

    assert Path(this_module.__file__ or "").samefile(__file__)
    this_module.main()
