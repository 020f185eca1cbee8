"""The jobs that run replicas of models: they end when no job uses the model any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from flinkray.actors.dispatcher.job_cancelling import JobCancelling
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.core.errors import JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph.job_graph import HELD_MODEL, JobGraph
from flinkray.scheduler.reports.job_info import JobOverview, ModelInfo
from flinkray.scheduler.shared.states import ExecutionState

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds after the start of a Dispatcher in which the jobs that use a model must say so."""

_WHY = "no job uses the model any more"


def model_held_by(graph: JobGraph) -> str | None:
    """Return what tells the job's model apart from others. None: the job runs no replicas."""
    return next((v.invokable.configuration.get(HELD_MODEL) for v in graph.vertices), None)


class ModelJobs:
    """Knows which jobs use which models. Lives on the Dispatcher's main thread.

    Jobs say repeatedly that they use a model. So a new Dispatcher learns of the users.
    """

    def __init__(
        self,
        dispatcher: RpcEndpoint,
        jobs: Mapping[JobID, ManagedJob],
        cancelling: JobCancelling,
    ) -> None:
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._cancelling = cancelling
        self._users: dict[JobID, set[JobID]] = {}
        """Job that runs a model -> the jobs that use the model."""
        self._recovered: list[JobID] = []
        """Models of an earlier Dispatcher, during PATIENCE: other jobs may use them, too."""

    def start(self) -> None:
        """Cancel recovered models that no job uses, after PATIENCE."""
        self._recovered = [job.job_id for job in self._running()]
        if self._recovered:
            self._dispatcher.schedule_run_async(PATIENCE, self._all_users_are_known)

    def _all_users_are_known(self) -> None:
        recovered, self._recovered = self._recovered, []
        self.end_unused(recovered)

    def used_by(self, model: JobID, user: JobID) -> None:
        """Note that the job *user* uses a model.

        Raises:
            JobNotFoundError: one of the jobs has ended, or is about to.
        """
        self.check_user(user)
        job = self._jobs.get(model)
        if job is None or job.is_ending:
            raise JobNotFoundError(model)
        self._users.setdefault(model, set()).add(user)

    def check_user(self, user: JobID) -> None:
        """Raise JobNotFoundError if the job *user* has ended, or is about to."""
        job = self._jobs.get(user)
        if job is None or job.outcome is not None or job.ending is not None:
            raise JobNotFoundError(user)

    def infos(self, overviews: Iterable[JobOverview]) -> tuple[ModelInfo, ...]:
        """Return the running models. *overviews*: those of all jobs."""
        known = {overview.job_id: overview for overview in overviews}
        found = []
        for job in self._running():
            overview = known.get(job.job_id, job.overview())
            (vertex,) = job.graph.vertices
            found.append(
                ModelInfo(
                    job.job_id,
                    vertex.name,
                    overview.status,
                    overview.tasks.get(ExecutionState.RUNNING.name, 0),
                    vertex.min_parallelism,
                    vertex.parallelism,
                    vertex.slot_profile,
                    tuple(sorted(self._users.get(job.job_id, ()))),
                )
            )
        return tuple(found)

    def has_ended(self, job_id: JobID) -> None:
        """Cancel the models that only this job has used, because it has ended."""
        self._users.pop(job_id, None)
        for users in self._users.values():
            users.discard(job_id)
        self.end_unused([model for model, users in self._users.items() if not users])

    def _running(self) -> Iterator[ManagedJob]:
        for job in tuple(self._jobs.values()):
            if model_held_by(job.graph) is not None and not job.is_ending:
                yield job

    def end_unused(self, models: Iterable[JobID]) -> None:
        """Cancel those of these models that no job uses."""
        for model in models:
            if self._users.get(model) or model in self._recovered:
                continue
            self._users.pop(model, None)
            job = self._jobs.get(model)
            if job is not None and not job.is_ending:
                self._cancelling.cancel_later(job, _WHY)
