"""Late calls of those who follow a past leader, and of a past leader itself, change nothing.

What leaders call with their id is tested method by method, with the id of a past leader and with
that of the present one, whose call has to show: else nothing was tested.
``tests/house/test_fencing.py`` finds the methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.gateways import (
    DispatcherGateway,
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.gateways.job_processes import slot_pool_address
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    ClusterArguments,
    JobMasterArguments,
    JobMasterRegistrationSuccess,
    JobMasterToDispatcherRegistrationSuccess,
    WantedSlot,
)
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.actors.resource_manager.endpoint import ResourceManager
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import LeadershipLostError
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.errors import FencingTokenError, FlinkRayError, JobStateError
from flinkray.core.ids import (
    DispatcherId,
    IntermediateDataSetID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
    TriggerID,
    WorkerGroupId,
)
from flinkray.rpc import (
    FencedRpcEndpoint,
    FencedRpcGateway,
    LocalNetwork,
    LocalRpcService,
    RegistrationRejection,
    RpcService,
)
from flinkray.rpc.gateway import GatewayMethod, gateway_methods
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.checkpoints.messages import TriggerCheckpoint
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    FixedDelayRestart,
    Invokable,
    ResultPartitionType,
)
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    ResourceShortage,
    SlotOffer,
    WorkerLocation,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import JobNotes, TaskExecutorReport
from flinkray.scheduler.shared.tasks import (
    JobInformation,
    ResultInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
    attempt_of,
)
from flinkray.testing import TestingGateway
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import python_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.user_code import dump_function
from tests.actors.conftest import QUICK
from tests.actors.leaders import ManualLeaders
from tests.actors.resource_cluster import (
    DISPATCHER,
    GRAPH,
    NEXT_GRAPH,
    ONE_CPU,
    RM_ADDRESS,
    RM_TOKEN,
    ResourceCluster,
    Worker,
    number,
)
from tests.actors.task_executor.test_task_execution import States, finishes, waits
from tests.actors.task_executor_under_test import (
    JOB,
    MASTER,
    NEXT_MASTER,
    RM_NAME,
    A,
    B,
    Bench,
    accept_all,
    allocations,
    task,
)
from tests.actors.test_jobs_on_a_local_cluster import ClusterOfDeafJobMasters
from tests.actors.test_python_jobs import until_running
from tests.house.test_fencing import takes_a_leader_id

PAST_MASTER = number(JobMasterId, 77)
PAST_MANAGER = number(ResourceManagerId, 77)


# --- who follows a past leader --------------------------------------------------------------------

FENCED: dict[type[FencedRpcEndpoint[Any]], type[FencedRpcGateway]] = {
    Dispatcher: DispatcherGateway,
    JobMaster: JobMasterGateway,
    ResourceManager: ResourceManagerGateway,
    SlotPool: SlotPoolGateway,
}
FENCED_METHODS = [
    pytest.param(endpoint, method, id=method.full_name)
    for endpoint, gateway in FENCED.items()
    for method in gateway_methods(gateway).values()
]


def recording(
    endpoint: type[FencedRpcEndpoint[Any]], service: RpcService, reached: list[str]
) -> FencedRpcEndpoint[JobMasterId]:
    """An endpoint of that class whose handlers only note that they were reached."""

    def handler(name: str) -> Callable[..., Awaitable[None]]:
        async def note(self: object, *args: object) -> None:
            reached.append(name)

        return note

    async def nothing(self: object) -> None:
        pass

    members: dict[str, Any] = {name: handler(name) for name in gateway_methods(FENCED[endpoint])}
    members |= {"__init__": FencedRpcEndpoint.__init__, "on_start": nothing, "on_stop": nothing}
    made: FencedRpcEndpoint[JobMasterId] = type("Recording", (endpoint,), members)(
        service, "recording", MASTER
    )
    made.start()
    return made


@pytest.mark.parametrize(("endpoint", "method"), FENCED_METHODS)
@on_virtual_time
async def test_call_with_a_past_or_wrong_fencing_token_does_not_reach_its_handler(
    endpoint: type[FencedRpcEndpoint[Any]], method: GatewayMethod
) -> None:
    """FEN-02, FEN-03, FEN-04: calls with an answer raise, and one-way messages are dropped."""
    network = LocalNetwork()
    client = LocalRpcService("client", network)
    reached: list[str] = []
    address = recording(endpoint, LocalRpcService("leader", network), reached).address
    arguments = [None] * len(method.parameters)
    gateway = FENCED[endpoint]
    for token in (PAST_MASTER, ResourceManagerId(MASTER.value), None):
        late = getattr(await client.connect(address, gateway, token), method.name)
        if method.is_oneway:
            await late(*arguments)
        else:
            with pytest.raises(FencingTokenError):
                await late(*arguments)
    await asyncio.sleep(1)
    assert reached == []

    await getattr(await client.connect(address, gateway, MASTER), method.name)(*arguments)
    await asyncio.sleep(1)
    assert reached == [method.name]
    await network.close()


# --- a past leader calls a TaskExecutor -----------------------------------------------------------

RESULT = number(IntermediateDataSetID, 7)
RESULT_PARTITION = ResultPartitionID(GRAPH, RESULT, 0, 0)
SPARK_TASK, NEXT_SPARK_TASK = task(A, attempt=7), task(A, attempt=8)
MASTER_NAME = ResourceID("JobMaster-1")


def _vertex(value: int, function: Any, *results: IntermediateDataSetID) -> VertexInformation:
    information = tuple(ResultInformation(r, ResultPartitionType.BLOCKING, ()) for r in results)
    invokable = Invokable(PYTHON, dump_function(function))
    return VertexInformation(number(JobVertexID, value), "v", 2, 128, invokable, (), information)


PRODUCES, WAITS = _vertex(1, finishes, RESULT), _vertex(2, waits)
PARTS = (
    SharedPart(0, 0, JobInformation(JOB, "job")),
    SharedPart(1, 0, PRODUCES),
    SharedPart(2, 0, WAITS),
)
BOTH = (TaskDeployment(1, 0, 0, A), TaskDeployment(2, 0, 0, A))
ONE_MORE = TaskDeployments(JOB, GRAPH, 0, (), (TaskDeployment(2, 1, 0, A),))
WAITING = attempt_of(GRAPH, WAITS, BOTH[1])
TRIGGER = TriggerCheckpoint(
    1, 1000, CheckpointProperties(SnapshotKind.CHECKPOINT), "nowhere", 0, is_whole=False
)


NOTES = JobNotes(GRAPH, (1,), b"", 0)
LATER_NOTES = replace(NOTES, restores=1)


class Scene:
    """A TaskExecutor with an active slot, in which tasks run and have left a result; and, unless it
    is kept free, a slot that its JobMaster has not taken yet."""

    def __init__(self, storage: Path) -> None:
        self.bench = Bench(storage)
        self.looks = 0

    async def set(self, *, is_second_slot_free: bool = False) -> TaskExecutorGateway:
        bench = self.bench
        self.executor = await bench.start()
        self.master = bench.start_job_master()
        self.states = States(self.master)
        self.master.pool.on(SlotPoolGateway.offer_slots).calling(accept_all)
        await bench.request(self.executor, 0, A)
        await self.master.pool.wait_for(SlotPoolGateway.offer_slots)
        await asyncio.sleep(0.1)
        deployments = TaskDeployments(JOB, GRAPH, 0, PARTS, BOTH)
        assert await self.executor.submit_tasks(deployments, MASTER, None) == ()
        await self.states.until(ExecutionState.FINISHED, ExecutionState.RUNNING)
        assert await self.executor.keep(JOB, MASTER, 1, KeptPiece(notes=NOTES))
        assert await SPARK_TASK.submit(self.executor) == ()
        if not is_second_slot_free:
            never = asyncio.get_running_loop().create_future()
            self.master.pool.on(SlotPoolGateway.offer_slots).calling(lambda *_: never)
            await bench.request(self.executor, 1, B)
            await self.master.pool.wait_for(SlotPoolGateway.offer_slots, 2)
        return self.executor

    async def look(self) -> dict[str, object]:
        """All that can be seen of it from outside."""
        await asyncio.sleep(1)
        manager, master = self.bench.manager, self.master
        heartbeats = manager.calls_of(ResourceManagerGateway.heartbeat_from_task_executor)
        registrations = manager.calls_of(ResourceManagerGateway.register_task_executor)
        found = {
            "heartbeats to the ResourceManager": len(heartbeats) - self.looks,
            "heartbeats to the JobMaster": len(
                master.calls_of(JobMasterGateway.heartbeat_from_task_executor)
            ),
            "registrations": len(registrations),
            "tasks": {state.attempt_id: state.state for state in self.states.all},
            "answers to checkpoints": tuple(self.states.answers),
            "Spark tasks": tuple(self.bench.runner.failures),
            "kept": self.bench.endpoint._kept.notes(JOB),
            "results": (await self.executor.find_partitions(JOB, RESULT)).partitions,
        }
        report = await self.bench.latest_report(self.executor)
        self.looks += 1
        return {**found, "slots": allocations(report)}


def _call(name: str) -> Callable[[TaskExecutorGateway, JobMasterId, ResourceManagerId], Any]:
    """The method's call on behalf of these leaders."""
    calls: dict[str, Callable[[TaskExecutorGateway, JobMasterId, ResourceManagerId], Any]] = {
        "request_slots": lambda te, _, rm: te.request_slots(
            (WantedSlot(1, B, ONE_CPU),), JOB, "JobMaster-1/jobmaster", MASTER, rm
        ),
        "free_slot of a JobMaster": lambda te, jm, _: te.free_slot(A, jm, "late"),
        "free_slot of a ResourceManager": lambda te, _, rm: te.free_slot(A, rm, "late"),
        "free_inactive_slots": lambda te, _, rm: te.free_inactive_slots(JOB, rm, "late"),
        "can_be_released": lambda te, _, rm: te.can_be_released(rm),
        "submit_tasks of a Spark stage": lambda te, jm, _: NEXT_SPARK_TASK.submit(te, jm),
        "submit_tasks": lambda te, jm, _: te.submit_tasks(ONE_MORE, jm, None),
        "cancel_tasks of a Spark stage": (
            lambda te, jm, _: te.cancel_tasks((SPARK_TASK.attempt_id,), jm)
        ),
        "cancel_tasks": lambda te, jm, _: te.cancel_tasks((WAITING,), jm),
        "order_checkpoint": lambda te, jm, _: te.order_checkpoint(JOB, jm, TRIGGER, (WAITING,)),
        "request_io_metrics": lambda te, jm, _: te.request_io_metrics(JOB, jm),
        "release_partitions": lambda te, jm, _: te.release_partitions(JOB, jm, (RESULT_PARTITION,)),
        "heartbeat_from_resource_manager": (
            lambda te, _, rm: te.heartbeat_from_resource_manager(RM_NAME, rm)
        ),
        "heartbeat_from_job_master": lambda te, jm, _: te.heartbeat_from_job_master(
            MASTER_NAME, jm, AllocatedSlotReport(JOB, ())
        ),
        "disconnect_resource_manager": lambda te, _, rm: te.disconnect_resource_manager(rm, "late"),
        "disconnect_job_master": lambda te, jm, _: te.disconnect_job_master(JOB, jm, "late"),
        "job_master_lost of a JobMaster": (
            lambda te, jm, _: te.job_master_lost(JOB, jm, RM_TOKEN, "late")
        ),
        "job_master_lost of a ResourceManager": (
            lambda te, _, rm: te.job_master_lost(JOB, MASTER, rm, "late")
        ),
        "take_over_job": lambda te, jm, _: te.take_over_job(JOB, "JobMaster-1/jobmaster", jm),
        "adopt_slots": lambda te, jm, _: te.adopt_slots(JOB, jm, NEXT_GRAPH, ()),
        "keep": lambda te, jm, _: te.keep(JOB, jm, 1, KeptPiece(notes=LATER_NOTES)),
        "keep_no_more": lambda te, jm, _: te.keep_no_more(JOB, jm),
        "hand_over": lambda te, jm, _: te.hand_over(JOB, jm, 0),
        "job_master_changed": lambda te, _, rm: te.job_master_changed(
            JOB, "JobMaster-2/jobmaster", NEXT_MASTER, rm
        ),
    }
    return calls[name]


