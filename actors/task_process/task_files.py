"""Files in the cluster's storage that tasks of a process read and write."""

from __future__ import annotations

from flinkray.actors.shared.produced_partitions import written_partitions
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.file_results import FileInput, FileOutput
from flinkray.core.ids import JobID, JobVertexID
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
from flinkray.streaming.operators.look_up import LookUpRoom


class TaskFiles:
    """Gives the tasks of a process their inputs, outputs and notes in the cluster's storage."""

    def __init__(self, endpoint: RpcEndpoint, main: MainLoop, storage_dir: str) -> None:
        self._endpoint = endpoint
        self._main = main
        self._storage_dir = storage_dir

    def inputs_of(self, deployed: DeployedTask) -> tuple[FileInput, ...]:
        """Return the task's inputs that are in files, in the order of the vertex's inputs."""
        return tuple(
            FileInput(
                self._endpoint.rpc_service,
                self._main,
                self._storage_dir,
                deployed.job.job_id,
                information,
                locations,
                deployed.task.subtask_index,
                deployed.vertex.parallelism,
            )
            for information, locations in deployed.inputs_of(ResultMedium.FILES)
        )

    def commit_log(self, job_id: JobID, operator_id: str) -> FileCommitLog:
        """Return the log in which a sink's committer notes what it commits at the end."""
        return FileCommitLog(commit_log_location(self._storage_dir, job_id, operator_id))

    def published(self, job_id: JobID, vertex_id: JobVertexID) -> str:
        """Return the location where a vertex of the job publishes batches while it runs."""
        return published_location(self._storage_dir, job_id, vertex_id)

    def epochs(self, job_id: JobID, vertex_id: JobVertexID) -> str:
        """Return the location where a stream of the job publishes epochs for a vertex."""
        return epochs_location(self._storage_dir, job_id, vertex_id)

    def look_up_room(self, deployed: DeployedTask, operator_id: str, most: int) -> LookUpRoom:
        """Return the object that limits how many records wait in this subtask of a look-up to
        *most*.
        """
        location = look_ups_location(self._storage_dir, deployed.job.job_id, operator_id)
        return NotedRoom(
            LookUpNotes(location),
            stream_execution(deployed.graph_id, deployed.task.restores),
            deployed.task.subtask_index,
            deployed.task.attempt_number,
            most,
        )

    def end_streams(self, deployed: DeployedTask) -> None:
        """Note in the storage that the task publishes no more epochs and reads no more batches.
        Blocks.
        """
        execution = stream_execution(deployed.graph_id, deployed.task.restores)
        configuration, job_id = deployed.vertex.invokable.configuration, deployed.job.job_id
        for vertex_id in configuration.get(EPOCHS_OF, "").split():
            Epochs(self.epochs(job_id, JobVertexID.from_hex(vertex_id))).end(execution)
        batches_of = configuration.get(BATCHES_OF)
        if batches_of is not None:
            batches = PublishedBatches(self.published(job_id, JobVertexID.from_hex(batches_of)))
            batches.note_reader_ended(
                execution, deployed.task.subtask_index, deployed.vertex.parallelism
            )

    def outputs_of(self, deployed: DeployedTask) -> tuple[FileOutput, ...]:
        """Return the task's results that go to files, in the order of the vertex's results."""
        job_id = deployed.job.job_id
        return tuple(
            FileOutput(
                self._endpoint, self._main, partition_location(self._storage_dir, job_id, one)
            )
            for one in written_partitions(deployed.graph_id, deployed.vertex, deployed.task)
        )


class NotedRoom(LookUpRoom):
    """Notes in the storage whether too many records wait in a subtask of a look-up.
    The job's coordinator then makes the sources wait.

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
