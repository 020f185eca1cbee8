"""What has happened in a whole cluster, and what must never.

Asked at every step, of the process that ran, and of every call whose handler ran:

- *who may act*: no endpoint serves a call under another session's token; a TaskExecutor to which a
  later session of a JobMaster, or of the ResourceManager, has done something does not let an
  earlier one change anything; no two JobMasters have one token; the end of a job is not taken from
  a JobMaster whose successor has registered;
- *what is acknowledged is durable*: the graph of a job that was accepted, that it is to be
  cancelled, and how it ended are on the disk as if its power went now; a result stays as it is;
- *each slot has one owner*: an allocation is of one slot and one job for ever, and no slot is
  allocated twice at the same time;
- *every effect once*: no attempt of a task runs twice in one process; no JobMaster and no Spark
  driver is started for a job that has ended.

Asked when no fault is at work any more, see :meth:`World.disagreements` and :meth:`World.remains`:
everybody knows the same of what runs and of what slots there are, and nothing is left of what has
ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from flinkray.actors.gateways.messages import (
    ArchivedJob,
    JobMasterToDispatcherRegistrationSuccess,
    StoredJob,
)
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.resource_manager.endpoint import ResourceManager
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId, ResourceID
from flinkray.ha.directory import UNFINISHED
from flinkray.ha.entries import decode_entry
from flinkray.rpc import FencedRpcEndpoint
from flinkray.rpc.wire import codec
from flinkray.scheduler.reports.job_info import JobDetails
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.function_tasks import TaskContext
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import SimulatedProcess, Simulation
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from flinkray.testing.simulation.process import ProcessState
from tests.simulation import inside
from tests.simulation.stored_jobs import StoredJobs

Subtask = tuple[JobID, str, int]
"""A job, the name of a vertex and the index of a subtask."""

_MAY_ACT = ("JobMaster", "SlotPool", "ResourceManager")
"""Kinds of processes that act on TaskExecutors in a session's name."""


