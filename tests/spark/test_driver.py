"""The SparkDriver endpoint: what it tells the JobMaster, and when it ends.  No Spark here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from flinkray.actors.shared.leadership import LeadershipLostError
from flinkray.core.errors import (
    CoordinatorReplacedError,
    FencingTokenError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorFailure,
    CoordinatorID,
    CoordinatorKind,
    SparkExecutors,
)
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark import session_guests
from flinkray.spark.driver import SparkDriver
from flinkray.spark.executors import ExecutorDesk
from flinkray.spark.gateway import (
    CoordinatorListenerGateway,
    SparkDriverGateway,
    SparkSessionGateway,
    SparkSessionGuest,
    SparkStageDescriptor,
)
from flinkray.spark.job_master_reports import job_master_of
from flinkray.spark.session_guests import SessionGuests, SparkSessionDesk
from flinkray.spark.session_requests import SparkSessionEndedError
from flinkray.spark.stage import StageListener
from flinkray.testing import TestingGateway
from flinkray.testing.waiting import eventually
from tests.spark.test_session_guests import OneLook, RecordedSession

VERTEX = JobVertexID(bytes(16))
LEADER = JobMasterId(bytes([1] * 16))
PREDECESSOR = JobMasterId(bytes([2] * 16))
SUCCESSOR = JobMasterId(bytes([3] * 16))
RESULT = SparkResult("/results", 3, "{}")
FAILURE = CoordinatorFailure("ValueError", "ValueError: no", "Traceback", is_user_error=True)
EXECUTOR = SparkExecutorInfo(0, "0", "actor", "node", 7, 0)

DRIVER = CoordinatorID(CoordinatorKind.SPARK_DRIVER, VERTEX, 2)


def stage_of(leader: JobMasterId, takeover_timeout: float = 0.0) -> SparkStageDescriptor:
    return SparkStageDescriptor(
        job_id=JobID(bytes(16)),
        job_name="test",
        vertex_id=VERTEX,
        attempt_number=2,
        listener_address="JobMaster-1/jobmaster",
        job_master_id=leader,
        graph_id=ExecutionGraphID(bytes([3] * 16)),
        worker_group=WorkerGroupId("00"),
        parallelism=1,
        slot_profile=ResourceProfile(1.0, 2**30),
        code=b"",
        configuration={},
        result_location="/results",
        session_address="Session-1/sparksession",
        takeover_timeout=takeover_timeout,
    )


class TestingStage:
    """A stage whose events are the test's."""

    __test__ = False

    def __init__(self, listener: StageListener) -> None:
        self.listener = listener
        self.desk = ExecutorDesk(lambda why: None)
        self.guests = SessionGuests(300.0)
        self.has_lost_session = asyncio.Event()
        self.is_started = False
        self.stops = 0
        self.may_stop = threading.Event()
        self.may_stop.set()

    def start(self) -> None:
        self.is_started = True

    def session_lost(self, reason: str) -> None:
        self.has_lost_session.set()

    def stop(self) -> None:
        assert self.may_stop.wait(10)
        self.stops += 1

    def tell(self, report: Callable[[StageListener], None]) -> None:
        """In a thread of its own, as a stage does."""
        thread = threading.Thread(target=report, args=(self.listener,))
        thread.start()
        thread.join()


