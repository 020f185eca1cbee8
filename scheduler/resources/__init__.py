"""The resources of the cluster: the decisions of a ResourceManager."""

__all__ = [
    "blocklist",
    "cluster_partitions",
    "shortages",
    "slot_books",
    "slot_manager",
    "slot_manager_actions",
]
