"""The one-thread runner runs a program to its end: tasks, channels, and failures of functions."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.channels import (
    COALESCE_BELOW,
    MemoryChannel,
    MemoryInputGate,
    MergingWriter,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import KeyedProcessFunction, MapFunction
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.operators.basic import MapOperator
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.graph import StreamGraph
from flinkray.streaming.program.transformations import (
    GraphSettings,
    OperatorTransformation,
    PartitionTransformation,
    build_graph,
)
from flinkray.streaming.records.elements import Block, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.partitioners import ForwardPartitioner, KeyGroupPartitioner
from flinkray.streaming.sinks.simple import CollectSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sources.collection import CollectionSource, NumberSequenceSource
from flinkray.streaming.sources.files import FileSource
from flinkray.streaming.sources.generated import DataGeneratorSource
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing.manual_clock import ManualClock

MOD7 = Keys(lambda value: value % 7)


class RunningSum(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", default_value=0))
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.update(self.sum.value() + value)
        yield ctx.get_current_key(), self.sum.value(), self.subtask


def keyed_sums(count: int, parallelism: int = 3, block: int = 16) -> tuple[Any, CollectSink]:
    source = OperatorTransformation(
        "Source", operator=SourceOperator(NumberSequenceSource(1, count), block), parallelism=2
    )
    by_key = PartitionTransformation("", input=source, partitioner=KeyGroupPartitioner(MOD7))
    sums = OperatorTransformation(
        "Sum",
        operator=KeyedProcessOperator(RunningSum(), MOD7),
        inputs=[by_key],
        keyed=True,
        parallelism=parallelism,
    )
    results = CollectSink()
    sink = OperatorTransformation("Sink", operator=SinkWriterOperator(results), inputs=[sums])
    return build_graph([sink], GraphSettings()), results


def final_sums(results: CollectSink) -> dict[int, int]:
    sums: dict[int, int] = {}
    for key, total, _ in results.take_all():
        sums[key] = max(total, sums.get(key, 0))
    return sums


def expected_sums(count: int) -> dict[int, int]:
    sums: Counter[int] = Counter()
    for value in range(1, count + 1):
        sums[value % 7] += value
    return dict(sums)


def test_each_key_is_processed_in_one_subtask_and_no_record_is_lost() -> None:
    graph, results = keyed_sums(5000)
    LocalJob(graph).run()
    owners: dict[int, set[int]] = {}
    outputs = results.take_all()
    for key, _, subtask in outputs:
        owners.setdefault(key, set()).add(subtask)
    assert len(outputs) == 5000
    assert all(len(subtasks) == 1 for subtasks in owners.values())
    assert len(set.union(*owners.values())) > 1
    graph, results = keyed_sums(5000)
    LocalJob(graph).run()
    assert final_sums(results) == expected_sums(5000)


def test_local_jobs_on_a_manual_clock_give_equal_output_order() -> None:
    outputs = []
    for _ in range(2):
        graph, results = keyed_sums(2000)
        LocalJob(graph, ManualClock()).run()
        outputs.append(results.take_all())
    assert outputs[0] == outputs[1]


def test_small_batches_are_merged_and_sent_before_the_next_watermark() -> None:
    channel = MemoryChannel()
    writer = MergingWriter([channel], ForwardPartitioner())
    for number in range(5):
        writer.process_block(Block([number], [number]))
    assert not channel.elements
    writer.process_watermark(9)
    block, watermark = channel.elements
    assert isinstance(block, Block)
    assert block.values == block.timestamps == [0, 1, 2, 3, 4]
    assert watermark == Watermark(9)


def test_batches_with_and_without_timestamps_or_keys_are_sent_in_order() -> None:
    channel = MemoryChannel()
    writer = MergingWriter([channel], ForwardPartitioner())
    for block in (
        Block([1], [1], ["a"]),
        Block([2], [2]),
        Block([3]),
        Block([4], None, ["b"]),
        Block([5], [5], ["c"]),
        Block([6], [6], ["d"]),
    ):
        writer.process_block(block)
    writer.flush()
    blocks: Any = channel.elements
    assert [(b.values, b.timestamps, b.keys) for b in blocks] == [
        ([1], [1], ["a"]), ([2], [2], None), ([3], None, None), ([4], None, ["b"]),
        ([5, 6], [5, 6], ["c", "d"]),
    ]  # fmt: skip


def small_blocks(timeout: int | None) -> tuple[Any, Any, Any]:
    channel, clock = MemoryChannel(), ManualClock()
    service = ProcessingTimeService(clock)
    writer = MergingWriter([channel], ForwardPartitioner(), timeout, service)
    for number in range(3):
        writer.process_block(Block([number]))
    return channel, writer, (clock, service)


def test_waiting_records_are_sent_after_the_buffer_timeout() -> None:
    channel, writer, (clock, service) = small_blocks(100)
    clock.set_milliseconds(99)
    service.fire_due()
    assert not channel.elements
    clock.set_milliseconds(100)
    service.fire_due()
    assert [block.values for block in channel.elements] == [[0, 1, 2]]
    writer.process_block(Block([3]))
    clock.set_milliseconds(200)
    service.fire_due()
    assert [block.values for block in channel.elements] == [[0, 1, 2], [3]]


def test_records_are_sent_at_once_with_a_buffer_timeout_of_zero() -> None:
    channel, _, _ = small_blocks(0)
    assert [block.values for block in channel.elements] == [[0], [1], [2]]


def test_records_wait_for_a_full_batch_with_a_buffer_timeout_of_minus_one() -> None:
    channel, writer, (clock, service) = small_blocks(-1)
    clock.set_milliseconds(1_000_000)
    service.fire_due()
    writer.flush_when_idle()
    assert not channel.elements
    writer.process_block(Block(list(range(COALESCE_BELOW))))
    assert [len(block) for block in channel.elements] == [COALESCE_BELOW + 3]


def test_records_in_a_partial_batch_are_sent_when_the_task_is_idle() -> None:
    channel, writer, _ = small_blocks(100)
    writer.flush_when_idle()
    assert [block.values for block in channel.elements] == [[0, 1, 2]]


def test_source_stops_reading_while_a_channel_of_a_slow_consumer_is_full() -> None:
    """Channels are bounded: a source stops while a channel is full."""
    source = OperatorTransformation(
        "Source", operator=SourceOperator(NumberSequenceSource(0, 10**6), 1000)
    )
    slow = OperatorTransformation(
        "Slow", operator=MapOperator(lambda value: value), inputs=[source], parallelism=2
    )
    graph = build_graph([slow], GraphSettings())
    job = LocalJob(graph)
    source_task, *consumers = job.tasks
    for _ in range(100):
        source_task.step()
    gates = [cast(MemoryInputGate, task.gate) for task in consumers]
    waiting = [len(channel.elements) for gate in gates for channel in gate.channels]
    assert max(waiting) <= 17
    assert not source_task.step()
    consumers[0].step()
    consumers[1].step()
    assert source_task.step()
    job.close()


def one_map(function: Any, values: Any, **settings: Any) -> Any:
    source = OperatorTransformation(
        "Source: numbers", operator=SourceOperator(CollectionSource(values))
    )
    mapped = OperatorTransformation(
        "Divide", operator=MapOperator(function), inputs=[source], **settings
    )
    return build_graph([mapped], GraphSettings())


def test_error_text_has_the_traceback_of_the_user_then_operator_and_record() -> None:
    def divide(value: int) -> float:
        return 10 / (value - 5)

    with pytest.raises(OperatorError) as caught:
        LocalJob(one_map(divide, range(10))).run()
    text = str(caught.value)
    assert text.startswith("Traceback (most recent call last):\n")
    frames = [line for line in text.splitlines() if line.startswith("  File")]
    assert len(frames) == 1
    assert "in divide" in frames[0]
    assert "ZeroDivisionError: division by zero\nin operator 'Divide', subtask 1/1\n" in text
    assert text.endswith(
        "on record 5\nwhich came from Source: numbers (1/1), in the batch from record 0 on"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_error_in_open_names_the_operator() -> None:
    class Unready(MapFunction[Any, Any]):
        def open(self, runtime_context: Any) -> None:
            raise OSError("no such model")

        def map(self, value: Any) -> Any:
            return value

    with pytest.raises(OperatorError, match=r"OSError: no such model\nin operator 'Divide'"):
        LocalJob(one_map(Unready(), [1]))


def test_failed_function_is_closed_and_its_first_error_is_raised() -> None:
    closed = []

    class Guarded(MapFunction[Any, Any]):
        def map(self, value: Any) -> Any:
            raise ValueError("bad record")

        def close(self) -> None:
            closed.append("closed")
            raise OSError("and the socket is gone")

    graph = one_map(Guarded(), [1])
    graph.nodes[1].operator.shared = True
    with pytest.raises(OperatorError, match="bad record") as caught:
        LocalJob(graph).run()
    assert closed == ["closed"]
    assert isinstance(caught.value.__cause__, ValueError)


def of_missing_file() -> StreamGraph:
    source = SourceOperator(FileSource("/no/such/directory"))
    return build_graph([OperatorTransformation("Source", operator=source)], GraphSettings())


@pytest.mark.parametrize(
    ("graph", "first"),
    [
        (lambda: one_map(lambda value: 1 / value, [0]), "<lambda>"),
        (
            of_missing_file,
            "test_traceback_of_a_failed_local_job_begins_with_a_frame_of_the_user_code",
        ),
    ],
)
def test_traceback_of_a_failed_local_job_begins_with_a_frame_of_the_user_code(
    graph: Callable[[], StreamGraph], first: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        LocalJob(graph()).run()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    frames = [line for line in lines if line.startswith("  File")]
    assert frames[0].endswith(f", in {first}")


def test_function_that_cannot_be_pickled_is_refused_before_anything_runs() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(StreamError, match="'Divide' cannot be sent to its tasks"):
        LocalJob(one_map(lambda value: lock, [1]))


def test_each_subtask_has_its_own_copy_of_a_function() -> None:
    class Counts(MapFunction[Any, Any]):
        seen = 0

        def map(self, value: Any) -> Any:
            self.seen += 1
            return self.seen

    source = OperatorTransformation("S", operator=SourceOperator(CollectionSource(range(10))))
    mapped = OperatorTransformation(
        "M", operator=MapOperator(Counts()), inputs=[source], parallelism=2
    )
    results = CollectSink()
    sink = OperatorTransformation("C", operator=SinkWriterOperator(results), inputs=[mapped])
    LocalJob(build_graph([sink], GraphSettings())).run()
    assert sorted(results.take_all()) == sorted([*range(1, 6)] * 2)


def test_local_program_on_a_manual_clock_waits_only_until_the_next_record_is_due() -> None:
    source = DataGeneratorSource(lambda n: n, 10, records_per_second=2)
    graph = build_graph(
        [OperatorTransformation("G", operator=SourceOperator(source))], GraphSettings()
    )
    clock = ManualClock()
    LocalJob(graph, clock).run()
    assert clock.time() == pytest.approx(5.0, abs=0.01)
    assert len(clock.waits) <= 12


def test_cancelled_local_job_ends() -> None:
    class Endless(MapFunction[Any, Any]):
        def map(self, value: Any) -> Any:
            if value == 50_000:
                job.cancel()
            return value

    graph = one_map(Endless(), range(10**7))
    graph.nodes[1].operator.shared = True
    job = LocalJob(graph)
    job.run()
    assert job.cancelled
    assert job.finished
