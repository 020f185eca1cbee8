"""What stays of the checkpoints of a job that has ended, when its JobMasters have died."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.dispatcher.job_cleanup import forget_checkpoints
from flinkray.actors.gateways.messages import ArchivedJob, ClusterArguments, StoredJob
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.metadata import CheckpointMetadata, SnapshotKind
from flinkray.checkpoint.metadata_file import write_metadata
from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import JobID
from flinkray.core.job_options import CHECKPOINTING_DIR
from flinkray.ha.directory import LocalDirectory
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import python_job
from flinkray.testing.virtual_time import on_virtual_time

JOB = JobID(b"\1" * 16)
FAILED = JobResult(JOB, "a job", JobStatus.FAILED, 1.0, "it has failed")
DETAILS = JobDetails(JOB, "a job", JobStatus.FAILED, 0.0, 1.0, {}, 0)


def cluster_in(directory: Path, network: LocalNetwork) -> ClusterServices:
    service = LocalRpcService("Dispatcher", network)
    return ClusterServices.create(service, ClusterArguments("test", {}, str(directory)))


def checkpointed(directory: str) -> JobGraph:
    """A job that retains nothing."""
    configuration = {CHECKPOINTING_DIR.key: directory}
    return JobGraph(
        JOB, "a job", (), configuration=configuration, checkpoints=CheckpointConfiguration()
    )


def with_checkpoint(checkpoints: Path) -> Path:
    """Where one of the job is."""
    directory = checkpoints / JOB.hex() / "chk-1"
    write_metadata(str(directory), CheckpointMetadata(JOB, 1, 0, SnapshotKind.CHECKPOINT, ()))
    return directory


@pytest.mark.parametrize("is_unreadable", [False, True])
@on_virtual_time
async def test_checkpoints_of_a_failed_job_are_kept_only_if_one_of_them_was_unreadable(
    is_unreadable: bool, tmp_path: Path
) -> None:
    """A job that failed because its checkpoint is unreadable tells the user to start anew from
    another one, so they must stay. A later version of flinkray may have written the checkpoint."""
    network = LocalNetwork()
    services = cluster_in(tmp_path / "cluster", network)
    checkpoint = with_checkpoint(tmp_path / "checkpoints")
    result = replace(FAILED, keeps_checkpoints=is_unreadable)
    graph = checkpointed(str(tmp_path / "checkpoints"))
    await forget_checkpoints(services, UserStorage(services.rpc_service), graph, result)
    assert checkpoint.exists() is is_unreadable
    await network.close()


@on_virtual_time
async def test_checkpoints_of_an_ended_job_are_deleted_once_failing_storage_works_again(
    tmp_path: Path,
) -> None:
    """One error of the storage must not leave the checkpoints for ever."""
    network = LocalNetwork()
    services = cluster_in(tmp_path / "cluster", network)
    checkpoint = with_checkpoint(tmp_path / "checkpoints")
    in_the_way = LocalDirectory(checkpoint / "a file, once that is no directory")
    in_the_way.write("entry", b"")
    asyncio.get_running_loop().call_later(10, in_the_way.delete_all)
    graph = checkpointed(str(tmp_path / "checkpoints"))
    await forget_checkpoints(services, UserStorage(services.rpc_service), graph, FAILED)
    assert not checkpoint.exists()
    await network.close()


@pytest.mark.parametrize(
    "configuration",
    [{CHECKPOINTING_DIR.key: "s3://[bucket/checkpoints"}, {"an.option": "of another flinkray"}],
)
@on_virtual_time
async def test_clean_up_of_a_job_with_an_invalid_checkpoint_directory_raises_no_error(
    configuration: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The unknown directory must not end the Dispatcher at each of its starts."""
    network = LocalNetwork()
    services = cluster_in(tmp_path, network)
    graph = replace(checkpointed("unused"), configuration=configuration)
    await forget_checkpoints(services, UserStorage(services.rpc_service), graph, FAILED)
    assert "something of its checkpoints stays" in caplog.text
    await network.close()


@on_virtual_time
async def test_job_with_invalid_checkpoint_directory_is_refused(tmp_path: Path) -> None:
    network = LocalNetwork()
    services = cluster_in(tmp_path, network)
    election = services.high_availability.get_dispatcher_leader_election()
    dispatcher = Dispatcher(services.rpc_service, services, await Leadership.win(election))
    configuration = {CHECKPOINTING_DIR.key: "s3://[bucket/checkpoints"}
    job = python_job(lambda context: None, configuration=configuration)
    with pytest.raises(JobSubmissionError, match="is neither a path nor a URI"):
        await dispatcher.submit_job(job)
    await network.close()


@on_virtual_time
async def test_next_dispatcher_continues_the_clean_up_of_checkpoints(
    tmp_path: Path,
) -> None:
    """The last Dispatcher stored how the job ended, and died; the JobMasters are dead, too."""
    network = LocalNetwork()
    services = cluster_in(tmp_path, network)
    stores = services.high_availability
    graph = checkpointed(str(tmp_path / "checkpoints"))
    await stores.get_job_graph_store(StoredJob).put_job_graph(StoredJob(graph, 0.0))
    await stores.get_job_result_store(ArchivedJob).create_dirty_result(ArchivedJob(FAILED, DETAILS))
    leadership = await Leadership.win(stores.get_dispatcher_leader_election())
    dispatcher = Dispatcher(services.rpc_service, services, leadership)
    await dispatcher.recover()
    job = dispatcher._jobs[JOB]
    assert job.outcome is not None
    assert job.graph == graph
    await network.close()
