"""What must hold of the attempts of tasks, whatever becomes of JobMasters.

- No attempt is begun twice.
- Where only masters die, no task is restarted, but where all have gone who knew something: which
  attempts were deployed (the JobMaster, its SlotPool and a TaskExecutor), how far a source is (the
  same, and the coordinator of the sources), or what has finished (the same as deployed).  A
  TaskExecutor knows it as long as the job has slots there.
- An elastic job is restarted there with another parallelism, too, or when the JobMaster has died
  that was about to do so.
"""

from __future__ import annotations

from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import AdoptedCoordinator, KeptPart, KeptPiece
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobVertexID,
)
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.scheduler.shared.tasks import (
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import SimulatedProcess
from tests.simulation.inside import endpoint_in, keeps_any, restarts_of


class Attempts(CallObserver):
    """Of one job."""

    def __init__(
        self, simulation: Simulation, violated: Callable[[str], None], *, may_grow: bool
    ) -> None:
        """*may_grow*: whether more than masters may die."""
        self._simulation = simulation
        self._violated = violated
        self._may_grow = may_grow
        self._vertices: dict[tuple[SimulatedProcess, int], VertexInformation] = {}
        """By task process and key."""
        self._begun: dict[ExecutionAttemptID, SimulatedProcess] = {}
        self._graph: ExecutionGraphID | None = None
        self.concerns: Callable[[str], bool] = lambda job_id: True
        """Whether these are the attempts of the job with this hexadecimal id."""
        self._notes: JobNotes | None = None
        """The last ones."""
        self._knows: dict[SimulatedProcess, None] = {}
        """Who has these: those that were told, and the JobMaster that has told them."""
        self.notes_were_lost = False
        self._parts: dict[JobVertexID | None, KeptPart] = {}
        """The last of each that was sent."""
        self._keep: dict[JobVertexID | None, dict[SimulatedProcess, None]] = {}
        """Who has them."""
        self._has_finished: dict[SimulatedProcess, None] = {}
        """Who has been told of the last task that has finished."""

    def process_changed(self, process: SimulatedProcess) -> None:
        """One has come or gone, or was taken for dead."""
        if not _can_be_asked(process):
            self._loses_all(process)

    def _loses_all(self, process: SimulatedProcess) -> None:
        known = [vertex_id for vertex_id, keepers in self._keep.items() if keepers]
        self._knows.pop(process, None)
        for keepers in self._keep.values():
            keepers.pop(process, None)
        is_known = bool(self._has_finished)
        self._has_finished.pop(process, None)
        self._forget_what_is_forgotten()
        self._lose_notes()
        if is_known and not self._has_finished:
            self._simulation.tell("nobody knows any more what has finished")
            self.notes_were_lost = True
        for vertex_id in known:
            if not self._keep[vertex_id]:
                self._simulation.tell("nobody knows any more how far %s is", vertex_id)
                self.notes_were_lost = True

    def _forget_what_is_forgotten(self) -> None:
        """TaskExecutors do when the job has nothing there any more, and tell nobody."""
        everyone = [self._knows, self._has_finished, *self._keep.values()]
        for process in {one for them in everyone for one in them if one.kind == "TaskExecutor"}:
            executor = endpoint_in(self._simulation, process, TaskExecutor)
            if executor is None or not keeps_any(executor):
                for them in everyone:
                    them.pop(process, None)

    def _lose_notes(self) -> None:
        if self._notes is not None and not self._knows and not self.notes_were_lost:
            self._simulation.tell("nobody knows any more which attempts were deployed")
            self.notes_were_lost = True

    def _is_of_another_job(self, call: ObservedCall) -> bool:
        ends = [one for one in (call.sender, call.receiver) if one.kind == "JobMaster"]
        return any(not self.concerns(one.name.rpartition("-")[2]) for one in ends)

    def begins(self, call: ObservedCall) -> None:
        if self._is_of_another_job(call):
            return
        everyone = [self._knows, self._has_finished, *self._keep.values()]
        for frozen in {one for them in everyone for one in them if one.is_frozen}:
            self._loses_all(frozen)
        if call.method == "keep_part":
            self._kept(call.arguments[-1], call.sender, call.receiver)
        elif call.method == "keep" and call.receiver.kind in ("SlotPool", "TaskExecutor"):
            self._piece_kept(call)
        elif call.method == "tasks_reported" and call.receiver.kind == "JobMaster":
            states = (it for it in call.arguments[0] if isinstance(it, TaskExecutionState))
            if any(state.state is ExecutionState.FINISHED for state in states):
                self._has_finished = {call.receiver: None, call.sender: None}
        elif call.method == "run_tasks" and call.receiver.kind == "TaskProcess":
            self._run(call.receiver, call.arguments[0])

    def succeeded(self, call: ObservedCall, result: object) -> None:
        if isinstance(result, KeptPiece) and not self._is_of_another_job(call):
            if result.finished and call.receiver in self._has_finished:
                self._has_finished[call.sender] = None
            if result.part is not None:
                self._kept(result.part, call.sender)

    def _kept(self, part: KeptPart, *by: SimulatedProcess) -> None:
        known = self._parts.get(part.vertex_id)
        if known is not None and part.age < known.age:
            return
        if known != part:
            self._parts[part.vertex_id] = part
            self._keep[part.vertex_id] = {}
        self._keep[part.vertex_id] |= {process: None for process in by if _can_be_asked(process)}

    def _piece_kept(self, call: ObservedCall) -> None:
        piece = call.arguments[-1]
        assert isinstance(piece, KeptPiece)
        if piece.finished and call.sender in self._has_finished:
            self._has_finished[call.receiver] = None
        if piece.part is not None:
            self._kept(piece.part, call.sender, call.receiver)
        if piece.notes is not None:
            self._noted(piece.notes, call.sender, call.receiver)

    def _noted(self, notes: JobNotes, by: SimulatedProcess, at: SimulatedProcess) -> None:
        if notes != self._notes:
            self._notes = notes
            self._knows.clear()
        self._knows |= {process: None for process in (by, at) if _can_be_asked(process)}
        self._lose_notes()

    def _run(self, process: SimulatedProcess, deployments: TaskDeployments) -> None:
        if not self.concerns(deployments.job_id.hex()):
            return
        for part in deployments.parts:
            if isinstance(part.content, VertexInformation):
                self._vertices[process, part.key] = part.content
        for task in deployments.tasks:
            vertex = self._vertices[process, task.vertex]
            self._begin(process, attempt_of(deployments.graph_id, vertex, task))

    def _begin(self, process: SimulatedProcess, attempt_id: ExecutionAttemptID) -> None:
        other = self._begun.setdefault(attempt_id, process)
        if other is not process:
            self._violated(f"{attempt_id} is begun by {other}, and by {process}")
        self._graph = self._graph or attempt_id.graph_id
        if not (self._may_grow or self.notes_were_lost or self._may_begin(attempt_id)):
            self._violated(f"{attempt_id} is begun, and nothing but masters has died")

    def _may_begin(self, attempt_id: ExecutionAttemptID) -> bool:
        return attempt_id.attempt_number == 0 and attempt_id.graph_id == self._graph


class ElasticAttempts(Attempts):
    """Of one elastic job."""

    def __init__(
        self, simulation: Simulation, violated: Callable[[str], None], *, may_grow: bool
    ) -> None:
        super().__init__(simulation, violated, may_grow=may_grow)
        self._numbers: dict[tuple[ExecutionGraphID, ExecutionVertexID], int] = {}
        self._stopped_by: dict[ExecutionGraphID, SimulatedProcess] = {}
        """Which JobMaster has cancelled something of it first."""
        self._is_other = False
        """Since all was stopped last, slots may have gone, or the bounds are others."""
        self.changes = 0
        """Graphs that another one has taken the place of."""
        self.has_ended: Callable[[], bool] = lambda: False
        """Whether it is durable that the job has: then nobody need know anything."""
        self.unexplained: list[str] = []
        """Restarts that nothing but what was lost explains."""

    def begins(self, call: ObservedCall) -> None:
        if call.method in ("free_slot", "resize"):
            self._is_other = True
        elif call.method == "cancel_tasks" and call.receiver.kind == "TaskExecutor":
            for attempt_id in call.arguments[0]:
                self._stopped_by.setdefault(attempt_id.graph_id, call.sender)
        if call.sender.kind == "JobMaster" and not self._may_grow:
            job_master = endpoint_in(self._simulation, call.sender, JobMaster)
            if job_master is not None and restarts_of(job_master) and self._has_begun():
                self._explain(f"{call.sender} has restarted the job for a failure")
        super().begins(call)

    def succeeded(self, call: ObservedCall, result: object) -> None:
        super().succeeded(call, result)
        is_behind = isinstance(result, AdoptedCoordinator) and self._is_behind(result.restores)
        if is_behind and self._notes is not None:  # it was being scaled to that
            self._stopped_by.setdefault(self._notes.graph_id, call.receiver)

    def _loses_all(self, process: SimulatedProcess) -> None:
        if self.has_ended():
            return
        super()._loses_all(process)

    def _is_behind(self, restores: int) -> bool:
        return self._notes is not None and restores != self._notes.restores

    def _has_begun(self) -> bool:
        """Whether a task of what was noted last has: those of a JobMaster that has died before may
        seem to be lost, with TaskExecutors that have ended, as nobody has needed them."""
        graph_id = None if self._notes is None else self._notes.graph_id
        return any(attempt_id.graph_id == graph_id for attempt_id in self._begun)

    def _explain(self, what: str) -> None:
        if not self.notes_were_lost and what not in self.unexplained:
            self._simulation.tell("UNEXPLAINED: %s", what)
            self.unexplained.append(what)

    def check(self) -> None:
        """At the end: who was lost may have been so before that was seen."""
        if self.unexplained and not self.notes_were_lost:
            self._violated(f"{self.unexplained}, and nothing but masters has died")

    def _noted(self, notes: JobNotes, by: SimulatedProcess, at: SimulatedProcess) -> None:
        before = self._notes
        super()._noted(notes, by, at)
        if notes.is_being_scaled:
            self._is_other &= notes == before
            self._stopped_by.setdefault(notes.graph_id, by)
        if before is None or before.graph_id == notes.graph_id or not any(before.attempts):
            return  # what was never deployed gives way to anything
        self.changes += 1
        stopped_by = self._stopped_by.get(before.graph_id)
        was_stopped_before = stopped_by not in (None, by)
        is_another = before.parallelisms != notes.parallelisms or self._is_other
        if not (is_another or was_stopped_before or self._may_grow or self.notes_were_lost):
            self._explain(f"{by} has restarted the job, with {notes.parallelisms} again")

    def _may_begin(self, attempt_id: ExecutionAttemptID) -> bool:
        place = attempt_id.graph_id, attempt_id.vertex
        return self._numbers.setdefault(place, attempt_id.attempt_number) == (
            attempt_id.attempt_number
        )


def _can_be_asked(process: SimulatedProcess) -> bool:
    return process.is_alive and not process.is_banished and not process.is_frozen
