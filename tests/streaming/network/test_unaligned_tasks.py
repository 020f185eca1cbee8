"""Tasks between channels: checkpoints that overtake what is under way, and the way back to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.channels import MemoryInputGate
from flinkray.streaming.checkpoint.subtask_checkpoints import CheckpointResponder
from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    NetworkSettings,
    PartitionWriter,
    ResultPartition,
    Signal,
    decode_elements,
    encode_elements,
)
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorState,
    OperatorStateCapture,
    Output,
    StreamOperator,
)
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Block, Element
from flinkray.streaming.records.in_flight import InFlight
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.streaming.task.task import StreamTask, StreamTaskInput
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing import ManualClock
from tests.streaming.network.networks import PATIENCE, Reading, network
from tests.streaming.operators.test_source_operator import Batches

NARROW = NetworkSettings(
    segment_size=512,
    buffers_per_channel=1,
    floating_buffers_per_gate=1,
    max_buffers_per_channel=1,
)
SEEN: ListStateDescriptor[Any] = ListStateDescriptor("seen")


class Remembering(StreamOperator):
    """Keeps the numbers that it has seen, each in a list of its own, and hands these on."""

    def process_block(self, block: Block) -> None:
        self.operator_state.list_state(SEEN).add_all([value[0] for value in block.values])
        self.output.emit(block)
        for value in block.values:
            value.append("seen")

    def seen(self) -> list[int]:
        return list(self.operator_state.list_state(SEEN).get())


@dataclass
class Part:
    """What a task has of a checkpoint."""

    barrier: Barrier
    state: OperatorState
    inputs: dict[int, list[InFlight]] = field(default_factory=lambda: defaultdict(list))
    results: dict[int, Sequence[InFlight]] = field(default_factory=dict)
    is_complete: bool = False


class Reports(CheckpointResponder):
    """What a task reports."""

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self._overtaken: dict[int, dict[int, Sequence[InFlight]]] = defaultdict(dict)

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        return None

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        assert result == 0
        if checkpoint_id in self.parts:
            assert self.parts[checkpoint_id].barrier.overtakes_at is not None
        assert subpartition not in self._overtaken[checkpoint_id]
        self._overtaken[checkpoint_id][subpartition] = elements

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        part = Part(barrier, states["op"].write(), is_complete=not barrier.may_overtake)
        part.results = self._overtaken[barrier.checkpoint_id]
        self.parts[barrier.checkpoint_id] = part

    def declined(self, checkpoint_id: int, reason: str) -> None:
        self.parts.pop(checkpoint_id, None)

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        self.parts[checkpoint_id].inputs[channel] += elements

    def in_flight_completed(self, checkpoint_id: int) -> None:
        assert not self.parts[checkpoint_id].is_complete
        self.parts[checkpoint_id].is_complete = True

    def aborted(self, checkpoint_id: int) -> None:
        raise AssertionError("nobody aborts a checkpoint here")


class Running(Reports):
    """A task that reads partitions, and writes one if it is given one."""

    def __init__(
        self,
        place: NetworkEnvironment,
        clock: ManualClock,
        sources: Sequence[ChannelSource],
        signal: Signal,
        result: ResultPartition | None = None,
        restored: Part | None = None,
    ) -> None:
        super().__init__()
        writers = []
        if result is not None:
            partitioner = RebalancePartitioner()
            partitioner.setup(len(result.subpartitions), 128, 0)
            writers.append(PartitionWriter(result, partitioner))
            result.listen(signal.set)
        self.gate = place.create_gate("Task", sources)
        service = ProcessingTimeService(clock)
        self.operator = Remembering()
        self.operator.setup(OperatorContext("op", service, clock), Output(writers))
        self.task = StreamTask(
            "task",
            [("op", self.operator)],
            self.gate,
            [StreamTaskInput(self.operator, len(sources))],
            [(0, number) for number in range(len(sources))],
            writers,
            service,
            self,
        )
        if restored is None:
            self.task.open()
        else:
            self.task.open({"op": [restored.state]})
            for channel, came in restored.inputs.items():
                self.gate.restore(channel, there_and_back(came))
            for subpartition, kept_here in restored.results.items():
                assert result is not None
                result.restore(subpartition, there_and_back(kept_here))
        self.gate.listen(signal.set)
        self.gate.request()


def there_and_back(elements: Sequence[InFlight]) -> list[Element]:
    return decode_elements(encode_elements(elements))


@dataclass
class Cut:
    """A checkpoint, as far as the sources know."""

    put: list[int]
    """How many numbers each of them had put."""
    of_sources: list[Sequence[InFlight] | None]
    """What each of them has kept; None: that is not known yet."""


class Program:
    """Two sources, a task that reads both, and two tasks that divide its results.

    Args:
        places: of the sources, of the task in the middle, and of the last ones.
    """

    def __init__(
        self,
        name: str,
        places: Sequence[NetworkEnvironment],
        clock: ManualClock,
        restored: Sequence[Part] = (),
        of_sources: Sequence[Sequence[InFlight]] = (),
    ) -> None:
        self._clock = clock
        self.sources = [
            places[number].create_partition(f"{name} {number}", "Source", 1, buffer_timeout=0)
            for number in range(2)
        ]
        for source, elements in zip(self.sources, of_sources, strict=False):
            source.restore(0, there_and_back(elements))
        self._middle = places[2].create_partition(f"{name} 2", "Task", 2, buffer_timeout=0)
        read = [
            ChannelSource(source.id, 0, place.address)
            for source, place in zip(self.sources, places, strict=False)
        ]
        self._signal = signal = Signal()
        parts = [*restored, None, None, None]
        self.tasks = [Running(places[2], clock, read, signal, self._middle, parts[0])]
        for index in range(2):
            divided = [ChannelSource(self._middle.id, index, places[2].address)]
            last = Running(places[3 + index], clock, divided, signal, None, parts[1 + index])
            self.tasks.append(last)
        self.put: list[list[int]] = [[], []]
        self.cuts: dict[int, Cut] = {}

    def write(self, source: int, numbers: Sequence[int]) -> None:
        if numbers:
            self.put[source] += numbers
            self.sources[source].subpartitions[0].put(Block([[number] for number in numbers]))

    def barrier(self, barrier: Barrier) -> None:
        cut = self.cuts[barrier.checkpoint_id] = Cut(list(map(len, self.put)), [None, None])

        def settled(number: int, told: Mapping[int, Sequence[InFlight]]) -> None:
            cut.of_sources[number] = told.get(0, ())

        for number, source in enumerate(self.sources):
            source.barrier(barrier, lambda told, number=number: settled(number, told))  # type: ignore[misc]

    def end(self) -> list[int]:
        """What the last tasks have seen when all have ended."""
        for source in self.sources:
            source.subpartitions[0].put(END_OF_INPUT)
        while not all(running.task.finished for running in self.tasks):
            progressed = [running.task.step() for running in self.tasks]
            if not any(progressed):
                assert self._signal.wait(PATIENCE), "nothing came"
        return sorted(number for running in self.tasks[1:] for number in running.operator.seen())

    def complete(self) -> list[int]:
        """Ids of the checkpoints that all have taken part in to their end."""
        return [
            checkpoint_id
            for checkpoint_id, cut in self.cuts.items()
            if None not in cut.of_sources
            and all(
                checkpoint_id in running.parts and running.parts[checkpoint_id].is_complete
                for running in self.tasks
            )
        ]


def unaligned(checkpoint_id: int = 1) -> Barrier:
    return Barrier(checkpoint_id, 0, unaligned=True)


class OneTask:
    """A task with two inputs and a result that nobody reads: it has room for some."""

    def __init__(self, make: Any, settings: NetworkSettings = NARROW) -> None:
        self.clock = ManualClock(epoch=1e9)
        here = make("here", settings=settings, clock=self.clock, manual_timers=True)
        self.sources = [here.create_partition(name, "Source", 1, buffer_timeout=0) for name in "ab"]
        self.result = here.create_partition("result", "Task", 1, buffer_timeout=0)
        read = [ChannelSource(source.id, 0, here.address) for source in self.sources]
        self.running = Running(here, self.clock, read, Signal(), self.result)

    def write(self, source: int, numbers: Sequence[int]) -> None:
        self.sources[source].subpartitions[0].put(Block([[number] for number in numbers]))

    def barrier(self, source: int, barrier: Barrier) -> None:
        self.sources[source].barrier(barrier, lambda _: None)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.running.task.step()

    def in_flight(self, checkpoint_id: int = 1) -> dict[str, list[int]]:
        part = self.running.parts[checkpoint_id]
        return {
            **{f"input {channel}": numbers(came) for channel, came in part.inputs.items()},
            **{f"result {index}": numbers(kept_here) for index, kept_here in part.results.items()},
        }


def numbers(elements: Sequence[InFlight]) -> list[int]:
    found = []
    for block in there_and_back(elements):
        assert isinstance(block, Block)
        found += [value[0] for value in block.values]
    return found


def test_task_without_room_for_results_takes_an_unaligned_snapshot_within_a_batch() -> None:
    """ST-06: the rest of the batch is in flight, before the data that waits in its channel; unsent
    results are in flight as well."""
    with network() as make:
        one = OneTask(make)
        one.write(0, range(500))
        one.step()
        done = len(one.running.operator.seen())
        assert 0 < done < 500
        one.write(0, [500])
        while one.result.has_room():
            one.step()
        done = len(one.running.operator.seen())
        assert done < 500
        one.barrier(0, unaligned())
        one.step()
        assert one.in_flight() == {
            "input 0": list(range(done, 500)),  # what is not taken is its sender's, in one process
            "result 0": list(range(done)),
        }
        assert not one.running.parts[1].is_complete
        one.write(1, [600])
        one.barrier(1, unaligned())
        one.step()
        assert one.running.parts[1].is_complete


def test_unfinished_operator_work_is_done_before_the_snapshot_of_the_operator() -> None:
    """For an unaligned barrier, and for an alignment that times out."""
    with network() as make:
        one = OneTask(make, NetworkSettings())
        work: list[int] = []
        one.running.task.turn.leave(lambda: work.append(len(one.running.parts)))
        one.barrier(0, unaligned(1))
        one.step(2)
        one.barrier(0, Barrier(2, int(1e12), alignment_timeout=300))
        one.step(2)
        one.running.task.turn.leave(lambda: work.append(len(one.running.parts)))
        one.clock.advance(0.3)
        one.step(2)
        assert list(one.running.parts) == [2]
        assert work == [0, 0]


def test_source_without_room_for_results_takes_its_snapshot_after_its_current_batch() -> None:
    """It then does not wait for room. An earlier snapshot would lose the rest of the batch."""
    with network() as make:
        clock = ManualClock(epoch=1e9)
        here = make("here", settings=NARROW)
        result = here.create_partition("result", "Source", 1, buffer_timeout=0)
        partitioner = RebalancePartitioner()
        partitioner.setup(1, 128, 0)
        writer = PartitionWriter(result, partitioner)
        source = SourceOperator(Batches(Block([[number] for number in range(100)])))
        service = ProcessingTimeService(clock)
        source.setup(OperatorContext("op", service, clock), Output([writer]))
        reports = Reports()
        task = StreamTask(
            "t", [("op", source)], MemoryInputGate(()), [], [], [writer], service, reports
        )
        task.open()
        source.add_splits([0])
        task.step()
        task.trigger_checkpoint(unaligned())
        reading = Reading(here.create_gate("Sink", [ChannelSource("result", 0, here.address)]))
        while source.has_rest:
            assert reports.parts == {}
            while not task.has_room():
                reading.next()
            task.step()
        assert not task.has_room()
        task.step()
        assert reports.parts[1].is_complete


WAYS = ("here", "there", "far away")
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.sampled_from([1, 3, 100])),
    st.tuples(st.just("step"), st.integers(0, 2), st.integers(1, 8)),
    st.tuples(st.just("barrier"), st.just(0), st.sampled_from([None, "aligned", 0, 20])),
    st.tuples(st.just("pass"), st.just(0), st.integers(1, 20)),
)
places_of = st.lists(st.sampled_from(WAYS), min_size=5, max_size=5)


def test_program_restored_from_any_checkpoint_sees_each_number_once() -> None:
    """ST-06, ST-08: with unaligned checkpoints, aligned ones and those with an alignment timeout,
    also if tasks run in other processes after the restore."""
    clock = ManualClock(epoch=1e9)
    with network() as make:
        arguments: dict[str, Any] = {"settings": NARROW, "clock": clock, "manual_timers": True}
        by_name = {
            "here": make("here", **arguments),
            "there": make("there", **arguments),
            "far away": make("far away", **(arguments | {"node_id": "another"})),
        }
        runs = count()

        def program(names: Sequence[str], *restored: Any) -> Program:
            return Program(f"run {next(runs)}", [by_name[n] for n in names], clock, *restored)

        @settings(max_examples=80, deadline=None)
        @given(st.lists(steps, min_size=5, max_size=60), places_of, places_of)
        def run(script: Any, names: list[str], later_names: list[str]) -> None:
            first = program(names)
            number = 0
            for step, which, what in script:
                if step == "write":
                    first.write(which, range(number, number + what))
                    number += what
                elif step == "step":
                    for _ in range(what):
                        first.tasks[which].task.step()
                elif step == "pass":
                    clock.advance(what / 1000)
                    for place in by_name.values():
                        place.timers.run_due()
                else:
                    first.barrier(
                        Barrier(
                            len(first.cuts) + 1,
                            int(clock.time() * 1000),
                            unaligned=what is None,
                            alignment_timeout=what if isinstance(what, int) else None,
                        )
                    )
            assert first.end() == list(range(number))
            if first.cuts:  # no later one has taken its place
                assert max(first.cuts) in first.complete()
            for checkpoint_id in first.complete():
                cut = first.cuts[checkpoint_id]
                parts = [running.parts[checkpoint_id] for running in first.tasks]
                second = program(later_names, parts, cut.of_sources)
                for source, put in enumerate(first.put):
                    second.write(source, put[cut.put[source] :])
                assert second.end() == list(range(number))

        run()
