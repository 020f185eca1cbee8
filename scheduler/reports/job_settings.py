"""How a job is to be run, for people."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import ParallelismBounds, RestartStrategy


@stored("JobSettings")
@message
class JobSettings:
    """What holds for a job: what it was submitted with, over what the cluster is configured to."""

    restart_strategy: RestartStrategy
    state_backend: str
    """``state.backend.type``"""
    checkpoints: CheckpointConfiguration | None
    """None: it takes none."""
    is_elastic: bool
    """Whether its parallelism can be changed while it runs."""
    bounds: tuple[ParallelismBounds, ...]
    """Of all its vertices; if it is not elastic, from its parallelism to the same."""
