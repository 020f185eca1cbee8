"""Defines JobSettings, which shows users the settings of a job."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import ParallelismBounds, RestartStrategy


@stored("JobSettings")
@message
class JobSettings:
    """The settings that apply to a job: those of its job graph, otherwise those of the cluster."""

    restart_strategy: RestartStrategy
    state_backend: str
    """Value of the option ``state.backend.type``."""
    checkpoints: CheckpointConfiguration | None
    """Configuration of the checkpoints; None if the job takes no checkpoints."""
    is_elastic: bool
    """Whether the job's parallelism can be changed while it runs."""
    bounds: tuple[ParallelismBounds, ...]
    """Parallelism bounds of all vertices.
    If the job is not elastic, lower and upper bound are the parallelism."""