class Scene:
    """A JobMaster and a Spark driver, each in a process of its own."""

    def __init__(self, takeover_timeout: float = 0.0) -> None:
        self.takeover_timeout = takeover_timeout
        self.network = LocalNetwork()
        self.job_master_service = LocalRpcService("JobMaster-1", self.network)
        self.driver_service = LocalRpcService("SparkDriver-1", self.network)
        self.client = LocalRpcService("client", self.network)
        self.job_master = TestingGateway(CoordinatorListenerGateway, LEADER).lenient()
        self.stage: TestingStage
        self.driver = self.new_driver(LEADER)

    def new_driver(
        self, leader: JobMasterId, session: SparkSessionGateway | None = None
    ) -> SparkDriver:
        def create_run(listener: StageListener) -> TestingStage:
            self.stage = TestingStage(listener)
            return self.stage

        stage_attempt = stage_of(leader, self.takeover_timeout)
        return SparkDriver(self.driver_service, stage_attempt, create_run, session)

    async def start(self) -> None:
        self.start_job_master()
        self.driver.start()
        await self.connect()

    def start_job_master(self) -> None:
        self.job_master.start(self.job_master_service, "jobmaster")

    async def next_job_master(self) -> TestingGateway[CoordinatorListenerGateway]:
        """At the same address, when this one has died."""
        await self.job_master_service.close()
        self.job_master_service = LocalRpcService("JobMaster-1", self.network)
        successor = TestingGateway(CoordinatorListenerGateway, SUCCESSOR).lenient()
        successor.start(self.job_master_service, "jobmaster")
        return successor

    async def connect(self) -> SparkDriverGateway:
        return await self.client.connect("SparkDriver-1/sparkdriver", SparkDriverGateway)

    async def close(self) -> None:
        for service in (self.client, self.driver_service, self.job_master_service):
            await service.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.close()


async def session_of(scene: Scene, service: LocalRpcService) -> TestingGateway[SparkSessionGateway]:
    """A session in a process of its own, whose guest the scene's driver is."""
    session = TestingGateway(SparkSessionGateway).lenient()
    session.start(service, "sparksession")
    gateway = await scene.driver_service.connect("Session-1/sparksession", SparkSessionGateway)
    scene.driver_service.unregister_endpoint(scene.driver)
    scene.driver = scene.new_driver(LEADER, gateway)
    await scene.start()
    return session


async def test_driver_that_stops_leaves_the_shared_session(scene: Scene) -> None:
    service = LocalRpcService("Session-1", scene.network)
    session = await session_of(scene, service)

    await (await scene.connect()).stop(LEADER)

    assert session.calls == [("leave", ("SparkDriver-1",))]
    await service.close()


async def test_driver_tells_its_spark_stage_that_the_shared_session_has_ended(scene: Scene) -> None:
    service = LocalRpcService("Session-1", scene.network)
    await session_of(scene, service)

    await service.close()

    await asyncio.wait_for(scene.stage.has_lost_session.wait(), 10)


async def test_driver_whose_process_ends_leaves_the_shared_session(scene: Scene) -> None:
    guests = SessionGuests(300.0)
    service = LocalRpcService("Session-1", scene.network)
    desk = SparkSessionDesk(service, guests, "node")
    session = RecordedSession()
    guests.hold(session, OneLook())
    desk.start()
    gateway = await scene.driver_service.connect("Session-1/sparksession", SparkSessionGateway)
    assert await gateway.await_open() == "node"
    access = await gateway.attach(SparkSessionGuest("SparkDriver-1", 0, 0.0, "stage"))

    await scene.driver_service.close()

    assert await asyncio.to_thread(session.is_forgotten.wait, 10)
    assert session.asked == [access.tag, "forget"]
    await service.close()


async def test_spark_stage_cannot_attach_while_its_earlier_attempt_does_not_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_guests, "PATIENCE", 0.2)
    guests = SessionGuests(300.0, end=lambda guest: None)
    service = LocalRpcService("Session-1", scene.network)
    desk = SparkSessionDesk(service, guests, "node")
    session = RecordedSession()
    guests.hold(session, OneLook())
    desk.start()
    gateway = await scene.driver_service.connect("Session-1/sparksession", SparkSessionGateway)
    first = await gateway.attach(SparkSessionGuest("SparkDriver-1", 0, 0.0, "stage"))
    session.needs[first.tag] = 10**9

    with pytest.raises(SparkSessionEndedError, match=r"0.2 s for an earlier .*\(SparkDriver-1\)"):
        await gateway.attach(SparkSessionGuest("SparkDriver-2", 0, 0.0, "stage"))

    # nobody waits any more, so the next one is not overtaken by who has given up
    session.needs[first.tag] = 0
    await gateway.attach(SparkSessionGuest("SparkDriver-3", 0, 0.0, "stage"))
    await service.close()


