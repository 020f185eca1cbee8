"""The arguments with which a TaskExecutor process is started."""

from __future__ import annotations

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile


@message
class NodeAddress:
    """A node of the cluster: Ray's node id in hex, and the IP address."""

    node_id: str
    node_ip: str


@message
class TaskExecutorArguments:
    """Arguments with which the ResourceManager's driver starts a TaskExecutor process.
    They stay the same when the process is restarted.
    """

    resource_id: ResourceID
    """Id of the TaskExecutor, and also the name of the process."""
    worker_group: WorkerGroupId
    bundle_index: int
    total_profile: ResourceProfile
    number_of_slots: int
    cluster: ClusterArguments
    is_dedicated: bool = False
    """Whether the TaskExecutor serves the Spark stage of one job.
    If so, no task processes are started ahead.
    """
    node: NodeAddress | None = None
    """Node of a process that does not run on Ray. None: the process asks Ray for its node."""