OF_LEADERS = (
    "request_slots",
    "free_slot of a JobMaster",
    "free_slot of a ResourceManager",
    "free_inactive_slots",
    "can_be_released",
    "submit_tasks of a Spark stage",
    "submit_tasks",
    "cancel_tasks of a Spark stage",
    "cancel_tasks",
    "order_checkpoint",
    "request_io_metrics",
    "release_partitions",
    "heartbeat_from_resource_manager",
    "heartbeat_from_job_master",
    "disconnect_resource_manager",
    "disconnect_job_master",
    "job_master_lost of a JobMaster",
    "job_master_lost of a ResourceManager",
    "take_over_job",
    "adopt_slots",
    "keep",
    "keep_no_more",
    "hand_over",
    "job_master_changed",
)
QUESTIONS = ("can_be_released", "request_io_metrics", "take_over_job", "hand_over")
"""They change nothing, ``take_over_job`` as that JobMaster leads already; a past leader is refused
all the same."""


@pytest.mark.parametrize("name", OF_LEADERS)
@on_virtual_time
async def test_late_call_of_a_past_leader_changes_nothing_at_a_task_executor(
    tmp_path: Path, name: str
) -> None:
    """A JobMaster or ResourceManager that was replaced wakes up from a pause."""
    method = gateway_methods(TaskExecutorGateway)[name.partition(" ")[0]]
    scene, call = Scene(tmp_path), _call(name)
    executor = await scene.set(is_second_slot_free=name == "request_slots")
    before = await scene.look()

    if method.is_oneway:
        await call(executor, PAST_MASTER, PAST_MANAGER)
    else:
        with pytest.raises(FlinkRayError):
            await call(executor, PAST_MASTER, PAST_MANAGER)

    assert await scene.look() == before
    await call(executor, MASTER, RM_TOKEN)
    assert (await scene.look() == before) == (name in QUESTIONS), "the present leader's call counts"


