"""Jobs on real masters and TaskExecutors, with scripted Spark drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.gateways import DispatcherGateway, JobMasterGateway
from flinkray.actors.gateways.job_processes import job_master_process
from flinkray.actors.gateways.messages import ClusterArguments, JobMasterArguments
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FencingTokenError,
    JobNotFoundError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import (
    DispatcherId,
    JobID,
    JobMasterId,
    LeaderSessionID,
    ResourceID,
    TriggerID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.rpc import RpcService
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.scripted_spark_driver import SCRIPTED_SPARK_DRIVER
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK
from tests.actors.resource_cluster import DISPATCHER

RUNS = ["register", "wait"]
ENDS = ["register", "finish"]


_POLL_INTERVAL = 0.005
"""Seconds.  A loop without a pause would keep the interpreter from the threads in which blocking
work is done, such as looking for processes that a Spark stage has left."""


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async def poll() -> None:
        while not await condition():  # noqa: ASYNC110 - no event tells of what is polled here
            await asyncio.sleep(_POLL_INTERVAL)

    try:
        await asyncio.wait_for(poll(), 10)
    except asyncio.TimeoutError:
        raise AssertionError(f"never saw {what}") from None


async def until_status(cluster: MiniCluster, job_id: JobID, status: JobStatus) -> None:
    async def has_status() -> bool:
        return await cluster.status(job_id) is status

    await eventually(has_status, f"job {status.name}")


async def until_executing(cluster: MiniCluster, job_id: JobID) -> None:
    """All executors of the job's present attempt are registered."""

    async def executing() -> bool:
        vertices = (await cluster.details(job_id)).vertices
        executions = [e for v in vertices for e in v.executions]
        return bool(executions) and all(e.state is ExecutionState.RUNNING for e in executions)

    await eventually(executing, "all executions RUNNING")


async def end(cluster: MiniCluster, job_id: JobID) -> JobResult:
    """The job's result; with it everything that the job had must be gone."""
    result = await asyncio.wait_for(cluster.result(job_id), 10)
    assert not [name for name in cluster.processes() if job_id.hex() in name]
    assert not any(group.group.is_own_of(job_id) for group in cluster.workers.groups.values())
    assert all(node.used.is_zero() for node in cluster.workers.nodes)
    assert cluster.processes("TaskExecutor") == []
    return result


async def test_finished_job_leaves_no_processes_worker_groups_or_used_resources(
    cluster: MiniCluster,
) -> None:
    """DI-01."""
    job_id = await cluster.submit(scripted_job(ENDS))

    result = await end(cluster, job_id)

    assert result.status is JobStatus.FINISHED
    assert await cluster.status(job_id) is JobStatus.FINISHED


async def test_subtask_i_runs_in_the_slot_of_bundle_i(cluster: MiniCluster) -> None:
    job_id = await cluster.submit(scripted_job(RUNS, parallelism=3))
    await until_executing(cluster, job_id)

    details = await cluster.details(job_id)

    (group,) = cluster.workers.created_groups
    assert len(group.bundles) == 3
    assert details.worker_group == group.group_id
    for index, execution in enumerate(details.vertices[0].executions):
        assert f"bundle {index}" in (execution.location or "")


async def test_second_job_of_the_same_id_is_refused_while_running_and_after(
    cluster: MiniCluster,
) -> None:
    """DI-02, DI-03."""
    job = scripted_job(RUNS)
    await cluster.submit(job)
    with pytest.raises(DuplicateJobSubmissionError, match=job.job_id.hex()):
        await cluster.submit(job)
    await until_executing(cluster, job.job_id)
    await (await cluster.dispatcher()).cancel_job(job.job_id)
    await end(cluster, job.job_id)
    with pytest.raises(DuplicateJobSubmissionError):
        await cluster.submit(job)


async def test_only_one_of_several_simultaneous_submissions_of_a_job_id_is_accepted(
    cluster: MiniCluster,
) -> None:
    """DI-02."""
    job = scripted_job(ENDS)
    dispatcher = await cluster.dispatcher()

    answers = await asyncio.gather(
        *(dispatcher.submit_job(job) for _ in range(5)), return_exceptions=True
    )

    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, DuplicateJobSubmissionError) for answer in answers) == 4
    assert (await end(cluster, job.job_id)).status is JobStatus.FINISHED


