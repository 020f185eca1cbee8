"""JobScheduler with jobs of any shape, in a world that fails in any way, at any time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.ids import AllocationID, ExecutionAttemptID, ResultPartitionID
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FixedDelayRestart,
    RestartStrategy,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobEnded,
    JobSchedulerAction,
    ReleasePartitions,
)
from flinkray.scheduler.reports.job_info import JobOverview
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from flinkray.scheduler.slots.slot_requests import SlotRequestFailed, SlotRequestFailure, SlotsLost
from tests.scheduler.builders import GRAPH
from tests.scheduler.graphs import execution_graph, job
from tests.scheduler.tasks_under_test import TasksUnderTest

ARROWS = st.sampled_from(["->", "-->", "=>", "==>"])
STRATEGIES: st.SearchStrategy[RestartStrategy] = st.one_of(
    st.builds(FixedDelayRestart, st.integers(0, 4)),
    st.just(ExponentialDelayRestart(initial_backoff=3.0)),
)
OFTEN = 25
"""Rare events happen once in so many."""


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four vertices of up to three subtasks."""
    number = draw(st.integers(1, 4))
    arguments: dict[str, Any] = {name: draw(st.integers(1, 3)) for name in "abcd"[:number]}
    edges = []
    for target in range(1, number):
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            edges.append(f"{'abcd'[source]} {draw(ARROWS)} {'abcd'[target]}")
    return {**arguments, "edges": edges}


ORDERS: list[JobEvent] = [t.CancelJob(), t.SuspendJob("why"), t.GlobalFailure(Failure("why"))]


