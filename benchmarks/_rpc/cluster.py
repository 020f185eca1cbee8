"""What the sections share: a Ray of their own, a service in the driver, and the peer."""

from __future__ import annotations

from dataclasses import dataclass, field

import ray

from _rpc.xoscar_peer import XoscarPeer
from flinkray.rpc import EndpointSpec, RayRpcService

NAMESPACE = "rpc-benchmark"


@dataclass
class Cluster:
    """The processes that are measured."""

    service: RayRpcService
    peer: XoscarPeer | None
    rounds: int
    _addresses: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def start(cls, rounds: int, *, peers: bool) -> Cluster:
        peer = await XoscarPeer.start() if peers else None
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        return cls(await RayRpcService.open(NAMESPACE), peer, rounds)

    async def process(self, name: str, factory: str, module: str = "endpoints") -> str:
        """Address of the endpoint that *factory* makes; its process is started on first use."""
        if name not in self._addresses:
            kind = name.title().replace("-", "")
            spec = EndpointSpec(kind, name, f"_rpc.{module}:{factory}")
            self._addresses[name] = await self.service.spawn(spec)
        return self._addresses[name]

    async def stop_process(self, name: str) -> None:
        """End it, for good."""
        del self._addresses[name]
        await self.service.stop(name)

    async def stop(self) -> None:
        await self.service.close()
        ray.shutdown()
        if self.peer is not None:
            await self.peer.close()
