"""What must hold of the attempts of tasks, whatever becomes of JobMasters.

- No attempt is begun twice.
- Where only masters die, no task is restarted, but where all have died who knew something: which
  attempts were deployed (the JobMaster, its SlotPool and the coordinator of the sources), or how
  far a source is (the same).
"""

from __future__ import annotations

from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, JobVertexID
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
        self._parts: dict[JobVertexID | None, KeptPart] = {}
        """The last of each that was sent."""
        self._keep: dict[JobVertexID | None, dict[SimulatedProcess, None]] = {}
        """Who has them."""

    def process_changed(self, process: SimulatedProcess) -> None:
        """One has come or gone, or was taken for dead."""
        if not _can_be_asked(process):
            self._loses_all(process)

    def _loses_all(self, process: SimulatedProcess) -> None:
        self._knows.pop(process, None)
        self._lose_notes()
        for vertex_id, keepers in self._keep.items():
            if process in keepers:
                del keepers[process]
                if not keepers:
                    self._simulation.tell("nobody knows any more how far %s is", vertex_id)
                    self.notes_were_lost = True

    def _lose_notes(self) -> None:
        if self._notes is not None and not self._knows and not self.notes_were_lost:
            self._simulation.tell("nobody knows any more which attempts were deployed")
            self.notes_were_lost = True

    def begins(self, call: ObservedCall) -> None:
        everyone = [self._knows, *self._keep.values()]
        for frozen in {one for them in everyone for one in them if one.is_frozen}:
            self._loses_all(frozen)
        if call.method == "keep_part":
            self._kept(call.arguments[-1], call.sender, call.receiver)
        elif call.method == "note" and call.receiver.kind in ("SlotPool", COORDINATOR):
            self._noted(call)
        elif call.method == "run_tasks" and call.receiver.kind == "TaskProcess":
            self._run(call.receiver, call.arguments[0])

    def succeeded(self, call: ObservedCall, result: object) -> None:
        if call.method == "hand_over_part":
            assert isinstance(result, KeptPart)
            self._kept(result, call.sender)

    def _kept(self, part: KeptPart, *by: SimulatedProcess) -> None:
        known = self._parts.get(part.vertex_id)
        if known is not None and part.age < known.age:
            return
        if known != part:
            self._parts[part.vertex_id] = part
            self._keep[part.vertex_id] = {}
        self._keep[part.vertex_id] |= {process: None for process in by if _can_be_asked(process)}

    def _noted(self, call: ObservedCall) -> None:
        notes = call.arguments[-1]
        if notes != self._notes:
            self._notes = notes
            self._knows.clear()
        self._knows |= {
            process: None for process in (call.sender, call.receiver) if _can_be_asked(process)
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


def _can_be_asked(process: SimulatedProcess) -> bool:
    return process.is_alive and not process.is_banished and not process.is_frozen
