"""What several processes use."""

__all__ = [
    "archives",
    "batched_sender",
    "chain_code",
    "checkpoint_storage",
    "cluster_services",
    "deployment_parts",
    "exported_metrics",
    "high_availability",
    "job_files",
    "job_master_watch",
    "leader_connection",
    "leadership",
    "one_way",
    "produced_partitions",
    "settings",
    "task_process_notes",
    "traces",
    "user_calls",
    "user_storage",
]