async def test_driver_waits_until_the_job_master_confirms_its_leadership(scene: Scene) -> None:
    scene.start_job_master()
    may_say = asyncio.Event()

    async def says_so() -> None:
        await may_say.wait()

    scene.job_master.on(CoordinatorListenerGateway.confirm_leadership).calling(says_so)

    asking = asyncio.ensure_future(job_master_of(scene.driver_service, stage_of(LEADER)))
    await scene.job_master.wait_for(CoordinatorListenerGateway.confirm_leadership)
    assert not asking.done()
    may_say.set()
    await asking


@pytest.mark.parametrize("leader", [PREDECESSOR, LEADER])
async def test_driver_does_not_start_its_stage_for_a_job_master_that_has_lost_leadership(
    scene: Scene, leader: JobMasterId
) -> None:
    scene.start_job_master()
    lost = LeadershipLostError("it leads no more")
    scene.job_master.on(CoordinatorListenerGateway.confirm_leadership).raising(lost)

    with pytest.raises((FencingTokenError, LeadershipLostError)):
        await job_master_of(scene.driver_service, stage_of(leader))


async def test_shared_session_answers_other_calls_while_its_jvm_is_slow(scene: Scene) -> None:
    guests = SessionGuests(300.0)
    service = LocalRpcService("Session-1", scene.network)
    desk = SparkSessionDesk(service, guests, "node")
    session = RecordedSession()
    guests.hold(session, OneLook())
    desk.start()
    gateway = await scene.driver_service.connect("Session-1/sparksession", SparkSessionGateway)
    access = await gateway.attach(SparkSessionGuest("SparkDriver-1", 0, 0.0, "stage"))
    session.answers.clear()

    leaving = asyncio.ensure_future(gateway.leave("SparkDriver-1"))
    assert await asyncio.to_thread(session.is_asked.wait, 10)
    coming = asyncio.ensure_future(gateway.await_open())
    await scene.client.connect("Session-1/sparksession", SparkSessionGateway)
    session.answers.set()

    assert await coming == "node"
    await leaving
    assert session.asked == [access.tag, "forget"]
    await service.close()


async def test_events_of_a_spark_stage_are_reported_to_the_job_master_in_order(
    scene: Scene,
) -> None:
    await scene.start()
    progress = SparkProgress(completed_tasks=1)

    scene.stage.tell(lambda listener: listener.executors_changed((EXECUTOR,)))
    scene.stage.tell(lambda listener: listener.progress(progress))
    scene.stage.tell(lambda listener: listener.finished(RESULT))

    await scene.job_master.wait_for(CoordinatorListenerGateway.coordinator_told, 3)
    assert scene.job_master.calls == [
        ("coordinator_told", (DRIVER, SparkExecutors((EXECUTOR,)))),
        ("coordinator_told", (DRIVER, progress)),
        ("coordinator_told", (DRIVER, RESULT)),
    ]


async def test_driver_whose_stage_has_its_result_runs_until_it_is_stopped(scene: Scene) -> None:
    await scene.start()
    scene.stage.tell(lambda listener: listener.finished(RESULT))
    await scene.job_master.wait_for(CoordinatorListenerGateway.coordinator_told)
    assert scene.driver.is_running
    assert scene.stage.stops == 0

    await (await scene.connect()).stop(LEADER)
    await scene.driver.terminated

    assert scene.stage.stops == 1


async def test_driver_reports_a_failure_and_then_ends_itself_and_its_stage(scene: Scene) -> None:
    await scene.start()

    scene.stage.tell(lambda listener: listener.failed(FAILURE))
    await scene.driver.terminated

    assert scene.job_master.calls == [("coordinator_told", (DRIVER, FAILURE))]
    assert scene.stage.stops == 1


async def test_driver_ends_itself_and_its_stage_when_its_job_master_is_gone(
    scene: Scene,
) -> None:
    await scene.start()

    await scene.job_master_service.close()
    await scene.driver.terminated

    assert scene.stage.stops == 1


