"""What an event leads to, collected while it is worked on."""

from __future__ import annotations

from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.job.deployment import Deployments
from flinkray.scheduler.job.job_notebook import JobNotebook
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, JobSchedulerAction, NoteJob


class Outbox:
    """Actions in the order of the decisions; those that go to TaskExecutors in bulk are put
    together per TaskExecutor and come after the others, with what is to be noted before they are
    carried out; the job's end last of all."""

    def __init__(self) -> None:
        self._bulk: Deployments | None = None
        self._notebook: JobNotebook | None = None
        self._actions: list[JobSchedulerAction] = []

    @property
    def bulk(self) -> Deployments:
        """Of the present execution graph."""
        assert self._bulk is not None
        return self._bulk

    @property
    def notebook(self) -> JobNotebook:
        """Of the present execution graph."""
        assert self._notebook is not None
        return self._notebook

    def open(self, graph: ExecutionGraph, record: JobRecord, *, takeovers: int = 0) -> None:
        """From now on deployments are of this graph, which so many JobMasters have taken over; what
        was collected of the one before goes first."""
        if self._bulk is not None:
            self._actions += self._take_bulk()
        self._bulk = Deployments(
            graph, epoch_offset=record.epoch_offset, first_version=takeovers * _VERSIONS
        )
        notebook = JobNotebook(graph, record, takeovers=takeovers)
        if self._notebook is not None:
            notebook.source_coordinator = self._notebook.source_coordinator
        self._notebook = notebook

    def add(self, action: JobSchedulerAction) -> None:
        self._actions.append(action)

    def take(self) -> list[JobSchedulerAction]:
        """All since the last time."""
        actions, self._actions = self._actions, []
        bulk = self._take_bulk()
        match actions:
            case [*before, JobEnded() as end]:
                return [*before, *bulk, end]
        return [*actions, *bulk]

    def _take_bulk(self) -> list[JobSchedulerAction]:
        notes = self.notebook.take()
        return [*([] if notes is None else [NoteJob(notes)]), *self.bulk.take()]


_VERSIONS = 1 << 32
"""More than a JobMaster gives to any part of its deployments."""
