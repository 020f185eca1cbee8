"""Checkpoints of a real task: its thread, its channels, its files; and the way back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from flinkray.actors.gateways.stream_coordinator import ReaderProgress, StreamCoordinatorGateway
from flinkray.checkpoint import files
from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.client.stream_job import stream_job
from flinkray.core.ids import JobMasterId
from flinkray.core.key_group_ranges import key_group_range
from flinkray.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
)
from flinkray.scheduler.graph.job_graph import JobVertex
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import RestoredTask
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.records.elements import (
    END_OF_DATA,
    END_OF_INPUT,
    MAX_TIMESTAMP,
    Block,
    CancelledBarrier,
    Watermark,
)
from flinkray.streaming.sources.collection import Slice
from tests.actors.task_process.process_under_test import MASTER, ProcessUnderTest, without_code


class Counting(KeyedProcessFunction[Any, Any, Any]):
    """How often each value came, and whether that was restored."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.is_restored = runtime_context.is_restored()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value, number, self.is_restored


def counting() -> JobVertex:
    """Reads one vertex, and is read by one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    counts = env.from_collection(["a"]).key_by(lambda value: value).process(Counting())
    counts.name("counts").rebalance().map(lambda value: value).print()
    vertices = stream_job(env.get_stream_graph()).vertices
    (vertex,) = (vertex for vertex in vertices if "counts" in vertex.name)
    return vertex


VERTEX = counting()


@pytest.fixture
def held_writes(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Files are finished when the second event is set; the first says that one would be."""
    begun, may_go_on = threading.Event(), threading.Event()
    close = files._LocalOutput.close

    def held(output: Any) -> None:
        begun.set()
        assert may_go_on.wait(300)
        close(output)

    monkeypatch.setattr(files._LocalOutput, "close", held)
    return begun, may_go_on


