"""What the JobMasters of an ended job have left of its checkpoints, because they died before they
had discarded it, or before anybody knew of it."""

from __future__ import annotations

import logging

from flinkray.actors.shared.checkpoint_storage import checkpoint_storage_of
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.settings import with_checkpoint_options
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.storage import delete_checkpoints_of_job
from flinkray.scheduler.checkpoints.properties import checkpoint_of
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)


async def forget_checkpoints(
    services: ClusterServices, storage: UserStorage, graph: JobGraph, status: JobStatus
) -> None:
    """All checkpoints of a job that retains none at this end, then pointers and their count.

    What storage does not delete stays.  The job's end is stored, so nobody recovers anything.

    Raises:
        StoreError: the stores fail.
    """
    configured = with_checkpoint_options(graph, services.configuration).checkpoints
    if configured is not None and checkpoint_of(configured).is_discarded_at(status):
        directory = checkpoint_storage_of(services, graph).directory
        try:
            await storage.run(delete_checkpoints_of_job, directory)
        except CheckpointStorageError as error:
            log.warning("job %s: something of its checkpoints stays: %s", graph.job_id, error)
    await services.high_availability.forget_checkpoints(graph.job_id)