class World(CallObserver):
    """What has happened, as nobody inside can know it."""

    def __init__(self, simulation: Simulation, cluster: SimulatedCluster) -> None:
        simulation.belongings[World] = self
        self.simulation = simulation
        self.cluster = cluster
        self.accepted: dict[JobID, None] = {}
        self.finished: dict[Subtask, list[str]] = {}
        """What the last attempt of a Python subtask had when it ended."""
        self._running: set[tuple[SimulatedProcess, JobID, str, int, int]] = set()
        """Attempts of Python subtasks, by their processes."""
        self.most_task_executors = 0
        """That were alive at the same time."""
        self._disk = simulation.disk()
        self._stored = StoredJobs(self._disk)
        self._disk_changes = -1
        self._results: dict[JobID, bytes] = {}
        """Of the jobs whose end was stored."""
        self._cancelled: dict[JobID, bytes | None] = {}
        """Jobs that are acknowledged to be cancelled, with the graph that was found to say so."""
        self._tokens: dict[JobMasterId, SimulatedProcess] = {}
        self._session: dict[SimulatedProcess, tuple[JobID, int]] = {}
        """Of the processes of JobMasters and SlotPools: their job, and which of the job's
        JobMasters, counted by their starts, they are or belong to."""
        self._numbers: dict[JobMasterId, int] = {}
        self._encoded: dict[object, bytes] = {}
        self._slots: dict[AllocationID, tuple[ResourceID, int, JobID]] = {}
        self._allocated: dict[SimulatedProcess, dict[AllocationID, int]] = {}
        self._executors: dict[SimulatedProcess, TaskExecutor] = {}
        self._before: dict[JobID, str] | None = None
        """What a TaskExecutor held for each job when the present call began."""
        self._acted: dict[tuple[SimulatedProcess, object], int] = {}
        """TaskExecutor and job, or role -> the latest session that has changed something there."""
        self._led: dict[tuple[SimulatedProcess, JobID], int] = {}
        """Dispatcher and job -> the latest JobMaster that has registered there."""

    @classmethod
    def current(cls) -> World:
        """Of the process that runs."""
        world: World = Simulation.current().belongings[World]
        return world

    def violated(self, text: str) -> None:
        """Something happened that must never: the run ends."""
        self.simulation.tell("VIOLATION: %s", text)
        self.simulation.scheduler.fail(AssertionError(text))

    # --- at every step ----------------------------------------------------------------------------

    def check(self) -> None:
        process = self.simulation.scheduler.current
        if process is None or not process.is_alive:
            return
        kind = process.kind
        if kind == "TaskExecutor":
            self._check_slots(process)
        elif kind in ("JobMaster", "SlotPool"):
            self._find_session(process)
        if self._disk.changes != self._disk_changes:
            self._disk_changes = self._disk.changes
            self._check_jobs()

    def _find_session(self, process: SimulatedProcess) -> None:
        if process in self._session:
            return  # which does not change
        job_id = job_of(process)
        master = inside.endpoint_in(self.simulation, process, JobMaster)
        if master is not None:
            token = master.fencing_token
            before = self._tokens.setdefault(token, process)
            assert before is process, f"{process} has the token of {before}"
            self._numbers[token] = process.number
            self._session[process] = job_id, process.number
            return
        pool = inside.endpoint_in(self.simulation, process, SlotPool)
        if pool is not None and pool.fencing_token in self._numbers:
            self._session[process] = job_id, self._numbers[pool.fencing_token]

    def _check_slots(self, process: SimulatedProcess) -> None:
        executor = self._executors.get(process)
        if executor is None:
            executor = inside.endpoint_in(self.simulation, process, TaskExecutor)
            if executor is None:
                return
            self._executors[process] = executor
        allocated = self._allocated.setdefault(process, {})
        slots = inside.slots_of(executor)
        if len(slots) == len(allocated) and all(a in allocated for a, _, _ in slots):
            return  # as it was: this is asked at every step
        here = executor.location.resource_id
        taken: dict[int, AllocationID] = {}
        for allocation_id, job_id, index in slots:
            other = taken.setdefault(index, allocation_id)
            assert other == allocation_id, (
                f"slot {index} of {here} is given as {other} and as {allocation_id}"
            )
            known = self._slots.setdefault(allocation_id, (here, index, job_id))
            assert known == (here, index, job_id), (
                f"{allocation_id} is {known} and {(here, index, job_id)}"
            )
        self._allocated[process] = {a: index for a, _, index in slots}

    def _check_jobs(self) -> None:
        for job_id in self.accepted:
            stored = self._stored.result(job_id, durable=True)
            known = self._results.get(job_id)
            if stored is None:
                assert known is None, f"the result of job {job_id} would not survive a power loss"
                graph = self._stored.graph(job_id, durable=True)
                assert graph is not None, (
                    f"job {job_id} was accepted and would not survive a power loss"
                )
                if job_id in self._cancelled and self._cancelled[job_id] != graph:
                    assert decode_entry(graph, StoredJob).cancel_requested, (
                        f"it is not stored that job {job_id} is to be cancelled, "
                        "which was acknowledged"
                    )
                    self._cancelled[job_id] = graph
            elif known is None:
                self._results[job_id] = stored
            else:
                assert known == stored, f"job {job_id} has another result now"

    def has_ended(self, job_id: JobID) -> bool:
        """Whether it is stored how."""
        return self._stored.result(job_id, durable=True) is not None

    def new_process(self, process: SimulatedProcess) -> None:
        """One has come or gone."""
        if not process.is_alive or process.is_banished:
            return
        if process.kind == "TaskExecutor":
            alive = len(self.cluster.processes("TaskExecutor"))
            self.most_task_executors = max(self.most_task_executors, alive)
        elif process.kind in ("JobMaster", "SparkDriver") and self.has_ended(job_of(process)):
            self.violated(f"{process.name} is started though the job has a result")

    @contextmanager
    def runs(self, context: TaskContext) -> Iterator[None]:
        """A task of a Python vertex does."""
        process = self.simulation.scheduler.current
        assert process is not None
        subtask = context.job_id, context.vertex_name, context.subtask_index
        key = process, *subtask, context.attempt_number
        if key in self._running:
            self.violated(f"{context.vertex_name} {context.subtask_index} runs twice in {process}")
        self._running.add(key)
        try:
            yield
        finally:
            self._running.discard(key)

    def lose_result(self, random: Random) -> bool:
        """Delete a file that one stage of a job has written for others; False: there is none."""
        files = [path for path in self._disk.paths() if "/results/" in path]
        if files:
            self._disk.discard(random.choice(files))
        return bool(files)

    # --- of every call ----------------------------------------------------------------------------

    def begins(self, call: ObservedCall) -> None:
        endpoint = call.endpoint
        if isinstance(endpoint, FencedRpcEndpoint):
            own = self._token_of(endpoint)
            if call.token != own:
                believed = None if call.token is None else codec.decode(call.token)
                self.violated(
                    f"{endpoint.address} of session {endpoint.fencing_token} serves {call.method} "
                    f"for session {believed}"
                )
        self._before = None
        if isinstance(endpoint, TaskExecutor) and call.sender.kind in _MAY_ACT:
            self._before = described(endpoint)

    def began(self, call: ObservedCall) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        assert isinstance(call.endpoint, TaskExecutor)
        after = described(call.endpoint)
        for job_id in {**before, **after}:
            if before.get(job_id) != after.get(job_id):
                self._changed(call, job_id, before.get(job_id, ""), after.get(job_id, ""))

    def _changed(self, call: ObservedCall, job_id: JobID, before: str, after: str) -> None:
        """A call has changed what a job has in a TaskExecutor."""
        for role, number in self._on_behalf_of(call, job_id):
            key = call.receiver, role
            latest = self._acted.get(key, number)
            if number < latest:
                self.violated(
                    f"{call.receiver.name}: {call.method} of a past session, "
                    f"{call.sender}, changes what job {job_id} has: {before or 'nothing'} -> "
                    f"{after or 'nothing'}"
                )
            self._acted[key] = max(number, latest)

    def _on_behalf_of(self, call: ObservedCall, job_id: JobID) -> Iterator[tuple[object, int]]:
        """In which roles, and by which of the sessions in them, a call acts."""
        if call.sender.kind == "ResourceManager":
            yield "ResourceManager", call.sender.number
            for argument in call.arguments:
                if isinstance(argument, JobMasterId) and argument in self._numbers:
                    yield job_id, self._numbers[argument]
        elif call.sender in self._session:
            own_job, number = self._session[call.sender]
            if own_job == job_id:
                yield job_id, number
            else:
                self.violated(
                    f"{call.method} of {call.sender.name} changes what job {job_id} has in "
                    f"{call.receiver.name}"
                )

    def succeeded(self, call: ObservedCall, result: object) -> None:
        if call.receiver.kind != "Dispatcher":
            return
        match call.method:
            case "submit_job":
                job_id = call.arguments[0].job_id
                if job_id in self.accepted:
                    self.violated(f"job {job_id} is accepted a second time")
                self.accepted[job_id] = None
                self._disk_changes = -1
            case "cancel_job":
                self._cancelled.setdefault(call.arguments[0], None)
                self._disk_changes = -1
            case "register_job_master" if isinstance(
                result, JobMasterToDispatcherRegistrationSuccess
            ):
                key = call.receiver, call.arguments[0]
                number = self._numbers[call.arguments[1]]
                if number < self._led.get(key, number):
                    self.violated(f"{call.sender} registers after its successor")
                self._led[key] = number
            case "job_reached_terminal_state":
                self._end_is_acknowledged(call)

    def _end_is_acknowledged(self, call: ObservedCall) -> None:
        job_id, job_master_id, told = call.arguments[:3]
        if not self.has_ended(job_id):
            self.violated(
                f"the end of job {job_id} is acknowledged and would not survive a power loss"
            )
        number = self._numbers[job_master_id]
        is_led_by = self._led.get((call.receiver, job_id), number)
        if number < is_led_by and self._is_told(job_id, told):
            self.violated(f"the end of job {job_id} is taken from a past JobMaster, {call.sender}")

    def _is_told(self, job_id: JobID, told: Any) -> bool:
        """Whether the result that is stored is this one."""
        stored = self._stored.result(job_id, durable=True)
        assert stored is not None
        same: bool = decode_entry(stored, ArchivedJob).result == told
        return same

    def _token_of(self, endpoint: FencedRpcEndpoint[Any]) -> bytes:
        encoded = self._encoded.get(endpoint)
        if encoded is None:
            encoded = self._encoded[endpoint] = codec.encode(endpoint.fencing_token)
        return encoded

    # --- when no fault is at work -----------------------------------------------------------------

    def well(self, kind: type[inside.E]) -> list[inside.E]:
        """The endpoints of that class in processes that live, serve and count as alive."""
        found = []
        for process in self.simulation.processes(kind.__name__):
            if process.state is ProcessState.RUNNING:
                endpoint = inside.endpoint_in(self.simulation, process, kind)
                if endpoint is not None:
                    found.append(endpoint)
        return found

    def disagreements(self, details: JobDetails, stages: frozenset[str]) -> list[str]:
        """What others know otherwise than a running job's JobMaster says."""
        job_id = details.job_id
        said: set[ExecutionAttemptID] = set()
        problems = []
        names = {}
        for vertex in details.vertices:
            for execution in vertex.executions:
                if execution.state is ExecutionState.FINISHED:
                    continue
                names[vertex.vertex_id, execution.subtask_index] = execution.attempt_number
                if execution.state is ExecutionState.DEPLOYING and vertex.name in stages:
                    continue  # that its executors are registered is told once, and may be lost
                if execution.state is not ExecutionState.RUNNING:
                    problems.append(
                        f"{vertex.name} {execution.subtask_index} is {execution.state.name}"
                    )
        in_executors: dict[object, int] = {}
        results: set[JobPartition] = set()
        slots: dict[AllocationID, str] = {}
        for executor in self.well(TaskExecutor):
            held = inside.holdings(executor).get(job_id, inside.Holding())
            slots.update(held.slots)
            follows = job_id in inside.followed_jobs(executor)
            if (
                follows
                and not (held.slots or held.partitions)
                and not self._expects_results(job_id, executor)
            ):
                problems.append(f"{executor.address} follows the JobMaster, and has nothing of it")
            results |= {p for p in inside.partitions_known_to(executor) if p.job_id == job_id}
            for attempt, is_cancelling in held.attempts.items():
                said.add(attempt)
                key = attempt.vertex.job_vertex_id, attempt.vertex.subtask_index
                if is_cancelling or key in in_executors:
                    problems.append(f"{attempt} runs twice, or is being cancelled")
                in_executors[key] = attempt.attempt_number
        if in_executors != names:
            problems.append(f"the JobMaster knows of {names}, TaskExecutors run {in_executors}")
        in_processes = [
            attempt
            for process in self.well(TaskProcess)
            for job, attempt in inside.tasks_in(process)
            if job == job_id
        ]
        if len(in_processes) != len(set(in_processes)) or not said.issuperset(in_processes):
            problems.append(f"task processes run {in_processes}, TaskExecutors know of {said}")
        kept = {one for process in self.well(TaskProcess) for one in inside.partitions_in(process)}
        if not kept.issuperset(results):
            problems.append(f"TaskExecutors know of results that are nowhere: {results - kept}")
        for pool in self.well(SlotPool):
            if pool._job_id == job_id and inside.slots_of_pool(pool) != set(slots):
                problems.append(f"the SlotPool has {inside.slots_of_pool(pool)}, there are {slots}")
        for master in self.well(JobMaster):
            if master._job_id != job_id:
                continue
            if inside.slots_known_to(master) != set(slots):
                problems.append(
                    f"the JobMaster has {inside.slots_known_to(master)}, there are {slots}"
                )
            past = {one for one in results if one.partition.graph_id != inside.graph_of(master)}
            if past:
                problems.append(f"TaskExecutors keep results of past JobMasters: {past}")
        return problems

    def _expects_results(self, job_id: JobID, executor: TaskExecutor) -> bool:
        """Return whether the job's JobMaster counts on results at a TaskExecutor whose processes
        have none. Results that died with their process are missed when a task reads them; until
        they are released, the TaskExecutor stays."""
        here = executor._arguments.resource_id
        lives = any(
            result.job_id == job_id
            for process in self.well(TaskProcess)
            if process.rpc_service.process_name.split("-", 2)[2] == f"{here}"
            for result in inside.partitions_in(process)
        )
        return not lives and any(
            master._scheduler.holds_partitions_on(here)
            for master in self.well(JobMaster)
            if master._job_id == job_id
        )

    def remains(self, job_id: JobID) -> list[str]:
        """What is left of a job that has ended."""
        left = []
        for executor in self.well(TaskExecutor):
            held = inside.holdings(executor).get(job_id)
            if held is not None:
                left.append(f"{executor.address} has {held}")
            if job_id in inside.followed_jobs(executor):
                left.append(f"{executor.address} follows its JobMaster")
        for process in self.well(TaskProcess):
            if any(job == job_id for job, _ in inside.tasks_in(process)):
                left.append(f"{process.address} runs a task of it")
            if any(one.job_id == job_id for one in inside.partitions_in(process)):
                left.append(f"{process.address} keeps a result of it")
        for manager in self.well(ResourceManager):
            if job_id in inside.registered_jobs(manager):
                left.append("its JobMaster is registered at the ResourceManager")
        may_stay = self._stored.results(job_id)  # a crash may leave both; then it is clean
        if self._stored.result_in("clean", job_id) is None:
            left.append("its result is not clean")
        left += [
            path
            for path in self._disk.paths()
            if job_id.hex() in path and path not in may_stay and not path.endswith(UNFINISHED)
        ]
        return left + self.cluster.leftovers_of(job_id)


def described(executor: TaskExecutor) -> dict[JobID, str]:
    """What each job has there, to be compared with what it has later."""
    return {job_id: str(held) for job_id, held in inside.holdings(executor).items()}


def job_of(process: SimulatedProcess) -> JobID:
    """Of a process that is named for its job."""
    return JobID(bytes.fromhex(process.name.split("-")[1]))
