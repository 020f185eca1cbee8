"""``flinkray.connect()``: a client of a running cluster, or of an embedded one."""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager

from flinkray.actors.shared.high_availability import high_availability_services
from flinkray.actors.shared.leftover_processes import sweep_machine
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.client import ray_runtime
from flinkray.client.cluster import (
    cluster_record,
    cluster_storage,
    start_cluster,
    stop_cluster,
)
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.embedded_output import EmbeddedOutput
from flinkray.client.loop_thread import LoopThread
from flinkray.client.ray_runtime import ClusterNotFoundError, RayRuntime
from flinkray.core.config import ReadableConfig, WrittenConfiguration, values_of
from flinkray.core.errors import ConfigurationError
from flinkray.core.options import CLUSTER_ID, STORAGE_DIR
from flinkray.rpc import RayRpcService

log = logging.getLogger(__name__)
"""Logger; at INFO it says what the client begins to wait for."""


def connect(
    address: str | None = None,
    *,
    cluster_id: str | None = None,
    configuration: WrittenConfiguration | Mapping[str, object] | None = None,
    ray_options: Mapping[str, object] | None = None,
) -> ClusterClient:
    """Connect to a cluster, or start one.

    - With an *address*, or ``RAY_ADDRESS``: to the flinkray cluster that runs in that Ray.
    - Without either, or with ``local``: a Ray and an embedded cluster are started on this machine.
      Both end when the client is closed (or, less orderly, when the process ends).
    - If this process has already initialised Ray: in that Ray, to which an *address* must then
      belong.  Without an *address*, a cluster that does not run yet is started (except through Ray
      Client), and ends with the client.

    Args:
        address: address of Ray: ``auto`` (the Ray of this machine), ``host:port``,
            ``ray://host:port`` from outside of the Ray cluster, or ``local``.
        cluster_id: name of the cluster; ``cluster.id`` of the configuration when None.
        configuration: options of a started cluster and of this client; see docs/configuration.md.
            A ``flinkray.Configuration`` or a mapping.
        ray_options: arguments of ``ray.init`` when a local Ray is started, e.g. ``num_cpus``.

    Raises:
        ClusterNotFoundError: no such Ray, or no such cluster in it.
        ConfigurationError: the configuration or the address is not acceptable.
    """
    settings = ReadableConfig(values_of(configuration))
    if cluster_id is not None:
        settings = settings.with_values({CLUSTER_ID.key: cluster_id})
    return _connect(address, settings, ray_options or {}, _leave_ray)


def connect_until_the_end(
    address: str, cluster_id: str, configuration: ReadableConfig
) -> ClusterClient:
    """Connect as :func:`connect` does, for a process that calls ``os._exit`` after closing the
    client. Closing this client leaves the process connected to Ray (except to a Ray Client server),
    because the exit ends the connection, and a clean disconnection takes Ray up to a second."""
    configuration = configuration.with_values({CLUSTER_ID.key: cluster_id})
    return _connect(address, configuration, {}, _leave_ray_client)


def _connect(
    address: str | None,
    configuration: ReadableConfig,
    ray_options: Mapping[str, object],
    leave: Callable[[RayRuntime], None],
) -> ClusterClient:
    cluster_id = configuration.get(CLUSTER_ID)
    namespace = ray_runtime.cluster_namespace(cluster_id)
    if not ray_runtime.is_connected():
        address = address or ray_runtime.address_from_environment()
    address = None if address == "local" else address
    runtime = _enter_ray(address, namespace, ray_options)
    loop = LoopThread("flinkray-client")
    try:
        return loop.run(_open(loop, runtime, configuration, leave, may_start=address is None))
    except BaseException:
        loop.close()
        leave(runtime)
        raise


@contextmanager
def open_rpc_service(
    address: str, cluster_id: str
) -> Iterator[tuple[LoopThread, RayRpcService, RayRuntime]]:
    """Context manager: open an RPC service in a cluster's namespace on the Ray at *address*, and
    yield (thread of its event loop, service, description of Ray). Used to start or end the cluster,
    which need not run.

    Raises:
        ClusterNotFoundError, ConfigurationError: no such Ray.
    """
    if address.startswith(ray_runtime.RAY_CLIENT):
        raise ConfigurationError(
            f"clusters are started and ended from one of their own machines, not through {address}:"
            " run the command there, for example by 'ray exec' or 'ray submit', with the address of"
            " Ray's head or none"
        )
    namespace = ray_runtime.cluster_namespace(cluster_id)
    runtime = _enter_ray(address, namespace, {})
    loop = LoopThread("flinkray-client")
    try:
        rpc_service = loop.run(RayRpcService.open(namespace))
        try:
            yield loop, rpc_service, runtime
        finally:
            loop.run(rpc_service.close())
    finally:
        loop.close()
        _leave_ray(runtime)