@pytest.mark.parametrize("kind", SnapshotType)
async def test_snapshot_request_for_a_job_without_checkpoints_is_refused(
    cluster: MiniCluster, kind: SnapshotType
) -> None:
    """Otherwise the caller would wait for ever."""
    job_id = await cluster.submit(scripted_job(["register", "wait"]))
    request = SnapshotRequest(TriggerID.generate(), kind)
    dispatcher = await cluster.dispatcher()
    with pytest.raises(CheckpointError, match="the job takes none, as it is no streaming job"):
        await asyncio.wait_for(dispatcher.take_snapshot(job_id, request), 30)


async def test_job_with_details_that_exceed_the_message_limit_still_ends(
    cluster: MiniCluster,
) -> None:
    """Otherwise its JobMaster could not report the end, and would keep everything for ever."""
    job = scripted_job(RUNS)
    await cluster.submit(job)
    await until_executing(cluster, job.job_id)
    (service,) = (s for n, s in cluster.network.services.items() if n.startswith("JobMaster"))
    for connection in service.connections():
        connection._max_frame_size = 1250  # a result is smaller, one with executions larger
    await (await cluster.dispatcher()).cancel_job(job.job_id)
    assert (await end(cluster, job.job_id)).status is JobStatus.CANCELED
    (vertex,) = (await cluster.details(job.job_id)).vertices
    assert (vertex.parallelism, vertex.executions) == (2, ())


async def test_job_list_and_status_do_not_fetch_job_details(
    cluster: MiniCluster,
) -> None:
    """DI-08: the details of a large job are megabytes; the numbers of its tasks are not."""
    job_id = await cluster.submit(scripted_job(RUNS, parallelism=3))
    await until_executing(cluster, job_id)
    started = (await cluster.details(job_id)).start_time
    (service,) = (s for n, s in cluster.network.services.items() if n.startswith("JobMaster"))

    before = {name: metrics.calls for name, metrics in service.metrics.handled.items()}
    dispatcher = await cluster.dispatcher()

    (line,) = await dispatcher.list_jobs()
    assert (line.status, line.tasks) == (JobStatus.RUNNING, {"RUNNING": 3})
    assert (line.start_time, line.end_time) == (started, None)
    assert await dispatcher.request_job_status(job_id) is JobStatus.RUNNING
    after = {name: metrics.calls for name, metrics in service.metrics.handled.items()}
    asked = {name for name in after if after[name] != before.get(name, 0)}
    assert {name for name in asked if "request_job" in name} == {
        "JobMasterGateway.request_job_overview",
        "JobMasterGateway.request_job_status",
    }

    await dispatcher.cancel_job(job_id)
    await end(cluster, job_id)
    (line,) = await dispatcher.list_jobs()
    assert (line.status, line.tasks) == (JobStatus.CANCELED, {"CANCELED": 3})
    assert (line.start_time, line.end_time is None) == (started, False)


async def test_graph_with_parallelism_0_is_refused_with_the_reason(cluster: MiniCluster) -> None:
    with pytest.raises(JobSubmissionError, match="parallelism"):
        await cluster.submit(scripted_job(ENDS, parallelism=0))
    assert await (await cluster.dispatcher()).list_jobs() == ()


async def test_every_request_for_an_unknown_job_raises_an_error_with_its_id(
    cluster: MiniCluster,
) -> None:
    """DI-08."""
    dispatcher = await cluster.dispatcher()
    job_id = JobID.generate()
    for question in (
        dispatcher.request_job_status,
        dispatcher.request_job_details,
        dispatcher.request_job_result,
        dispatcher.cancel_job,
    ):
        with pytest.raises(JobNotFoundError, match=job_id.hex()):
            await question(job_id)


