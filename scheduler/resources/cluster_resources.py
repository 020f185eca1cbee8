"""Describes the resources of the Ray cluster, as the ResourceManager's driver reports them."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.core.ids import WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import times_it_fits


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What Ray says about the cluster: its resources, its nodes, and the placement groups that
    wait."""

    total: ResourceProfile
    available: ResourceProfile
    nodes: tuple[ResourceProfile, ...]
    """Total resources of each live node."""
    pending_groups: dict[int, str] = field(default_factory=dict)
    """Request number of an unanswered StartWorkerGroup -> Ray's text about the placement group."""
    autoscaling: bool = False
    """Whether Ray may add nodes; then no requirement is unfulfillable."""
    groups: dict[WorkerGroupId, str] = field(default_factory=dict)
    """Ray's texts about started groups that it is placing again."""
    outage: str | None = None
    """Text that says since when Ray does not answer; None if Ray answers.
    During an outage the other fields contain Ray's last answer."""

    @property
    def largest_node(self) -> ResourceProfile:
        """Node with the most CPUs, then the most memory; a zero profile if there is no node."""
        return max(self.nodes, key=lambda n: (n.cpu, n.memory), default=ResourceProfile(0.0))


def slots_that_fit(profile: ResourceProfile, nodes: tuple[ResourceProfile, ...]) -> float:
    """Return how many slots of this profile fit on the empty nodes; infinite for a zero profile."""
    return sum(times_it_fits(profile, node) for node in nodes)
