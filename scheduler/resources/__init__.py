"""Makes the decisions of a ResourceManager about workers and slots of the cluster."""

__all__ = [
    "blocklist",
    "resource_tracker",
    "shortages",
    "slot_manager",
    "slot_manager_actions",
]
