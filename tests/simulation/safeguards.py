"""What the simulation notices when a safeguard is taken out.

Each safeguard is switched off by replacing one small piece of a product class for the length of a
run; nothing that ships knows of these switches.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from unittest.mock import patch

from flinkray.actors.dispatcher import job_cleanup, job_master_supervision
from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.gateways.messages import JobMasterToDispatcherRegistrationSuccess
from flinkray.actors.gateways.snapshots import SnapshotType
from flinkray.actors.job_master import endpoint as job_master
from flinkray.actors.job_master import snapshot_requests
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.actors.job_master.left_by_past_job_masters import PastCopies
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.slot_pool_supervision import SlotPoolSupervision
from flinkray.actors.job_master.stored_checkpoints import StoredCheckpoints
from flinkray.actors.job_master.taking_over import Reconciliation
from flinkray.actors.job_master.task_deployer import TaskDeployer
from flinkray.actors.resource_manager.slot_allocation import SlotAllocation
from flinkray.actors.shared.leadership import Leadership
from flinkray.actors.shared.notifications import tell
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.actors.task_executor import task_processes
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_executor.python_tasks import PythonTasks
from flinkray.actors.task_executor.resource_manager_registration import ResourceManagerRegistration
from flinkray.actors.task_executor.slot_offering import SlotOffering
from flinkray.actors.task_executor.task_execution import TaskExecution
from flinkray.actors.task_executor.task_results import TaskResults
from flinkray.actors.task_process import stream_task_run
from flinkray.actors.task_process.coordinator_clients import SplitClient
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.checkpoint import state_files
from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.layout import metadata_path
from flinkray.checkpoint.state_files import StateOutput
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import ResourceID
from flinkray.ha import EmbeddedHaServices, services
from flinkray.ha.checkpoint_stores import DurableCheckpointIDCounter
from flinkray.ha.directory import FileDirectory
from flinkray.ha.durable_stores import DurableJobGraphStore, DurableJobResultStore
from flinkray.ha.epoch_directory import EpochDirectory
from flinkray.rpc import HeartbeatManager, RegisteredRpcConnection, RpcEndpoint
from flinkray.rpc.calls import peer_deadlines
from flinkray.rpc.liveness import registration
from flinkray.rpc.serving import dispatch
from flinkray.rpc.wire.envelope import TELL, unpack_request
from flinkray.scheduler.checkpoints.events import CheckpointIsStored
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, synchronous_savepoint
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from flinkray.scheduler.job.take_over import TakeOver
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.task_slots.task_slot_table import TaskSlotTable
from flinkray.streaming.checkpoint.barrier_handler import BarrierTracker
from flinkray.streaming.network.views import RemoteView
from flinkray.streaming.sinks.sink_operators import CommittableCollector, CommittableMessage
from flinkray.streaming.sources.coordinator import SourceCoordinator
from flinkray.streaming.task import task as stream_task
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.service import SimulatedRpcService
from tests.simulation import (
    registration_and_fencing,
    stalled_processes,
    streaming_job,
    whole_cluster,
)

Switch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Safeguard:
    """Something that the product does, and what has it not do so."""

    meaning: str
    switched_off: Switch


# --- how they are switched off -------------------------------------------------------------------


def _replace(owner: Any, name: str, replacement: object) -> Switch:
    return lambda: _called_alike(owner, name, replacement)


def _called_alike(owner: Any, name: str, replacement: object) -> Any:
    """What cannot be called as before fails everything that runs, which is noticed, too.

    Raises:
        TypeError: The replacement lacks a parameter.
    """
    original = getattr(owner, name)
    if callable(original) and callable(replacement):
        parameters = inspect.signature(original).parameters.values()
        positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        named = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        inspect.signature(replacement).bind(*positional, **named)
    return patch.object(owner, name, replacement)


def _nothing(*_: object, **__: object) -> None: ...


async def _nothing_async(*_: object, **__: object) -> None: ...


def _skip(owner: Any, name: str) -> Switch:
    """The method does nothing."""
    is_async = asyncio.iscoroutinefunction(getattr(owner, name))
    return _replace(owner, name, _nothing_async if is_async else _nothing)


def _around(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Switch:
    """*wrap* is given the function, and makes what is in its place."""
    return lambda: _called_alike(owner, name, wrap(getattr(owner, name)))


class _UnfencedLane(dispatch._Lane):
    """Calls need no token."""

    __slots__ = ()
    token = property(lambda self: None, lambda self, token: None)


class _ForgetfulLane(dispatch._Lane):
    """Every frame is a new one."""

    __slots__ = ()
    last_sequence = property(lambda self: 0, lambda self, sequence: None)


def _tells_unfenced(frame_received: Any) -> Any:
    def unfenced(self: dispatch.ServerConnection, frame: bytes) -> None:
        _, kind, _, target, *_ = unpack_request(frame)
        lane = self._lanes.get(target) or self._new_lane(target)
        token = lane.token
        if kind == TELL:
            lane.token = None
        try:
            frame_received(self, frame)
        finally:
            lane.token = token

    return unfenced


def _hears_no_silence(owners: str | tuple[str, ...], target: str) -> Switch:
    """Endpoints of these classes do not notice that targets whose names begin so are silent."""
    classes = (owners,) if isinstance(owners, str) else owners

    def wrap(monitor_target: Any) -> Any:
        def monitor(self: HeartbeatManager[Any, Any], target_id: Any, send: Any) -> None:
            monitor_target(self, target_id, send)
            if type(self._endpoint).__name__ in classes and target_id.startswith(target):
                monitored = self._targets[target_id]
                monitored.timer.cancel()
                monitored.failures = -1_000_000

        return monitor

    return _around(HeartbeatManager, "monitor_target", wrap)


def _stored_later(owner: Any, name: str, when: Callable[[Any, Any], bool]) -> Switch:
    """The store answers before it has stored."""

    def wrap(store: Any) -> Any:
        async def store_later(self: Any, record: Any) -> None:
            if not when(self, record):
                await store(self, record)
                return
            task = asyncio.ensure_future(store(self, record))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return store_later

    return _around(owner, name, wrap)


def _without_step(step: str) -> Switch:
    """Of the steps of a write."""

    class Files:
        def __init__(self, files: Any) -> None:
            self._files = files

        def __getattr__(self, name: str) -> Any:
            return _nothing if name == step else getattr(self._files, name)

    def wrap(write: Any) -> Any:
        def write_without(self: FileDirectory, name: str, data: bytes) -> None:
            files = self._files
            self._files = Files(files)  # type: ignore[assignment]
            try:
                write(self, name, data)
            finally:
                self._files = files

        return write_without

    return _around(FileDirectory, "write", wrap)


def _directories_unsynced(_: Any) -> Any:
    def make(self: FileDirectory, path: str) -> None:
        if path not in ("", "/"):
            make(self, path.rpartition("/")[0])
            self._files.make_directory(path)

    return make


async def _clean_before_dirty_is_kept(self: DurableJobResultStore[Any], job_id: Any) -> None:
    def mark() -> None:
        result = self._dirty.read(job_id)
        self._dirty.delete(job_id)
        if result is not None:
            self._clean.write(result)

    await self._sequential.run(mark)


def _forgets_known_jobs(submit_job: Any) -> Any:
    async def submit(self: Dispatcher, job_graph: Any) -> None:
        self._jobs.pop(job_graph.job_id, None)
        await submit_job(self, job_graph)

    return submit


async def _end_not_awaited(self: Dispatcher, job: Any, outcome: Any) -> None:
    if job.ending is None:
        job.ending = self.create_task(self._store(job, outcome))


def _whoever_tells(job_reached_terminal_state: Any) -> Any:
    async def told(self: Dispatcher, job_id: Any, master_id: Any, *rest: Any) -> None:
        job = self._jobs.get(job_id)
        leader = master_id if job is None else job.job_master_id
        await job_reached_terminal_state(self, job_id, leader, *rest)

    return told


def _not_told_to_cancel(register: Any) -> Any:
    async def registered(self: Any, *arguments: Any) -> Any:
        answer = await register(self, *arguments)
        if isinstance(answer, JobMasterToDispatcherRegistrationSuccess):
            return replace(answer, cancel_requested=False)
        return answer

    return registered


async def _once(what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except FlinkRayError as error:
        logging.getLogger("flinkray").warning("%s: %s", what, error)


async def _one_attempt(self: registration.RetryingRegistration[Any, Any]) -> Any:
    timeout = self._settings.max_timeout
    try:
        gateway = await self._connect()
        answer = await asyncio.wait_for(self._register(gateway), timeout)
    except (RpcError, TimeoutError, asyncio.TimeoutError):
        return await asyncio.get_running_loop().create_future()
    if isinstance(answer, registration.RegistrationRejection):
        return answer
    if isinstance(answer, registration.RegistrationFailure):
        return await asyncio.get_running_loop().create_future()
    return registration.RegistrationSuccess(gateway, answer)


async def _declared_once(self: SlotPool, address: Any, token: Any, requirements: Any) -> None:
    from flinkray.actors.gateways import ResourceManagerGateway

    async def declare() -> None:
        manager = await self.connect(address, ResourceManagerGateway, token)
        await manager.declare_required_resources(self.fencing_token, requirements)

    await _once("declare", declare)


async def _offered_once(self: SlotOffering, job_id: Any) -> None:
    master = self._job_leaders.job_master(job_id)
    offering = self._table.offer_slots(job_id)

    async def offer() -> None:
        if master is not None and offering is not None:
            answer = await self._answer(master, offering)
            now = self._endpoint.clock.monotonic()
            self._carry_out(self._table.offer_answered(offering, answer.accepted, now))

    await _once("offer", offer)
    self._offering.discard(job_id)


async def _told_once(self: TaskProcess, states: Any) -> None:
    name = self.rpc_service.process_name
    await _once("tell", lambda: self._task_executor.tasks_reported(name, states))


async def _reported_once(services: Any, master_id: Any, result: Any, details: Any) -> bool:
    async def report() -> None:
        dispatcher = await services.connect_to_dispatcher()
        await dispatcher.job_reached_terminal_state(result.job_id, master_id, result, details)

    await _once("report the end", report)
    return True


async def _swallow(self: SlotPoolSupervision, pool: Any, call: Any) -> None:
    await _once("tell the pool", lambda: call(pool))


async def _ask_for_no_news(self: SlotPoolSupervision, pool: Any) -> None:
    await pool.request_heartbeat()
    if pool is self._pool and self._heartbeats is not None:
        self._heartbeats.receive_heartbeat(self._resource_id, None)


def _any_news(self: SlotPoolSupervision, pool_number: int, news_number: int) -> bool:
    if self._pool is None or pool_number != self._number:
        return False
    self._news_seen = max(news_number, self._news_seen)
    return True


def _only_python(_: Any) -> Any:
    def cancel_all(self: TaskExecution, attempts: Any, job_master_id: Any) -> None:
        found = [(a, self._tasks.get(a)) for a in attempts]
        self.end([a for a, t in found if t is not None and isinstance(t.runs_in, PythonTasks)])

    return cancel_all


def _from_any_process(reported: Any) -> Any:
    def changed(self: PythonTasks, process_name: str, states: Any) -> None:
        for state in states:
            task = self._tasks.get(state.attempt_id)
            if task is not None:
                reported(self, task.place.process_name, (state,))

    return changed


def _reconciling_without(what: str) -> Switch:
    from flinkray.actors.job_master.deployment_reconciliation import DeploymentReconciliation

    def wrap(heartbeat: Any) -> Any:
        def found(self: Any, resource_id: Any, running: Any) -> Any:
            return replace(heartbeat(self, resource_id, running), **{what: ()})

        return found

    return _around(DeploymentReconciliation, "heartbeat", wrap)


def _unwatched(watch: Any) -> Any:
    return lambda self, target, on_terminated: watch(self, target, _nothing)


def _says_goodbye(self: ResourceManagerRegistration, reason: str) -> None:
    manager = self._leader.target_gateway
    if manager is not None and self._instance_id is not None:
        goodbye = manager.disconnect_task_executor(self._resource_id, self._instance_id, reason)
        tell(self._task_executor, goodbye, "ResourceManager")
    self._leader.reconnect(reason)


FRAMEWORK: dict[str, Safeguard] = {
    "fencing": Safeguard(
        "an endpoint refuses calls with another session's token",
        _replace(dispatch, "_Lane", _UnfencedLane),
    ),
    "generation check": Safeguard(
        "a connection ignores the answer to a registration that it has given up",
        _replace(RegisteredRpcConnection, "_is_current", lambda *_: True),
    ),
    "de-duplication": Safeguard(
        "a connection ignores a frame that it has already received",
        _replace(dispatch, "_Lane", _ForgetfulLane),
    ),
    "heartbeats": Safeguard(
        "leaders and workers notice when their peer is silent",
        _skip(HeartbeatManager, "monitor_target"),
    ),
}
"""Name -> what it does, and what switches it off, in the scenario of registrations."""

WHOLE_CLUSTER: dict[str, Safeguard] = {
    **{name: FRAMEWORK[name] for name in ("fencing", "de-duplication", "heartbeats")},
    "fencing of one-way messages": Safeguard(
        "an endpoint refuses one-way messages with another session's token",
        _around(dispatch.ServerConnection, "frame_received", _tells_unfenced),
    ),
    "reconciliation": Safeguard(
        "a JobMaster compares the tasks that TaskExecutors run with those that it has deployed",
        _skip(TaskDeployer, "running"),
    ),
    "reconciliation: missing": Safeguard(
        "a deployed task that its TaskExecutor does not run counts as failed",
        _reconciling_without("missing"),
    ),
    "reconciliation: unknown": Safeguard(
        "a running task that the JobMaster has given up is cancelled",
        _reconciling_without("unknown"),
    ),
    "cancelling of both kinds": Safeguard(
        "a task that was given up is cancelled, of Python or of Spark",
        _around(TaskExecution, "cancel_all", _only_python),
    ),
    "slot comparison": Safeguard(
        "a TaskExecutor compares its slots with the slots that the JobMaster knows",
        _skip(TaskExecutor, "slots_reported"),
    ),
    "submissions stored first": Safeguard(
        "a job's graph is stored before its submission is acknowledged",
        _stored_later(
            DurableJobGraphStore, "put_job_graph", lambda store, job: job.job_id not in store._known
        ),
    ),
    "cancels stored first": Safeguard(
        "a job's cancellation is stored before the request is acknowledged",
        _stored_later(DurableJobGraphStore, "put_job_graph", lambda _, job: job.cancel_requested),
    ),
    "ends stored first": Safeguard(
        "a job's result is stored before the JobMaster's report is acknowledged",
        _replace(Dispatcher, "_job_ended", _end_not_awaited),
    ),
    "content synchronised": Safeguard(
        "a file's content is made durable before the file takes its name", _without_step("sync")
    ),
    "names synchronised": Safeguard(
        "a file's name is made durable before its write returns", _without_step("sync_directory")
    ),
    "new directories synchronised": Safeguard(
        "a new directory is made durable before its entries",
        _around(FileDirectory, "_make", _directories_unsynced),
    ),
    "clean before dirty goes": Safeguard(
        "a result is stored as clean before the dirty entry is deleted",
        _replace(DurableJobResultStore, "mark_result_as_clean", _clean_before_dirty_is_kept),
    ),
    "de-duplication of submissions": Safeguard(
        "a job that is submitted again is not run a second time",
        _around(Dispatcher, "submit_job", _forgets_known_jobs),
    ),
    "ends of past JobMasters": Safeguard(
        "the Dispatcher takes a job's result from the job's current JobMaster alone",
        _around(Dispatcher, "job_reached_terminal_state", _whoever_tells),
    ),
    "past JobMasters rejected": Safeguard(
        "the Dispatcher refuses a JobMaster that does not lead its job",
        _replace(
            job_master_supervision.JobMasterSupervision,
            "_why_not_led_by",
            lambda self, job_id, _: None if self._job(job_id) else "there is no such job",
        ),
    ),
    "deaths of past JobMasters": Safeguard(
        "the death of a replaced JobMaster has no effect",
        _around(
            Dispatcher,
            "_job_master_terminated",
            lambda terminated: (
                lambda self, job, _, reason: terminated(self, job, job.job_master_id, reason)
            ),
        ),
    ),
    "kill before another start": Safeguard(
        "a process that is taken for dead is killed before its successor starts",
        _skip(SimulatedRpcService, "kill"),
    ),
    "telling again to cancel": Safeguard(
        "the Dispatcher repeats a request to cancel that did not reach the JobMaster",
        _skip(job_master_supervision.JobMasterSupervision, "_keep_telling_to_cancel"),
    ),
    "successors told to cancel": Safeguard(
        "a JobMaster that registers is told that its job is to be cancelled",
        _around(job_master_supervision.JobMasterSupervision, "register", _not_told_to_cancel),
    ),
    "clean-up insisted on": Safeguard(
        "the clean-up after a job's end is repeated until it succeeds",
        _replace(job_cleanup, "retry_until_done", _once),
    ),
    "ends reported again": Safeguard(
        "a JobMaster reports its job's result until the Dispatcher has stored it",
        _replace(job_master, "report_end", _reported_once),
    ),
    "watches": Safeguard(
        "an endpoint is told when an endpoint that it watches ends",
        _around(RpcEndpoint, "watch", _unwatched),
    ),
    "registrations tried again": Safeguard(
        "a registration that was refused, lost or not answered is repeated",
        _replace(registration.RetryingRegistration, "_attempts", _one_attempt),
    ),
    "heartbeats: Dispatcher of JobMaster": Safeguard(
        "a JobMaster that hangs is replaced", _hears_no_silence("Dispatcher", "JobMaster")
    ),
    "heartbeats: JobMaster of SlotPool": Safeguard(
        "a SlotPool that hangs is replaced", _hears_no_silence("JobMaster", "SlotPool")
    ),
    "heartbeats: JobMaster of TaskExecutor": Safeguard(
        "the tasks of a TaskExecutor that hangs are restarted elsewhere",
        _hears_no_silence("JobMaster", "TaskExecutor"),
    ),
    "heartbeats: JobMaster of Spark driver": Safeguard(
        "a Spark driver that hangs is replaced", _hears_no_silence("JobMaster", "SparkDriver")
    ),
    "heartbeats: ResourceManager of TaskExecutor": Safeguard(
        "a TaskExecutor that hangs is replaced",
        _hears_no_silence("ResourceManager", "TaskExecutor"),
    ),
    "heartbeats: of TaskExecutors": Safeguard(
        "JobMasters and the ResourceManager notice a TaskExecutor that hangs",
        _hears_no_silence(("JobMaster", "ResourceManager"), "TaskExecutor"),
    ),
    "heartbeats: ResourceManager of JobMaster": Safeguard(
        "a JobMaster that hangs gets no more slots",
        _hears_no_silence("ResourceManager", "JobMaster"),
    ),
    "heartbeats: TaskExecutor of JobMaster": Safeguard(
        "a TaskExecutor registers again at a silent JobMaster",
        _hears_no_silence("TaskExecutor", "JobMaster"),
    ),
    "heartbeats: TaskExecutor of ResourceManager": Safeguard(
        "a TaskExecutor registers again at a silent ResourceManager",
        _hears_no_silence("TaskExecutor", "ResourceManager"),
    ),
    "order of a SlotPool's news": Safeguard(
        "a SlotPool is replaced when a later message shows that one was lost",
        _replace(SlotPoolSupervision, "is_next", _any_news),
    ),
    "count of a SlotPool's news": Safeguard(
        "a SlotPool is replaced when its heartbeats show that a message was lost",
        _replace(SlotPoolSupervision, "_ask_for_news", _ask_for_no_news),
    ),
    "SlotPools that do not listen": Safeguard(
        "a SlotPool is replaced when a call of the JobMaster fails",
        _replace(SlotPoolSupervision, "_told", _swallow),
    ),
    "slots of a lost SlotPool": Safeguard(
        "the next SlotPool is told which slots the lost SlotPool had",
        _replace(SlotLedger, "restored", lambda self: iter(())),
    ),
    "requirements declared again": Safeguard(
        "a SlotPool declares requirements until the ResourceManager has answered",
        _replace(SlotPool, "_keep_declaring", _declared_once),
    ),
    "slots offered again": Safeguard(
        "a TaskExecutor offers slots until the JobMaster has answered",
        _replace(SlotOffering, "_keep_offering", _offered_once),
    ),
    "slots that nobody uses": Safeguard(
        "an allocated slot that stays unused is freed after a time-out",
        _skip(TaskExecutor, "_free_timed_out_slots"),
    ),
    "one allocation per slot": Safeguard(
        "a TaskExecutor refuses to allocate an allocated slot again",
        _skip(TaskSlotTable, "_refuse_unless_possible"),
    ),
    "slot reports": Safeguard(
        "the ResourceManager corrects its records by the slot reports of TaskExecutors",
        _skip(SlotAllocation, "report_slots"),
    ),
    "orders of past JobMasters": Safeguard(
        "a TaskExecutor refuses orders of a replaced JobMaster",
        _skip(TaskExecution, "_refuse_past_leader"),
    ),
    "orders of past ResourceManagers": Safeguard(
        "a TaskExecutor allocates slots only for the ResourceManager that it is registered at",
        _skip(ResourceManagerRegistration, "check"),
    ),
    "jobs that have nothing here": Safeguard(
        "a TaskExecutor leaves the JobMaster of a job that has no slot or result there",
        _skip(TaskExecutor, "_leave_unless_used"),
    ),
    "results of lost JobMasters": Safeguard(
        "a TaskExecutor deletes the results of a job whose JobMaster is gone",
        _skip(TaskResults, "job_gone"),
    ),
    "results of dead task processes": Safeguard(
        "a TaskExecutor forgets the results of a dead task process",
        _skip(TaskResults, "process_died"),
    ),
    "ends of tasks told again": Safeguard(
        "a task process reports task states until its TaskExecutor has answered",
        _replace(TaskProcess, "_tell", _told_once),
    ),
    "last words of task processes": Safeguard(
        "a late report of a dead task process changes no task of its successor",
        _around(PythonTasks, "reported", _from_any_process),
    ),
    "task processes in doubt": Safeguard(
        "a task process that may run tasks unknown to its TaskExecutor is killed",
        _replace(task_processes, "_MAY_HAVE_ARRIVED", ()),
    ),
}
"""Likewise, in the scenario of a whole cluster."""


# --- of checkpoints -------------------------------------------------------------------------------


class _AcknowledgesFirst(StateOutput):
    """Says that it is durable, and makes it so some time later."""

    def finish(self) -> StateLocation:
        file = self._file
        if file is None:
            return super().finish()
        self._file = None

        def close() -> None:
            with suppress(OSError):
                file.close()

        asyncio.get_running_loop().call_later(0.05, close)
        return FileState(self._path, self._size)


def _completed_first(store: Any) -> Any:
    def store_later(self: StoredCheckpoints, action: Any) -> None:
        self._told(CheckpointIsStored(action, metadata_path(action.directory)))
        told, self._told = self._told, _nothing
        store(self, action)
        self._told = told

    return store_later


class _CountInMemory(DurableCheckpointIDCounter):
    """It is gone with its JobMaster."""

    def _next(self) -> int:
        return getattr(self, "_next_id", 1)

    def _write(self, next_id: int) -> None:
        self._next_id = next_id


def _writes_as_the_last_owner(put: Any) -> Any:
    def write(self: EpochDirectory, entries: Any) -> None:
        files = self._files()
        last = self._last_claim(files)
        if self._written is not None and last is not None and last != self._written.claim:
            self._written = max(file for file in files if file.claim == last)
        put(self, entries)

    return write


def _cut_later(_: Any) -> Any:
    def trigger(self: SplitClient, checkpoint_id: int, then: Callable[[], None]) -> None:
        then()

    return trigger


def _unregistered_at_once(_: Any) -> Any:
    def unregister(self: SharedStateRegistry, checkpoint_id: int, pending: Any) -> Any:
        files = self._used.pop(checkpoint_id, {})
        for path in files:
            self._users.pop(path, None)
        for users in self._used.values():
            for path in files:
                users.pop(path, None)
        return list(files.values())

    return unregister


def _tracks(gate: Any, task: Any, channels: int, *_: Any) -> BarrierTracker:
    return BarrierTracker(gate, task, channels)


def _keeps_what_is_new(capture: Any) -> Any:
    def captured(self: CommittableCollector, checkpoint_id: int) -> list[CommittableMessage]:
        messages = capture(self, checkpoint_id)
        return [message for message in messages if message.checkpoint_id == checkpoint_id]

    return captured


def _ends_uncommitted() -> AbstractContextManager[object]:
    class Uncommitted(stream_task.StreamTask):
        """It ends as soon as the savepoint is complete that its job ends with."""

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            if self._is_stopping_with(checkpoint_id):
                self._is_stopped = True
            else:
                super().notify_checkpoint_complete(checkpoint_id)

        @property
        def awaits_checkpoint(self) -> bool:
            return not self._is_stopped and super().awaits_checkpoint

    return patch.object(stream_task_run, "StreamTask", Uncommitted)


def _drains_nothing() -> AbstractContextManager[object]:
    plain = synchronous_savepoint(is_drain=False)
    return patch.dict(snapshot_requests._PROPERTIES, {SnapshotType.TERMINATE_WITH_SAVEPOINT: plain})


def _hands_over_nothing(_: Any) -> Any:
    async def left(self: PastCopies, reports: Any) -> None:
        return None

    return left


def _waits_in_silence(_: Any) -> Any:
    async def wait(
        self: Reconciliation, resource_id: ResourceID, address: str, patience: float
    ) -> None:
        await self._job_master.rpc_service.pause(patience)
        self._expect_no_more(resource_id)

    return wait


CHECKPOINTS: dict[str, Safeguard] = {
    "alignment": Safeguard(
        "a task reads on behind a barrier only after its snapshot",
        _replace(stream_task, "ExactlyOnceHandler", _tracks),
    ),
    "durable before acknowledged": Safeguard(
        "a task acknowledges a checkpoint only when the task's state is durable",
        _replace(state_files, "StateOutput", _AcknowledgesFirst),
    ),
    "completed before committed": Safeguard(
        "tasks commit only when the checkpoint's metadata and pointer are durable",
        _around(StoredCheckpoints, "store", _completed_first),
    ),
    "count of ids kept": Safeguard(
        "a JobMaster continues the checkpoint ids of its predecessor",
        _replace(services, "DurableCheckpointIDCounter", _CountInMemory),
    ),
    "source cut before the barrier": Safeguard(
        "a reader's snapshot covers the splits up to the coordinator's cut, and no later ones",
        _around(SplitClient, "trigger", _cut_later),
    ),
    "shared files counted": Safeguard(
        "a shared file is deleted only when no retained or pending checkpoint uses it",
        _around(SharedStateRegistry, "unregister", _unregistered_at_once),
    ),
    "committables wait": Safeguard(
        "a sink commits committables only when a checkpoint that covers them is complete",
        _replace(CommittableCollector, "_is_due", lambda *_: True),
    ),
    "committables kept": Safeguard(
        "a committable is in each checkpoint until it is committed",
        _around(CommittableCollector, "capture", _keeps_what_is_new),
    ),
    "checkpoints kept until the end is stored": Safeguard(
        "checkpoints are deleted only when the Dispatcher has stored how the job ended",
        _skip(StoredCheckpoints, "hold"),
    ),
    "savepoints are not subsumed": Safeguard(
        "the savepoint that a job started from outlives the job's own checkpoints",
        _replace(CheckpointProperties, "is_discarded_when_subsumed", True),
    ),
    "stops answered after the end": Safeguard(
        "a stop is answered only when the Dispatcher has stored how the job ended",
        _skip(CheckpointCarrier, "until_end_is_stored"),
    ),
    "committed before a stop": Safeguard(
        "a task that stops with a savepoint first commits what the savepoint covers",
        _ends_uncommitted,
    ),
    "drained before a stop": Safeguard(
        "event time ends before the savepoint of a stop that drains",
        _drains_nothing,
    ),
    "pointers of dead JobMasters": Safeguard(
        "the Dispatcher deletes the checkpoint pointers of a job that has ended",
        _skip(EmbeddedHaServices, "forget_checkpoints"),
    ),
    "attempts matched": Safeguard(
        "a JobMaster takes over only the attempts that the latest notes name",
        _replace(TakeOver, "_is_noted", lambda *_: True),
    ),
    "contradictions": Safeguard(
        "a JobMaster that takes over a task checks that the task can go on",
        _skip(TakeOver, "_contradiction"),
    ),
    "credit for barriers": Safeguard(
        "a barrier takes credit of its channel, as records do",
        _around(
            RemoteView, "_pay", lambda pay: lambda self, it: None if it.is_event else pay(self, it)
        ),
    ),
    "notes before deployments": Safeguard(
        "a JobMaster deploys tasks only after its notes about them are kept elsewhere",
        _skip(NotesForSuccessor, "acknowledged"),
    ),
}
"""Likewise, in the scenario of a streaming job."""

TAKE_OVER: dict[str, Safeguard] = {
    "told what is kept": Safeguard(
        "a reader learns of a split only after another process has a copy of the assignment",
        _replace(SourceCoordinator, "_may_tell", lambda self, reader, limit: limit),
    ),
    "replaced JobMasters": Safeguard(
        "a JobMaster that learns of its successor stops nothing that the successor uses",
        _skip(Leadership, "lose"),
    ),
}
"""Likewise, in the scenario of a streaming job of which only masters die."""

DEATHS_TOGETHER: dict[str, Safeguard] = {
    "TaskExecutors asked": Safeguard(
        "a JobMaster that takes over waits until its TaskExecutors have reported",
        _around(Reconciliation, "_keep_asking", _waits_in_silence),
    ),
}
"""Likewise, in the same scenario, where masters are killed together and are long away."""

PAUSED_WRITERS: dict[str, Safeguard] = {
    "stores fenced": Safeguard(
        "a replaced master cannot change stored checkpoints and jobs",
        _around(EpochDirectory, "_put", _writes_as_the_last_owner),
    ),
}
"""Likewise, where masters stand still in the middle of what they write."""

ALL_DEAD: dict[str, Safeguard] = {
    "kept at a TaskExecutor": Safeguard(
        "TaskExecutors keep a copy of the JobMaster's notes for the next JobMaster",
        _around(PastCopies, "left", _hands_over_nothing),
    ),
}
"""Likewise, where SlotPools and coordinators of sources are killed with them."""

PATIENCE: dict[str, Safeguard] = {
    "looking again after stalls": Safeguard(
        "a process that stood still reads waiting messages before it gives up a peer",
        _replace(peer_deadlines, "PUNCTUAL", inf),
    ),
    "no goodbye to who is silent": Safeguard(
        "a TaskExecutor registers again at a silent ResourceManager without a disconnect",
        _replace(ResourceManagerRegistration, "_deaf", _says_goodbye),
    ),
}
"""Likewise, where processes stand still and nothing else goes wrong."""


@dataclass(frozen=True)
class Scenario:
    """Where safeguards are missed."""

    safeguards: dict[str, Safeguard]
    simulation: Callable[[int], Simulation]
    run: Callable[[Simulation], Coroutine[Any, Any, None]]


REGISTRATIONS = Scenario(
    FRAMEWORK,
    lambda seed: Simulation(seed, faults=registration_and_fencing.FAULTS, nodes=2),
    registration_and_fencing.registration_and_fencing,
)
CLUSTER = Scenario(
    WHOLE_CLUSTER,
    lambda seed: Simulation(seed, faults=whole_cluster.BRIEF_FAULTS, nodes=2),
    lambda simulation: whole_cluster.WholeCluster(simulation, whole_cluster.BRIEF).run(jobs=2),
)
STREAMING = Scenario(
    CHECKPOINTS,
    lambda seed: Simulation(seed, faults=streaming_job.FAULTS, nodes=2),
    lambda simulation: streaming_job.StreamingJob(simulation).run(),
)
MASTERS = Scenario(
    TAKE_OVER,
    lambda seed: Simulation(seed, faults=streaming_job.MASTERS_FAULTS, nodes=2),
    lambda simulation: streaming_job.StreamingJob(simulation, only_masters_die=True).run(),
)
TOGETHER = Scenario(
    DEATHS_TOGETHER,
    lambda seed: Simulation(seed, faults=streaming_job.LEADERS_FAULTS, nodes=2),
    lambda simulation: streaming_job.LongStreamingJob(simulation, only_masters_die=True).run(),
)
WRITERS = Scenario(
    PAUSED_WRITERS,
    lambda seed: Simulation(seed, faults=streaming_job.WRITERS_FAULTS, nodes=2),
    lambda simulation: streaming_job.StreamingJob(simulation, only_masters_die=True).run(),
)
TRIPLES = Scenario(
    ALL_DEAD,
    lambda seed: Simulation(seed, faults=streaming_job.TOGETHER_FAULTS, nodes=2),
    lambda simulation: streaming_job.LongStreamingJob(simulation, only_masters_die=True).run(),
)
STALLS = Scenario(
    PATIENCE,
    lambda seed: Simulation(seed, nodes=2),
    lambda simulation: stalled_processes.StalledProcesses(simulation).run(),
)


def seeds_until_noticed(
    scenario: Scenario, name: str | None, first: int, at_most: int
) -> tuple[int, str] | None:
    """Run seeds from *first* on without a safeguard (None: with all of them).

    Returns how many it took until one failed and with what; None: *at_most* were run in vain.
    """
    for number in range(at_most):
        error = run(scenario, name, first + number)
        if error is not None:
            return number + 1, str(error).splitlines()[0] if str(error) else repr(error)
    return None


def run(scenario: Scenario, name: str | None, seed: int) -> Exception | None:
    """The error that one seed fails with."""
    simulation = scenario.simulation(seed)
    switched_off = nullcontext() if name is None else scenario.safeguards[name].switched_off()
    logging.disable(logging.CRITICAL)  # thousands of refused frames
    try:
        with switched_off:
            simulation.run(scenario.run(simulation))
    except Exception as error:  # noqa: BLE001 - whatever it is: it was noticed
        return error
    finally:
        logging.disable(logging.NOTSET)
    return None
