"""One job, one JobMaster after the other: starting, leading, suspended, replaced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.gateways import (
    DispatcherGateway,
    JobMasterGateway,
    ResourceManagerGateway,
)
from flinkray.actors.gateways.messages import (
    ArchivedJob,
    ClusterArguments,
    JobMasterArguments,
    JobMasterRegistrationSuccess,
    JobMasterToDispatcherRegistrationSuccess,
    StoredJob,
)
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.blob import BlobStore
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    JobNotFoundError,
    JobStateError,
    UnreadableRecordError,
)
from flinkray.core.ids import DispatcherId, JobMasterId, ResourceID, ResourceManagerId
from flinkray.ha.entries import VERSION
from flinkray.rpc import LocalNetwork, LocalRpcService, RegistrationRejection, RpcEndpoint
from flinkray.scheduler.graph.job_graph import ParallelismBounds, SchedulerMode
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.slots import ResourceRequirements
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import PythonJobBuilder, python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.simulation import SimulatedProcess
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    on_cluster,
    start_slowly,
    starts_of,
    until_executing,
    until_up,
)
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.conftest import QUICK
from tests.actors.leaders import ManualLeaders
from tests.actors.resource_cluster import number
from tests.actors.test_python_jobs import executions, finishing, until_running, waiting

ENDS = ["register", "finish"]
JOB_MASTER = number(JobMasterId, 1)


# --- the JobMaster and its leaders ----------------------------------------------------------------


@on_virtual_time
async def test_job_master_ignores_the_old_resource_manager_while_it_registers_at_a_new_one(
    tmp_path: Path,
) -> None:
    """JM-06: the old ResourceManager has not answered yet, and its late answer is ignored."""
    network = LocalNetwork()
    service = LocalRpcService("JobMaster", network)
    leaders = ManualLeaders(service.executor)
    arguments = ClusterArguments("test", {}, str(tmp_path))
    services = ClusterServices(
        service, arguments, ClusterServices.create(service, arguments).configuration, leaders
    )
    silent = asyncio.get_running_loop().create_future()
    managers = []
    for index in (1, 2):
        token = number(ResourceManagerId, index)
        manager = TestingGateway(ResourceManagerGateway, token).lenient()
        manager.start(LocalRpcService(f"ResourceManager-{index}", network), "resourcemanager")
        managers.append(manager)
    first, second = managers
    success = JobMasterRegistrationSuccess(number(ResourceManagerId, 1), ResourceID("first"))

    async def answers_late(*_: object) -> JobMasterRegistrationSuccess:
        await silent
        return success

    first.on(ResourceManagerGateway.register_job_master).calling(answers_late)
    second.on(ResourceManagerGateway.register_job_master).returning(
        JobMasterRegistrationSuccess(number(ResourceManagerId, 2), ResourceID("second"))
    )
    job = JobMasterArguments(arguments, python_job(waiting()), number(JobMasterId, 1))
    master = JobMaster(service, services, job, await win_job(services, job))
    master.start()
    await asyncio.sleep(0.01)
    leaders.manager.tell(first.address, number(ResourceManagerId, 1))
    await first.wait_for(ResourceManagerGateway.register_job_master)

    leaders.manager.tell(second.address, number(ResourceManagerId, 2))
    await second.wait_for(ResourceManagerGateway.register_job_master)
    attempts = len(first.calls_of(ResourceManagerGateway.register_job_master))
    silent.set_result(None)
    await asyncio.sleep(40)

    assert len(first.calls_of(ResourceManagerGateway.register_job_master)) == attempts
    assert len(second.calls_of(ResourceManagerGateway.register_job_master)) == 1
    assert first.calls_of(ResourceManagerGateway.heartbeat_from_job_master) == []
    await network.close()


@on_virtual_time
async def test_job_master_registers_again_when_a_goodbye_overtakes_the_registration_answer(
    tmp_path: Path,
) -> None:
    """JM-06. Otherwise the JobMaster would take itself for registered until the heartbeat timeout
    of 50 s, and its slots would be declared nowhere."""
    network = LocalNetwork()
    service = LocalRpcService("JobMaster", network)
    leaders = ManualLeaders(service.executor)
    arguments = ClusterArguments("test", {}, str(tmp_path))
    configuration = ClusterServices.create(service, arguments).configuration
    services = ClusterServices(service, arguments, configuration, leaders)
    token = number(ResourceManagerId, 1)
    manager = TestingGateway(ResourceManagerGateway, token).lenient()
    manager.start(LocalRpcService("ResourceManager", network), "resourcemanager")
    is_registered, may_answer = False, asyncio.Event()

    async def answers_late(*_: object) -> JobMasterRegistrationSuccess:
        nonlocal is_registered
        is_registered = True
        await may_answer.wait()
        return JobMasterRegistrationSuccess(token, ResourceID("ResourceManager"))

    def declare(job_master_id: JobMasterId, requirements: ResourceRequirements) -> None:
        if not is_registered:
            raise JobNotFoundError(requirements.job_id)
        declared.set()

    declared = asyncio.Event()
    manager.on(ResourceManagerGateway.register_job_master).calling(answers_late)
    manager.on(ResourceManagerGateway.declare_required_resources).calling(declare)
    job = JobMasterArguments(arguments, python_job(waiting()), JOB_MASTER)
    master = JobMaster(service, services, job, await win_job(services, job))
    master.start()
    await asyncio.sleep(0.01)
    leaders.manager.tell(manager.address, token)
    await manager.wait_for(ResourceManagerGateway.register_job_master)
    client = LocalRpcService("client", network)
    job_master = await client.connect(master.address, JobMasterGateway, JOB_MASTER)

    is_registered = False
    await job_master.disconnect_resource_manager(token, "you are deaf")
    may_answer.set()

    await asyncio.wait_for(declared.wait(), 5)
    assert len(manager.calls_of(ResourceManagerGateway.register_job_master)) == 2
    await network.close()


@on_virtual_time
async def test_resize_of_a_job_whose_job_master_is_still_registering_takes_effect(
    tmp_path: Path,
) -> None:
    """DI-20: a job is resized while its JobMaster registers. The answer, which has the bounds of
    before, comes last and must not take the change back."""
    network = LocalNetwork()
    service = LocalRpcService("JobMaster", network)
    leaders = ManualLeaders(service.executor)
    arguments = ClusterArguments("test", {}, str(tmp_path))
    configuration = ClusterServices.create(service, arguments).configuration
    services = ClusterServices(service, arguments, configuration, leaders)
    token = number(DispatcherId, 1)
    dispatcher = TestingGateway(DispatcherGateway, token).lenient()
    dispatcher.start(LocalRpcService("Dispatcher", network), "dispatcher")
    builder = PythonJobBuilder("elastic", scheduler_mode=SchedulerMode.ADAPTIVE)
    builder.add(waiting(), name="a", parallelism=2)
    graph = builder.build()
    (vertex,) = graph.vertices
    stored, may_answer = ParallelismBounds(vertex.vertex_id, 1, 2), asyncio.Event()

    async def answers_late(*_: object) -> JobMasterToDispatcherRegistrationSuccess:
        at_first = stored
        await may_answer.wait()
        return JobMasterToDispatcherRegistrationSuccess(
            ResourceID("Dispatcher"), False, (at_first,)
        )

    dispatcher.on(DispatcherGateway.register_job_master).calling(answers_late)
    job = JobMasterArguments(arguments, graph, JOB_MASTER)
    master = JobMaster(service, services, job, await win_job(services, job))
    master.start()
    await asyncio.sleep(0.01)
    leaders.dispatcher.tell(dispatcher.address, token)
    await dispatcher.wait_for(DispatcherGateway.register_job_master)
    client = LocalRpcService("client", network)
    job_master = await client.connect(master.address, JobMasterGateway, JOB_MASTER)

    stored = ParallelismBounds(vertex.vertex_id, 1, 1)
    await job_master.resize(token, (stored,))
    may_answer.set()
    await asyncio.sleep(1)

    assert master._scheduler._job_graph.vertices[0].parallelism == 1
    await network.close()


# --- one after the other --------------------------------------------------------------------------


@on_cluster(NODE, configuration={"jobmaster.max-failovers": "10"})
async def test_job_never_has_two_job_masters_at_a_time(
    cluster: ChaosCluster,
) -> None:
    """JM-17, DI-04: also when JobMasters die while they start."""
    alive: dict[str, int] = {}
    most = 0

    def changed(process: SimulatedProcess) -> None:
        nonlocal most
        if process.kind == "JobMaster":
            alive[process.name] = alive.get(process.name, 0) + (1 if process.is_alive else -1)
            most = max(most, *alive.values())

    start_slowly(cluster, "JobMaster", 1.0)
    cluster.simulation.listeners.append(changed)
    job_id = await cluster.submit(scripted_job(RUNS))
    for _ in range(3):
        await until_up(cluster, "JobMaster")
        cluster.crash("JobMaster")
        await eventually(lambda: not cluster.processes("JobMaster"), 50, "its end")
    await until_executing(cluster, job_id)

    assert most == 1
    assert starts_of(cluster, "JobMaster") == 4, "one for each that died, and none besides"


@on_virtual_time
async def test_registration_and_result_of_a_past_job_master_are_refused(tmp_path: Path) -> None:
    """JM-18: its registration is rejected, and its result refused."""
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(waiting()))
        await until_running(cluster, job_id)
        dispatcher = await cluster.dispatcher()
        past = number(JobMasterId, 9)
        details = await cluster.details(job_id)
        result = JobResult(job_id, "past", JobStatus.FINISHED, 1.0)

        answer = await dispatcher.register_job_master(job_id, past, "nowhere/jobmaster")
        with pytest.raises(JobStateError, match="it is led by"):
            await dispatcher.job_reached_terminal_state(job_id, past, result, details)

        assert isinstance(answer, RegistrationRejection)
        assert await cluster.status(job_id) is JobStatus.RUNNING


def endpoint_of(cluster: MiniCluster, kind: str) -> RpcEndpoint:
    (name,) = cluster.processes(kind)
    (endpoint,) = cluster.network.services[name].endpoints()
    assert isinstance(endpoint, RpcEndpoint)
    return endpoint


@on_virtual_time
async def test_job_master_that_stops_early_suspends_its_job_and_another_runs_the_job(
    tmp_path: Path,
) -> None:
    """JM-18, EX-08, DI-09: its tasks are cancelled. Another JobMaster runs the job, which is listed
    once, with its present state."""
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(waiting()))
        await until_running(cluster, job_id)
        master = endpoint_of(cluster, "JobMaster")
        assert isinstance(master, JobMaster)

        master.close()
        await master.terminated

        assert await master.request_job_status() is JobStatus.SUSPENDED
        (execution,) = [
            e for v in (await master.request_job_details()).vertices for e in v.executions
        ]
        assert execution.state is ExecutionState.CANCELED
        await until_running(cluster, job_id)
        (line,) = await (await cluster.dispatcher()).list_jobs()
        assert (line.job_id, line.status) == (job_id, JobStatus.RUNNING)
        await (await cluster.dispatcher()).cancel_job(job_id)
        assert (await cluster.result(job_id)).status is JobStatus.CANCELED
        (line,) = await (await cluster.dispatcher()).list_jobs()
        assert line.status is JobStatus.CANCELED


# --- while it starts ------------------------------------------------------------------------------


@on_cluster(NODE)
async def test_job_whose_job_master_is_starting_is_initializing_and_blocks_no_other_call(
    cluster: ChaosCluster,
) -> None:
    """JM-19, DI-05."""
    start_slowly(cluster, "JobMaster", 40.0)
    slow = await cluster.submit(scripted_job(RUNS))
    await asyncio.sleep(20)
    dispatcher = await cluster.dispatcher()
    before = asyncio.get_running_loop().time()

    (line,) = await dispatcher.list_jobs()
    details = await dispatcher.request_job_details(slow)

    assert asyncio.get_running_loop().time() - before < 1
    assert line.status is details.status is JobStatus.INITIALIZING
    start_slowly(cluster, "JobMaster", 0.0)
    quick = await cluster.submit(scripted_job(ENDS))
    assert (await cluster.result(quick)).status is JobStatus.FINISHED
    assert await dispatcher.request_job_status(slow) is JobStatus.INITIALIZING
    await until_executing(cluster, slow)
    assert await dispatcher.request_job_status(slow) is JobStatus.RUNNING


@on_cluster(NODE)
async def test_job_cancelled_while_initializing_is_cancelling_until_canceled(
    cluster: ChaosCluster,
) -> None:
    """JM-19, DI-06: also when the JobMaster dies."""
    start_slowly(cluster, "JobMaster", 30.0)
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_up(cluster, "JobMaster")
    dispatcher = await cluster.dispatcher()

    await dispatcher.cancel_job(job_id)

    assert await dispatcher.request_job_status(job_id) is JobStatus.CANCELLING
    cluster.crash("JobMaster")
    await asyncio.sleep(20)
    assert await dispatcher.request_job_status(job_id) is JobStatus.CANCELLING
    assert (await cluster.result(job_id)).status is JobStatus.CANCELED
    assert starts_of(cluster, "SparkDriver") == 0


# --- when it is done ------------------------------------------------------------------------------


@on_virtual_time
async def test_a_job_that_is_done_is_not_run_again_by_the_next_dispatcher(tmp_path: Path) -> None:
    """JM-20: the graph is still stored, because the last Dispatcher died before the clean-up."""
    graph = python_job(waiting())
    done = ArchivedJob(
        JobResult(graph.job_id, graph.name, JobStatus.FINISHED, 1.0),
        JobDetails(graph.job_id, graph.name, JobStatus.FINISHED, 1.0, 2.0, {}, 0),
    )
    arguments = ClusterArguments("local", {}, str(tmp_path))
    service = LocalRpcService("before", LocalNetwork())
    stores = ClusterServices.create(service, arguments).high_availability
    await stores.get_job_graph_store(StoredJob).put_job_graph(StoredJob(graph, 1.0))
    await stores.get_job_result_store(ArchivedJob).create_dirty_result(done)

    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        assert await cluster.result(graph.job_id) == done.result
        await asyncio.sleep(60)

        assert cluster.processes("JobMaster") == []
        assert cluster.workers.created_groups == []
        with pytest.raises(DuplicateJobSubmissionError):
            await cluster.submit(graph)
        left = await stores.get_job_graph_store(StoredJob).recover_job_graphs()
        assert list(left.records) == []


def newer(entry: bytes) -> bytes:
    """As a flinkray of a later version would have written it."""
    begin = len(b"flinkray entry\n")
    assert entry[begin] == VERSION
    return entry[:begin] + bytes([VERSION + 1]) + entry[begin + 1 :]


@pytest.mark.parametrize("kind", ["graph", "result"])
@on_virtual_time
async def test_job_with_an_unreadable_stored_graph_or_result_is_reported_and_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """JM-20: a later version of flinkray has written it. When that version runs again, the job goes
    on."""
    graph, other = python_job(finishing()), python_job(finishing())
    (vertex,) = graph.vertices
    code = vertex.invokable.code
    assert isinstance(code, bytes)
    by_key = replace(vertex.invokable, code=BlobKey.of(code))
    graph = replace(graph, vertices=(replace(vertex, invokable=by_key),))
    done = ArchivedJob(
        JobResult(graph.job_id, graph.name, JobStatus.FINISHED, 1.0),
        JobDetails(graph.job_id, graph.name, JobStatus.FINISHED, 1.0, 2.0, {}, 0),
    )
    arguments = ClusterArguments("local", {}, str(tmp_path))
    service = LocalRpcService("before", LocalNetwork())
    stores = ClusterServices.create(service, arguments).high_availability
    for stored in (graph, other):
        await stores.get_job_graph_store(StoredJob).put_job_graph(StoredJob(stored, 1.0))
    if kind == "result":
        await stores.get_job_result_store(ArchivedJob).create_dirty_result(done)
    blobs = BlobStore(stores.get_blob_directory())
    blobs.write_part(BlobOwner.of_job(graph.job_id), BlobKey.of(code), 0, code)
    blobs.complete(BlobOwner.of_job(graph.job_id), BlobKey.of(code), (0,))
    folder, suffix = ("job-graphs", "graph") if kind == "graph" else ("job-results", "dirty")
    (entry,) = (tmp_path / folder).glob(f"{graph.job_id}.{suffix}-*")
    written = entry.read_bytes()
    entry.write_bytes(newer(written))

    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        assert (await cluster.result(other.job_id)).status is JobStatus.FINISHED
        dispatcher = await cluster.dispatcher()
        for ask in (
            lambda: dispatcher.request_job_status(graph.job_id),
            lambda: dispatcher.request_job_result(graph.job_id),
            lambda: dispatcher.cancel_job(graph.job_id),
            lambda: cluster.submit(graph),
        ):
            with pytest.raises(UnreadableRecordError, match="a newer flinkray wrote it") as caught:
                await ask()
            assert (caught.value.job_id, caught.value.location) == (graph.job_id, str(entry))
        await asyncio.sleep(1500)  # longer than what nobody retains is kept
        assert not [name for name in cluster.processes() if graph.job_id.hex() in name]
    assert f"{entry} cannot be read: it has format version {VERSION + 1}" in caplog.text
    assert entry.read_bytes() == newer(written)
    assert blobs.recover().complete == {BlobOwner.of_job(graph.job_id): {BlobKey.of(code): (0,)}}

    entry.write_bytes(written)
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        result = await cluster.result(graph.job_id)
        assert result.status is JobStatus.FINISHED
        assert (result == done.result) is (kind == "result")


@on_virtual_time
async def test_job_id_can_be_used_again_once_the_ended_job_has_been_deleted(
    tmp_path: Path,
) -> None:
    """DI-04: until then the id is refused, so that two runs of one id never meet."""
    configuration = {**QUICK, "jobstore.max-capacity": "1"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        graph = python_job(waiting())
        await cluster.submit(graph)
        await until_running(cluster, graph.job_id)
        with pytest.raises(DuplicateJobSubmissionError):
            await cluster.submit(graph)
        dispatcher = await cluster.dispatcher()
        await dispatcher.cancel_job(graph.job_id)
        await cluster.result(graph.job_id)
        with pytest.raises(DuplicateJobSubmissionError):
            await cluster.submit(graph)
        rows = tmp_path / "data" / graph.job_id.hex() / "stage-0" / "part-0.parquet"
        rows.parent.mkdir(parents=True)
        rows.write_bytes(b"as a Spark stage leaves them")
        await cluster.result(await cluster.submit(python_job(finishing())))
        await asyncio.sleep(1)
        assert not rows.parent.parent.exists()
        assert not [name for name in cluster.processes() if graph.job_id.hex() in name]

        await cluster.submit(graph)

        await until_running(cluster, graph.job_id)
        assert [e.attempt_number for e in await executions(cluster, graph.job_id)] == [0]


@on_cluster(
    NODE,
    configuration={
        "jobmaster.max-failovers": "2",
        "jobmaster.failover-validity-interval": "2 min",
    },
)
async def test_job_master_deaths_are_counted_only_within_an_interval(cluster: ChaosCluster) -> None:
    """Otherwise the sixth death of a JobMaster would end a stream after months."""

    async def dies(death: int) -> None:
        cluster.crash("JobMaster")
        await eventually(lambda: not cluster.processes("JobMaster"), 50, "its end")
        await until_executing(cluster, job_id)
        details = await cluster.details(job_id)
        assert (details.restarts, details.failovers) == (0, death)
        assert len(details.exceptions) == min(death, 16)

    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    for death in range(1, 19):
        await dies(death)
        await asyncio.sleep(61)  # any three deaths take longer than the interval

    await dies(19)
    cluster.crash("JobMaster")
    result = await cluster.result(job_id)

    assert result.status is JobStatus.FAILED
    assert "JobMaster died 3 times within 120 s" in (result.failure or "")
    assert "jobmaster.max-failovers" in (result.failure or ""), "the way out"