def test_list_of_late_calls_has_each_method_that_leaders_call_on_a_task_executor() -> None:
    taking = {
        name
        for name in gateway_methods(TaskExecutorGateway)
        if takes_a_leader_id(getattr(TaskExecutorGateway, name))
    }
    assert {name.partition(" ")[0] for name in OF_LEADERS} == taking


# --- a past ResourceManager or Dispatcher calls a JobMaster ---------------------------------------

PRESENT_MANAGER, PRESENT_DISPATCHER = number(ResourceManagerId, 1), number(DispatcherId, 1)
PAST_DISPATCHER = number(DispatcherId, 77)
SHORTAGE = ResourceShortage(1, ONE_CPU, "nothing is left", False, ONE_CPU, ONE_CPU, ONE_CPU)


class JobMasterScene:
    """A JobMaster with leaders that only record; and, if it is to have it, a slot with a task."""

    def __init__(self, storage: Path) -> None:
        self.network = LocalNetwork()
        self.service = LocalRpcService("JobMaster", self.network)
        leaders = ManualLeaders(self.service.executor)
        arguments = ClusterArguments("test", {}, str(storage))
        configuration = ClusterServices.create(self.service, arguments).configuration
        services = ClusterServices(self.service, arguments, configuration, leaders)
        graph = python_job(waits, restart_strategy=FixedDelayRestart(5, 0.0))
        self.job_id = graph.job_id
        self._services, self._job = services, JobMasterArguments(arguments, graph, MASTER)
        self.leaders = leaders
        self.manager = TestingGateway(ResourceManagerGateway, PRESENT_MANAGER).lenient()
        self.dispatcher = TestingGateway(DispatcherGateway, PRESENT_DISPATCHER).lenient()
        self.executor = TestingGateway(TaskExecutorGateway).lenient()

    async def set(self, *, has_slot: bool) -> JobMasterGateway:
        network = self.network
        self.manager.start(LocalRpcService("ResourceManager", network), "resourcemanager")
        self.manager.on(ResourceManagerGateway.register_job_master).returning(
            JobMasterRegistrationSuccess(PRESENT_MANAGER, ResourceID("ResourceManager"))
        )
        self.dispatcher.start(LocalRpcService("Dispatcher", network), "dispatcher")
        self.dispatcher.on(DispatcherGateway.register_job_master).returning(
            JobMasterToDispatcherRegistrationSuccess(ResourceID("Dispatcher"), False)
        )
        self.executor.start(LocalRpcService("te", network), "taskexecutor")
        self.executor.on(TaskExecutorGateway.submit_tasks).returning(())
        leadership = await win_job(self._services, self._job)
        self.endpoint = JobMaster(self.service, self._services, self._job, leadership)
        self.endpoint.start()
        await asyncio.sleep(0.1)
        self.leaders.manager.tell(self.manager.address, PRESENT_MANAGER)
        self.leaders.dispatcher.tell(self.dispatcher.address, PRESENT_DISPATCHER)
        await self.manager.wait_for(ResourceManagerGateway.declare_required_resources)
        await self.dispatcher.wait_for(DispatcherGateway.register_job_master)
        client = LocalRpcService("client", network)
        master = self.master = await client.connect(self.endpoint.address, JobMasterGateway, MASTER)
        if has_slot:
            location = WorkerLocation(
                ResourceID("te"), self.executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
            )
            await master.register_task_executor(self.job_id, TaskExecutorReport(location, (), ()))
            declared = self.manager.calls_of(ResourceManagerGateway.declare_required_resources)
            profile = declared[-1][1].requirements[0].profile
            address = slot_pool_address(self.job_id, MASTER)
            pool = await client.connect(address, SlotPoolGateway, MASTER)
            answer = await pool.offer_slots(location, (SlotOffer(A, 0, profile),))
            assert answer.accepted == (A,)
            await self.executor.wait_for(TaskExecutorGateway.submit_tasks)
        return master

    async def look(self) -> dict[str, object]:
        """All that can be seen of it from outside."""
        await asyncio.sleep(1)
        details = await self.master.request_job_details()
        doubles = (self.manager, self.dispatcher, self.executor)
        calls = [call.method for double in doubles for call in double.calls]
        return {
            "status": details.status,
            "pending": details.pending_reason,
            "exceptions": await self.master.request_job_exceptions(),
            "calls": [method for method in calls if method != "request_io_metrics"],
        }


