"""Collects the actions that result from an event."""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.scheduler.execution.execution_graph import Execution, ExecutionGraph
from flinkray.scheduler.job.deployment import Deployments
from flinkray.scheduler.job.job_notebook import JobNotebook
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import JobEnded, JobSchedulerAction, NoteJob


class Outbox:
    """Collects the actions of an event and sorts them. First come individual actions, in the order
    of the decisions.  Then come notes to be stored, followed by bulk actions, one message per
    TaskExecutor and kind.  The job's end comes last."""

    def __init__(self) -> None:
        self._bulk: Deployments | None = None
        self._notebook: JobNotebook | None = None
        self._actions: list[JobSchedulerAction] = []

    @property
    def bulk(self) -> Deployments:
        """The object that collects the bulk actions (deployments, cancellations, releases) of the
        current execution graph."""
        assert self._bulk is not None
        return self._bulk

    @property
    def notebook(self) -> JobNotebook:
        """The object that keeps the notes about the current execution graph for the next
        JobMaster."""
        assert self._notebook is not None
        return self._notebook

    def open(self, graph: ExecutionGraph, record: JobRecord, *, takeovers: int = 0) -> None:
        """Collect actions for the execution graph *graph* from now on. Actions that were collected
        for the previous graph come first. *takeovers*: how many JobMasters have taken over the
        graph."""
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

    def deploy(self, executions: Sequence[Execution]) -> None:
        """Add the deployments of these attempts to the actions, and note the attempts in the notes
        for the next JobMaster, which are stored before."""
        self.notebook.deployed(executions)
        self.bulk.deploy(executions)

    def take(self) -> list[JobSchedulerAction]:
        """Return and remove the actions that were collected since the last call."""
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
"""Distance of version numbers between JobMasters; no JobMaster uses more versions of a part."""