class TasksMachine(RuleBasedStateMachine):
    """The world outside: a pool, TaskExecutors of two slots, tasks that end as they like."""

    tasks: TasksUnderTest

    def __init__(self) -> None:
        super().__init__()
        self.overviews: WeakKeyDictionary[JobScheduler, dict[Hashable, JobOverview]]
        self.overviews = WeakKeyDictionary()
        """What each JobMaster's scheduler has shown, by its state then."""

    @initialize(shape=jobs(), strategy=STRATEGIES, restart_all=st.booleans())
    def submit(self, shape: dict[str, Any], strategy: RestartStrategy, restart_all: bool) -> None:
        self.begin(shape, strategy, restart_all)

    def begin(self, shape: dict[str, Any], strategy: RestartStrategy, restart_all: bool) -> None:
        graph = replace(job(restart_strategy=strategy, **shape), restart_all=restart_all)
        self.graph = execution_graph(**shape)
        self.regions = PipelinedRegions(self.graph)
        self.tasks = TasksUnderTest(graph, slots_each=2)
        self.timers: list[JobEvent] = []
        self.cancelled: set[ExecutionAttemptID] = set()
        self.kept: dict[ResultPartitionID, ExecutionAttemptID] = {}
        """What finished tasks have left on their TaskExecutors, until it is released."""
        self.act(t.StartJob())

    def act(self, event: str | JobEvent, *args: object) -> None:
        was_ended = self.tasks.ended is not None
        if isinstance(event, JobEvent):
            actions = self.tasks.tell(event)
        elif event == "give":
            actions = self.tasks.give(*args)  # type: ignore[arg-type]
        elif event == "lose":
            self.kept = {p: a for p, a in self.kept.items() if self.tasks.where[a] != args[0]}
            actions = self.tasks.lose_task_executor(*args)  # type: ignore[arg-type]
        else:
            attempts, state, *_ = args
            if state is ExecutionState.FINISHED:
                for attempt_id in attempts:  # type: ignore[attr-defined]
                    self.kept.update(dict.fromkeys(self.blocking(attempt_id), attempt_id))
            actions = self.tasks.report(*args)  # type: ignore[arg-type]
        assert not (was_ended and [a for a in actions if self.is_work(a)]), actions
        self.look_at(actions)

    def is_work(self, action: JobSchedulerAction) -> bool:
        """Whether an ended job has no use for it."""
        return not isinstance(action, ReleasePartitions)

    def look_at(self, actions: list[JobSchedulerAction]) -> None:
        for action in actions:
            if isinstance(action, StartTimer) and isinstance(action.event, t.RestartDelayOver):
                self.timers.append(action.event)
            elif isinstance(action, CancelTasks):
                for attempt_id in action.attempts:
                    assert attempt_id not in self.cancelled, "cancelled once"
                    self.cancelled.add(attempt_id)
            elif isinstance(action, DeployTasks):
                self.check_deployment(action)
            elif isinstance(action, ReleasePartitions):
                for partition in action.partitions:
                    producer = self.kept.pop(partition, None)
                    where = action.location.resource_id
                    assert producer is None or self.tasks.where[producer] == where
            elif isinstance(action, JobEnded):
                assert action is actions[-1]
            else:
                self.carry_out(action)

    def carry_out(self, action: JobSchedulerAction) -> None:
        """For machines of more than tasks."""

    def is_coordinated(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether no TaskExecutor can tell whether it runs."""
        vertex = self.graph.vertex(attempt_id.vertex.job_vertex_id)
        return vertex is not None and vertex.is_coordinated

    def runs(self) -> list[ExecutionAttemptID]:
        """Tasks that can run and finish."""
        return [a for a in sorted(self.tasks.tasks, key=str) if not self.is_coordinated(a)]

    def slots_in_use(self) -> set[AllocationID]:
        return {task.allocation_id for task in self.tasks.tasks.values()}

    def blocking(self, attempt_id: ExecutionAttemptID) -> list[ResultPartitionID]:
        """The partitions that stay when that attempt has finished."""
        vertex = self.graph.vertex(attempt_id.vertex.job_vertex_id)
        assert vertex is not None
        return [
            ResultPartitionID(
                attempt_id.graph_id,
                result.data_set_id,
                attempt_id.vertex.subtask_index,
                attempt_id.attempt_number,
            )
            for result in vertex.results
            if not result.is_pipelined and not result.is_stored and result.data_set_id
        ]

    def check_deployment(self, action: DeployTasks) -> None:
        current = self.current()
        side = self.tasks.task_executors[action.location.resource_id]
        for task in action.deployments.tasks:
            vertex: Any = side.parts[task.vertex].content
            subtask = (vertex.name, task.subtask_index)
            state, number = current[subtask]
            assert number == task.attempt_number, "no outdated attempt is deployed"
            reader = self.graph.vertex(vertex.vertex_id)
            assert reader is not None
            # a Spark executor that takes a lost one's place may be registered already
            is_there = reader.is_coordinated and state is ExecutionState.RUNNING
            assert state is ExecutionState.DEPLOYING or is_there
            region = self.regions.of[reader.first + task.subtask_index]
            for key in task.inputs:
                self.check_locations(side.parts[key].content, current, region)

    def check_locations(self, locations: Any, current: dict[Any, Any], region: int) -> None:
        """What a task is told of its producers is true."""
        result = self.graph.result(locations.data_set_id)
        assert result is not None
        name = result.producer.vertex.name
        for partition in range(
            locations.first_partition, locations.first_partition + locations.number_of_partitions
        ):
            state, number = current[name, partition]
            told = locations.partition_id(partition)
            assert told.attempt_number == number
            attempt_id = self.attempt(name, partition, number)
            assert locations.location_of(partition).resource_id == self.tasks.where[attempt_id]
            group = result.edges[0].group_of_partition(partition)
            if not result.is_pipelined and region in self.regions.consumers(group):
                assert state is ExecutionState.FINISHED, "blocking inputs are finished"

    def attempt(self, name: str, subtask: int, number: int) -> ExecutionAttemptID:
        (found,) = [
            a
            for a in self.tasks.where
            if self.tasks.name(a) == f"{name}{subtask + 1}" and a.attempt_number == number
        ]
        return found

    def current(self) -> dict[tuple[str, int], tuple[ExecutionState, int]]:
        return {
            (vertex.name, e.subtask_index): (e.state, e.attempt_number)
            for vertex in self.tasks.scheduler.details().vertices
            for e in vertex.executions
        }

    # the world

    @precondition(lambda self: self.tasks.wanted)
    @rule(number=st.integers(1, 4))
    def slots_come(self, number: int) -> None:
        self.act("give", number)

    @precondition(lambda self: self.tasks.wanted)
    @rule(rare=st.integers(0, OFTEN), failure=st.sampled_from(SlotRequestFailure))
    def slot_does_not_come(self, rare: int, failure: SlotRequestFailure) -> None:
        if rare == 0:
            request_id = next(iter(self.tasks.wanted))
            del self.tasks.wanted[request_id]
            self.act(t.SlotsTold((SlotRequestFailed(request_id, failure, "why"),)))

    @precondition(lambda self: self.tasks.reserved)
    @rule(data=st.data(), rare=st.integers(0, 5))
    def slot_is_lost(self, data: st.DataObject, rare: int) -> None:
        if rare == 0:
            lost = data.draw(st.sampled_from(sorted(self.tasks.reserved)))
            del self.tasks.reserved[lost]
            gone = {a for a, it in self.tasks.tasks.items() if it.allocation_id == lost}
            self.tasks.tasks = {a: it for a, it in self.tasks.tasks.items() if a not in gone}
            self.act(t.SlotsTold((SlotsLost((lost,), "killed"),)))

    @precondition(lambda self: self.tasks.task_executors)
    @rule(data=st.data(), rare=st.integers(0, 5))
    def task_executor_dies(self, data: st.DataObject, rare: int) -> None:
        if rare == 0:
            self.act("lose", str(data.draw(st.sampled_from(sorted(self.tasks.task_executors)))))

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), number=st.integers(1, 3))
    def tasks_run_or_finish(self, data: st.DataObject, number: int) -> None:
        running = self.runs()
        chosen = data.draw(st.lists(st.sampled_from(running), max_size=number, unique=True))
        state = data.draw(st.sampled_from([ExecutionState.RUNNING, ExecutionState.FINISHED]))
        self.act("report", chosen, state)

    @precondition(lambda self: self.tasks.tasks)
    @rule(data=st.data(), state=st.sampled_from([ExecutionState.FAILED, ExecutionState.CANCELED]))
    def task_ends(self, data: st.DataObject, state: ExecutionState) -> None:
        running = sorted(self.tasks.tasks, key=str)
        wanted = [a for a in running if a in self.cancelled]
        if wanted or data.draw(st.integers(0, 4)) == 0:
            chosen = data.draw(st.sampled_from(wanted or running))
            self.act("report", [chosen], state, "ended")

    @precondition(lambda self: any(e.result.data_set_id for e in self.graph.edges))
    @rule(data=st.data(), rare=st.integers(0, 4), attempt_number=st.integers(0, 2))
    def input_is_missing(self, data: st.DataObject, rare: int, attempt_number: int) -> None:
        if rare:
            return
        edge = data.draw(st.sampled_from([e for e in self.graph.edges if e.result.data_set_id]))
        readers = [
            a for a in self.runs() if a.vertex.job_vertex_id == edge.consumer.vertex.vertex_id
        ]
        assert edge.result.data_set_id is not None
        if readers:
            partition = data.draw(st.integers(0, edge.result.producer.parallelism - 1))
            missing = ResultPartitionID(GRAPH, edge.result.data_set_id, partition, attempt_number)
            chosen = data.draw(st.sampled_from(readers))
            actions = self.tasks.report(
                [chosen], ExecutionState.FAILED, "gone", missing_partitions=(missing,)
            )
            self.look_at(actions)

    @precondition(lambda self: self.tasks.where)
    @rule(data=st.data(), is_cancellation=st.booleans())
    def call_fails(self, data: st.DataObject, is_cancellation: bool) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.tasks.where, key=str)))
        if is_cancellation:
            if attempt_id in self.cancelled:
                self.tasks.tasks.pop(attempt_id, None)
                self.act(t.CancellationsFailed((attempt_id,), "refused"))
        elif data.draw(st.integers(0, 4)) == 0:
            where = self.tasks.where[attempt_id]
            self.tasks.task_executors.pop(where, None)
            self.tasks.tasks.pop(attempt_id, None)
            self.act(t.DeploymentsFailed(where, (attempt_id,), "refused"))

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def restart_delay_is_over(self, data: st.DataObject) -> None:
        self.act(data.draw(st.sampled_from(self.timers)))

    @rule(event=st.sampled_from(ORDERS), rare=st.integers(0, OFTEN))
    def order(self, event: JobEvent, rare: int) -> None:
        if rare == 0:
            self.act(event)

    # what must hold

    @invariant()
    def no_overview_changes_unnoticed(self) -> None:
        if hasattr(self, "graph"):
            scheduler = self.tasks.scheduler
            shown = self.overviews.setdefault(scheduler, {})
            overview = scheduler.overview()
            assert shown.setdefault(scheduler.overview_state, overview) == overview

    @invariant()
    def end_and_terminal_status_come_together(self) -> None:
        if hasattr(self, "graph"):
            assert self.tasks.status.is_terminal == (self.tasks.ended is not None)

    @invariant()
    def ended_job_has_nothing(self) -> None:
        if hasattr(self, "graph") and self.tasks.ended is not None:
            assert not self.tasks.wanted
            assert not self.tasks.reserved
            assert all(state.is_terminal for state, _ in self.current().values())
            assert all(a in self.cancelled for a in self.tasks.tasks)

    @invariant()
    def what_runs_for_the_job_has_a_reserved_slot(self) -> None:
        if hasattr(self, "graph"):
            current = self.current()
            for attempt_id, task in self.tasks.tasks.items():
                name = self.tasks.name(attempt_id)
                state, number = current[name[:-1], int(name[-1]) - 1]
                if number == attempt_id.attempt_number and not state.is_terminal:
                    assert task.allocation_id in self.tasks.reserved

    @invariant()
    def no_reserved_slot_is_lost_sight_of(self) -> None:
        """A slot is reserved only while something uses it, or waits for the rest of its region or
        for the coordinator of the sources."""
        if hasattr(self, "graph") and not self.tasks.wanted and not self.sources_are_awaited():
            assert self.tasks.reserved.keys() <= self.slots_in_use()

    @invariant()
    def nothing_is_kept_but_the_results_of_finished_tasks(self) -> None:
        if hasattr(self, "graph"):
            current = self.current()
            for attempt_id in self.kept.values():
                name = self.tasks.name(attempt_id)
                finished = ExecutionState.FINISHED, attempt_id.attempt_number
                assert current[name[:-1], int(name[-1]) - 1] == finished
            assert self.tasks.ended is None or not self.kept

    @invariant()
    def regions_live_together(self) -> None:
        """All of a region is CREATED or SCHEDULED, or none of it is."""
        if not hasattr(self, "graph"):
            return
        current = list(self.current().values())
        early = (ExecutionState.CREATED, ExecutionState.SCHEDULED)
        for region in self.regions.regions:
            states = [current[ordinal][0] for ordinal in region.vertices]
            assert len({s for s in states if s in early}) <= 1
            live = [s for s in states if not s.is_terminal]
            if any(s in early for s in live):
                assert all(s in early for s in live), states

    def sources_are_awaited(self) -> bool:
        return False

    def go_on(self) -> None:
        """What goes on in the world when it is left alone, beside slots, tasks and timers."""

    def teardown(self) -> None:
        """Whatever happened: left alone, the job finishes, or ends as it was told to."""
        if not hasattr(self, "graph"):
            return
        for _ in range(300):
            if self.tasks.ended is not None:
                break
            if self.tasks.wanted:
                self.act("give", None)
            running = sorted(self.tasks.tasks, key=str)
            self.act("report", [a for a in running if a in self.cancelled], ExecutionState.CANCELED)
            self.act("report", self.runs(), ExecutionState.FINISHED)
            self.go_on()
            for key in self.timers:
                self.act(key)
        ended = self.tasks.ended
        assert ended is not None, f"the job hangs: {self.tasks.states()}"
        assert ended.result.status in (
            JobStatus.FINISHED,
            JobStatus.FAILED,
            JobStatus.CANCELED,
            JobStatus.SUSPENDED,
        )
        if ended.result.status is JobStatus.FINISHED:
            assert {state for state, _ in self.current().values()} == {ExecutionState.FINISHED}


TestTasks = TasksMachine.TestCase
TestTasks.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