def _job_master_call(
    name: str,
) -> Callable[[JobMasterGateway, ResourceManagerId, DispatcherId], Any]:
    calls: dict[str, Callable[[JobMasterGateway, ResourceManagerId, DispatcherId], Any]] = {
        "heartbeat_from_resource_manager": (
            lambda jm, rm, _: jm.heartbeat_from_resource_manager(ResourceID("ResourceManager"), rm)
        ),
        "disconnect_resource_manager": (
            lambda jm, rm, _: jm.disconnect_resource_manager(rm, "late")
        ),
        "notify_not_enough_resources": (
            lambda jm, rm, _: jm.notify_not_enough_resources(rm, (SHORTAGE,))
        ),
        "notify_task_executor_lost": (
            lambda jm, rm, _: jm.notify_task_executor_lost(rm, ResourceID("te"), "late")
        ),
        "heartbeat_from_dispatcher": (
            lambda jm, _, di: jm.heartbeat_from_dispatcher(ResourceID("Dispatcher"), di)
        ),
        "cancel": lambda jm, _, di: jm.cancel(di),
        "resize": lambda jm, _, di: jm.resize(di, ()),
        "take_snapshot": lambda jm, _, di: jm.take_snapshot(di, SNAPSHOT),
    }
    return calls[name]


