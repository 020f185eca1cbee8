"""What must hold of the attempts of tasks, whatever becomes of JobMasters.

- No attempt is begun twice.
- Where only masters die, no task is restarted, but for notes that were lost: the JobMaster has died
  together with its SlotPool, before the coordinator of the sources had them.  Nobody knows what is
  to run then.
"""

from __future__ import annotations

from collections.abc import Callable

from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.scheduler.shared.tasks import TaskDeployments, VertexInformation, attempt_of
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import SimulatedProcess

COORDINATOR = "StreamCoordinator"


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
        self._notes: JobNotes | None = None
        """The last ones."""
        self._knows: dict[SimulatedProcess, None] = {}
        """Who has these: those that were told, and the JobMaster that has told them."""
        self.notes_were_lost = False

    def process_changed(self, process: SimulatedProcess) -> None:
        """One has come or gone, or was taken for dead.  A coordinator of sources does not die where
        only masters do: a JobMaster may end it, and has lost what it knows then."""
        if process.kind != COORDINATOR and (not process.is_alive or process.is_banished):
            self._knows.pop(process, None)
            self._lose_notes()

    def _lose_notes(self) -> None:
        if self._notes is not None and not self._knows and not self.notes_were_lost:
            self._simulation.tell("nobody knows any more which attempts were deployed")
            self.notes_were_lost = True

    def begins(self, call: ObservedCall) -> None:
        if call.method == "note" and call.receiver.kind in ("SlotPool", COORDINATOR):
            self._noted(call)
        elif call.method == "run_tasks" and call.receiver.kind == "TaskProcess":
            self._run(call.receiver, call.arguments[0])

    def _noted(self, call: ObservedCall) -> None:
        notes = call.arguments[-1]
        if notes != self._notes:
            self._notes = notes
            self._knows.clear()
        self._knows |= {
            process: None
            for process in (call.sender, call.receiver)
            if process.is_alive and not process.is_banished
        }
        self._lose_notes()

    def _run(self, process: SimulatedProcess, deployments: TaskDeployments) -> None:
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
        is_first = attempt_id.attempt_number == 0 and attempt_id.graph_id == self._graph
        if not (is_first or self._may_grow or self.notes_were_lost):
            self._violated(f"{attempt_id} is begun, and nothing but masters has died")
