"""Starts and ends the masters of a cluster on a Ray that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments, StoredJob
from flinkray.actors.resource_manager.ray_driver import RayResourceManagerDriver
from flinkray.actors.shared.cluster_services import find_leader
from flinkray.actors.shared.high_availability import (
    check_reachable,
    has_elections,
    high_availability_services,
)
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.client import ray_runtime
from flinkray.client.ray_runtime import ClusterRecord
from flinkray.client.savepoint_locations import absolute_locations
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import (
    ConfigurationError,
    FlinkRayError,
    ProcessExistsError,
    RpcConnectionError,
    RpcError,
)
from flinkray.core.high_availability_options import STANDBY_MASTERS
from flinkray.core.ids import DispatcherId
from flinkray.core.options import (
    AVOID_HEAD_NODE,
    CLUSTER_ID,
    MAX_MASTER_GROWTH,
    OPTIONS,
    STORAGE_DIR,
)
from flinkray.ha import (
    HighAvailabilityServices,
    LeaderRetrievalService,
    StoreError,
    absolute_location,
    open_directory,
)
from flinkray.rpc import (
    EndpointSpec,
    Placement,
    RayRpcService,
    Renewal,
    RpcService,
    split_address,
)
from flinkray.rpc.time_limit import within

log = logging.getLogger(__name__)

DEFAULT_STORAGE = "~/.flinkray"

_MASTERS = (
    ("ResourceManager", "flinkray.actors.resource_manager.endpoint:create_resource_manager"),
    ("Dispatcher", "flinkray.actors.dispatcher.endpoint:create_dispatcher"),
)
"""Name and factory of each master.

