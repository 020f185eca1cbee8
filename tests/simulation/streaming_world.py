"""What must hold of the checkpoints of one streaming job at every step, whatever goes wrong.

What is durable is what the disk would have if its power went now.

- The count of ids never falls while the job is there; no two JobMasters trigger checkpoints of one
  id; completed checkpoints have rising ids.
- A completed checkpoint has the state that each task has acknowledged, or the task had finished.
  Its files are durable, and what they were when they were acknowledged, as long as it is retained.
  The latest one is retained until it is durable how the job has ended.
"""

from __future__ import annotations

from flinkray.checkpoint.handles import TaskState
from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.core.ids import JobVertexID
from flinkray.ha.checkpoint_stores import CheckpointCount, CompletedCheckpointPointer
from flinkray.ha.directory import UNFINISHED
from flinkray.ha.entries import decode_entry
from flinkray.ha.epoch_directory import EpochContents
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint, TriggerCheckpoint
from flinkray.scheduler.graph.job_graph import JobGraph, SchedulerMode
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import SimulatedProcess
from tests.simulation.external_system import ExternalSystem, Transaction
from tests.simulation.stored_checkpoints import StoredCheckpoints
from tests.simulation.stored_jobs import StoredJobs


class StreamingWorld(CallObserver):
    """Of one job.  What is violated it tells the external system, which ends the run."""

    def __init__(
        self,
        simulation: Simulation,
        graph: JobGraph,
        external: ExternalSystem,
        stored: StoredCheckpoints,
    ) -> None:
        self._simulation = simulation
        self._graph = graph
        self._external = external
        self._stored = stored
        self._disk = simulation.disk()
        self.job_id = graph.job_id
        self._pointers = f"cluster/checkpoint-pointers/{self.job_id}/"
        self._jobs = StoredJobs(self._disk)
        self._count = 0
        self._changes = self._losses = -1
        self._retained: dict[int, CheckpointMetadata] = {}
        self._acknowledged: dict[int, dict[tuple[JobVertexID, int], TaskState | None]] = {}
        self._triggered_by: dict[int, SimulatedProcess] = {}
        self.completed: dict[int, None] = {}
        """Ids of durable checkpoints, in order."""
        self.is_cancelled = False
        self.has_excuse = False
        """Whether a process has died before the job's end, or its JobMaster before it had deleted
        what there was, or the storage has failed."""
        self._has_late_owner = False
        """Whether a JobMaster that was taken for dead has lived until after the job's end."""

    def process_changed(self, process: SimulatedProcess) -> None:
        """One has come or gone, or was taken for dead."""
        is_gone = process.is_banished or not process.is_alive
        # afterwards the JobMaster deletes what was retained
        is_early = process.kind == "JobMaster" and process.exit_code != "it has ended"
        if is_gone and (is_early or not self._has_ended()):
            self.has_excuse = True
        if process.kind == "JobMaster" and process.is_banished and not process.is_alive:
            self._has_late_owner = self._has_late_owner or self._has_ended()

    # --- of every call ----------------------------------------------------------------------------

    def begins(self, call: ObservedCall) -> None:
        if call.method == "tasks_reported" and call.receiver.kind == "TaskExecutor":
            for report in call.arguments[1]:
                if isinstance(report, AcknowledgeCheckpoint) and report.job_id == self.job_id:
                    self._acknowledges(report)
        elif call.method == "order_checkpoint" and call.receiver.kind == "TaskExecutor":
            is_own = call.arguments[0] == self.job_id
            for order in call.arguments:
                if isinstance(order, TriggerCheckpoint) and is_own:
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
                self._stored.note(state)

    # --- at every step ----------------------------------------------------------------------------

    def check(self) -> None:
        disk = self._disk
        if disk.changes == self._changes:
            return
        self.has_excuse = self.has_excuse or disk.failing > 0
        self._changes = disk.changes
        if not self._has_ended():
            self._check_count()
        entries = self._entries_that_count("checkpoint")
        if entries is not None:
            pointers = [decode_entry(data, CompletedCheckpointPointer) for data in entries.values()]
            there = {pointer.checkpoint_id: pointer for pointer in pointers}
            forgotten = self._retained.keys() - there.keys()
            if forgotten and there.keys() - self._retained.keys():
                self._violated(f"who stored one of {[*there]} does not know of {[*forgotten]}")
            for checkpoint_id in forgotten:
                del self._retained[checkpoint_id]
            for checkpoint_id, pointer in there.items():
                if checkpoint_id not in self._retained:
                    self._completes(pointer)
        if disk.losses != self._losses:
            self._losses = disk.losses
            for metadata in self._retained.values():
                self._stored.check_files(metadata)
            self._check_latest()

    def _entries_that_count(self, kind: str) -> dict[str, bytes] | None:
        """What the next JobMaster would find, by name; None: one is taking over, and may find what
        there was before, or what its predecessor has written since."""
        paths = self._disk.paths()
        found = [p.removeprefix(self._pointers) for p in paths if p.startswith(self._pointers)]
        claims = [name for name in found if name.endswith(f".{kind}-claim")]
        if not claims:
            return {}
        owner = max(claims).removesuffix(f".{kind}-claim")
        for name in sorted(found, reverse=True):
            if name.startswith(f"{owner}-") and name.endswith(f".{kind}"):
                data = self._disk.durable(f"{self._pointers}{name}")
                if data is not None:
                    contents = decode_entry(data, EpochContents)
                    return {entry.name: entry.data or b"" for entry in contents.entries}
        return None

    @property
    def end_is_durable(self) -> bool:
        """Whether nobody takes the job up again."""
        return self._jobs.result(self.job_id, durable=True) is not None

    def _has_ended(self) -> bool:
        return self._jobs.result(self.job_id) is not None

    def _check_latest(self) -> None:
        """What the job would go on from is there until its end is."""
        latest = max(self.completed, default=0)
        retained = {metadata.checkpoint_id for metadata in self._retained.values()}
        if latest and latest not in retained and not self._has_ended():
            self._violated(f"checkpoint {latest} is gone, and the job may go on from it")

    def _check_count(self) -> None:
        entries = self._entries_that_count("count")
        if entries is None:
            return
        data = entries.get("count")
        count = 0 if data is None else decode_entry(data, CheckpointCount).next_id
        if count < self._count:
            self._violated(f"the next checkpoint is {count}, and was to be {self._count}")
        self._count = count

    def _completes(self, pointer: CompletedCheckpointPointer) -> None:
        checkpoint_id = pointer.checkpoint_id
        self._simulation.tell("checkpoint %d is complete", checkpoint_id)
        if checkpoint_id not in self.completed:
            latest = max(self.completed, default=0)
            if checkpoint_id < latest:
                self._violated(f"checkpoint {checkpoint_id} is completed after {latest}")
            self.completed[checkpoint_id] = None
        metadata = self._stored.metadata(pointer.path)
        if metadata is None:
            self._violated(f"checkpoint {checkpoint_id} is complete without {pointer.path}")
            return
        self._retained[checkpoint_id] = metadata
        if metadata.job_id == self._graph.job_id:  # and not what the job was started from
            self._check_states(metadata)
        self._stored.check_files(metadata)

    def _check_states(self, metadata: CheckpointMetadata) -> None:
        acknowledged = self._acknowledged.get(metadata.checkpoint_id, {})
        operators = {operator.operator_id: operator for operator in metadata.operators}
        is_elastic = self._graph.scheduler_mode is SchedulerMode.ADAPTIVE
        for vertex in self._graph.vertices:
            executed = operators[vertex.operators[0].operator_id].parallelism
            for index in range(executed if is_elastic else vertex.parallelism):
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

    def latest_completed(self) -> int:
        """Id of the latest durable checkpoint; 0: there is none."""
        self.check()
        return max(self.completed, default=0)

    def _violated(self, what: str) -> None:
        self._external.violated(what)

    # --- at the end -------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """Files of the job's checkpoints, but for what nobody can know of.

        A process that dies, or whose storage fails, leaves files that no completed checkpoint
        names, and no pointer.  A JobMaster that wakes up in the middle of taking over, after the
        job's end, leaves a claim on nothing.  The checkpoints of a job that was cancelled are its
        user's.
        """
        job = self.job_id.hex()
        found = [
            path
            for path in self._disk.paths()
            if job in path and "checkpoint" in path and not path.endswith(UNFINISHED)
        ]
        if self.has_excuse or self.is_cancelled:
            found = [path for path in found if not path.startswith("checkpoints/")]
        if self._has_late_owner and not any(map(self._entries_that_count, ("checkpoint", "count"))):
            found = [path for path in found if not path.startswith(self._pointers)]
        return found


class StreamingWorlds(CallObserver):
    """Of the jobs that run one program, one after the other.

    Ids go on from job to job, with the checkpoint or savepoint that the next one starts from.
    Nothing is committed that no durable one covers.
    """

    def __init__(
        self,
        simulation: Simulation,
        external: ExternalSystem,
        stored: StoredCheckpoints,
        *others: CallObserver,
    ) -> None:
        """*others* see all calls, too."""
        self._simulation = simulation
        self._external = external
        self._stored = stored
        self._others = others
        self.of_jobs: list[StreamingWorld] = []
        external.may_commit = self._may_commit
        external.latest_completed = self._latest_completed

    def begin(self, graph: JobGraph) -> StreamingWorld:
        """That of the next job."""
        world = StreamingWorld(self._simulation, graph, self._external, self._stored)
        self.of_jobs.append(world)
        return world

    def check(self) -> None:
        """At every step."""
        if self.of_jobs:
            self.of_jobs[-1].check()
            self._stored.check()

    def process_changed(self, process: SimulatedProcess) -> None:
        for world in self.of_jobs:
            world.process_changed(process)

    def begins(self, call: ObservedCall) -> None:
        for observer in (*self._others, *self.of_jobs):
            observer.begins(call)

    def succeeded(self, call: ObservedCall, result: object) -> None:
        for observer in self._others:
            observer.succeeded(call, result)

    def leftovers(self) -> list[str]:
        """Files of all jobs, but for those that stay."""
        return [path for world in self.of_jobs for path in world.leftovers()]

    def _latest_completed(self) -> int:
        return max((world.latest_completed() for world in self.of_jobs), default=0)

    def _may_commit(self, transaction: Transaction) -> None:
        latest = self._latest_completed()
        if latest and not self._external.is_exactly_once:
            # the committer has gone on while it waited for barriers: a checkpoint may hold what was
            # prepared for the next one, and the records of that come again
            return
        if not 0 < transaction.checkpoint_id <= latest:
            self._external.violated(
                f"transaction {transaction.name} of checkpoint {transaction.checkpoint_id} is "
                f"committed, and the latest completed one is {latest}"
            )
