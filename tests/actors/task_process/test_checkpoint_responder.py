"""What a task answers to checkpoints, and what it leaves on disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.task_process import task_checkpoints
from flinkray.actors.task_process.in_flight_files import read_in_flight
from flinkray.actors.task_process.task_checkpoints import MOST_CHANGES
from flinkray.checkpoint import files
from flinkray.checkpoint.handles import (
    FileState,
    InlineState,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint, DeclineCheckpoint
from flinkray.streaming.checkpoint.barrier_handler import ABORTED, DECLINED_BEFORE, SUBSUMED
from flinkray.streaming.operators.operator import OperatorState, OperatorStateCapture
from flinkray.streaming.records.elements import Block, Element, Watermark
from tests.actors.task_process.answering import (
    LISTS,
    OPERATOR,
    SEEN,
    Answering,
    Stateful,
    parts_of,
    restored,
)


@pytest.fixture
def answering(tmp_path: Path) -> Answering:
    return Answering(tmp_path)


def test_snapshot_is_acknowledged_with_its_written_state(answering: Answering) -> None:
    stateful = answering.stateful
    stateful.put("k", 1)
    stateful.append("k", [1])
    stateful.timer(7, "k")
    stateful.see("x")
    answering.capture(1)
    assert answering.taken == [1]
    before = stateful.everything()
    stateful.put("k", 2)
    stateful.remove("k")
    stateful.see("y")
    assert answering.reports == []
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert not answer.is_savepoint
    assert restored(answer.state) == before
    assert answering.files() == ["chk-1", "shared"], "operator state, keyed state"


def test_task_without_state_acknowledges_a_checkpoint_without_files(answering: Answering) -> None:
    """OS-03."""
    answering.capture(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert answer.state is None
    assert answering.files() == []


def test_small_state_is_stored_in_its_handle_and_not_in_a_file(tmp_path: Path) -> None:
    answering = Answering(tmp_path, inline_threshold=10_000)
    answering.stateful.put("k", 1)
    (part,) = parts_of(answering.acknowledged(1))
    assert isinstance(part.location, InlineState)
    assert answering.files() == []


class Plain:
    """Nothing says how its objects are written."""


def test_checkpoint_acknowledgement_lists_the_types_of_values_that_are_pickled(
    answering: Answering,
) -> None:
    class Local(Plain):
        pass

    answering.stateful.put("k", Local())
    answering.stateful.append("k", 1)
    answering.stateful.see(Plain())
    answering.capture(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    named = {(state.operator_id, state.name): state.types for state in answer.pickled}
    module, test = (
        __name__,
        "test_checkpoint_acknowledgement_lists_the_types_of_values_that_are_pickled",
    )
    assert named == {
        (OPERATOR, "values"): (f"{module}.{test}.<locals>.Local",),
        (OPERATOR, "seen"): (f"{module}.Plain",),
    }


# --- increments -------------------------------------------------------------------------------


def filled(answering: Answering, keys: int = 100) -> Stateful:
    for key in range(keys):
        answering.stateful.put(key, "some text")
    return answering.stateful


def test_increment_builds_on_the_latest_completed_checkpoint(answering: Answering) -> None:
    stateful = filled(answering)
    first = parts_of(answering.acknowledged(1))
    assert [part.is_whole for part in first] == [True]
    stateful.put(1, "changed")
    stateful.remove(2)
    state = answering.acknowledged(2, latest_completed=1)
    assert parts_of(state)[:1] == first
    assert [part.is_whole for part in parts_of(state)] == [True, False]
    assert parts_of(state)[1].location.size < first[0].location.size / 2
    assert restored(state) == stateful.everything()
    third = answering.acknowledged(3, latest_completed=2)
    assert parts_of(third)[:2] == parts_of(state)


@pytest.mark.parametrize("fate", ["acknowledged", "aborted", "not written", "in flight"])
def test_changes_of_an_incomplete_checkpoint_are_also_in_the_next_checkpoint(
    answering: Answering, fate: str
) -> None:
    """Whether the incomplete checkpoint was aborted, failed, or is still being written."""
    stateful = filled(answering)
    answering.acknowledged(1)
    stateful.put("b", 2)
    stateful.remove(7)
    seen = stateful.operator.operator_state.list_state(SEEN)
    if fate == "not written":
        seen.add(threading.Lock())
    answering.capture(2, latest_completed=1)
    if fate == "aborted":
        answering.responder.aborted(2)
    if fate != "in flight":
        (answer,) = answering.run()
        assert isinstance(answer, AcknowledgeCheckpoint) == (fate == "acknowledged")
    seen.clear()
    stateful.put("c", 3)
    answering.capture(3, latest_completed=1)
    answer = answering.run()[-1]
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert answer.state is not None
    assert len(parts_of(answer.state)) == 2
    assert restored(answer.state) == stateful.everything()


def test_checkpoint_without_a_known_completed_checkpoint_is_full(answering: Answering) -> None:
    filled(answering)
    answering.acknowledged(1)
    for latest_completed in (0, 7):
        state = answering.acknowledged(latest_completed + 2, latest_completed)
        assert [part.is_whole for part in parts_of(state)] == [True]


def test_checkpoint_is_written_whole_if_its_base_is_older_than_the_base_before_it(
    answering: Answering,
) -> None:
    """The files of the older checkpoint may be deleted by then."""
    filled(answering)
    answering.acknowledged(1)
    answering.acknowledged(2, latest_completed=1)
    answering.acknowledged(3, latest_completed=2)
    state = answering.acknowledged(4, latest_completed=1)
    assert [part.is_whole for part in parts_of(state)] == [True]
    assert sorted(answering.responder._bases) == [2, 3, 4], "what is not named is forgotten"


def test_checkpoint_requested_as_full_has_no_increments(answering: Answering) -> None:
    filled(answering)
    first = answering.acknowledged(1)
    state = answering.acknowledged(2, latest_completed=1, is_whole=True)
    assert len(parts_of(state)) == 1
    assert parts_of(state) != parts_of(first)
    assert len(parts_of(answering.acknowledged(3, latest_completed=2))) == 2


def test_checkpoint_after_ten_increments_is_written_whole_again(answering: Answering) -> None:
    stateful = filled(answering, 5000)
    numbers = []
    for checkpoint_id in range(1, 14):
        stateful.put(0, checkpoint_id)
        state = answering.acknowledged(checkpoint_id, latest_completed=checkpoint_id - 1)
        numbers.append(len(parts_of(state)))
    assert numbers == [*range(1, MOST_CHANGES + 2), 1, 2]
    assert MOST_CHANGES == 10


def test_checkpoint_whose_increments_exceed_the_whole_state_is_written_whole_again(
    answering: Answering,
) -> None:
    """A table of which most has changed is written as a whole anyway, so only a part of the table
    changes here."""
    stateful = filled(answering)
    numbers = []
    for checkpoint_id in range(1, 6):
        for key in range(45):
            stateful.put(key, "text")
        state = answering.acknowledged(checkpoint_id, latest_completed=checkpoint_id - 1)
        numbers.append(len(parts_of(state)))
    assert numbers == [1, 2, 3, 1, 2]


def test_savepoint_is_full_and_does_not_affect_increments_of_checkpoints(
    answering: Answering,
) -> None:
    stateful = filled(answering)
    answering.acknowledged(1)
    stateful.put("b", 2)
    savepoint = answering.acknowledged(2, latest_completed=1, savepoint=True)
    (part,) = parts_of(savepoint)
    assert isinstance(part.location, FileState)
    assert Path(part.location.path).parent.name == "savepoint-2"
    assert restored(savepoint) == stateful.everything()
    stateful.put("c", 3)
    state = answering.acknowledged(3, latest_completed=1)
    assert len(parts_of(state)) == 2
    assert restored(state) == stateful.everything()
    assert len(parts_of(answering.acknowledged(4, latest_completed=2))) == 1, "it shares nothing"


def test_acknowledgement_of_a_savepoint_is_marked_as_savepoint(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1, savepoint=True)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert answer.is_savepoint


def test_increment_builds_on_the_restored_checkpoint(answering: Answering) -> None:
    stateful = filled(answering)
    first = answering.acknowledged(1)
    answering.restart(1, first)
    stateful = answering.stateful
    stateful.put("b", 2)
    stateful.remove(3)
    state = answering.acknowledged(2, latest_completed=1)
    assert parts_of(state)[:1] == parts_of(first)
    assert len(parts_of(state)) == 2
    assert restored(state) == stateful.everything()


def test_checkpoint_does_not_build_on_a_restored_savepoint(answering: Answering) -> None:
    """The savepoint belongs to the user, who may delete it."""
    filled(answering)
    savepoint = answering.acknowledged(1, savepoint=True)
    answering.restart(1, savepoint)
    assert len(parts_of(answering.acknowledged(2, latest_completed=1))) == 1


# --- failures and aborts ----------------------------------------------------------------------


def test_unwritable_state_declines_the_checkpoint_with_the_cause(answering: Answering) -> None:
    """Files that were finished before are deleted."""
    answering.stateful.put("k", 1)
    answering.stateful.see(threading.Lock())
    answering.capture(1)
    answer = answering.declined(1)
    assert answer.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "lock cannot be stored" in answer.text
    assert answering.files() == []


def test_failing_storage_declines_the_checkpoint_with_the_cause(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.stateful.put("k", 1)
    answering.stateful.see("x")
    closed = files._LocalOutput.close
    left = [1]

    def close(output: Any) -> None:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        closed(output)

    monkeypatch.setattr(files._LocalOutput, "close", close)
    answering.capture(1)
    answer = answering.declined(1)
    assert answer.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "No space left on device" in answer.text
    assert answering.files() == []


def test_system_exit_raised_while_state_is_pickled_only_declines_the_checkpoint(
    answering: Answering,
) -> None:
    class Leaves:
        def __reduce__(self) -> Any:
            raise SystemExit("bye")

    answering.stateful.put("k", Leaves())
    answering.capture(1)
    assert "bye" in answering.declined(1).text
    answering.stateful.put("k", 1)
    answering.acknowledged(2)


def test_abort_before_the_write_declines_the_checkpoint(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1)
    answering.responder.aborted(1)
    answering.declined(1)
    assert answering.files() == []
    answering.responder.aborted(1)
    assert answering.run() == [], "it was answered"


def test_abort_during_the_write_declines_the_checkpoint_once_writing_stopped(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.stateful.put("k", 1)
    answering.stateful.see("x")
    answering.capture(1)
    written = files._LocalOutput.write
    pieces: list[int] = []

    def write(output: Any, data: bytes) -> None:
        pieces.append(len(data))
        answering.responder.aborted(1)
        answering.run_mail()
        assert answering.reports == [], "it still writes"
        written(output, data)

    monkeypatch.setattr(files._LocalOutput, "write", write)
    answer = answering.declined(1)
    assert (answer.reason, answer.text) == (
        CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED,
        ABORTED,
    )
    assert answering.files() == []
    assert len(pieces) == 1, "the rest was not written"


def test_aborted_snapshot_is_not_serialised_further(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialised = []

    class Capture(OperatorStateCapture):
        def __init__(self, name: str) -> None:
            super().__init__(None, None)
            self.name = name

        def stream(self) -> OperatorState:
            serialised.append(self.name)
            answering.responder.aborted(1)
            return OperatorState()

    barrier = answering.barrier(1)
    answering.responder.captured(barrier, {name: Capture(name) for name in ("first", "second")})
    answering.declined(1)
    assert serialised == ["first"]


def test_abort_just_before_the_acknowledgement_declines_the_checkpoint(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acknowledging(
        operators: dict[str, OperatorSubtaskState], *, is_finished: bool
    ) -> TaskState:
        answering.responder.aborted(1)
        return TaskState(operators, is_finished=is_finished)

    answering.stateful.put("k", 1)
    answering.capture(1)
    monkeypatch.setattr(task_checkpoints, "TaskState", acknowledging)
    answering.declined(1)
    assert answering.files() == []


def test_checkpoint_declined_for_two_reasons_reports_the_first(answering: Answering) -> None:
    answering.capture(1)
    answering.responder.declined(1, SUBSUMED)
    answering.responder.aborted(1)
    assert answering.declined(1).text == SUBSUMED


def test_checkpoint_abort_after_the_acknowledgement_deletes_no_state(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    state = answering.acknowledged(1)
    answering.responder.aborted(1)
    assert answering.run() == []
    assert restored(state)["values"] == {"k": 1}, "the coordinator removes it"
    assert answering.responder._bases == {}, "nothing will refer to it"


def test_abort_before_the_barrier_declines_the_checkpoint(answering: Answering) -> None:
    """The coordinator waits until all tasks say that they write nothing."""
    answering.responder.aborted(1)
    assert answering.taken == [1]
    answering.declined(1)
    answering.responder.declined(1, ABORTED)
    assert answering.run() == []


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (SUBSUMED, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED),
        (DECLINED_BEFORE, CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
    ],
)
def test_declined_checkpoint_reports_its_reason_and_does_not_fail_the_job(
    answering: Answering, why: str, reason: CheckpointFailureReason
) -> None:
    answering.responder.declined(1, why)
    answer = answering.declined(1)
    assert (answer.reason, answer.text) == (reason, why)
    assert not answer.reason.counts_as_failure
    assert answering.taken == [1]


def test_state_is_not_copied_on_write_after_its_snapshot_was_aborted(
    answering: Answering,
) -> None:
    stateful = answering.stateful
    stateful.append("k", 1)
    answering.capture(1)
    answering.responder.aborted(1)
    answering.run()
    before = stateful.table(LISTS).get("k")
    stateful.append("k", 2)
    assert stateful.table(LISTS).get("k") is before, "it was not copied"


# --- unaligned --------------------------------------------------------------------------------


def test_an_unaligned_checkpoint_waits_for_the_data_in_flight(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1, unaligned=True)
    assert answering.run() == []
    answering.responder.in_flight_completed(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)


def test_checkpoint_whose_data_in_flight_was_complete_before_it_was_written_succeeds(
    answering: Answering,
) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1, unaligned=True)
    answering.responder.in_flight_completed(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)


def test_data_in_flight_is_written_with_the_snapshot(answering: Answering) -> None:
    """ST-06: of each channel in its order."""
    responder = answering.responder
    responder.overtaken_results(1, 2, 5, [Block(["result"])])
    answering.capture(1, unaligned=True)
    responder.in_flight(1, 2, [Block([1])])
    responder.in_flight(1, 0, [])
    answering.run()
    responder.in_flight(1, 2, [Watermark(7), Block([2])])
    responder.in_flight(1, 1, [Block([3])])
    responder.in_flight_completed(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert answer.state is not None
    inputs, results = read_in_flight(answer.state, lambda: None)
    assert {place: shown(elements) for place, elements in inputs.items()} == {
        (1, 0): [[1], Watermark(7), [2]],
        (0, 1): [[3]],
    }
    assert {place: shown(elements) for place, elements in results.items()} == {(2, 5): [["result"]]}
    assert responder._in_flight == {}


def shown(elements: list[Element]) -> list[Any]:
    return [list(e.values) if isinstance(e, Block) else e for e in elements]


def test_unwritable_data_in_flight_declines_the_checkpoint(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1, unaligned=True)
    answering.responder.in_flight(1, 0, [Block([threading.Lock()])])
    answering.responder.in_flight_completed(1)
    answer = answering.declined(1)
    assert answer.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "lock" in answer.text
    assert answering.files() == []


def test_aborted_checkpoint_that_waits_for_data_in_flight_deletes_its_written_state(
    answering: Answering,
) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1, unaligned=True)
    answering.run()
    assert answering.files() == ["shared"]
    answering.responder.in_flight(1, 0, [Block([1])])
    answering.responder.aborted(1)
    answering.declined(1)
    assert answering.files() == []
    assert answering.responder._in_flight == {}


# --- the end of the task ----------------------------------------------------------------------


async def test_task_ends_only_once_all_its_snapshots_are_acknowledged_or_declined(
    answering: Answering,
) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1)
    closing = asyncio.ensure_future(answering.responder.close(is_given_up=False))
    await asyncio.sleep(0)
    answering.write_one()
    await asyncio.sleep(0)
    assert not closing.done(), "not reported yet"
    answering.run_mail()
    await closing
    (answer,) = answering.reports
    assert isinstance(answer, AcknowledgeCheckpoint)


async def test_failing_task_declines_its_unfinished_checkpoints(answering: Answering) -> None:
    answering.stateful.put("k", 1)
    answering.capture(1)
    closing = asyncio.ensure_future(answering.responder.close(is_given_up=True))
    await asyncio.sleep(0)
    assert not closing.done()
    answering.write_one()
    answering.run_mail()
    await closing
    (answer,) = answering.reports
    assert isinstance(answer, DeclineCheckpoint)
    assert answer.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
    assert answering.files() == []


async def test_ended_task_declines_a_checkpoint_that_waits_for_data_in_flight(
    answering: Answering,
) -> None:
    answering.capture(1, unaligned=True)
    closing = asyncio.ensure_future(answering.responder.close(is_given_up=False))
    await asyncio.sleep(0)
    answering.write_one()
    answering.run_mail()
    await closing
    assert isinstance(answering.reports[0], DeclineCheckpoint)


def test_checkpoints_written_late_in_any_order_have_the_state_at_their_capture(
    answering: Answering,
) -> None:
    """Several checkpoints are captured, and written later in another order."""
    states: dict[int, dict[str, Any]] = {}
    for checkpoint_id in (1, 2, 3):
        answering.stateful.put(checkpoint_id, "x")
        answering.stateful.remove(checkpoint_id - 1)
        answering.capture(checkpoint_id)
        states[checkpoint_id] = answering.stateful.everything()
    for _ in range(3):
        answering.write_one(-1)
    for answer in answering.run():
        assert isinstance(answer, AcknowledgeCheckpoint)
        assert isinstance(answer.state, TaskState)
        assert restored(answer.state) == states.pop(answer.checkpoint_id)
    assert not states


def test_finished_task_stores_no_watermark_that_a_barrier_overtakes(
    tmp_path: Path,
) -> None:
    """The task sends the watermark again, and has no operator to store it with."""
    answering = Answering(tmp_path, had_finished=True)
    barrier = answering.barrier(1, unaligned=True)
    answering.responder.overtaken_results(1, 0, 0, [Watermark(5)])
    answering.responder.in_flight(1, 0, [Watermark(5)])
    answering.responder.captured(barrier, {})
    answering.responder.in_flight_completed(1)
    (answer,) = answering.run()
    assert isinstance(answer, AcknowledgeCheckpoint)
    assert answer.state == TaskState({}, is_finished=True)
