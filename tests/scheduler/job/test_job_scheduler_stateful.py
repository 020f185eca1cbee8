"""JobScheduler with jobs of Spark stages and tasks, in a world that fails in any way."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from flinkray.core.ids import AllocationID, JobVertexID, ResultPartitionID
from flinkray.scheduler.graph.job_graph import SPARK, FixedDelayRestart, Invokable, JobVertex
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, SparkExecutors
from flinkray.scheduler.job.job_scheduler_actions import (
    JobSchedulerAction,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.builders import GRAPH
from tests.scheduler.graphs import python_vertex
from tests.scheduler.job.job_under_test import FAILURE, RESULT
from tests.scheduler.job.test_job_scheduler_tasks_stateful import TasksMachine


@st.composite
def mixed_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four vertices of up to three subtasks; what a Spark stage reads or writes is files,
    and stages share slots or do not."""
    names = "abcd"[: draw(st.integers(1, 4))]
    stages = draw(st.sets(st.sampled_from(names), min_size=1))
    vertices: list[JobVertex] = []
    for name in names:
        vertex = python_vertex(name, draw(st.integers(1, 3)))
        if name in stages:
            vertex = replace(vertex, invokable=Invokable(SPARK, b"stage"))
        group = draw(st.sampled_from(["default", "default", "other"]))
        vertices.append(replace(vertex, slot_sharing_group=group))
    edges = []
    for target in range(1, len(names)):
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            between = {names[source], names[target]}
            arrows = ["~>"] if between & stages else ["->", "=>", "==>", "~>", "~~>"]
            edges.append(f"{names[source]} {draw(st.sampled_from(arrows))} {names[target]}")
    return {"vertices": vertices, "edges": edges}


def is_refused(shape: dict[str, Any]) -> bool:
    """Whether a stage is within a pipelined region."""
    vertices, edges = shape["vertices"], [edge.split() for edge in shape["edges"]]
    stages = {v.name for v in vertices if v.invokable.kind == SPARK}
    after: dict[str, set[str]] = {v.name: set() for v in vertices}
    joined = {v.name: {v.name} for v in vertices}
    for source, arrow, target in edges:
        after[source].add(target)
        if arrow == "->":
            both = joined[source] | joined[target]
            for name in both:
                joined[name] = both
    reached: dict[str, set[str]] = {}
    for start in after:
        queue, seen = [*joined[start]], set(joined[start])
        while queue:
            for target in after[queue.pop()]:
                for name in joined[target] - seen:
                    seen.add(name)
                    queue.append(name)
        reached[start] = seen
    return any(
        stage in reached[other] and other in reached[stage]
        for stage in stages
        for other in after
        if other != stage
    )


