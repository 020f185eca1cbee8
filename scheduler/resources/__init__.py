"""Makes the decisions of a ResourceManager about workers and slots of the cluster."""

__all__ = [
    "blocklist",
    "cluster_resources",
    "resource_tracker",
    "slot_manager",
    "slot_manager_actions",
]