def _enter_ray(
    address: str | None, namespace: str, ray_options: Mapping[str, object]
) -> RayRuntime:
    if ray_runtime.is_connected():
        if address not in (None, "auto"):
            ray_runtime.check_is_present(address)
        return ray_runtime.present_ray()
    if address is not None:
        log.info("joining Ray (%s)", address)
        return ray_runtime.join_ray(address, namespace)
    log.info("starting Ray on this machine")
    return ray_runtime.start_local_ray(namespace, ray_options)


def _leave_ray(runtime: RayRuntime) -> None:
    if runtime.was_entered:
        ray_runtime.leave_ray()


def _leave_ray_client(runtime: RayRuntime) -> None:
    """Disconnect from Ray if this process has joined it by Ray Client, because a Ray Client server
    waits for a client that ends without this. Otherwise do nothing."""
    if runtime.session_dir is None:
        _leave_ray(runtime)


async def _open(
    loop: LoopThread,
    runtime: RayRuntime,
    configuration: ReadableConfig,
    leave: Callable[[RayRuntime], None],
    *,
    may_start: bool,
) -> ClusterClient:
    cluster_id = configuration.get(CLUSTER_ID)
    namespace = ray_runtime.cluster_namespace(cluster_id)
    rpc_service = await RayRpcService.open(namespace)
    apply_rpc_settings(rpc_service, configuration)
    leaving = AsyncExitStack()
    is_started_here = False
    leaving.push_async_callback(rpc_service.close)

    try:
        if not await rpc_service.run_blocking(ray_runtime.has_cluster, cluster_id):
            if not may_start or runtime.session_dir is None:
                raise await rpc_service.run_blocking(_no_cluster, cluster_id)
            leaving.push_async_callback(stop_cluster, rpc_service, cluster_id)
            is_started_here = True
            log.info("Ray is there; starting the cluster's ResourceManager and Dispatcher")
            await start_cluster(
                rpc_service, configuration, storage_dir=_embedded_storage(configuration, runtime)
            )
        record = await cluster_record(rpc_service, cluster_id)
        of_cluster = ReadableConfig() if record is None else record.of_elections
        services = high_availability_services(rpc_service, of_cluster, None)
        leaving.push_async_callback(services.close)
        connection = DispatcherConnection(
            rpc_service,
            services.get_dispatcher_leader_retriever(),
            cluster_id,
        )
        leaving.push_async_callback(connection.close)
        await connection.open()
    except BaseException:
        await leaving.aclose()
        raise
    output = _output_of(runtime) if may_start else None

    def after_close() -> None:
        leave(runtime)
        if is_started_here:  # no other client ends the rest of its processes
            sweep_machine(cluster_id, configuration)

    return ClusterClient(
        loop,
        connection,
        cluster_id,
        on_close=leaving.aclose,
        after_close=after_close,
        dashboard_url=runtime.dashboard_url,
        configuration=configuration,
        output=output,
    )


def _output_of(runtime: RayRuntime) -> EmbeddedOutput | None:
    """Start to copy the output of an embedded cluster to standard output, and return the thread
    that does it. None: other code started Ray and decided what Ray shows."""
    if not runtime.was_entered or runtime.session_dir is None:
        return None
    output = EmbeddedOutput(os.path.join(runtime.session_dir, "logs"))
    output.start()
    return output


def _embedded_storage(configuration: ReadableConfig, runtime: RayRuntime) -> str:
    """Return the storage directory of an embedded cluster: below ``storage.dir`` if that is set.
    Otherwise a new one in Ray's session directory, because an embedded cluster has no predecessor
    whose jobs it should recover."""
    if configuration.is_set(STORAGE_DIR):
        return cluster_storage(configuration)
    assert runtime.session_dir is not None
    name = f"{configuration.get(CLUSTER_ID)}-{os.urandom(4).hex()}"
    return posixpath.join(runtime.session_dir, "flinkray", name)


def _no_cluster(cluster_id: str) -> ClusterNotFoundError:
    others = ", ".join(map(repr, ray_runtime.running_clusters()))
    hint = f" Clusters that run there: {others}." if others else ""
    option = "" if cluster_id == CLUSTER_ID.default else f" --cluster-id {cluster_id}"
    return ClusterNotFoundError(
        f"no flinkray cluster {cluster_id!r} runs in this Ray; start it with: "
        f"flinkray cluster up{option}.{hint}"
    )