TO_JOB_MASTERS = (
    "heartbeat_from_resource_manager",
    "disconnect_resource_manager",
    "notify_not_enough_resources",
    "notify_task_executor_lost",
    "heartbeat_from_dispatcher",
    "cancel",
    "resize",
    "take_snapshot",
)
SNAPSHOT = SnapshotRequest(number(TriggerID, 5), SnapshotType.CHECKPOINT)
REFUSED = {
    "resize": (JobStateError, "its parallelism is fixed"),
    "take_snapshot": (CheckpointError, "takes none"),
}
"""What the present leader is answered, where the job cannot do it."""


@on_virtual_time
async def test_job_master_without_leadership_leaves_tasks_to_its_successor(
    tmp_path: Path,
) -> None:
    """HA-28: the JobMaster neither cancels tasks nor says goodbye, because a goodbye would free
    slots."""
    scene = JobMasterScene(tmp_path)
    await scene.set(has_slot=True)
    scene.endpoint._leadership._contender.revoke_leadership()
    with pytest.raises(LeadershipLostError):
        await scene.endpoint.terminated
    called = {call.method for call in (*scene.executor.calls, *scene.manager.calls)}
    goodbyes = {"cancel_tasks", "disconnect_job_master", "free_slot", "disconnect_task_executor"}
    assert not called & goodbyes


