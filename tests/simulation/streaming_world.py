"""What must hold of a streaming job's checkpoints at every step, whatever goes wrong.

What is durable is what the disk would have if its power went now.

- The count of ids never falls while the job is there; no two JobMasters trigger checkpoints of one
  id; completed checkpoints have rising ids.
- A completed checkpoint has the state that each task has acknowledged, or the task had finished.
  Its files are durable, and what they were when they were acknowledged, as long as it is retained.
  The latest one is retained until it is durable how the job has ended.
- Nothing is committed that no durable checkpoint covers.
"""

from __future__ import annotations

from zlib import crc32

from flinkray.checkpoint import locations
from flinkray.checkpoint.handles import FileState, OperatorSubtaskState, TaskState
from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.checkpoint.storage import _with_paths
from flinkray.core.ids import JobID, JobVertexID
from flinkray.ha.checkpoint_stores import CheckpointCount, CompletedCheckpointPointer
from flinkray.ha.directory import UNFINISHED
from flinkray.ha.entries import decode_entry
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint, TriggerCheckpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import SimulatedProcess
from tests.simulation.external_system import ExternalSystem, Transaction


class StreamingWorld(CallObserver):
    """Of one job.  What is violated it tells the external system, which ends the run."""

    def __init__(self, simulation: Simulation, graph: JobGraph, external: ExternalSystem) -> None:
        self._simulation = simulation
        self._graph = graph
        self._external = external
        self._disk = simulation.disk()
        job = graph.job_id.hex()
        self._pointers = f"cluster/checkpoint-pointers/{job}/"
        self._result = f"cluster/job-results/{job}"
        self._count = 0
        self._changes = self._losses = -1
        self._retained: dict[str, CheckpointMetadata] = {}
        """By the path of the pointer."""
        self._acknowledged: dict[int, dict[tuple[JobVertexID, int], TaskState | None]] = {}
        self._contents: dict[str, int] = {}
        """Checksums of files when they were acknowledged."""
        self._triggered_by: dict[int, SimulatedProcess] = {}
        self.completed: dict[int, None] = {}
        """Ids of durable checkpoints, in order."""
        self.has_excuse = False
        """Whether a process has died before the job's end, or its JobMaster before it had deleted
        what there was, or the storage has failed."""
        external.may_commit = self._may_commit
        external.latest_completed = self._latest_completed

    def process_changed(self, process: SimulatedProcess) -> None:
        """One has come or gone, or was taken for dead."""
        is_gone = process.is_banished or not process.is_alive
        # afterwards the JobMaster deletes what was retained
        is_early = process.kind == "JobMaster" and process.exit_code != "it has ended"
        if is_gone and (is_early or not self._has_ended()):
            self.has_excuse = True

    # --- of every call ----------------------------------------------------------------------------

    def begins(self, call: ObservedCall) -> None:
        if call.method == "tasks_reported" and call.receiver.kind == "TaskExecutor":
            for report in call.arguments[1]:
                if isinstance(report, AcknowledgeCheckpoint):
                    self._acknowledges(report)
        elif call.method == "order_checkpoint" and call.receiver.kind == "TaskExecutor":
            for order in call.arguments:
                if isinstance(order, TriggerCheckpoint):
                    by = self._triggered_by.setdefault(order.checkpoint_id, call.sender)
                    if by is not call.sender:
                        self._violated(
                            f"checkpoint {order.checkpoint_id} is triggered by {by}, and by "
                            f"{call.sender}"
                        )

    def _acknowledges(self, report: AcknowledgeCheckpoint) -> None:
        vertex = report.attempt_id.vertex
        key = vertex.job_vertex_id, vertex.subtask_index
        self._acknowledged.setdefault(report.checkpoint_id, {})[key] = report.state
        if report.state is not None:
            for state in report.state.operators.values():
                self._note_files(report.checkpoint_id, state)

    def _note_files(self, checkpoint_id: int, state: OperatorSubtaskState) -> None:
        for file in state.locations():
            if isinstance(file, FileState):
                path = _path(file.path)
                data = self._disk.content(path)
                if data is not None:
                    self._contents.setdefault(path, crc32(data))

    # --- at every step ----------------------------------------------------------------------------

    def check(self) -> None:
        disk = self._disk
        if disk.changes == self._changes:
            return
        self.has_excuse = self.has_excuse or disk.failing > 0
        self._changes = disk.changes
        if not self._has_ended():
            self._check_count()
        pointers = [path for path in disk.paths() if self._is_pointer(path)]
        for path in pointers:
            if path not in self._retained:
                data = disk.durable(path)
                if data is not None:
                    self._completes(path, decode_entry(data, CompletedCheckpointPointer))
        if disk.losses != self._losses:
            self._losses = disk.losses
            for path, metadata in tuple(self._retained.items()):
                if disk.durable(path) is None:
                    del self._retained[path]
                else:
                    self._check_files(metadata)
            self._check_latest()

    def _is_pointer(self, path: str) -> bool:
        return path.startswith(self._pointers) and path.endswith(".checkpoint")

    def _has_ended(self) -> bool:
        disk = self._disk
        return disk.holds(f"{self._result}.dirty") or disk.holds(f"{self._result}.clean")

    def _check_latest(self) -> None:
        """What the job would go on from is there until its end is."""
        latest = max(self.completed, default=0)
        retained = {metadata.checkpoint_id for metadata in self._retained.values()}
        if latest and latest not in retained and not self._has_ended():
            self._violated(f"checkpoint {latest} is gone, and the job may go on from it")

    def _check_count(self) -> None:
        data = self._disk.durable(f"{self._pointers}count")
        count = 0 if data is None else decode_entry(data, CheckpointCount).next_id
        if count < self._count:
            self._violated(f"the next checkpoint is {count}, and was to be {self._count}")
        self._count = count

    def _completes(self, path: str, pointer: CompletedCheckpointPointer) -> None:
        checkpoint_id = pointer.checkpoint_id
        self._simulation.tell("checkpoint %d is complete", checkpoint_id)
        if checkpoint_id not in self.completed:
            latest = max(self.completed, default=0)
            if checkpoint_id < latest:
                self._violated(f"checkpoint {checkpoint_id} is completed after {latest}")
            self.completed[checkpoint_id] = None
        stored = self._disk.durable(_path(pointer.path))
        if stored is None:
            self._violated(f"checkpoint {checkpoint_id} is complete without {pointer.path}")
            return
        directory = locations.parent_of(pointer.path)
        metadata = decode_entry(stored, CheckpointMetadata)
        metadata = _with_paths(metadata, lambda text: locations.resolved(text, directory))
        self._retained[path] = metadata
        self._check_states(metadata)
        self._check_files(metadata)

    def _check_states(self, metadata: CheckpointMetadata) -> None:
        acknowledged = self._acknowledged.get(metadata.checkpoint_id, {})
        operators = {operator.operator_id: operator for operator in metadata.operators}
        for vertex in self._graph.vertices:
            for index in range(vertex.parallelism):
                key = vertex.vertex_id, index
                told = acknowledged.get(key)
                for own in vertex.operators:
                    operator = operators[own.operator_id]
                    subtasks = {subtask.subtask_index: subtask for subtask in operator.subtasks}
                    kept = subtasks.get(index)
                    if kept is not None and kept.is_finished:
                        continue
                    state = None if told is None else told.operators.get(own.operator_id)
                    what = f"checkpoint {metadata.checkpoint_id}: {own.name} {index}"
                    if key not in acknowledged:
                        self._violated(f"{what} has not acknowledged it")
                    elif state is not None and (kept is None or kept.state != state):
                        self._violated(f"{what} has acknowledged {state}, there is {kept}")

    def _check_files(self, metadata: CheckpointMetadata) -> None:
        for operator in metadata.operators:
            files = [it for subtask in operator.subtasks for it in subtask.state.locations()]
            for file in (*files, operator.coordinator):
                if isinstance(file, FileState):
                    self._check_file(metadata.checkpoint_id, file)

    def _check_file(self, checkpoint_id: int, file: FileState) -> None:
        path = _path(file.path)
        data = self._disk.durable(path)
        if data is None:
            self._violated(f"checkpoint {checkpoint_id} is complete without {path}")
        elif len(data) != file.size or crc32(data) != self._contents.setdefault(path, crc32(data)):
            self._violated(f"checkpoint {checkpoint_id}: {path} is not what was acknowledged")

    # --- of every commit --------------------------------------------------------------------------

    def _may_commit(self, transaction: Transaction) -> None:
        latest = self._latest_completed()
        if not 0 < transaction.checkpoint_id <= latest:
            self._violated(
                f"transaction {transaction.name} of checkpoint {transaction.checkpoint_id} is "
                f"committed, and the latest completed one is {latest}"
            )

    def _latest_completed(self) -> int:
        self.check()
        return max(self.completed, default=0)

    def _violated(self, what: str) -> None:
        self._external.violated(what)

    # --- at the end -------------------------------------------------------------------------------

    def leftovers(self, job_id: JobID) -> list[str]:
        """Files of the job's checkpoints, but for what nobody can know of.

        A process that dies, or whose storage fails, leaves files that no completed checkpoint
        names, and no pointer.
        """
        job = job_id.hex()
        found = [
            path
            for path in self._disk.paths()
            if job in path and "checkpoint" in path and not path.endswith(UNFINISHED)
        ]
        if self.has_excuse:
            found = [path for path in found if not path.startswith("checkpoints/")]
        return found


def _path(location: str) -> str:
    return locations.path_of(location).strip("/")
