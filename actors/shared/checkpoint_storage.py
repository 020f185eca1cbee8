"""Finds the directory in which the checkpoints of a job are stored."""

from __future__ import annotations

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.layout import JobCheckpointStorage
from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import CHECKPOINTING_DIR
from flinkray.core.locations import without_secrets
from flinkray.scheduler.graph.job_graph import JobGraph

_DEFAULT = "checkpoints"
"""Name of the default checkpoint directory inside the cluster's storage directory."""


def checkpoint_storage_of(services: ClusterServices, graph: JobGraph) -> JobCheckpointStorage:
    """Return the checkpoint storage of the job.
    The directory comes from the job's configuration, otherwise from the cluster's. Raises
    ConfigurationError if the directory is neither a path nor a URI.
    """
    directory = services.configuration.with_values(graph.configuration).get(CHECKPOINTING_DIR)
    default = locations.join(services.arguments.storage_dir, _DEFAULT)
    try:
        return JobCheckpointStorage(directory or default, graph.job_id)
    except ValueError as error:
        text = f"{directory or default!r} is neither a path nor a URI: {error}"
        raise ConfigurationError(f"{CHECKPOINTING_DIR.key}: {text}") from error


def why_not_started_from(location: str, error: CheckpointStorageError) -> str:
    """Return the error text for a job that cannot start from the snapshot at *location*.
    The text names each path once.
    """
    if error.path.startswith(without_secrets(location)):
        return f"the job cannot start from {error}"
    return f"the job cannot start from {without_secrets(location)}: {error}"
