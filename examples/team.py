"""A leader, and workers that square numbers for it: the example of docs/tutorial.md."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.errors import FlinkRayError
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    FencedRpcGateway,
    FencingToken,
    HeartbeatManager,
    HeartbeatSender,
    HeartbeatSettings,
    RegisteredRpcConnection,
    RegistrationSettings,
    ResourceID,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    oneway,
)

LEADER = ResourceID("leader")
ADDRESS = "leader/leader"
PULSE = HeartbeatSettings(interval=1.0, timeout=5.0)


class LeaderId(FencingToken):
    """One session of the leader."""


class NoWorkersError(FlinkRayError):
    """Nobody is registered at present; worth another try."""


class LeaderGateway(FencedRpcGateway):
    @abstractmethod
    async def register(self, name: ResourceID, address: str) -> int: ...

    @abstractmethod
    @oneway
    async def heartbeat(self, name: ResourceID, done: int) -> None: ...

    @abstractmethod
    async def square(self, number: int) -> int: ...

    @abstractmethod
    async def team(self) -> tuple[ResourceID, ...]: ...


class WorkerGateway(RpcGateway):
    @abstractmethod
    @oneway
    async def heartbeat(self) -> None: ...

    @abstractmethod
    async def square(self, number: int) -> int: ...


class Leader(FencedRpcEndpoint[LeaderId], LeaderGateway):
    async def on_start(self) -> None:
        self.workers: dict[ResourceID, WorkerGateway] = {}
        self.heartbeats = HeartbeatSender[None, int](
            self, PULSE, payload=lambda _: None, on_timeout=self.remove, on_unreachable=self.remove
        )

    async def register(self, name: ResourceID, address: str) -> int:
        worker = await self.connect(address, WorkerGateway)
        self.workers[name] = worker
        self.watch(worker, lambda reason: self.remove(name, worker))
        self.heartbeats.monitor_target(name, lambda _: worker.heartbeat())
        return len(self.workers)

    def remove(self, name: ResourceID, worker: WorkerGateway | None = None) -> None:
        if worker is None or self.workers.get(name) is worker:
            self.workers.pop(name, None)
            self.heartbeats.unmonitor_target(name)

    async def heartbeat(self, name: ResourceID, done: int) -> None:
        self.heartbeats.receive_heartbeat(name, done)

    async def square(self, number: int) -> int:
        if not self.workers:
            raise NoWorkersError("no worker is registered")
        return await list(self.workers.values())[number % len(self.workers)].square(number)

    async def team(self) -> tuple[ResourceID, ...]:
        return tuple(sorted(self.workers))


class Worker(RpcEndpoint, WorkerGateway):
    def __init__(self, rpc_service: RpcService, leader_id: LeaderId) -> None:
        super().__init__(rpc_service, "worker")
        self.name, self.done = ResourceID(rpc_service.process_name), 0
        self.connection = RegisteredRpcConnection[LeaderGateway, int](
            self,
            target_name="the leader",
            address=ADDRESS,
            gateway=LeaderGateway,
            fencing_token=leader_id,
            register=lambda leader: leader.register(self.name, self.address),
            on_success=self.registered,
            on_rejection=lambda rejection: self.on_fatal_error(PermissionError(rejection.reason)),
            settings=RegistrationSettings(error_delay=0.5),
        )

    async def on_start(self) -> None:
        self.heartbeats = HeartbeatManager[int, None](
            self, PULSE, payload=lambda _: self.done, on_timeout=self.lost, on_unreachable=self.lost
        )
        self.connection.start()

    def registered(self, leader: LeaderGateway, team_size: int) -> None:
        self.watch(leader, self.lost)
        self.heartbeats.monitor_target(LEADER, lambda done: leader.heartbeat(self.name, done))

    def lost(self, why: str) -> None:
        self.heartbeats.unmonitor_target(LEADER)
        self.connection.try_reconnect()

    async def heartbeat(self) -> None:
        self.heartbeats.request_heartbeat(LEADER, None)

    async def square(self, number: int) -> int:
        self.done += 1
        return number * number


def create_leader(rpc_service: RpcService, leader_id: LeaderId) -> Leader:
    return Leader(rpc_service, "leader", leader_id)


def create_worker(rpc_service: RpcService, leader_id: LeaderId) -> Worker:
    return Worker(rpc_service, leader_id)


async def start_team(service: RpcService, leader_id: LeaderId, workers: int) -> None:
    create = f"{__name__}:create_"
    await service.spawn(
        EndpointSpec("Leader", "leader", create + "leader", leader_id, max_restarts=-1)
    )
    for number in range(workers):
        name = f"worker-{number}"
        await service.spawn(
            EndpointSpec("Worker", name, create + "worker", leader_id, max_restarts=-1)
        )