@pytest.fixture
async def orphan() -> AsyncIterator[Scene]:
    """A scene whose driver waits for the next JobMaster."""
    scene = Scene(takeover_timeout=60.0)
    yield scene
    await scene.close()


async def test_next_job_master_gets_the_latest_executors_progress_and_result_of_a_stage(
    orphan: Scene,
) -> None:
    await orphan.start()
    for pid in (7, 8):
        executor = replace(EXECUTOR, pid=pid)
        orphan.stage.tell(lambda listener: listener.executors_changed((executor,)))  # noqa: B023
    for n in range(3):
        progress = SparkProgress(completed_tasks=n)
        orphan.stage.tell(lambda listener: listener.progress(progress))  # noqa: B023
    await orphan.job_master.wait_for(CoordinatorListenerGateway.coordinator_told, 5)
    successor = await orphan.next_job_master()
    orphan.stage.tell(lambda listener: listener.finished(RESULT))

    driver = await orphan.connect()
    await driver.adopt(SUCCESSOR, "JobMaster-1/jobmaster")

    await successor.wait_for(CoordinatorListenerGateway.coordinator_told, 3)
    told = successor.calls_of(CoordinatorListenerGateway.coordinator_told)
    assert [event for _, event in told] == [
        SparkExecutors((replace(EXECUTOR, pid=8),)),
        SparkProgress(completed_tasks=2),
        RESULT,
    ]
    assert {coordinator for coordinator, _ in told} == {DRIVER}
    assert orphan.stage.stops == 0


async def test_spark_stage_failure_without_a_job_master_is_reported_to_the_next_job_master(
    orphan: Scene,
) -> None:
    await orphan.start()
    successor = await orphan.next_job_master()
    orphan.stage.tell(lambda listener: listener.failed(FAILURE))

    await (await orphan.connect()).adopt(SUCCESSOR, "JobMaster-1/jobmaster")
    await orphan.driver.terminated

    assert successor.calls_of(CoordinatorListenerGateway.coordinator_told) == [(DRIVER, FAILURE)]


async def test_driver_refuses_calls_of_a_job_master_that_was_replaced(orphan: Scene) -> None:
    await orphan.start()
    await orphan.next_job_master()
    driver = await orphan.connect()
    await driver.adopt(SUCCESSOR, "JobMaster-1/jobmaster")

    for order in (driver.stop, driver.request_heartbeat):
        with pytest.raises(CoordinatorReplacedError, match=f"of JobMaster {SUCCESSOR}"):
            await order(LEADER)
    assert orphan.stage.stops == 0
    await driver.request_heartbeat(SUCCESSOR)
    await driver.stop(SUCCESSOR)
    assert orphan.stage.stops == 1


async def test_report_of_executors_names_the_executors_that_are_missing(orphan: Scene) -> None:
    await orphan.start()
    other = replace(EXECUTOR, subtask_index=1)
    for registered in ((EXECUTOR, other), (other,), (), (EXECUTOR,)):
        orphan.stage.tell(lambda listener: listener.executors_changed(registered))  # noqa: B023
    await orphan.job_master.wait_for(CoordinatorListenerGateway.coordinator_told, 4)
    told = orphan.job_master.calls_of(CoordinatorListenerGateway.coordinator_told)
    assert [event.missing for _, event in told] == [(), (0,), (0, 1), (1,)]


async def test_driver_stays_with_its_new_job_master_if_an_old_one_confirms_leadership_late(
    orphan: Scene,
) -> None:
    """The confirmation of the first JobMaster's leadership arrives after the second adoption."""
    await orphan.start()
    first = await orphan.next_job_master()
    may_say = asyncio.Event()

    async def says_so() -> None:
        await may_say.wait()

    first.on(CoordinatorListenerGateway.confirm_leadership).calling(says_so)
    driver = await orphan.connect()
    early = asyncio.ensure_future(driver.adopt(SUCCESSOR, "JobMaster-1/jobmaster"))
    await first.wait_for(CoordinatorListenerGateway.confirm_leadership)
    second_service = LocalRpcService("JobMaster-2", orphan.network)
    second = TestingGateway(CoordinatorListenerGateway, PREDECESSOR).lenient()
    second.start(second_service, "jobmaster")
    await driver.adopt(PREDECESSOR, "JobMaster-2/jobmaster")
    may_say.set()

    with pytest.raises(CoordinatorReplacedError):
        await early
    await driver.request_heartbeat(PREDECESSOR)
    await second_service.close()


