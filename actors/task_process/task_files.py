"""The results that are files of the tasks of a process."""

from __future__ import annotations

from flinkray.actors.shared.produced_partitions import written_partitions
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.file_results import FileInput, FileOutput
from flinkray.actors.task_process.noted_room import NotedRoom
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
    """What its tasks read and write of them."""

    def __init__(self, endpoint: RpcEndpoint, main: MainLoop, storage_dir: str) -> None:
        self._endpoint = endpoint
        self._main = main
        self._storage_dir = storage_dir

    def inputs_of(self, deployed: DeployedTask) -> tuple[FileInput, ...]:
        """In the order of the vertex's inputs; without those that come by channels."""
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
        """Where the committer of a sink notes what it commits at the end."""
        return FileCommitLog(commit_log_location(self._storage_dir, job_id, operator_id))

    def published(self, job_id: JobID, vertex_id: JobVertexID) -> str:
        """Where a vertex of the job publishes partitions while it runs."""
        return published_location(self._storage_dir, job_id, vertex_id)

    def epochs(self, job_id: JobID, vertex_id: JobVertexID) -> str:
        """Where a stream of the job publishes the epochs that a vertex takes."""
        return epochs_location(self._storage_dir, job_id, vertex_id)

    def look_up_room(self, deployed: DeployedTask, operator_id: str, most: int) -> LookUpRoom:
        """Of the task's subtask of a look-up."""
        location = look_ups_location(self._storage_dir, deployed.job.job_id, operator_id)
        return NotedRoom(
            LookUpNotes(location),
            stream_execution(deployed.graph_id, deployed.task.restores),
            deployed.task.subtask_index,
            deployed.task.attempt_number,
            most,
        )

    def end_streams(self, deployed: DeployedTask) -> None:
        """The task has come to its end: no epochs follow those that its committers have published,
        and it takes no more micro-batches.  Blocks."""
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
        """In the order of the vertex's results; without those that go by channels."""
        job_id = deployed.job.job_id
        return tuple(
            FileOutput(
                self._endpoint, self._main, partition_location(self._storage_dir, job_id, one)
            )
            for one in written_partitions(deployed.graph_id, deployed.vertex, deployed.task)
        )
