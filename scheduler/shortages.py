"""Why slots are missing, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.core.ids import WorkerGroupId
from flinkray.core.resources import ResourceProfile


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What Ray says of the cluster now."""

    total: ResourceProfile
    available: ResourceProfile
    nodes: tuple[ResourceProfile, ...]
    """Total resources of each live node."""
    pending_groups: dict[int, str] = field(default_factory=dict)
    """Request number of an unanswered StartWorkerGroup -> Ray's text about that placement group."""
    autoscaling: bool = False
    """Whether Ray may add nodes: then nothing is unfulfillable, only delayed."""
    groups: dict[WorkerGroupId, str] = field(default_factory=dict)
    """Ray's text about started groups that it is placing anew."""

    @property
    def largest_node(self) -> ResourceProfile:
        """The node with most CPU, then memory; a profile of nothing when there is no node."""
        return max(self.nodes, key=lambda n: (n.cpu, n.memory), default=ResourceProfile(0.0))
