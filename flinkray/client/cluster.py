"""Starting and ending the masters of a cluster on a Ray that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from dataclasses import dataclass

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.client import ray_runtime
from flinkray.core.config import Configuration
from flinkray.core.errors import ProcessExistsError, RpcError
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.core.options import CLUSTER_ID, STORAGE_DIR
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.rpc import EndpointSpec, Placement, RpcService

DEFAULT_STORAGE = "~/.flinkray"

_MASTERS = (
    ("ResourceManager", "flinkray.actors.resource_manager.endpoint:create_resource_manager"),
    ("Dispatcher", "flinkray.actors.dispatcher.endpoint:create_dispatcher"),
)
"""The Dispatcher last: where it is, the cluster is complete."""

_ENDING_TIMEOUT = 10.0
"""Seconds that processes have to end after they said they would."""
_POLL = 0.05


@dataclass(frozen=True)
class ClusterEnd:
    """What :func:`stop_cluster` had to do itself."""

    killed: tuple[str, ...]
    """Actors that were left when the Dispatcher had shut down, or that had no Dispatcher."""
    removed_groups: tuple[str, ...]
    """Placement groups that were left."""


def cluster_storage(configuration: Configuration) -> str:
    """The directory of one cluster: ``<storage.dir>/<cluster id>``."""
    root = configuration.get(STORAGE_DIR) or DEFAULT_STORAGE
    return posixpath.join(root, configuration.get(CLUSTER_ID))


async def start_cluster(
    rpc_service: RpcService, configuration: Configuration, *, storage_dir: str | None = None
) -> tuple[str, ...]:
    """Start what of Dispatcher and ResourceManager does not run yet.

    Returns the names of what was started: none, when the cluster was running already.

    Args:
        rpc_service: of this process, in the cluster's namespace.
        storage_dir: the cluster's own directory; as the configuration says when None.
    """
    arguments = ClusterArguments(
        cluster_id=configuration.get(CLUSTER_ID),
        configuration=configuration.to_dict(),
        storage_dir=storage_dir or cluster_storage(configuration),
    )
    head = await rpc_service.run_blocking(ray_runtime.head_node_id)
    started = []
    for name, factory in _MASTERS:
        spec = EndpointSpec(
            kind=name,
            name=name,
            factory=factory,
            arguments=arguments,
            placement=Placement(node_id=head),
            detached=True,
            max_restarts=-1,
        )
        try:
            await rpc_service.spawn(spec)
        except ProcessExistsError:
            continue
        started.append(name)
    return tuple(started)


async def stop_cluster(rpc_service: RpcService, cluster_id: str) -> ClusterEnd:
    """Shut the cluster down, then end what is left of exactly this cluster.  Idempotent."""
    ending = 0.0
    if await rpc_service.run_blocking(ray_runtime.has_cluster, cluster_id):
        with contextlib.suppress(RpcError):  # dead or deaf: what it leaves is ended below
            dispatcher = await rpc_service.connect(
                DISPATCHER_ADDRESS, DispatcherGateway, DispatcherId.of(LeaderSessionID.standalone())
            )
            await dispatcher.shut_down_cluster()
            ending = _ENDING_TIMEOUT
    left = await _actors_left(rpc_service, cluster_id, ending)
    for name in left:
        await rpc_service.kill(name)
    groups = await rpc_service.run_blocking(ray_runtime.remove_placement_groups, cluster_id)
    await _actors_left(rpc_service, cluster_id, _ENDING_TIMEOUT)
    return ClusterEnd(left, tuple(groups))


async def _actors_left(rpc_service: RpcService, cluster_id: str, timeout: float) -> tuple[str, ...]:
    """Names of the cluster's actors: none, as soon as there are none, or those that are there after
    *timeout* seconds.  (Ray lists an actor that ends for a moment more.)"""
    namespace = ray_runtime.cluster_namespace(cluster_id)
    deadline = rpc_service.clock.monotonic() + timeout
    while True:
        names = await rpc_service.run_blocking(ray_runtime.actors_of, namespace)
        if not names or rpc_service.clock.monotonic() >= deadline:
            return tuple(names)
        await asyncio.sleep(_POLL)
