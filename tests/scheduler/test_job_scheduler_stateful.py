"""JobScheduler in a world that fails in any way, at any time."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResourceID
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTask,
    DeployTask,
    JobEnded,
    JobSchedulerAction,
    ReleaseSlots,
    ScheduleRestart,
    ScheduleSlotRequestTimeout,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import TaskExecutionState
from tests.scheduler.builders import GRAPH, JOB, allocated_slot, spark_job, spark_vertex
from tests.scheduler.job_under_test import FAILURE, RESULT

PARALLELISM = 2
BUNDLES = st.integers(0, PARALLELISM - 1)
Coordinator = tuple[JobVertexID, int]


class JobMachine(RuleBasedStateMachine):
    """The world outside the JobScheduler: a pool, TaskExecutors, Spark drivers, timers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = count(1)
        self.slots: dict[int, AllocatedSlot] = {}
        """By bundle, as the pool holds them."""
        self.tasks: dict[ExecutionAttemptID, AllocatedSlot] = {}
        """Tasks that run somewhere."""
        self.deployed: set[ExecutionAttemptID] = set()
        self.cancelled: set[ExecutionAttemptID] = set()
        self.coordinators: dict[Coordinator, str] = {}
        """Coordinators whose process is there: starting, running or stopping."""
        self.executors: dict[int, int] = {}
        """Registered Spark executors of the running coordinator: subtask -> pid."""
        self.restart_timers: list[int] = []
        self.timeout_timers: list[int] = []
        self.ended: JobEnded | None = None

    @initialize(restarts=st.integers(0, 3), stages=st.integers(1, 2))
    def submit(self, restarts: int, stages: int) -> None:
        vertices = [spark_vertex(i + 1, PARALLELISM) for i in range(stages)]
        self.scheduler = JobScheduler(
            spark_job(*vertices, restart_strategy=FixedDelayRestart(restarts)),
            "JobMaster/jobmaster",
            new_graph_id=lambda: GRAPH,
            default_restart_strategy=FixedDelayRestart(0),
            epoch_offset=0.0,
            now=0.0,
        )
        self.tell("start")

    # the shell

    def tell(self, event: str, *args: object) -> None:
        self.now += 1.0
        has_ended = self.ended is not None
        actions: list[JobSchedulerAction] = getattr(self.scheduler, event)(*args, self.now)
        assert not (has_ended and actions), f"after its end the job does something: {actions}"
        for action in actions:
            self.carry_out(action)

    def carry_out(self, action: JobSchedulerAction) -> None:
        assert self.ended is None, f"{action} follows the job's end"
        if isinstance(action, DeployTask):
            attempt_id = action.descriptor.attempt_id
            assert attempt_id not in self.deployed, "an attempt is deployed once"
            assert self.slots[action.slot.location.bundle_index] == action.slot
            assert action.slot.location.bundle_index == attempt_id.vertex.subtask_index
            self.deployed.add(attempt_id)
            self.tasks[attempt_id] = action.slot
        elif isinstance(action, CancelTask):
            assert action.attempt_id in self.deployed
            self.cancelled.add(action.attempt_id)
        elif isinstance(action, StartCoordinator):
            assert not self.coordinators, "one coordinator at a time"
            assert not self.cancelled & self.running_wanted(), "old tasks have ended"
            self.coordinators[action.vertex_id, action.attempt_number] = "starting"
            self.executors = {}
        elif isinstance(action, StopCoordinator):
            key = (action.vertex_id, action.attempt_number)
            assert self.coordinators[key] != "stopping", "it is stopped once"
            self.coordinators[key] = "stopping"
        elif isinstance(action, ScheduleRestart):
            self.restart_timers.append(action.generation)
        elif isinstance(action, ScheduleSlotRequestTimeout):
            self.timeout_timers.append(action.generation)
        elif isinstance(action, ReleaseSlots):
            self.slots = {
                i: s for i, s in self.slots.items() if s.allocation_id not in action.allocations
            }
        elif isinstance(action, JobEnded):
            self.ended = action

    def running_wanted(self) -> set[ExecutionAttemptID]:
        """Attempts that the scheduler still counts as not ended."""
        return {
            attempt_id
            for attempt_id in self.tasks
            for vertex in self.scheduler.details().vertices
            if vertex.vertex_id == attempt_id.vertex.job_vertex_id
            for execution in vertex.executions
            if execution.subtask_index == attempt_id.vertex.subtask_index
            and execution.attempt_number == attempt_id.attempt_number
            and not execution.state.is_terminal
        }

    def tell_slots(self) -> None:
        self.tell("slots_changed", tuple(self.slots.values()))

    # the world

    @rule(bundle=BUNDLES)
    def slot_comes(self, bundle: int) -> None:
        if bundle not in self.slots:
            number = next(self.numbers)
            self.slots[bundle] = allocated_slot(number, bundle, name=f"te{number}")
            self.tell_slots()

    @rule(bundle=BUNDLES, cause_first=st.booleans())
    def task_executor_dies(self, bundle: int, cause_first: bool) -> None:
        slot = self.slots.pop(bundle, None)
        if slot is None:
            return
        self.tasks = {a: s for a, s in self.tasks.items() if s != slot}
        if cause_first:
            self.tell("task_executor_lost", ResourceID(slot.location.resource_id), "killed")
        self.tell_slots()

    @rule(bundle=BUNDLES)
    def slot_fails(self, bundle: int) -> None:
        slot = self.slots.pop(bundle, None)
        allocation_id = slot.allocation_id if slot else AllocationID(bytes(16))
        self.tasks = {a: s for a, s in self.tasks.items() if s != slot}
        self.tell("slot_failed", allocation_id, "broken")

    @rule()
    def slot_pool_dies(self) -> None:
        self.slots = {}
        self.tasks = {}  # their TaskExecutors are left
        self.tell("slot_pool_lost", "killed")

    @precondition(lambda self: self.tasks)
    @rule(
        data=st.data(),
        state=st.sampled_from(
            [ExecutionState.CANCELED, ExecutionState.FAILED, ExecutionState.FINISHED]
        ),
    )
    def task_ends(self, data: st.DataObject, state: ExecutionState) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.tasks, key=str)))
        del self.tasks[attempt_id]
        self.tell("task_state_changed", TaskExecutionState(JOB, attempt_id, state, "ended"))

    @precondition(lambda self: self.deployed)
    @rule(data=st.data(), event=st.sampled_from(["deploy_failed", "cancel_failed"]))
    def call_fails(self, data: st.DataObject, event: str) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.deployed, key=str)))
        if event == "cancel_failed" and attempt_id not in self.cancelled:
            return
        self.tasks.pop(attempt_id, None)
        self.tell(event, attempt_id, "connection refused")

    @precondition(lambda self: self.coordinators)
    @rule(event=st.sampled_from(["coordinator_started", "coordinator_stopped", "coordinator_lost"]))
    def coordinator_event(self, event: str) -> None:
        (key,) = self.coordinators
        if event == "coordinator_started":
            if self.coordinators[key] == "starting":
                self.coordinators[key] = "running"
            self.tell(event, *key)
            return
        if event == "coordinator_stopped" and self.coordinators[key] != "stopping":
            return
        del self.coordinators[key]
        self.tell(event, *key, *(("killed",) if event == "coordinator_lost" else ()))

    @precondition(lambda self: "running" in self.coordinators.values())
    @rule(event=st.sampled_from(["stage_finished", "stage_failed"]))
    def stage_ends(self, event: str) -> None:
        (key,) = self.coordinators
        self.tell(event, *key, RESULT if event == "stage_finished" else FAILURE)

    @precondition(lambda self: "running" in self.coordinators.values())
    @rule(subtask=BUNDLES, is_there=st.booleans())
    def executor_event(self, subtask: int, is_there: bool) -> None:
        (key,) = self.coordinators
        self.executors.pop(subtask, None)
        if is_there:
            self.executors[subtask] = next(self.numbers)
        registered = tuple(
            SparkExecutorInfo(i, str(i), f"a{i}", "n0", pid, i)
            for i, pid in sorted(self.executors.items())
        )
        self.tell("executors_changed", *key, registered)

    @rule(old=st.booleans())
    def restart_delay_is_over(self, old: bool) -> None:
        if self.restart_timers:
            self.tell("restart_delay_over", self.restart_timers[0 if old else -1])

    @precondition(lambda self: self.timeout_timers)
    @rule()
    def slots_take_too_long(self) -> None:
        self.tell("slot_request_timed_out", self.timeout_timers[-1])

    @rule(event=st.sampled_from(["cancel", "suspend", "global_failure"]), often=st.integers(0, 4))
    def order(self, event: str, often: int) -> None:
        if often == 0:  # rarely, or every run is over soon
            argument = {"cancel": (), "suspend": ("why",), "global_failure": (Failure("why"),)}
            self.tell(event, *argument[event])

    # what must hold

    @invariant()
    def terminal_status_and_end_come_together(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.status.is_terminal == (self.ended is not None)

    @invariant()
    def nothing_runs_after_the_end(self) -> None:
        if self.ended is None:
            return
        assert not self.coordinators
        for vertex in self.ended.details.vertices:
            assert all(execution.state.is_terminal for execution in vertex.executions)
        assert all(attempt_id in self.cancelled for attempt_id in self.tasks)

    @invariant()
    def attempts_run_only_in_slots_that_were_theirs(self) -> None:
        used = [s.allocation_id for s in self.tasks.values()]
        current = [s for a, s in self.tasks.items() if a not in self.cancelled]
        assert len({s.allocation_id for s in current}) == len(current), used

    def teardown(self) -> None:
        """Whatever happened: a cancelled job ends once everything has answered."""
        if not hasattr(self, "scheduler"):
            return
        self.tell("cancel")
        while self.ended is None and (self.tasks or self.coordinators):
            if self.tasks:
                attempt_id = min(self.tasks, key=str)
                del self.tasks[attempt_id]
                ended = TaskExecutionState(JOB, attempt_id, ExecutionState.CANCELED)
                self.tell("task_state_changed", ended)
            else:
                (key,) = self.coordinators
                assert self.coordinators.pop(key) == "stopping"
                self.tell("coordinator_stopped", *key)
        assert self.ended is not None, f"the job hangs:\n{self.scheduler.story()}"
        result = self.ended.result
        assert (result.failure is not None) == (result.status is JobStatus.FAILED)


TestJobScheduler = JobMachine.TestCase
TestJobScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
