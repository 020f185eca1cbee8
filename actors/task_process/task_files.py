"""Files in the cluster's storage that a task reads and writes."""

from __future__ import annotations

from flinkray.actors.shared.produced_partitions import written_partitions
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.file_results import FileInput, FileOutput
from flinkray.core.ids import JobVertexID
from flinkray.file_results import (
    Epochs,
    FileCommitLog,
    LookUpNotes,
    PublishedBatches,
    commit_log_location,
    epochs_location,
    look_ups_location,
    partition_location,
    published_location,
    stream_execution,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph.job_graph import BATCHES_OF, EPOCHS_OF, ResultMedium
from flinkray.streaming.operators.task_services import LookUpRoom
from flinkray.streaming.sources.source import StageLocations


class TaskFiles(StageLocations):
    """The inputs, outputs and notes of one task in the cluster's storage."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        storage_dir: str,
        max_waiting_records: int,
        deployed: DeployedTask,
    ) -> None:
        """Create the files of *deployed*.
        *max_waiting_records* applies to jobs that do not set how many records wait in a look-up.
        """
        job = deployed.job
        self._storage_dir = storage_dir
        self._max_waiting_records = (
            max_waiting_records if job.max_waiting_records is None else job.max_waiting_records
        )
        self._deployed = deployed
        self._job_id = job.job_id
        self.inputs = tuple(
            FileInput(
                storage_dir,
                job.job_id,
                information,
                locations,
                deployed.task.subtask_index,
                deployed.vertex.parallelism,
            )
            for information, locations in deployed.inputs_of(ResultMedium.FILES)
        )
        """The task's inputs that are in files, in the order of the vertex's inputs."""
        self.outputs = {
            one.data_set_id: FileOutput(
                endpoint, partition_location(storage_dir, job.job_id, one), deployed.name
            )
            for one in written_partitions(deployed.graph_id, deployed.vertex, deployed.task)
        }
        """Result of the vertex -> the task's part of it, in the order of the vertex's results."""

    def commit_log(self, operator_id: str) -> FileCommitLog:
        """Return the log for a sink's committer of a job without checkpoints: after all records are
        written, the committer notes there what it is about to commit."""
        return FileCommitLog(commit_log_location(self._storage_dir, self._job_id, operator_id))

    def published(self, vertex_id: JobVertexID) -> str:
        return published_location(self._storage_dir, self._job_id, vertex_id)

    def epochs(self, vertex_id: JobVertexID) -> str:
        return epochs_location(self._storage_dir, self._job_id, vertex_id)

    def look_up_room(self, operator_id: str) -> LookUpRoom:
        """Return the object that limits how many records wait in this subtask of a look-up."""
        return NotedRoom(
            LookUpNotes(look_ups_location(self._storage_dir, self._job_id, operator_id)),
            self._execution,
            self._deployed.task.subtask_index,
            self._deployed.task.attempt_number,
            self._max_waiting_records,
        )

    def end_streams(self) -> None:
        """Note in the storage that the task writes no more epochs for Spark stages, and reads no
        more batches that a Spark stage publishes. Blocks.
        """
        deployed = self._deployed
        configuration = deployed.vertex.invokable.configuration
        for vertex_id in configuration.get(EPOCHS_OF, "").split():
            Epochs(self.epochs(JobVertexID.from_hex(vertex_id))).end(self._execution)
        batches_of = configuration.get(BATCHES_OF)
        if batches_of is not None:
            batches = PublishedBatches(self.published(JobVertexID.from_hex(batches_of)))
            batches.note_reader_ended(
                self._execution, deployed.task.subtask_index, deployed.vertex.parallelism
            )

    @property
    def _execution(self) -> str:
        return stream_execution(self._deployed.graph_id, self._deployed.task.restores)


class NotedRoom(LookUpRoom):
    """Notes in the storage whether too many records of a subtask wait in a look-up join.
    The job's coordinator reads the note, and pauses the sources.

    Args:
        execution: name of the stream execution.
        attempt: number of the subtask's attempt in this execution.
    """

    def __init__(
        self, notes: LookUpNotes, execution: str, subtask: int, attempt: int, most: int
    ) -> None:
        self._notes = notes
        self._execution = execution
        self._subtask = subtask
        self._attempt = attempt
        self.most = most
        self._may_be_full = attempt > 0
        """Whether a note in the storage, perhaps of an earlier attempt, may say that it is full."""

    def full(self) -> None:
        self._note(is_full=True)
        self._may_be_full = True

    def free(self) -> None:
        if self._may_be_full:
            self._note(is_full=False)

    def _note(self, *, is_full: bool) -> None:
        self._notes.note(self._execution, self._subtask, self._attempt, is_full=is_full)