class MixedMachine(TasksMachine):
    """Beside the world of tasks: Spark drivers, and the executors that are registered with them."""

    @initialize(
        shape=mixed_jobs().filter(lambda shape: not is_refused(shape)),
        restarts=st.integers(0, 4),
        restart_all=st.integers(0, 3).map(lambda rare: rare == 0),
    )
    def submit(self, shape: dict[str, Any], restarts: int, restart_all: bool) -> None:
        self.coordinators: dict[CoordinatorID, str] = {}
        """Those whose process is there: starting, running or stopping."""
        self.held: dict[CoordinatorID, tuple[AllocatedSlot, ...]] = {}
        self.executors: dict[CoordinatorID, dict[int, int]] = {}
        """Registered Spark executors: subtask -> pid."""
        self.pids = count(100)
        self.finished: set[JobVertexID] = set()
        self.begin(shape, FixedDelayRestart(restarts), restart_all)

    def carry_out(self, action: JobSchedulerAction) -> None:
        match action:
            case StartCoordinator(coordinator, slots, inputs):
                there = {c.vertex_id for c in self.coordinators}
                assert coordinator.vertex_id not in there, "one at a time"
                self.check_slots(coordinator, slots)
                self.check_inputs(coordinator, inputs)
                self.coordinators[coordinator] = "starting"
                self.held[coordinator] = slots
                self.executors[coordinator] = {}
            case StopCoordinator(coordinator):
                assert self.coordinators[coordinator] != "stopping", "it is stopped once"
                self.coordinators[coordinator] = "stopping"

    def check_slots(self, coordinator: CoordinatorID, slots: tuple[AllocatedSlot, ...]) -> None:
        """Subtask i is in bundle i of one worker group, and nothing of another stage is there."""
        assert coordinator.vertex_id is not None
        vertex = self.graph.vertex(coordinator.vertex_id)
        assert vertex is not None
        assert [s.location.bundle_index for s in slots] == list(range(vertex.parallelism))
        assert len({s.location.worker_group for s in slots}) == 1
        used = {s.allocation_id for held in self.held.values() for s in held}
        assert used.isdisjoint(s.allocation_id for s in slots), (
            "another stage's processes are there"
        )
        assert all(s.allocation_id in self.tasks.reserved for s in slots)

    def check_inputs(self, coordinator: CoordinatorID, inputs: tuple[Any, ...]) -> None:
        """What it is told of what it reads is true, and finished."""
        current = self.current()
        assert coordinator.vertex_id is not None
        vertex = self.graph.vertex(coordinator.vertex_id)
        assert vertex is not None
        sources = {e.result.data_set_id for e in vertex.inputs} - {None}
        assert {one.data_set_id for one in inputs} == sources
        for one in inputs:
            result = self.graph.result(one.data_set_id)
            assert result is not None
            name = result.producer.vertex.name
            for number in range(one.locations.number_of_partitions):
                partition = one.locations.first_partition + number
                state, attempt_number = current[name, partition]
                assert state is ExecutionState.FINISHED
                assert one.locations.partition_id(partition).attempt_number == attempt_number

    def slots_in_use(self) -> set[AllocationID]:
        held = {s.allocation_id for slots in self.held.values() for s in slots}
        return super().slots_in_use() | held

    def gone(self, coordinator: CoordinatorID) -> None:
        del self.coordinators[coordinator]
        del self.held[coordinator]

    # the world

    @precondition(lambda self: self.coordinators)
    @rule(data=st.data())
    def coordinator_goes_on(self, data: st.DataObject) -> None:
        """It starts, or ends as it was told to."""
        coordinator = data.draw(st.sampled_from(sorted(self.coordinators, key=str)))
        match self.coordinators[coordinator]:
            case "starting":
                self.coordinators[coordinator] = "running"
                self.act(t.CoordinatorStarted(coordinator))
            case "stopping":
                self.gone(coordinator)
                self.act(t.CoordinatorGone(coordinator))

    @precondition(lambda self: self.coordinators)
    @rule(data=st.data(), rare=st.integers(0, 6))
    def coordinator_dies(self, data: st.DataObject, rare: int) -> None:
        if rare == 0:
            coordinator = data.draw(st.sampled_from(sorted(self.coordinators, key=str)))
            self.gone(coordinator)
            self.act(t.CoordinatorGone(coordinator, "killed"))

    def running(self) -> list[CoordinatorID]:
        return [c for c, s in sorted(self.coordinators.items(), key=str) if s == "running"]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), event=st.sampled_from([RESULT, RESULT, FAILURE, SparkProgress()]))
    def coordinator_says(self, data: st.DataObject, event: Any) -> None:
        self.act(t.CoordinatorTold(data.draw(st.sampled_from(self.running())), event))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), rare=st.integers(0, 3), attempt_number=st.integers(0, 2))
    def stage_does_not_find_its_input(
        self, data: st.DataObject, rare: int, attempt_number: int
    ) -> None:
        coordinator = data.draw(st.sampled_from(self.running()))
        assert coordinator.vertex_id is not None
        vertex = self.graph.vertex(coordinator.vertex_id)
        assert vertex is not None
        read = [edge.result for edge in vertex.inputs if edge.result.data_set_id]
        if rare == 0 and read:
            result = data.draw(st.sampled_from(read))
            assert result.data_set_id is not None
            partition = data.draw(st.integers(0, result.producer.parallelism - 1))
            missing = ResultPartitionID(GRAPH, result.data_set_id, partition, attempt_number)
            failure = replace(FAILURE, missing_partitions=(missing,))
            self.act(t.CoordinatorTold(coordinator, failure))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), subtask=st.integers(0, 2), is_there=st.booleans())
    def executor_comes_or_goes(self, data: st.DataObject, subtask: int, is_there: bool) -> None:
        coordinator = data.draw(st.sampled_from(self.running()))
        registered = self.executors[coordinator]
        registered.pop(subtask, None)
        if is_there and subtask < len(self.held[coordinator]):
            registered[subtask] = next(self.pids)
        executors = tuple(
            SparkExecutorInfo(i, str(i), f"a{i}", "n0", pid, i)
            for i, pid in sorted(registered.items())
        )
        self.act(t.CoordinatorTold(coordinator, SparkExecutors(executors)))

    @precondition(lambda self: self.coordinators)
    @rule(data=st.data(), rare=st.integers(0, 3))
    def late_word_of_an_earlier_coordinator(self, data: st.DataObject, rare: int) -> None:
        coordinator = data.draw(st.sampled_from(sorted(self.coordinators, key=str)))
        if rare == 0 and coordinator.attempt_number:
            before = replace(coordinator, attempt_number=coordinator.attempt_number - 1)
            states = self.tasks.states()
            self.act(t.CoordinatorTold(before, RESULT))
            self.act(t.CoordinatorGone(before, "late"))
            assert self.tasks.states() == states

    def go_on(self) -> None:
        for coordinator, state in sorted(self.coordinators.items(), key=str):
            if state == "starting":
                self.coordinators[coordinator] = "running"
                self.act(t.CoordinatorStarted(coordinator))
            elif state == "running":
                self.act(t.CoordinatorTold(coordinator, RESULT))
            else:
                self.gone(coordinator)
                self.act(t.CoordinatorGone(coordinator))

    # what must hold

    @invariant()
    def ended_job_has_no_driver(self) -> None:
        if hasattr(self, "graph") and self.tasks.ended is not None:
            assert not self.coordinators

    @invariant()
    def slots_with_spark_in_them_are_the_jobs(self) -> None:
        """Its processes are in a slot until its driver is gone, unless the slot is lost."""
        if hasattr(self, "graph"):
            current = self.current()
            for coordinator in self.coordinators:
                assert coordinator.vertex_id is not None
                vertex = self.graph.vertex(coordinator.vertex_id)
                assert vertex is not None
                for subtask in range(vertex.parallelism):
                    state, _ = current[vertex.vertex.name, subtask]
                    assert state is not ExecutionState.SCHEDULED, "the one before has not ended"


TestMixedJobs = MixedMachine.TestCase
TestMixedJobs.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