@on_virtual_time
async def test_job_master_confirms_leadership_until_it_loses_it(tmp_path: Path) -> None:
    scene = JobMasterScene(tmp_path)
    master = await scene.set(has_slot=False)
    await master.confirm_leadership()
    scene.endpoint._leadership.lose()
    with pytest.raises(LeadershipLostError):
        await master.confirm_leadership()


@pytest.mark.parametrize("name", TO_JOB_MASTERS)
@on_virtual_time
async def test_late_call_of_a_past_leader_changes_nothing_at_a_job_master(
    tmp_path: Path, name: str
) -> None:
    """A ResourceManager or Dispatcher that was replaced wakes up from a pause."""
    scene, call = JobMasterScene(tmp_path), _job_master_call(name)
    master = await scene.set(has_slot=name != "notify_not_enough_resources")
    before = await scene.look()

    if gateway_methods(JobMasterGateway)[name].is_oneway:
        await call(master, PAST_MANAGER, PAST_DISPATCHER)
    else:
        with pytest.raises(FencingTokenError):
            await call(master, PAST_MANAGER, PAST_DISPATCHER)

    assert await scene.look() == before
    if name in REFUSED:
        error, text = REFUSED[name]
        with pytest.raises(error, match=text):
            await call(master, PRESENT_MANAGER, PRESENT_DISPATCHER)
    else:
        await call(master, PRESENT_MANAGER, PRESENT_DISPATCHER)
        assert await scene.look() != before, "the present leader's call counts"
    await scene.network.close()


OF_COORDINATORS = {"keep_part"}
"""They lead nothing, and say which JobMaster has started them: tests/actors/job_master/
test_kept_parts.py."""


def test_list_of_late_calls_has_each_method_that_leaders_call_on_a_job_master() -> None:
    taking = {
        name
        for name in gateway_methods(JobMasterGateway)
        if takes_a_leader_id(getattr(JobMasterGateway, name))
    }
    assert set(TO_JOB_MASTERS) == taking - OF_COORDINATORS


# --- a past JobMaster or Dispatcher calls a ResourceManager ---------------------------------------


