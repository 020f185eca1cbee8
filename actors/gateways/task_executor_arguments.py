"""What a TaskExecutor process is started with."""

from __future__ import annotations

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile


@message
class NodeAddress:
    """A node of the cluster: Ray's id of it in hex, and its IP address."""

    node_id: str
    node_ip: str


@message
class TaskExecutorArguments:
    """Given by the ResourceManager's driver; the same after each restart of the process."""

    resource_id: ResourceID
    """Also the name of the process."""
    worker_group: WorkerGroupId
    bundle_index: int
    total_profile: ResourceProfile
    number_of_slots: int
    cluster: ClusterArguments
    is_dedicated: bool = False
    """Whether it is one job's own, for its Spark stage: no task processes are started ahead."""
    node: NodeAddress | None = None
    """Where the process runs, when it is not on Ray; None: it asks Ray."""
