"""The resources of the cluster: the decisions of a ResourceManager."""

__all__ = [
    "blocklist",
    "cluster_partitions",
    "resource_tracker",
    "shortages",
    "slot_manager",
    "slot_manager_actions",
]
