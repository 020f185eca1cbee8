"""What the processes of several kinds use."""

__all__ = [
    "batches",
    "chain_code",
    "cluster_services",
    "deployed_parts",
    "job_files",
    "leader_connection",
    "produced",
    "settings",
    "tell",
]
