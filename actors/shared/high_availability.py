"""Chooses the high availability services of a cluster by its configuration."""

from __future__ import annotations

from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.core.high_availability_options import (
    HIGH_AVAILABILITY_CLUSTER_ID,
    HIGH_AVAILABILITY_TYPE,
    ZOOKEEPER_CONNECTION_TIMEOUT,
    ZOOKEEPER_QUORUM,
    ZOOKEEPER_ROOT,
    ZOOKEEPER_SESSION_TIMEOUT,
    ZOOKEEPER_TOLERATES_BREAKS,
)
from flinkray.core.options import CLUSTER_ID
from flinkray.ha import (
    HighAvailabilityServices,
    MemoryDirectory,
    StandaloneHaServices,
    open_directory,
)
from flinkray.rpc import RpcService


def high_availability_services(
    rpc_service: RpcService, configuration: ReadableConfig, storage_dir: str | None
) -> HighAvailabilityServices:
    """Create this process's HA services, by ``high-availability.type``. The caller closes them.

    Does not wait for ZooKeeper. *storage_dir* is None for a process that only looks up leaders.
    Raises ConfigurationError if the services cannot be used here.
    """
    storage = MemoryDirectory() if storage_dir is None else open_directory(storage_dir)
    if not has_elections(configuration):
        return StandaloneHaServices(storage, rpc_service.executor)
    check_installed()
    from flinkray.ha.zookeeper import ZooKeeperClient, ZooKeeperHaServices

    quorum = configuration.get(ZOOKEEPER_QUORUM)
    assert quorum is not None  # the configuration has been checked
    name = configuration.get(HIGH_AVAILABILITY_CLUSTER_ID) or configuration.get(CLUSTER_ID)
    client = ZooKeeperClient(
        quorum,
        f"{configuration.get(ZOOKEEPER_ROOT)}/{name}",
        configuration.get(ZOOKEEPER_SESSION_TIMEOUT),
        tolerance=rpc_service.deadlines if configuration.get(ZOOKEEPER_TOLERATES_BREAKS) else None,
    )
    client.start()
    return ZooKeeperHaServices(client, storage, rpc_service.executor, rpc_service)


def has_elections(configuration: ReadableConfig) -> bool:
    """Return whether leaders are elected, because several processes may contend for one role."""
    return configuration.get(HIGH_AVAILABILITY_TYPE) == "zookeeper"


def check_installed() -> None:
    """Raise ConfigurationError if kazoo is needed but not installed.
    It is needed if ``high-availability.type`` is zookeeper.
    """
    try:
        import kazoo  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{HIGH_AVAILABILITY_TYPE.key} is zookeeper, and kazoo is not installed here: "
            "pip install 'flinkray[zookeeper]', on every node"
        ) from error


async def check_reachable(configuration: ReadableConfig) -> None:
    """Check that the HA services can be reached, if there are elections.

    Raises ConfigurationError if they cannot be used, ZooKeeperError if no server answers within
    ``high-availability.zookeeper.client.connection-timeout``.
    """
    if not has_elections(configuration):
        return
    check_installed()
    from flinkray.ha.zookeeper import ZooKeeperClient

    quorum = configuration.get(ZOOKEEPER_QUORUM)
    assert quorum is not None
    client = ZooKeeperClient(
        quorum, configuration.get(ZOOKEEPER_ROOT), configuration.get(ZOOKEEPER_SESSION_TIMEOUT)
    )
    await client.connect(configuration.get(ZOOKEEPER_CONNECTION_TIMEOUT))
    await client.close()
