"""What an event leads to, collected while it is worked on."""

from __future__ import annotations

from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.job.deployment import Deployments
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, JobSchedulerAction


class Outbox:
    """Actions in the order of the decisions; those that go to TaskExecutors in bulk are put
    together per TaskExecutor and come after the others, the job's end last of all."""

    def __init__(self) -> None:
        self._bulk: Deployments | None = None
        self._actions: list[JobSchedulerAction] = []

    @property
    def bulk(self) -> Deployments:
        """Of the present execution graph."""
        assert self._bulk is not None
        return self._bulk

    def open(self, graph: ExecutionGraph) -> None:
        """From now on deployments are of this graph; what was collected of the one before goes
        first."""
        if self._bulk is not None:
            self._actions += self._bulk.take()
        self._bulk = Deployments(graph)

    def add(self, action: JobSchedulerAction) -> None:
        self._actions.append(action)

    def take(self) -> list[JobSchedulerAction]:
        """All since the last time."""
        actions, self._actions = self._actions, []
        bulk = self.bulk.take()
        match actions:
            case [*before, JobEnded() as end]:
                return [*before, *bulk, end]
        return [*actions, *bulk]