async def wait(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


async def test_snapshot_has_the_state_before_the_barriers_of_all_channels(tmp_path: Path) -> None:
    """ST-01: exactly once."""
    async with ProcessUnderTest(tmp_path, VERTEX, producers=2) as process:
        await process.run()
        await process.read_results()
        barrier = process.barrier(1)
        process.put(0, Block(["a"]), barrier, Block(["after"]))
        process.put(1, Block(["a"]))
        assert await process.results(2) == [("a", 1, False), ("a", 2, False)]
        process.put(1, barrier)
        state = await process.state(1)
        assert await process.next_result() == barrier
        assert await process.results(1) == [("after", 1, False)]
        await process.cancel()
        await process.run(RestoredTask(1, state))
        await process.read_results()
        process.put(0, Block(["a", "after"]))
        assert await process.results(2) == [("a", 3, True), ("after", 1, True)]


async def test_at_least_once_task_does_not_block_the_channel_behind_a_barrier(
    tmp_path: Path,
) -> None:
    """ST-05."""
    async with ProcessUnderTest(tmp_path, VERTEX, producers=2, is_exactly_once=False) as process:
        await process.run()
        await process.read_results()
        process.put(0, process.barrier(1), Block(["after"]))
        assert await process.results(1) == [("after", 1, False)]
        process.put(1, process.barrier(1))
        assert await process.state(1) is not None


async def test_checkpoint_adds_changes_to_the_latest_complete_checkpoint(tmp_path: Path) -> None:
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        process.put(0, Block([f"key {number}" for number in range(500)]), process.barrier(1))
        first = only_handle(await process.state(1))
        await process.order(CheckpointCompleted(1))
        process.put(0, Block(["key 7"]), process.barrier(2, latest_completed=1))
        second = only_handle(await process.state(2))
        assert second.parts[:1] == first.parts
        assert second.parts[1].location.size < first.parts[0].location.size / 5
        await process.cancel()
        await process.run(RestoredTask(2, task_state(second)))
        await process.read_results()
        process.put(0, Block(["key 7", "key 8"]), process.barrier(3, latest_completed=2))
        assert await process.results(2) == [("key 7", 3, True), ("key 8", 2, True)]
        third = only_handle(await process.state(3))
        assert third.parts[:2] == second.parts, "they are this subtask's own"


def only_handle(state: TaskState | None) -> KeyedStateHandle:
    assert state is not None
    (found,) = (it.keyed_state for it in state.operators.values() if it.keyed_state)
    (handle,) = found
    return handle


def task_state(*handles: KeyedStateHandle) -> TaskState:
    operator_id = VERTEX.operators[0].operator_id
    return TaskState({operator_id: OperatorSubtaskState(keyed_state=handles)})


# --- what is written while --------------------------------------------------------------------


async def test_task_processes_records_while_its_snapshot_is_written(
    tmp_path: Path, held_writes: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_go_on = held_writes
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        process.put(0, Block(["a"]), process.barrier(1), Block(["a"]))
        await wait(begun)
        assert await process.results(1) == [("a", 1, False)]
        assert await process.next_result() == process.barrier(1)
        assert await process.results(1) == [("a", 2, False)]
        assert process.reports == []
        may_go_on.set()
        assert await process.state(1) is not None


async def test_a_task_is_finished_when_its_snapshots_are_acknowledged(
    tmp_path: Path, held_writes: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_go_on = held_writes
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        process.put(0, Block(["a"]), process.barrier(1), END_OF_INPUT)
        await wait(begun)
        await process.rest_of_results()
        await process.thread_ended()
        assert process.reports == []
        may_go_on.set()
        assert isinstance(await process.next_report(), AcknowledgeCheckpoint)
        assert (await process.next_report()).state is ExecutionState.FINISHED


async def test_task_is_canceled_once_its_snapshot_writes_have_stopped(
    tmp_path: Path, held_writes: tuple[threading.Event, threading.Event]
) -> None:
    """The files of the snapshot are deleted."""
    begun, may_go_on = held_writes
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        attempt_id = await process.run()
        process.put(0, Block(["a"]), process.barrier(1))
        await wait(begun)
        await process.process.cancel_tasks((attempt_id,))
        await process.thread_ended()
        assert process.reports == []
        may_go_on.set()
        answer = await process.next_report()
        assert isinstance(answer, DeclineCheckpoint)
        assert answer.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
        assert (await process.next_report()).state is ExecutionState.CANCELED
        assert process.files() == []


async def test_aborted_snapshot_is_declined_and_leaves_no_file(
    tmp_path: Path, held_writes: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_go_on = held_writes
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        process.put(0, Block(["a"]), process.barrier(1))
        await wait(begun)
        await process.order(CheckpointAborted(1, 0))
        process.put(0, Block(["a"]))
        assert await process.results(1) == [("a", 1, False)]
        await process.next_result()
        assert await process.results(1) == [("a", 2, False)], "it has heard of it by then"
        assert process.reports == []
        may_go_on.set()
        answer = await process.answer()
        assert isinstance(answer, DeclineCheckpoint)
        assert not answer.reason.counts_as_failure
        assert process.files() == []
        process.put(0, process.barrier(2))
        assert await process.state(2) is not None


async def test_unwritable_snapshot_does_not_fail_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(output: Any) -> None:
        raise OSError(28, "No space left on device")

    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        with monkeypatch.context() as patch:
            patch.setattr(files._LocalOutput, "close", fail)
            process.put(0, Block(["a"]), process.barrier(1))
            answer = await process.answer()
        assert isinstance(answer, DeclineCheckpoint)
        assert answer.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
        assert "No space left on device" in answer.text
        assert process.files() == []
        process.put(0, Block(["a"]), process.barrier(2))
        assert await process.state(2) is not None


async def test_state_below_the_jobs_inline_threshold_is_not_written_to_a_file(
    tmp_path: Path,
) -> None:
    async with ProcessUnderTest(tmp_path, VERTEX, inline_threshold=10_000) as process:
        await process.run()
        process.put(0, Block(["a"]), process.barrier(1))
        assert await process.state(1) is not None
        assert process.files() == []


# --- orders -----------------------------------------------------------------------------------


async def test_barrier_of_a_checkpoint_that_was_aborted_before_is_skipped(tmp_path: Path) -> None:
    """ST-10: the checkpoint is declined at once."""
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        await process.read_results()
        await process.order(CheckpointAborted(1, 0))
        assert isinstance(await process.answer(), DeclineCheckpoint)
        process.put(0, process.barrier(1), process.barrier(2))
        assert await process.next_result() == CancelledBarrier(1)
        assert await process.next_result() == process.barrier(2)


async def test_checkpoint_trigger_for_an_unknown_attempt_is_not_answered(tmp_path: Path) -> None:
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        attempt_id = await process.run()
        other = replace(attempt_id, attempt_number=7)
        await process.process.order_checkpoint(process.trigger(1), (other,))
        process.put(0, Block(["a"]), process.barrier(2))
        assert await process.state(2) is not None


# --- sources ----------------------------------------------------------------------------------


def numbers() -> JobVertex:
    """A source of numbers."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_sequence(0, 99).rebalance().map(lambda number: number).print()
    (vertex,) = (v for v in stream_job(env.get_stream_graph()).vertices if not v.inputs)
    return vertex


class Splits:
    """What the coordinator tells the reader."""

    def __init__(self, process: ProcessUnderTest) -> None:
        self._events: list[bytes] = []
        self._given = asyncio.Event()
        self.has_cut = asyncio.Event()
        self.asked_for_cut = asyncio.Event()
        gateway = process.coordinator
        gateway.on(StreamCoordinatorGateway.exchange).calling(self._exchange)
        gateway.on(StreamCoordinatorGateway.exchange_until_cut).calling(self._cut)

    def give(self, split: Slice) -> None:
        self._events.append(cloudpickle.dumps(split))
        self._given.set()

    async def _exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        while len(self._events) <= reader.position:
            self._given.clear()
            await self._given.wait()
        return tuple(self._events[reader.position :])

    async def _cut(self, reader: ReaderProgress, checkpoint_id: int) -> tuple[bytes, ...]:
        self.asked_for_cut.set()
        await self.has_cut.wait()
        return ()


async def test_restored_source_continues_with_unread_splits(tmp_path: Path) -> None:
    async with ProcessUnderTest(tmp_path, numbers()) as process:
        splits = Splits(process)
        splits.has_cut.set()
        await process.run()
        await process.read_results()
        splits.give(Slice(0, 2))
        assert await process.results(2) == [0, 1]
        await process.order(process.trigger(1))
        state = await process.state(1)
        assert await process.next_result() == process.barrier(1)
        splits.give(Slice(2, 4))
        assert await process.results(2) == [2, 3], "it goes on"
        await process.cancel()
        splits = Splits(process)
        await process.run(RestoredTask(1, state))
        await process.read_results()
        splits.give(Slice(4, 6))
        assert await process.results(2) == [4, 5]


async def test_source_deployed_by_the_next_job_master_asks_the_existing_coordinator(
    tmp_path: Path,
) -> None:
    """The coordinator lives on, and has the id of the JobMaster that started it."""
    async with ProcessUnderTest(tmp_path, numbers()) as process:
        splits = Splits(process)
        await process.run(job_master_id=JobMasterId(b"n" * 16))
        await process.read_results()
        splits.give(Slice(0, 2))
        assert await process.results(2) == [0, 1]
        ((reader,), *_) = process.coordinator.calls_of(StreamCoordinatorGateway.exchange)
        assert reader.job_master_id == MASTER


async def test_source_continues_reading_if_a_checkpoint_is_aborted_before_its_trigger(
    tmp_path: Path,
) -> None:
    """The cut comes later all the same, and the source takes no snapshot."""
    async with ProcessUnderTest(tmp_path, numbers()) as process:
        splits = Splits(process)
        await process.run()
        await process.read_results()
        splits.give(Slice(0, 2))
        assert await process.results(2) == [0, 1]
        await process.order(process.trigger(1))
        await splits.asked_for_cut.wait()
        await process.order(CheckpointAborted(1, 0))
        answer = await process.answer()
        assert isinstance(answer, DeclineCheckpoint)
        splits.has_cut.set()
        assert await process.next_result() == CancelledBarrier(1)
        splits.give(Slice(2, 4))
        assert await process.results(2) == [2, 3]
        await process.order(process.trigger(2, latest_completed=0))
        assert await process.state(2) is not None


# --- restore ----------------------------------------------------------------------------------


async def checkpointed(process: ProcessUnderTest, *values: str) -> TaskState:
    """What a task has that was given these."""
    await process.run()
    process.put(0, Block(list(values)), process.barrier(1))
    state = await process.state(1)
    await process.cancel()
    assert state is not None
    return state


def spoil(path: Path) -> None:
    path.write_bytes(b"?" + path.read_bytes()[1:])


def lead_astray(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize(
    ("harm", "cause", "is_lost"),
    [
        (spoil, "checksum does not match", True),
        (Path.unlink, "it is not there", True),
        (lead_astray, "cannot read it: ", False),
    ],
)
async def test_unreadable_state_fails_the_task_and_lost_state_prevents_restarts(
    harm: Callable[[Path], None], cause: str, is_lost: bool, is_foreign: bool, tmp_path: Path
) -> None:
    """The failure names the operator and the file. If the storage may only be away, a restart may
    help."""
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        state = await checkpointed(process, "a")
        (part,) = only_handle(state).parts
        assert isinstance(part.location, FileState)
        harm(Path(part.location.path))
        await process.run(RestoredTask(1, state, is_foreign))
        ended = await process.ended()
        assert ended.state is ExecutionState.FAILED
        told = f"the state of operator 'counts' cannot be read: {part.location.path}: "
        assert told in (ended.failure or "")
        assert cause in (ended.failure or "")
        assert ended.suppress_restarts == is_lost


async def test_a_task_that_reads_its_state_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the task reads its state, it declines checkpoints."""
    begun, may_go_on = threading.Event(), threading.Event()
    opened: list[str] = []
    open_file = files.LocalStateFiles.open

    def held(storage: Any, path: str) -> Any:
        opened.append(path)
        begun.set()
        assert may_go_on.wait(300)
        return open_file(storage, path)

    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        state = await checkpointed(process, "a")
        handle = only_handle(state)
        twice = task_state(replace(handle, parts=(*handle.parts, *handle.parts)))
        monkeypatch.setattr(files.LocalStateFiles, "open", held)
        attempt_id = await process.run(RestoredTask(1, twice))
        await wait(begun)
        await process.order(process.trigger(2))
        answer = await process.answer()
        assert isinstance(answer, DeclineCheckpoint)
        assert answer.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
        await process.process.cancel_tasks((attempt_id,))
        may_go_on.set()
        assert (await process.ended()).state is ExecutionState.CANCELED
        assert len(opened) == 1, "the second file was not read"


async def test_restored_task_has_only_its_own_key_groups(tmp_path: Path) -> None:
    """SA-11: key groups follow the max parallelism of the deployment, which is that of the
    state."""
    keys = [f"key {number}" for number in range(100)]
    own = [key for key in keys if key_group_of(key, 16) in key_group_range(16, 2, 1)]
    async with ProcessUnderTest(tmp_path, VERTEX, max_parallelism=16) as process:
        before = only_handle(await checkpointed(process, *keys))
        assert before.key_groups == (0, 15)
        halves = [replace(before, last_key_group=7), replace(before, first_key_group=8)]
        await process.run(RestoredTask(1, task_state(halves[1])), subtask=1, parallelism=2)
        await process.read_results()
        assert 0 < len(own) < len(keys)
        process.put(0, Block(own), process.barrier(2, latest_completed=1))
        assert await process.results(len(own)) == [(key, 2, True) for key in own]
        second = only_handle(await process.state(2))
        assert second.key_groups == (8, 15)
        assert second.parts[:-1] == before.parts, "the file has more, which is not its"
        await process.cancel()
        await process.run(RestoredTask(2, task_state(second, halves[0])))
        await process.read_results()
        process.put(0, Block(keys))
        counts = [(key, 3 if key in own else 2, True) for key in keys]
        assert await process.results(len(keys)) == counts


async def test_task_restored_without_state_ignores_the_barrier_of_its_checkpoint(
    tmp_path: Path,
) -> None:
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run(RestoredTask(4, None))
        await process.read_results()
        process.put(0, Block(["a"]), process.barrier(4), process.barrier(5))
        assert await process.results(1) == [("a", 1, True)]
        assert await process.next_result() == process.barrier(5), "the others are over"


async def test_restored_task_processes_the_data_in_flight_of_its_input(tmp_path: Path) -> None:
    """ST-06."""
    async with ProcessUnderTest(tmp_path, VERTEX, producers=2) as process:
        await process.run()
        await process.read_results()
        barrier = process.barrier(1, unaligned=True)
        process.put(0, Block(["a"]))
        assert await process.results(1) == [("a", 1, False)]
        process.put(0, barrier)
        assert await process.next_result() == barrier
        process.put(1, Block(["a"]), Block(["b"]), barrier, Block(["after"]))
        assert await process.results(3) == [("a", 2, False), ("b", 1, False), ("after", 1, False)]
        state = await process.state(1)
        await process.cancel()
        await process.run(RestoredTask(1, state))
        await process.read_results()
        assert await process.results(2) == [("a", 2, True), ("b", 1, True)]
        process.put(1, Block(["after"]))
        assert await process.results(1) == [("after", 1, True)]


async def test_restored_task_sends_the_data_in_flight_of_its_results_again(tmp_path: Path) -> None:
    """ST-06: before all new results."""
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        process.put(0, Block(["a"]), process.barrier(1, unaligned=True))
        state = await process.state(1)
        await process.cancel()
        await process.run(RestoredTask(1, state))
        process.put(0, Block(["a"]))
        await process.read_results()
        assert await process.results(2) == [("a", 1, False), ("a", 2, True)]


async def test_data_in_flight_that_cannot_be_read_fails_the_task(tmp_path: Path) -> None:
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        process.put(0, Block(["a"]), process.barrier(1, unaligned=True))
        state = await process.state(1)
        await process.cancel()
        assert state is not None
        (handles,) = (it.result_subpartitions for it in state.operators.values())
        (location,) = (handle.location for handle in handles)
        assert isinstance(location, FileState)
        spoil(Path(location.path))
        await process.run(RestoredTask(1, state))
        failure = (await process.ended()).failure or ""
        assert "data that was in flight cannot be read: " in failure
        assert location.path in failure


# --- tasks that had finished ------------------------------------------------------------------


async def test_task_restored_as_finished_ends_without_running_its_code(tmp_path: Path) -> None:
    """Its code is not even unpickled. Readers of the task get the last watermark and the end of the
    input."""
    async with ProcessUnderTest(tmp_path, without_code(VERTEX), producers=2) as process:
        await process.run(RestoredTask(1, TaskState({}, is_finished=True)))
        await process.read_results()
        process.put(0, Watermark(MAX_TIMESTAMP), END_OF_INPUT)
        process.put(1, END_OF_INPUT)
        assert await process.rest_of_results() == [Watermark(MAX_TIMESTAMP)]
        assert (await process.ended()).state is ExecutionState.FINISHED


async def test_task_restored_as_finished_can_be_cancelled(tmp_path: Path) -> None:
    async with ProcessUnderTest(tmp_path, without_code(VERTEX)) as process:
        attempt_id = await process.run(RestoredTask(1, TaskState({}, is_finished=True)))
        await process.process.cancel_tasks((attempt_id,))
        assert (await process.ended()).state is ExecutionState.CANCELED


async def test_task_restored_as_finished_takes_part_in_checkpoints_until_its_end_is_read(
    tmp_path: Path,
) -> None:
    """In the next checkpoint the task has finished, too."""
    async with ProcessUnderTest(tmp_path, without_code(VERTEX), producers=2) as process:
        await process.run(RestoredTask(1, TaskState({}, is_finished=True)))
        await process.read_results()
        process.put(0, Watermark(MAX_TIMESTAMP), END_OF_DATA, process.barrier(2), END_OF_INPUT)
        process.put(1, END_OF_DATA, process.barrier(2))
        assert await process.state(2) == TaskState({}, is_finished=True)
        process.put(1, END_OF_INPUT)
        rest = [Watermark(MAX_TIMESTAMP), process.barrier(2)]
        assert await process.rest_of_results() == rest
        assert (await process.ended()).state is ExecutionState.FINISHED


async def test_finished_source_takes_a_checkpoint_without_asking_for_assigned_splits(
    tmp_path: Path,
) -> None:
    """The enumerator has nothing for the source, and may be absent."""
    async with ProcessUnderTest(tmp_path, without_code(numbers())) as process:
        await process.run(RestoredTask(1, TaskState({}, is_finished=True)))
        await process.order(process.trigger(2))
        assert await process.state(2) == TaskState({}, is_finished=True)


# --- behind the end of the data ---------------------------------------------------------------


@pytest.mark.parametrize("unaligned", [False, True])
async def test_task_at_the_end_of_its_data_takes_checkpoints_until_the_data_is_processed(
    tmp_path: Path, unaligned: bool
) -> None:
    """The task is triggered by barriers or, when its producers have ended, by an order. A task that
    is restored from the checkpoint, and has no input, sends the same data in flight."""
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        process.put(0, Block(["a"]), END_OF_DATA, process.barrier(1, unaligned=unaligned))
        first = await process.state(1)
        process.put(0, END_OF_INPUT)
        await process.order(replace(process.trigger(2), is_unaligned=unaligned))
        second = await process.state(2)
        assert first is not None
        assert second is not None
        await process.read_results()
        once = [b.values for b in await process.rest_of_results() if isinstance(b, Block)]
        assert once == [[("a", 1, False)]]
        assert (await process.ended()).state is ExecutionState.FINISHED
        for state in (first, second):
            await process.run(RestoredTask(2, state))
            process.put(0, END_OF_INPUT)
            await process.read_results()
            again = [b.values for b in await process.rest_of_results() if isinstance(b, Block)]
            assert again == ([[("a", 1, False)]] if unaligned else [])
            assert (await process.ended()).state is ExecutionState.FINISHED


async def test_task_ends_after_all_data_is_processed_though_its_reader_reads_nothing(
    tmp_path: Path,
) -> None:
    """A task that waited for the reader would decline checkpoints."""
    async with ProcessUnderTest(tmp_path, VERTEX) as process:
        await process.run()
        process.put(0, Block(["a"]), END_OF_INPUT)
        await process.read_results()
        assert await process.next_result() == [("a", 1, False)]
        while await process.next_result() != END_OF_DATA:
            pass
        process.data_processed()
        assert (await process.ended()).state is ExecutionState.FINISHED
        assert await process.next_result() == END_OF_INPUT