The Dispatcher is the last: when it exists, the cluster is complete. Further masters have a number
in their names, from 2 on.
"""

_ENDING_TIMEOUT = 10.0
"""Seconds that processes have for their end after they have announced it."""
_POLL = 0.05
_START_TIMEOUT = 60.0
"""Seconds to wait until there is a leader."""


@dataclass(frozen=True)
class ClusterEnd:
    """The processes and placement groups that :func:`stop_cluster` had to end by force, and the
    data that it kept."""

    killed: tuple[str, ...]
    """Actors that still ran after the Dispatcher had shut down, or that had no Dispatcher."""
    removed_groups: tuple[str, ...]
    """Placement groups that still existed."""
    kept: str | None = None
    """What was not removed, and why. None: everything was removed."""


class ClusterStartError(FlinkRayError):
    """Raised when processes were started, but form no cluster. The text says what to do."""


def cluster_storage(configuration: ReadableConfig) -> str:
    """Return the directory of one cluster: ``<storage.dir>/<cluster id>``."""
    root = configuration.get(STORAGE_DIR) or DEFAULT_STORAGE
    return posixpath.join(root, configuration.get(CLUSTER_ID))


def _check_storage(directory: str) -> None:
    try:
        open_directory(directory)
    except ValueError as error:
        raise ConfigurationError(f"{STORAGE_DIR.key} is of no use: {error}") from error
    except OSError as error:  # users of the storage report the error with their purpose
        log.info("%s cannot be looked at: %s", directory, error)


async def start_cluster(
    rpc_service: RpcService, configuration: ReadableConfig, *, storage_dir: str | None = None
) -> tuple[str, ...]:
    """Start those masters of the cluster that do not run yet, and return the names of the processes
    that were started.

    A process that is added to a running cluster gets that cluster's configuration.

    Args:
        rpc_service: this process's service, in the cluster's namespace.
        storage_dir: the cluster's own directory. None: as the configuration says.

    Raises:
        ConfigurationError: the storage is of no use, or software for leader election is missing.
        ZooKeeperError: ZooKeeper does not answer.
        ClusterStartError: the masters run, but there is no leader.
    """
    cluster_id = configuration.get(CLUSTER_ID)
    record = await cluster_record(rpc_service, cluster_id)
    if record is None or not await rpc_service.run_blocking(ray_runtime.has_masters, cluster_id):
        await check_reachable(configuration)
        directory = absolute_location(storage_dir or cluster_storage(configuration))
        await rpc_service.run_blocking(_check_storage, directory)
        values = configuration.to_dict() | absolute_locations(configuration)
        record = ClusterRecord(values, directory)
        await rpc_service.run_blocking(ray_runtime.remember_cluster, cluster_id, record)
    configuration = ReadableConfig(record.configuration)
    arguments = ClusterArguments(cluster_id, record.configuration, record.storage_dir)
    number = 1 + configuration.get(STANDBY_MASTERS)
    apply_rpc_settings(rpc_service, configuration)
    nodes = await rpc_service.run_blocking(
        ray_runtime.nodes_for_masters, number, configuration.get(AVOID_HEAD_NODE)
    )
    started = []
    for spec in master_specs(configuration, arguments, nodes):
        try:
            await rpc_service.spawn(spec)
        except ProcessExistsError:
            continue
        started.append(spec.name)
    if started:
        await _until_led(rpc_service, record)
    return tuple(started)


async def start_cluster_alone(
    rpc_service: RpcService, configuration: ReadableConfig
) -> tuple[str, ...]:
    """Start the cluster as :func:`start_cluster` does, and let no other process start it at the
    same time: two starts at once could give different configurations to parts of the cluster. Waits
    while another process starts the cluster. Raises ClusterStartError: the other start takes too
    long."""
    cluster_id = configuration.get(CLUSTER_ID)
    clock = rpc_service.clock
    deadline = clock.monotonic() + 2 * _START_TIMEOUT
    while True:
        sign = await rpc_service.run_blocking(ray_runtime.begin_to_start, cluster_id)
        if sign is not None:
            break
        if clock.monotonic() >= deadline:
            raise ClusterStartError(
                f"another command has been starting cluster {cluster_id!r} for "
                f"{2 * _START_TIMEOUT:g} s: end that, or what it has started with "
                "'flinkray cluster down'"
            )
        await asyncio.sleep(_POLL)
    try:
        return await start_cluster(rpc_service, configuration)
    finally:
        await rpc_service.run_blocking(ray_runtime.end_to_start, sign)


@dataclass(frozen=True)
class OtherValue:
    """An option whose value in the running cluster differs from the requested value."""

    asked: str
    present: str


async def values_not_taken(
    rpc_service: RpcService, configuration: ReadableConfig
) -> dict[str, OtherValue]:
    """Return, by key, the options whose value in *configuration* differs from the value in the
    running cluster."""
    record = await cluster_record(rpc_service, configuration.get(CLUSTER_ID))
    if record is None:
        return {}
    known = {key: value for key, value in record.configuration.items() if key in OPTIONS}
    present = ReadableConfig(known)
    values = configuration.to_dict() | absolute_locations(configuration)
    asked = ReadableConfig(values)
    return {
        key: OtherValue(value, known.get(key, OPTIONS[key].default_text()))
        for key, value in values.items()
        if asked.get(OPTIONS[key]) != present.get(OPTIONS[key])
    }


def master_specs(
    configuration: ReadableConfig, arguments: ClusterArguments, nodes: Sequence[str | None]
) -> Iterator[EndpointSpec]:
    """Yield the specs of a ResourceManager and a Dispatcher for each of *nodes*."""
    growth = configuration.get(MAX_MASTER_GROWTH)
    renewal = Renewal(growth) if growth else None
    for place, node in enumerate(nodes):
        for kind, factory in _MASTERS:
            yield EndpointSpec(
                kind=kind,
                name=kind if place == 0 else f"{kind}-{place + 1}",
                factory=factory,
                arguments=arguments,
                placement=Placement(node_id=node),
                detached=True,
                max_restarts=-1,
                renewal=renewal,
            )


async def cluster_record(rpc_service: RpcService, cluster_id: str) -> ClusterRecord | None:
    """Return the settings with which the cluster was started, as stored in Ray. None: the cluster
    was not started in this Ray, or was ended."""
    return await rpc_service.run_blocking(ray_runtime.recall_cluster, cluster_id)


async def _until_led(rpc_service: RpcService, record: ClusterRecord) -> None:
    services = high_availability_services(rpc_service, record.of_elections, None)
    try:
        for component, retriever in (
            ("ResourceManager", services.get_resource_manager_leader_retriever()),
            ("Dispatcher", services.get_dispatcher_leader_retriever()),
        ):
            if await _leader_process(retriever, _START_TIMEOUT) is None:
                raise ClusterStartError(
                    f"no {component} leads after {_START_TIMEOUT:g} s: its log says why (ray logs),"
                    " and 'flinkray cluster down' ends what was started"
                )
    finally:
        await services.close()


async def _leader_process(retriever: LeaderRetrievalService, timeout: float) -> str | None:
    """Return the name of the process that leads. None: no leader was found within *timeout*
    seconds."""
    try:
        address, _ = await within(timeout, find_leader(retriever))
    except asyncio.TimeoutError:
        return None
    return split_address(address)[0]


async def stop_cluster(rpc_service: RayRpcService, cluster_id: str) -> ClusterEnd:
    """Shut the cluster down, then end by force its remaining processes and placement groups, and
    return what had to be ended. Idempotent."""
    record = await cluster_record(rpc_service, cluster_id) or ClusterRecord({}, "")
    configuration = record.of_elections
    storage_dir = record.storage_dir if has_elections(configuration) else None
    services = high_availability_services(rpc_service, configuration, storage_dir)
    try:
        ending = 0.0
        if await rpc_service.run_blocking(ray_runtime.has_cluster, cluster_id):
            await _end_standbys(rpc_service, services, configuration)
            with contextlib.suppress(RpcError):  # its processes are ended below
                dispatcher = await _connect_to_dispatcher(rpc_service, services)
                await dispatcher.shut_down_cluster()
                ending = _ENDING_TIMEOUT
        left = await _actors_left(rpc_service, cluster_id, ending)
        for name in left:
            await rpc_service.kill(name)
        groups = await _release_worker_groups(rpc_service, cluster_id)
        await _actors_left(rpc_service, cluster_id, _ENDING_TIMEOUT)
        kept = await _forget_elections(services) if has_elections(configuration) else None
        await rpc_service.run_blocking(ray_runtime.forget_cluster, cluster_id)
        return ClusterEnd(left, groups, kept)
    finally:
        await services.close()


async def _release_worker_groups(rpc_service: RayRpcService, cluster_id: str) -> tuple[str, ...]:
    """Remove the cluster's placement groups, with all actors in them. Return the names of the
    groups."""
    driver = RayResourceManagerDriver(rpc_service, ClusterArguments(cluster_id, {}, ""))
    groups = await driver.recover()
    await asyncio.gather(*(driver.release_worker_group(group.group_id) for group in groups))
    return tuple(sorted(group.name for group in groups))


async def _connect_to_dispatcher(
    rpc_service: RpcService, services: HighAvailabilityServices
) -> DispatcherGateway:
    retriever = services.get_dispatcher_leader_retriever()
    try:
        address, session = await within(_ENDING_TIMEOUT, find_leader(retriever))
    except asyncio.TimeoutError:
        raise RpcConnectionError("no Dispatcher leads") from None
    return await rpc_service.connect(address, DispatcherGateway, DispatcherId.of(session))


async def _end_standbys(
    rpc_service: RpcService, services: HighAvailabilityServices, configuration: ReadableConfig
) -> None:
    """End the standby masters, before the leaders are shut down: a standby master would take
    over."""
    if configuration.get(STANDBY_MASTERS) == 0:
        return
    for kind, retriever in (
        ("Dispatcher", services.get_dispatcher_leader_retriever()),
        ("ResourceManager", services.get_resource_manager_leader_retriever()),
    ):
        leader = await _leader_process(retriever, _ENDING_TIMEOUT)
        for name in await rpc_service.process_names(kind):
            if name != leader:
                await rpc_service.kill(name)


async def _forget_elections(services: HighAvailabilityServices) -> str | None:
    """Delete the cluster's data in ZooKeeper, unless some of its jobs have not ended. Return a text
    that says what was kept and why; None: all data were deleted."""
    graphs = services.get_job_graph_store(StoredJob)
    try:
        recovered = await within(_ENDING_TIMEOUT, graphs.recover_job_graphs())
    except (asyncio.TimeoutError, StoreError) as error:
        return f"what ZooKeeper has of the cluster: it cannot be asked ({error!r})"
    kept = [stored.job_id for stored in recovered.records]
    kept += [unreadable.job_id for unreadable in recovered.unreadable]
    if kept:
        jobs = ", ".join(map(str, kept))
        return f"what ZooKeeper has of the cluster, as these jobs have not ended: {jobs}"
    await services.close_and_cleanup_all_data()
    return None


async def _actors_left(rpc_service: RpcService, cluster_id: str, timeout: float) -> tuple[str, ...]:
    """Wait at most *timeout* seconds until the cluster has no actors, and return the names of the
    actors that still exist. Ray lists an ending actor for a moment longer."""
    namespace = ray_runtime.cluster_namespace(cluster_id)
    deadline = rpc_service.clock.monotonic() + timeout
    while True:
        names = await rpc_service.run_blocking(ray_runtime.actors_of, namespace)
        if not names or rpc_service.clock.monotonic() >= deadline:
            return tuple(names)
        await asyncio.sleep(_POLL)