class ResourceManagerScene:
    """A ResourceManager, a TaskExecutor with a data set of the cluster's, and a job that has a slot
    of it and has been running under an earlier JobMaster."""

    def __init__(self, storage: Path) -> None:
        self.cluster = ResourceCluster(
            storage, configuration={"resourcemanager.taskmanager-timeout": "1 h"}
        )

    async def set(self) -> ResourceManagerGateway:
        self.manager = await self.cluster.start_resource_manager()
        self.worker, self.job = Worker(self.cluster, "worker", slots=4), self.cluster.job(1)
        await self.worker.register(self.manager)
        await self.job.register()
        worker = self.worker
        slots = (
            replace(
                worker.report.slots[0],
                job_id=self.job.job_id,
                allocation_id=A,
            ),
            *worker.report.slots[1:],
        )
        await self.manager.heartbeat_from_task_executor(
            worker.resource_id, worker.instance_id, replace(worker.report, slots=slots)
        )
        await self.job.declare(1, dedicated=False)
        return self.manager

    async def look(self) -> dict[str, object]:
        """All that can be seen of it from outside."""
        await asyncio.sleep(3)  # shortages are told after 2
        found: dict[str, object] = {
            "calls": [
                call.method
                for double in (self.worker.executor, self.job.master)
                for call in double.calls
                if call.method != "heartbeat_from_resource_manager"
            ]
        }
        try:
            overview = await self.manager.request_resource_overview()
            await self.job.declare(1, dedicated=False)
        except FlinkRayError as error:
            return {**found, "refusal": type(error)}
        return {**found, "free": overview.slots_available}


def _resource_manager_call(
    name: str, scene: ResourceManagerScene
) -> Callable[[JobMasterId, DispatcherId], Any]:
    manager, job = scene.manager, scene.job
    wanted = ResourceRequirements(job.job_id, job.address, (ResourceRequirement(ONE_CPU, 3),))
    calls: dict[str, Callable[[JobMasterId, DispatcherId], Any]] = {
        "declare_required_resources": lambda jm, _: manager.declare_required_resources(jm, wanted),
        "disconnect_job_master": lambda jm, _: manager.disconnect_job_master(
            job.job_id, jm, "late"
        ),
        "release_job": lambda _, di: manager.release_job(job.job_id, di, "late"),
        "shut_down": lambda _, di: manager.shut_down(di),
    }
    return calls[name]


TO_RESOURCE_MANAGERS = (
    "declare_required_resources",
    "disconnect_job_master",
    "release_job",
    "shut_down",
)
REGISTERS = "register_job_master"
"""It is how a JobMaster becomes the job's: see the tests of it."""


@pytest.mark.parametrize("name", TO_RESOURCE_MANAGERS)
@on_virtual_time
async def test_late_call_of_a_past_leader_changes_nothing_at_a_resource_manager(
    tmp_path: Path, name: str
) -> None:
    """A JobMaster or Dispatcher that was replaced wakes up from a pause."""
    scene = ResourceManagerScene(tmp_path)
    await scene.set()
    before = await scene.look()
    call = _resource_manager_call(name, scene)

    if gateway_methods(ResourceManagerGateway)[name].is_oneway:
        await call(PAST_MASTER, PAST_DISPATCHER)
    else:
        with pytest.raises(FlinkRayError):
            await call(PAST_MASTER, PAST_DISPATCHER)

    assert await scene.look() == before
    await call(scene.job.job_master_id, DISPATCHER)
    assert await scene.look() != before, "the present leader's call counts"


@on_virtual_time
async def test_past_job_master_that_registers_again_is_rejected_and_its_job_runs_on(
    tmp_path: Path,
) -> None:
    """The past JobMaster wakes up from a pause, and its heartbeats have timed out. Otherwise the
    ResourceManager would report the successor as lost, and TaskExecutors would free its slots."""
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(waits))
        await until_running(cluster, job_id)
        manager = await cluster.client.connect(RM_ADDRESS, ResourceManagerGateway, RM_TOKEN)
        past = TestingGateway(JobMasterGateway, PAST_MASTER).lenient()
        past.start(LocalRpcService("past", cluster.network), "jobmaster")

        answer = await manager.register_job_master(
            PAST_MASTER, ResourceID("past"), past.address, job_id
        )
        await asyncio.sleep(5)

        assert isinstance(answer, RegistrationRejection)
        assert await cluster.status(job_id) is JobStatus.RUNNING
        details = await cluster.details(job_id)
        assert [e.attempt_number for v in details.vertices for e in v.executions] == [0]


