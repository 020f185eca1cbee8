"""PartitionTracker with jobs of any shape, beside TaskExecutors that keep what is finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flinkray.core.ids import ResourceID, ResultPartitionID
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionVertex
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import (
    IntermediateDataSet,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    ResultPartitionType,
)
from flinkray.scheduler.job.result_partitions import PartitionTracker, PlacedPartition
from flinkray.scheduler.shared.failure import Failure
from tests.scheduler.builders import GRAPH, JOB, allocated_slot
from tests.scheduler.graphs import ALL_TO_ALL, POINTWISE, data_set_id, python_vertex

HOSTS = [ResourceID(name) for name in "xyz"]
PATTERNS = st.sampled_from([ALL_TO_ALL, POINTWISE])
TYPES = st.sampled_from([*[ResultPartitionType.BLOCKING] * 3, ResultPartitionType.PIPELINED])
STEPS = st.integers(0, 8)
Partition = tuple[int, int]
"""Number of the data set, index of the producing subtask."""


@st.composite
def jobs(draw: st.DrawFn) -> JobGraph:
    """Two to four vertices with up to three data sets each, which any later vertex may read; most
    read something, so that regions wait for each other and read what they make themselves."""
    vertices: list[JobVertex] = []
    made: list[int] = []
    numbers = count(1)
    for name in "abcd"[: draw(st.integers(2, 4))]:
        read: list[int] = []
        if made:
            least = draw(st.sampled_from([1, 1, 2, 0]))
            read = sorted(
                draw(st.sets(st.sampled_from(made), min_size=min(least, len(made)), max_size=3))
            )
        inputs = tuple(JobEdge(data_set_id(number), draw(PATTERNS)) for number in read)
        vertex = python_vertex(name, draw(st.integers(1, 3)), inputs=inputs)
        for _ in range(draw(st.sampled_from([1, 2, 2, 3]))):
            made.append(next(numbers))
            data_set = IntermediateDataSet(data_set_id(made[-1]), draw(TYPES))
            vertex = replace(vertex, results=(*vertex.results, data_set))
        vertices.append(vertex)
    return JobGraph(JOB, "a job", tuple(vertices), None, JobType.BATCH)


class PartitionTrackerMachine(RuleBasedStateMachine):
    """The model: what every TaskExecutor keeps, and who still reads it, pair by pair."""

    @initialize(job_graph=jobs(), is_cancelled=st.booleans())
    def submit(self, job_graph: JobGraph, is_cancelled: bool) -> None:
        """*is_cancelled*: in the end, whatever it has done by then."""
        self.is_cancelled = is_cancelled
        self.now = 0.0
        self.graph = ExecutionGraph(job_graph, GRAPH, 0.0)
        self.regions = PipelinedRegions(self.graph)
        self.tracker = PartitionTracker(self.graph, self.regions)
        self.kept: dict[ResourceID, set[ResultPartitionID]] = {host: set() for host in HOSTS}
        self.released: list[ResultPartitionID] = []
        """By the present event."""
        self.begun: set[int] = set()
        self.running: set[int] = set()
        """Subtasks, by ordinal."""
        self.finished: set[int] = set()
        self.type_of = {}
        self.reads: dict[int, set[Partition]] = {s.ordinal: set() for s in self.graph.subtasks}
        self.makes: dict[int, list[Partition]] = {s.ordinal: [] for s in self.graph.subtasks}
        for vertex in self.graph.vertices:
            for result in vertex.results:
                number = self.number_of(result.data_set_id)
                self.type_of[number] = result.result_type
                for subtask in vertex.subtasks:
                    self.makes[subtask.ordinal].append((number, subtask.subtask_index))
            for edge in vertex.inputs:
                number = self.number_of(edge.result.data_set_id)
                for subtask in vertex.subtasks:
                    group = edge.group_of_consumer(subtask.subtask_index)
                    self.reads[subtask.ordinal] |= {(number, p) for p in group.partitions}

    @staticmethod
    def number_of(data_set: object) -> int:
        return next(n for n in range(1, 20) if data_set_id(n) == data_set)

    def release(self, partitions: Iterable[PlacedPartition]) -> None:
        for location, partition in partitions:
            self.kept[location.resource_id].remove(partition)
            self.released.append(partition)

    # the model

    def is_over(self, region: int) -> bool:
        return self.finished.issuperset(self.regions.regions[region].vertices)

    def readers(self, partition: Partition) -> set[int]:
        return {self.regions.of[o] for o, read in self.reads.items() if partition in read}

    def is_needed(self, partition: Partition) -> bool:
        return not all(self.is_over(region) for region in self.readers(partition))

    def pair(self, partition: ResultPartitionID) -> Partition:
        return self.number_of(partition.data_set_id), partition.partition

    def there(self) -> set[Partition]:
        return {self.pair(p) for kept in self.kept.values() for p in kept}

    def blocking(self, partitions: Iterable[Partition]) -> set[Partition]:
        return {p for p in partitions if not self.type_of[p[0]].is_pipelined}

    def from_outside(self, region: int) -> set[Partition]:
        """Blocking partitions that a region reads of others."""
        vertices = self.regions.regions[region].vertices
        read = {p for ordinal in vertices for p in self.reads[ordinal]}
        return self.blocking(read - {p for ordinal in vertices for p in self.makes[ordinal]})

    # tasks

    @rule(data=st.data(), number=STEPS)
    def job_goes_on(self, data: st.DataObject, number: int) -> None:
        """A step: a region begins, or a task finishes.

        Each rule that breaks something lets the job go on first: then it is not left to the choice
        of rules whether there is anything to break.
        """
        for _ in range(number):
            steps = [("begin", region) for region in self.ready()]
            steps += [("finish", ordinal) for ordinal in sorted(self.running)]
            if not steps:
                return
            step, which = data.draw(st.sampled_from(steps))
            if step == "finish":
                self.finish(which)
            else:
                vertices = self.regions.regions[which].vertices
                self.begin(which, {o: data.draw(st.sampled_from(HOSTS)) for o in vertices})

    def ready(self) -> list[int]:
        """Regions whose inputs are finished: then they are there."""
        produced = {p for ordinal in self.finished for p in self.makes[ordinal]}
        return [
            region.index
            for region in self.regions.regions
            if region.index not in self.begun and self.from_outside(region.index) <= produced
        ]

    def begin(self, region: int, hosts: dict[int, ResourceID]) -> None:
        assert self.from_outside(region) <= self.there(), "nothing is released before it is read"
        self.begun.add(region)
        for ordinal, where in hosts.items():
            self.now += 1.0
            execution = self.graph.subtasks[ordinal].current
            execution.schedule(self.now)
            execution.deploy(allocated_slot(int(self.now), name=str(where)), self.now)
            self.running.add(ordinal)

    def finish(self, ordinal: int) -> None:
        vertex = self.graph.subtasks[ordinal]
        execution = vertex.current
        self.now += 1.0
        execution.finish(self.now)
        assert execution.slot is not None
        for number, partition in self.blocking(self.makes[ordinal]):
            self.kept[execution.slot.location.resource_id].add(
                ResultPartitionID(GRAPH, data_set_id(number), partition, execution.attempt_number)
            )
        self.running.remove(ordinal)
        self.finished.add(ordinal)
        self.tracker.finished(vertex)
        for result in vertex.job_vertex.results:
            result.finish(vertex.subtask_index)
        region = self.regions.of[ordinal]
        if self.is_over(region):
            self.release(self.tracker.region_finished(region))
        for released in self.take_released():
            assert not self.is_needed(self.pair(released))

    def take_released(self) -> list[ResultPartitionID]:
        released, self.released = self.released, []
        return released

    # failures

    @rule(data=st.data(), before=STEPS)
    def region_fails(self, data: st.DataObject, before: int) -> None:
        self.job_goes_on(data, before)
        if self.begun:
            self.restart({data.draw(st.sampled_from(sorted(self.begun)))})

    @rule(data=st.data(), before=STEPS, rare=st.integers(0, 3))
    def everything_fails(self, data: st.DataObject, before: int, rare: int) -> None:
        self.job_goes_on(data, before)
        if rare == 0:
            self.restart(set(range(len(self.regions.regions))))

    def restart(self, failed: set[int]) -> None:
        """With a region those that read what it makes, and those that make what it lacks."""
        again: set[int] = set()
        queue = set(failed)
        while queue:
            region = queue.pop()
            again.add(region)
            for ordinal in self.regions.regions[region].vertices:
                readers = {r for p in self.blocking(self.makes[ordinal]) for r in self.readers(p)}
                queue |= readers - again
            gone = self.from_outside(region) - self.there()
            queue |= {self.regions.of[o] for o in self.finished if gone & {*self.makes[o]}} - again
        again &= self.begun
        for region in sorted(again):
            if self.is_over(region):
                self.tracker.region_unfinished(region)
            self.begun.remove(region)
            for ordinal in self.regions.regions[region].vertices:
                self.take_back(self.graph.subtasks[ordinal])
        for region in again:
            for ordinal in self.regions.regions[region].vertices:
                vertex = self.graph.subtasks[ordinal]
                vertex.current.end(Failure("its region is restarted"), self.now)
                vertex.reset_for_new_execution(self.now)

    def take_back(self, vertex: ExecutionVertex) -> None:
        kept = {p for one in self.kept.values() for p in one}
        expected = {p for p in kept if self.pair(p) in self.makes[vertex.ordinal]}
        self.running.discard(vertex.ordinal)
        self.finished.discard(vertex.ordinal)
        self.release(self.tracker.reset(vertex))
        for result in vertex.job_vertex.results:
            result.reset(vertex.subtask_index)
        released = self.take_released()
        assert len(released) == len(expected)
        assert {*released} == expected

    @rule(data=st.data(), before=STEPS, host=st.sampled_from(HOSTS))
    def task_executor_dies(self, data: st.DataObject, before: int, host: ResourceID) -> None:
        self.job_goes_on(data, before)
        self.lose([host], self.tracker.task_executor_lost(host))

    def lose(self, hosts: list[ResourceID], told: list[ExecutionVertex]) -> None:
        lost = {self.pair(p) for host in hosts for p in self.kept[host]}
        for host in hosts:
            self.kept[host].clear()
        producers = [
            ordinal
            for ordinal, made in self.makes.items()
            if any(p in lost and self.is_needed(p) for p in made)
        ]
        assert sorted(vertex.ordinal for vertex in told) == producers
        failed = {self.regions.of[ordinal] for ordinal in producers}
        for ordinal in self.running:
            slot = self.graph.subtasks[ordinal].current.slot
            assert slot is not None
            if slot.location.resource_id in hosts:
                failed.add(self.regions.of[ordinal])
        self.restart(failed)

    # what holds

    @invariant()
    def what_is_kept_has_a_reader_or_nobody_at_all(self) -> None:
        if hasattr(self, "kept"):
            for partition in self.there():
                assert self.is_needed(partition) or not self.readers(partition)

    @invariant()
    def what_is_tracked_is_what_is_kept(self) -> None:
        if hasattr(self, "kept"):
            for host, kept in self.kept.items():
                assert self.tracker.holds_partitions_on(host) == bool(kept)
            for ordinal in self.finished:
                vertex = self.graph.subtasks[ordinal]
                for result in vertex.job_vertex.results:
                    partition = (self.number_of(result.data_set_id), vertex.subtask_index)
                    if not result.is_pipelined:
                        assert result.is_there(partition[1]) == (partition in self.there())

    @invariant()
    def no_partition_is_kept_twice_nor_of_an_attempt_of_before(self) -> None:
        if hasattr(self, "kept"):
            kept = [p for one in self.kept.values() for p in one]
            assert len({self.pair(p) for p in kept}) == len(kept)
            for partition in kept:
                result = self.graph.result(partition.data_set_id)
                assert result is not None
                current = result.producer.subtasks[partition.partition].current
                assert current.attempt_number == partition.attempt_number

    def teardown(self) -> None:
        """Left alone, every job finishes.  Nothing is left: TaskExecutors that die then do not
        concern the job."""
        if not hasattr(self, "kept"):
            return
        while not self.is_cancelled and len(self.finished) < len(self.graph.subtasks):
            if self.running:
                self.finish(min(self.running))
                self.what_is_kept_has_a_reader_or_nobody_at_all()
                self.what_is_tracked_is_what_is_kept()
                continue
            region = min(r.index for r in self.regions.regions if r.index not in self.begun)
            self.begin(region, dict.fromkeys(self.regions.regions[region].vertices, HOSTS[0]))
        self.release(self.tracker.let_go_of_all())
        assert not any(self.kept.values())
        assert not any(self.tracker.task_executor_lost(host) for host in HOSTS)


TestPartitionTracker = PartitionTrackerMachine.TestCase
TestPartitionTracker.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