async def test_call_with_a_stale_fencing_token_is_refused_by_dispatcher_and_job_master(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    stale = LeaderSessionID.generate()

    dispatcher = await cluster.client.connect(
        DISPATCHER_ADDRESS, DispatcherGateway, DispatcherId.of(stale)
    )
    with pytest.raises(FencingTokenError):
        await dispatcher.list_jobs()
    master = await cluster.client.connect(
        f"{job_master_process(job_id)}/jobmaster", JobMasterGateway, JobMasterId.of(stale)
    )
    with pytest.raises(FencingTokenError):
        await master.cancel(DISPATCHER)
    assert await cluster.status(job_id) is JobStatus.RUNNING


async def test_failure_without_restarts_fails_the_job_with_its_cause(cluster: MiniCluster) -> None:
    """DI-08, JM-22."""
    job = scripted_job(["register", "fail boom"], restart_strategy=NoRestart())
    await cluster.submit(job)

    result = await end(cluster, job.job_id)

    assert result.status is JobStatus.FAILED
    assert "boom" in (result.failure or "")
    assert "boom" in (await cluster.details(job.job_id)).exceptions[0].text


async def test_failures_are_followed_by_restarts_in_the_same_slots(cluster: MiniCluster) -> None:
    job = scripted_job(["fail one"], ["register", "fail two"], ENDS)
    await cluster.submit(job)

    result = await end(cluster, job.job_id)

    assert result.status is JobStatus.FINISHED
    details = await cluster.details(job.job_id)
    assert details.restarts == 2
    assert ["one" in e.text or "two" in e.text for e in details.exceptions] == [True, True]
    assert len(cluster.workers.created_groups) == 1
    assert len(cluster.workers.starts) == 2


async def test_lost_executor_causes_a_new_attempt_of_its_subtask_only(cluster: MiniCluster) -> None:
    job_id = await cluster.submit(scripted_job(["register", "lose 1", "register", "wait"]))
    await until_executing(cluster, job_id)

    async def replaced() -> bool:
        executions = (await cluster.details(job_id)).vertices[0].executions
        return [e.attempt_number for e in executions] == [0, 1]

    await eventually(replaced, "a new attempt of subtask 1")
    assert (await cluster.details(job_id)).restarts == 0


async def test_cancelled_job_ends_canceled_and_can_be_cancelled_again(
    cluster: MiniCluster,
) -> None:
    """DI-06."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    dispatcher = await cluster.dispatcher()

    await dispatcher.cancel_job(job_id)

    assert (await end(cluster, job_id)).status is JobStatus.CANCELED
    await dispatcher.cancel_job(job_id)


async def test_job_cancelled_while_initializing_ends_canceled(cluster: MiniCluster) -> None:
    """DI-06."""
    job = scripted_job(RUNS)
    dispatcher = await cluster.dispatcher()
    await asyncio.gather(dispatcher.submit_job(job), dispatcher.cancel_job(job.job_id))

    assert (await end(cluster, job.job_id)).status is JobStatus.CANCELED


async def test_finished_job_cannot_be_cancelled(cluster: MiniCluster) -> None:
    """DI-06."""
    job_id = await cluster.submit(scripted_job(ENDS))
    await end(cluster, job_id)
    with pytest.raises(JobStateError, match="without being cancelled"):
        await (await cluster.dispatcher()).cancel_job(job_id)


async def test_slot_larger_than_any_node_fails_the_job_at_once(cluster: MiniCluster) -> None:
    job = scripted_job(ENDS, profile=ResourceProfile(64, 2**30))
    await cluster.submit(job)

    result = await end(cluster, job.job_id)

    assert result.status is JobStatus.FAILED
    assert "64 CPU" in (result.failure or "")


async def test_two_jobs_have_their_own_worker_groups(cluster: MiniCluster) -> None:
    jobs = [await cluster.submit(scripted_job(RUNS)) for _ in range(2)]
    for job_id in jobs:
        await until_executing(cluster, job_id)
    groups = {(await cluster.details(job_id)).worker_group for job_id in jobs}
    assert len(groups) == 2


@pytest.mark.parametrize(
    "victim",
    ["SparkDriver", "TaskExecutor", "JobMaster", "ResourceManager", "Dispatcher"],
)
async def test_job_runs_again_after_the_death_of_a_process(
    victim: str, cluster: MiniCluster
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS, ENDS))
    await until_executing(cluster, job_id)

    cluster.crash(victim)

    if victim in ("JobMaster", "ResourceManager", "Dispatcher"):
        # the job goes on, or begins again with its first attempt: it is cancelled to see its end
        await until_executing_again(cluster, job_id, victim)
        await (await cluster.dispatcher()).cancel_job(job_id)
        expected = JobStatus.CANCELED
    else:
        expected = JobStatus.FINISHED
    assert (await end(cluster, job_id)).status is expected
    assert len(cluster.processes("Dispatcher")) == 1
    assert len(cluster.processes("ResourceManager")) == 1


async def until_executing_again(cluster: MiniCluster, job_id: JobID, victim: str) -> None:
    async def has_details() -> bool:
        return bool((await cluster.details(job_id)).vertices)

    if victim == "Dispatcher":
        await dispatcher_is_back(cluster)
    await eventually(has_details, "the job's details")
    await until_executing(cluster, job_id)


async def test_progress_and_failures_of_a_job_count_the_deaths_of_its_job_masters(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.crash("JobMaster")
    await until_executing_again(cluster, job_id, "JobMaster")
    dispatcher = await cluster.dispatcher()

    progress = await dispatcher.request_job_progress(job_id)
    (failure,) = await dispatcher.request_job_exceptions(job_id)

    assert "the JobMaster died" in failure.text
    assert progress.status is JobStatus.RUNNING
    assert (progress.restarts, progress.failovers) == (0, 1)
    (vertex,) = progress.vertices
    assert (vertex.tasks, vertex.is_spark_stage) == ({"RUNNING": 2}, True)
    await dispatcher.cancel_job(job_id)
    await end(cluster, job_id)
    ended = await dispatcher.request_job_progress(job_id)
    assert (ended.status, ended.failovers, ended.vertices) == (JobStatus.CANCELED, 1, ())
    assert await dispatcher.request_job_exceptions(job_id) == (failure,)


async def test_job_with_repeatedly_dying_job_master_fails_with_the_cause(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    for _ in range(6):
        await until_executing(cluster, job_id)
        cluster.crash("JobMaster")

    result = await end(cluster, job_id)

    assert result.status is JobStatus.FAILED
    assert "JobMaster died 6 times" in (result.failure or "")


async def test_job_results_outlive_the_dispatcher(cluster: MiniCluster) -> None:
    """DI-13."""
    job_id = await cluster.submit(scripted_job(ENDS))
    before = await end(cluster, job_id)

    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert await cluster.result(job_id) == before
    with pytest.raises(DuplicateJobSubmissionError):
        await cluster.submit(replace(scripted_job(ENDS), job_id=job_id))


async def dispatcher_is_back(cluster: MiniCluster) -> None:
    async def answers() -> bool:
        try:
            await (await cluster.dispatcher()).list_jobs()
        except RpcError:
            return False
        return True

    await eventually(answers, "the Dispatcher's answer")


@pytest.mark.parametrize(
    ("victim", "cause"),
    [("TaskExecutor", "TaskExecutor"), ("SparkDriver", "Spark driver")],
)
async def test_job_without_restarts_fails_with_the_cause_after_the_death_of_a_process(
    victim: str, cause: str, cluster: MiniCluster
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=NoRestart()))
    await until_executing(cluster, job_id)

    cluster.crash(victim)

    result = await end(cluster, job_id)
    assert result.status is JobStatus.FAILED
    assert cause in (result.failure or "")


class DeafJobMaster(JobMaster):
    """Lives, and answers no heartbeat of the Dispatcher."""

    async def heartbeat_from_dispatcher(
        self, resource_id: ResourceID, dispatcher_id: DispatcherId
    ) -> None:
        pass


async def create_deaf_job_master(
    rpc_service: RpcService, arguments: JobMasterArguments
) -> DeafJobMaster:
    services = ClusterServices.create(rpc_service, arguments.cluster)
    leadership = await win_job(services, arguments)
    return DeafJobMaster(
        rpc_service, services, arguments, leadership, spark_driver_factory=SCRIPTED_SPARK_DRIVER
    )


async def dispatcher_with(
    rpc_service: RpcService, arguments: ClusterArguments, job_master_factory: str
) -> Dispatcher:
    services = ClusterServices.create(rpc_service, arguments)
    leadership = await Leadership.win(services.high_availability.get_dispatcher_leader_election())
    dispatcher = Dispatcher(
        rpc_service, services, leadership, job_master_factory=job_master_factory
    )
    await dispatcher.recover()
    return dispatcher


async def create_dispatcher_of_deaf_job_masters(
    rpc_service: RpcService, arguments: ClusterArguments
) -> Dispatcher:
    return await dispatcher_with(rpc_service, arguments, f"{__name__}:create_deaf_job_master")


class ClusterOfDeafJobMasters(MiniCluster):
    masters: ClassVar[dict[str, str]] = {
        **MiniCluster.masters,
        "Dispatcher": f"{__name__}:create_dispatcher_of_deaf_job_masters",
    }


@on_virtual_time
async def test_job_fails_after_hung_job_masters_have_used_up_its_failovers(tmp_path: Path) -> None:
    configuration = {**QUICK, "jobmaster.max-failovers": "1"}
    async with ClusterOfDeafJobMasters(str(tmp_path), configuration=configuration) as cluster:
        job_id = await cluster.submit(scripted_job(RUNS))

        result = await asyncio.wait_for(cluster.result(job_id), 200)

    assert result.status is JobStatus.FAILED
    assert "JobMaster died 2 times" in (result.failure or "")


async def create_dispatcher_without_job_masters(
    rpc_service: RpcService, arguments: ClusterArguments
) -> Dispatcher:
    factory = "tests.actors.no_such_module:create_job_master"
    return await dispatcher_with(rpc_service, arguments, factory)


class ClusterWithoutJobMasters(MiniCluster):
    masters: ClassVar[dict[str, str]] = {
        **MiniCluster.masters,
        "Dispatcher": f"{__name__}:create_dispatcher_without_job_masters",
    }


@on_virtual_time
async def test_job_with_an_unloadable_job_master_fails_at_once_with_cause(
    tmp_path: Path,
) -> None:
    """No JobMaster has died, and the next JobMaster could not be loaded either."""
    async with ClusterWithoutJobMasters(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(scripted_job(RUNS))
        result = await asyncio.wait_for(cluster.result(job_id), 60)
        details = await cluster.details(job_id)

    assert result.status is JobStatus.FAILED
    assert (result.failure or "").startswith("its JobMaster cannot be started: ConfigurationError")
    assert "No module named 'tests.actors.no_such_module'" in (result.failure or "")
    assert details.failovers == 0
    assert [entry.text for entry in details.exceptions] == [result.failure]


@on_virtual_time
async def test_job_options_override_cluster_options(tmp_path: Path) -> None:
    """FO-14."""
    cluster_wide = {
        **QUICK,
        "restart-strategy.type": "none",
        "restart-strategy.failure-rate.delay": "5 s",
    }
    fails_twice = scripted_job(["fail one"], ["fail two"], ENDS)
    of_job = {
        "restart-strategy.type": "failure-rate",
        "restart-strategy.failure-rate.max-failures-per-interval": "2",
    }
    async with MiniCluster(str(tmp_path), configuration=cluster_wide) as cluster:
        begun = cluster.client.clock.monotonic()
        job_id = await cluster.submit(replace(fails_twice, configuration=of_job))
        result = await asyncio.wait_for(cluster.result(job_id), 60)
        assert result.status is JobStatus.FINISHED
        assert (await cluster.details(job_id)).restarts == 2
        assert cluster.client.clock.monotonic() - begun >= 10, "the cluster's delay, twice"


@on_virtual_time
async def test_job_with_checkpoints_restarts_by_default(
    tmp_path: Path,
) -> None:
    """FO-14. Otherwise the job would fail with its first failure."""
    job = scripted_job(["fail one"], ENDS)
    configuration = {"cluster.registration.error-delay": "5 ms"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        with_checkpoints = {"execution.checkpointing.interval": "10 s"}
        job_id = await cluster.submit(replace(job, configuration=with_checkpoints))
        result = await asyncio.wait_for(cluster.result(job_id), 60)
        assert result.status is JobStatus.FINISHED

        job_id = await cluster.submit(replace(job, job_id=JobID.generate()))
        result = await asyncio.wait_for(cluster.result(job_id), 60)
        assert result.status is JobStatus.FAILED


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        ({"heartbeat.interval": "1 s"}, "heartbeat.interval cannot be set for a job"),
        ({"restart-strategy.type": "sometimes"}, "restart-strategy.type is not accepted"),
        (
            {"restart-strategy.exponential-delay.initial-backoff": "30 s"},
            r"max-backoff \(20 s\) must not be shorter",
        ),
    ],
)
@on_virtual_time
async def test_job_whose_options_contradict_those_of_the_cluster_is_refused(
    tmp_path: Path, configuration: dict[str, str], text: str
) -> None:
    of_cluster = {"restart-strategy.exponential-delay.max-backoff": "20 s"}
    async with MiniCluster(str(tmp_path), configuration=of_cluster) as cluster:
        with pytest.raises(JobSubmissionError, match=text):
            await cluster.submit(replace(scripted_job(ENDS), configuration=configuration))
        assert await (await cluster.dispatcher()).list_jobs() == ()
