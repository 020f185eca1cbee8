"""Modules that several kinds of processes use."""

__all__ = [
    "chain_code",
    "checkpoint_storage",
    "cluster_services",
    "deployment_parts",
    "exported_metrics",
    "high_availability",
    "job_files",
    "job_master_watch",
    "kept_notes",
    "leader_connection",
    "leadership",
    "leftover_processes",
    "notifications",
    "produced_partitions",
    "settings",
    "traces",
    "user_calls",
    "user_storage",
]
