"""Keeps the notes with which the next JobMaster can take over the job."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionVertex,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.scheduler.shared.taking_over import (
    NOT_DEPLOYED,
    CoordinatorAttempt,
    JobNotes,
    SourceCoordinatorPlace,
)
from flinkray.scheduler.shared.tasks import pack_array, unpack_numbers


class JobNotebook:
    """Keeps the notes about one execution graph from which the next JobMaster takes over the job.
    The notes change when attempts are deployed, and when new attempts replace them, so the next
    JobMaster does not count replaced attempts as lost."""

    def __init__(self, graph: ExecutionGraph, record: JobRecord, *, takeovers: int = 0) -> None:
        """Make the notebook of *graph*, with no attempt deployed. *takeovers*: how many JobMasters
        have taken over the graph."""
        self._graph = graph
        self._record = record
        self._takeovers = takeovers
        self._attempts = array("I", bytes(4 * len(graph.subtasks)))
        self._is_new = False
        self._is_being_scaled = False
        self._noted_before: tuple[WorkerLocation, ...] = ()
        self.source_coordinator: SourceCoordinatorPlace | None = None

    def adopt(self, notes: JobNotes) -> None:
        """Continue the notes of an earlier JobMaster. The next :meth:`take` returns them."""
        self._attempts = unpack_numbers(notes.attempts)
        self._noted_before = notes.task_executors
        self.source_coordinator, self._is_new = notes.source_coordinator, True

    def not_deployed(self, subtasks: Iterable[ExecutionVertex]) -> None:
        """Correct the notes of an earlier JobMaster: the deployments of these subtasks were never
        sent."""
        for subtask in subtasks:
            if self._attempts[subtask.ordinal]:
                self._attempts[subtask.ordinal] |= NOT_DEPLOYED
                self._is_new = True

    def source_coordinator_is_at(self, event: t.SourceCoordinatorIsAt, now: float) -> Steps:
        self.source_coordinator, self._is_new = event.place, True
        return ()

    def deployed(self, executions: Iterable[Execution]) -> None:
        """Add these attempts to the notes as deployed. The caller must store the notes before the
        deployments are sent."""
        for execution in executions:
            self._attempts[execution.vertex.ordinal] = execution.attempt_number + 1
        self._is_new = True

    def regions_reset(self, transition: t.ResetRegions, now: float) -> Steps:
        """Replace the attempts of reset subtasks in the notes by the new, not deployed attempts."""
        attempts = self._attempts
        for vertex in transition.vertices:
            if attempts[vertex.ordinal]:
                attempts[vertex.ordinal] = (vertex.current.attempt_number + 1) | NOT_DEPLOYED
                self._is_new = True
        return ()

    def everything_stopped(self, transition: t.StopEverything, now: float) -> Steps:
        """Write into the notes that the job is being scaled, so that the next JobMaster does not
        count the ended tasks as a failure."""
        self._is_new = self._is_being_scaled = True
        return ()

    def coordinator_told(self, transition: t.CoordinatorTold, now: float) -> Steps:
        """Mark the notes as changed if the coordinator has sent the result of the job (a
        SparkResult)."""
        self._is_new |= isinstance(transition.event, SparkResult)
        return ()

    def begins_after(self, notes: JobNotes) -> None:
        """Make the next :meth:`take` return notes, in place of an earlier JobMaster's, although
        nothing is deployed yet in this execution graph. If the job was being scaled, the notes say
        so until tasks are deployed."""
        self._is_new, self._is_being_scaled = True, notes.is_being_scaled

    @property
    def has_deployed(self) -> bool:
        """Whether any attempt of the execution graph was deployed, or was adopted."""
        return any(self._attempts)

    def take(self) -> JobNotes | None:
        """Return the notes if they have changed since the last call, so that they must be stored
        again; otherwise None."""
        if not self._is_new:
            return None
        self._is_new = False
        return self.notes()

    def notes(self) -> JobNotes:
        """Create the notes for the next JobMaster from the current state of the job."""
        graph = self._graph
        return JobNotes(
            graph.graph_id,
            tuple(vertex.parallelism for vertex in graph.vertices),
            pack_array(self._attempts),
            graph.restores,
            self.source_coordinator,
            self._takeovers,
            tuple(self._task_executors()),
            self._is_being_scaled,
            self._record.restarts,
            self._record.failovers,
            tuple(
                CoordinatorAttempt(
                    vertex.vertex.vertex_id,
                    vertex.coordinator_attempt,
                    not self._attempts[vertex.first] & NOT_DEPLOYED,
                )
                for vertex in graph.vertices
                if vertex.is_coordinated and self._attempts[vertex.first]
            ),
            self._record.result,
            self._record.running_since,
        )

    def _task_executors(self) -> Iterable[WorkerLocation]:
        """Return the TaskExecutors that run attempts; until an attempt has a slot, those that an
        earlier JobMaster has noted, because it may have been about to deploy there. Empty for a job
        without a StreamCoordinator: it is deployed in many steps, and each would note all
        TaskExecutors again."""
        if not self._graph.job_graph.has_stream_coordinator:
            return ()
        slots = (subtask.current.slot for subtask in self._graph.subtasks)
        places = (slot.location for slot in slots if slot is not None)
        return {place.resource_id: place for place in places}.values() or self._noted_before