@pytest.mark.parametrize("has_the_name", [True, False])
@on_virtual_time
async def test_job_master_may_replace_another_only_under_the_same_process_name(
    tmp_path: Path, has_the_name: bool
) -> None:
    """No Dispatcher is asked, because it may have died with the JobMaster."""
    cluster = ResourceCluster(tmp_path)
    manager, job = await cluster.start_resource_manager(), cluster.job(1)
    await job.register()
    name = job.service.process_name if has_the_name else "another"
    another = TestingGateway(JobMasterGateway, MASTER).lenient()
    if has_the_name:
        cluster.network.crash(name)
    another.start(LocalRpcService(name, cluster.network), "jobmaster")

    given = await manager.register_job_master(
        MASTER, ResourceID("another"), another.address, job.job_id
    )

    if has_the_name:
        assert isinstance(given, JobMasterRegistrationSuccess)
    else:
        assert isinstance(given, RegistrationRejection)
        await job.declare(1)


@on_virtual_time
async def test_heartbeats_of_a_past_job_master_do_not_keep_a_silent_one_registered(
    tmp_path: Path,
) -> None:
    """On Ray, both JobMasters have the same process name, one after the other."""
    cluster = ResourceCluster(tmp_path)
    manager = await cluster.start_resource_manager()
    job = cluster.job(1)
    await job.register()
    job.master.on(JobMasterGateway.heartbeat_from_resource_manager).calling(
        lambda *_: manager.heartbeat_from_job_master(job.job_id, PAST_MASTER)
    )
    await asyncio.sleep(55)
    assert len(job.master.calls_of(JobMasterGateway.disconnect_resource_manager)) == 1


def test_list_of_late_calls_has_each_method_that_leaders_call_on_a_resource_manager() -> None:
    taking = {
        name
        for name in gateway_methods(ResourceManagerGateway)
        if takes_a_leader_id(getattr(ResourceManagerGateway, name))
    }
    assert {*TO_RESOURCE_MANAGERS, "heartbeat_from_job_master", REGISTERS} == taking


# --- a past JobMaster calls the Dispatcher --------------------------------------------------------


@on_virtual_time
async def test_past_job_master_cannot_register_nor_end_its_job(tmp_path: Path) -> None:
    """DI-09."""
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(waits))
        await until_running(cluster, job_id)
        dispatcher = await cluster.dispatcher()
        details = await cluster.details(job_id)
        result = JobResult(job_id, "late", JobStatus.FAILED, 1.0, "late")

        answer = await dispatcher.register_job_master(job_id, PAST_MASTER, "JobMaster/jobmaster")
        with pytest.raises(JobStateError, match="is led by"):
            await dispatcher.job_reached_terminal_state(job_id, PAST_MASTER, result, details)

        assert isinstance(answer, RegistrationRejection)
        assert await cluster.status(job_id) is JobStatus.RUNNING


@on_virtual_time
async def test_hung_job_master_is_ended_despite_heartbeats_of_a_past_job_master(
    tmp_path: Path,
) -> None:
    configuration = {**QUICK, "jobmaster.max-failovers": "0"}
    async with ClusterOfDeafJobMasters(str(tmp_path), configuration=configuration) as cluster:
        job_id = await cluster.submit(scripted_job(["register", "wait"]))
        dispatcher = await cluster.dispatcher()

        async def past() -> None:
            while True:
                await dispatcher.heartbeat_from_job_master(job_id, PAST_MASTER, 0)
                await asyncio.sleep(1)

        task = asyncio.ensure_future(past())
        result = await asyncio.wait_for(cluster.result(job_id), 200)
        task.cancel()

    assert result.status is JobStatus.FAILED


def test_list_of_late_calls_has_each_method_that_leaders_call_on_a_dispatcher() -> None:
    taking = {
        name
        for name in gateway_methods(DispatcherGateway)
        if takes_a_leader_id(getattr(DispatcherGateway, name))
    }
    assert taking == {
        "register_job_master",
        "job_reached_terminal_state",
        "heartbeat_from_job_master",
        "job_overview_changed",
    }