async def test_report_of_a_driver_that_is_too_large_to_send_ends_the_stage(orphan: Scene) -> None:
    await orphan.start()
    result = SparkResult("/results", 3, "x" * 20_000_000)
    orphan.stage.tell(lambda listener: listener.finished(result))
    await orphan.driver.terminated
    assert orphan.stage.stops == 1


async def test_driver_is_not_adopted_by_a_job_master_without_leadership(orphan: Scene) -> None:
    await orphan.start()
    driver = await orphan.connect()
    with pytest.raises(FencingTokenError):
        await driver.adopt(PREDECESSOR, "JobMaster-1/jobmaster")
    await driver.request_heartbeat(LEADER)

    lost = LeadershipLostError("it leads no more")
    successor = await orphan.next_job_master()
    successor.on(CoordinatorListenerGateway.confirm_leadership).raising(lost)
    with pytest.raises(LeadershipLostError):
        await driver.adopt(SUCCESSOR, "JobMaster-1/jobmaster")
    with pytest.raises(CoordinatorReplacedError):
        await driver.stop(SUCCESSOR)
    assert orphan.stage.stops == 0


async def test_driver_repeats_a_report_that_was_not_answered_by_its_job_master(
    orphan: Scene,
) -> None:
    await orphan.start()
    deaf = RpcTimeoutError("no answer")
    orphan.job_master.on(CoordinatorListenerGateway.coordinator_told).raising(deaf)
    orphan.stage.tell(lambda listener: listener.finished(RESULT))
    await orphan.job_master.wait_for(CoordinatorListenerGateway.coordinator_told)
    driver = await orphan.connect()
    orphan.job_master.on(CoordinatorListenerGateway.coordinator_told).returning(None)

    async def told_twice() -> bool:
        await driver.request_heartbeat(LEADER)
        return len(orphan.job_master.calls_of(CoordinatorListenerGateway.coordinator_told)) == 2

    await eventually(told_twice, 50, "another try")


async def test_driver_answers_calls_during_the_stop_of_its_stage_and_stops_it_only_once(
    scene: Scene,
) -> None:
    await scene.start()
    scene.stage.may_stop.clear()
    gateway = await scene.connect()

    stops = [asyncio.ensure_future(gateway.stop(LEADER)) for _ in range(2)]
    scene.stage.tell(lambda listener: listener.progress(SparkProgress(failed_tasks=1)))
    await scene.job_master.wait_for(CoordinatorListenerGateway.coordinator_told)
    assert not any(stop.done() for stop in stops)
    scene.stage.may_stop.set()
    await asyncio.gather(*stops)
    await scene.driver.terminated

    assert scene.stage.stops == 1


async def test_driver_of_an_earlier_leader_session_ends_without_a_report_to_the_later_one(
    scene: Scene,
) -> None:
    """Fencing: the later JobMaster at the same address is told nothing."""
    scene.driver.close()
    await scene.driver.terminated
    past = scene.new_driver(JobMasterId(bytes([9] * 16)))
    scene.start_job_master()
    past.start()
    await scene.connect()

    scene.stage.tell(lambda listener: listener.finished(RESULT))
    await past.terminated

    assert scene.job_master.calls == []
    assert scene.stage.stops == 1


async def test_driver_that_cannot_reach_its_job_master_does_not_start_spark(scene: Scene) -> None:
    await scene.job_master_service.close()

    scene.driver.start()
    with pytest.raises(RpcConnectionError):
        await scene.driver.terminated

    assert not scene.stage.is_started
