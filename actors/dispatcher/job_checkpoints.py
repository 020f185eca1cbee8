"""Deletes checkpoints that JobMasters of an ended job have left behind when they died."""

from __future__ import annotations

import logging

from flinkray.actors.shared.checkpoint_storage import checkpoint_storage_of
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.settings import with_checkpoint_options
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.storage import delete_checkpoints_of_job
from flinkray.core.errors import ConfigurationError
from flinkray.core.locations import without_secrets
from flinkray.rpc import RpcService
from flinkray.scheduler.checkpoints.properties import checkpoint_of
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds for which a failed deletion is repeated."""
_RETRY_DELAY = 0.5
"""Seconds between two attempts."""


async def forget_checkpoints(
    services: ClusterServices, storage: UserStorage, graph: JobGraph, result: JobResult
) -> None:
    """Delete the checkpoints of an ended job, then the stored pointers and the counter of ids.
    The checkpoints stay if the job retains them when it ends in this state. Files that the storage
    does not delete for :data:`PATIENCE` seconds also stay. The job's end is stored, so nothing is
    recovered from them.

    Raises:
        StoreError: the stores fail.
    """
    try:
        directory = _directory_to_clear(services, graph, result)
        if directory is not None:
            await _delete(services.rpc_service, storage, directory)
    except (CheckpointStorageError, ConfigurationError) as error:
        log.warning("%s: something of its checkpoints stays: %s", graph.text, error)
    await services.high_availability.forget_checkpoints(graph.job_id)


async def _delete(service: RpcService, storage: UserStorage, directory: str) -> None:
    now = service.deadlines.time
    deadline = now() + PATIENCE
    while True:
        try:
            await storage.run(delete_checkpoints_of_job, directory)
            return
        except CheckpointStorageError as error:
            if not error.retryable or now() >= deadline:
                raise
            log.warning("%s is not deleted yet: %s", without_secrets(directory), error)
        await service.pause(_RETRY_DELAY)


def _directory_to_clear(
    services: ClusterServices, graph: JobGraph, result: JobResult
) -> str | None:
    """Return the directory whose checkpoints must be deleted.
    None if the job keeps its checkpoints. Raises ConfigurationError if the job's options contradict
    the cluster's, which may have changed since the job began.
    """
    configured = with_checkpoint_options(graph, services.configuration).checkpoints
    if configured is None or result.keeps_checkpoints:
        return None
    if not checkpoint_of(configured).is_discarded_at(result.status):
        return None
    return checkpoint_storage_of(services, graph).directory
