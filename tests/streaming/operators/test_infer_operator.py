"""Batches for models: results, errors of single records, repeated requests, and checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkray.core.resources import ResourceProfile
from flinkray.datastream import ModelFunction
from flinkray.streaming.columnar.infer import InferOperator, InferSettings
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.metrics import Gauge, MetricGroup
from flinkray.streaming.functions.models import (
    ModelContext,
    ModelDescriptor,
    ModelError,
    ModelResultError,
    ModelUnavailableError,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.model_replicas import LocalReplicas, answer
from flinkray.streaming.operators.task_services import TaskServices
from flinkray.streaming.records.arrow_bytes import deserialized, serialized
from flinkray.streaming.records.elements import Barrier, Columns, Watermark
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness, Record
from flinkray.testing.waiting import wait_until
from tests.datastream.threads import none_left

ERRORS: OutputTag[Row] = OutputTag("errors")
SETTINGS = InferSettings(64, 0, True, True, 60.0, 2, None)
TO_SIDE = replace(SETTINGS, errors=ERRORS)


class Squares(ModelFunction):
    """Fails for negative numbers."""

    def infer(self, batch: pa.RecordBatch) -> pa.Array:
        numbers = batch["n"]
        if pc.min(numbers).as_py() < 0:
            raise ValueError("negative")
        return pc.multiply(numbers, numbers)


class Returns(ModelFunction):
    def __init__(self, result: Any) -> None:
        self.result = result

    def infer(self, batch: pa.RecordBatch) -> Any:
        return self.result


class Replicas(LocalReplicas):
    """Answers when the test says so, with what *outcome* returns; None: as the model does."""

    def __init__(self, outcome: Callable[[list[int], int], Exception | None], *parts: Any) -> None:
        super().__init__(*parts)
        self.outcome = outcome
        self.requests: list[list[int]] = []
        self.may_answer: dict[int, asyncio.Event] = {}

    async def infer(self, request: bytes, timeout: float) -> bytes:
        numbers = deserialized(request)["n"].to_pylist()
        self.requests.append(numbers)
        if numbers[0] in self.may_answer:
            await self.may_answer[numbers[0]].wait()
        error = self.outcome(numbers, self.requests.count(numbers))
        if error is not None:
            raise error
        return await super().infer(request, timeout)

    def let_answer(self, first: int) -> None:
        assert self._thread is not None
        self._thread.do(self.may_answer[first].set)


class Services(TaskServices):
    def __init__(
        self, outcome: Callable[[list[int], int], Exception | None], held: tuple[int, ...] = ()
    ) -> None:
        self.outcome = outcome
        self.held = held

    def replicas(self, descriptor: ModelDescriptor, operator_id: str, on_failed: Any) -> Replicas:
        self.made = Replicas(self.outcome, descriptor, on_failed)
        self.made.may_answer = {first: asyncio.Event() for first in self.held}
        return self.made


def harness(
    model: ModelFunction | None = None, settings: InferSettings = SETTINGS, **context: Any
) -> OperatorHarness:
    described = ModelDescriptor.of(model or Squares(), 1, 2, ResourceProfile(1.0, 2**20), None)
    operator = InferOperator(described, settings, None)
    return OperatorHarness(operator, side_outputs=["errors"], **context)


def batch(*numbers: int, at: int | None = None) -> Columns:
    times = None if at is None else pa.array([at] * len(numbers)).to_numpy()
    return Columns(pa.record_batch({"n": pa.array(numbers, pa.int64())}), times)


def results(records: list[Any]) -> list[int]:
    return [record.value.result for record in records if isinstance(record, Record)]


def no_error(numbers: list[int], attempt: int) -> None:
    return None


def test_results_are_appended_to_the_records_or_take_their_place() -> None:
    h = harness()
    h.process_columns(batch(1, 2, at=7))
    assert h.wait_for(2) == [
        Record(Row.of(["n", "result"], [1, 1]), 7),
        Record(Row.of(["n", "result"], [2, 4]), 7),
    ]
    h.close()
    h = harness(settings=replace(SETTINGS, appends=False))
    h.process_columns(batch(3, at=7))
    assert h.wait_for(1) == [Record(Row.of(["result"], [9]), 7)]
    h.close()


def test_metrics_tell_of_batches_requests_and_times() -> None:
    metrics = MetricGroup()

    def outcome(numbers: list[int], attempt: int) -> Exception | None:
        return ModelUnavailableError("busy") if attempt == 1 else None

    h = harness(services=Services(outcome), metrics=metrics)
    h.process_columns(batch(1, 2))
    h.process_columns(batch(*range(4)))
    h.wait_for(6)
    found = metrics.all()
    values = {name: found[name].get_value() for name in found if isinstance(found[name], Gauge)}
    assert values["modelReplicas"] == 1
    assert values["modelBatchSize"] == 3
    assert values["modelBatchesWaiting"] == values["modelWaitMs"] == 0
    assert values["modelAnswerMs"] >= 0
    assert found["modelRequests"].get_count() == 4
    assert found["modelRequestsRepeated"].get_count() == 2
    h.close()


def test_batches_are_full_or_as_old_as_records_may_wait() -> None:
    """A watermark waits with the records before it; a checkpoint does not wait."""
    services = Services(no_error)
    h = harness(settings=replace(SETTINGS, batch_size=3, max_wait=20), services=services)
    h.process_columns(batch(1, 2, 3, 4))
    h.watermark(5)
    assert results(h.wait_for(3)) == [1, 4, 9]
    h.processing_time(19)
    assert h.output() == []
    h.processing_time(20)
    assert h.wait_for(2)[-1] == Watermark(5)
    h.process_columns(batch(5))
    h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    assert results(h.wait_for(1)) == [25]
    h.process_columns(batch(6))
    h.finish()
    assert services.made.requests == [[1, 2, 3], [4], [5], [6]]
    h.close()


def test_errors_belong_to_the_records_that_cause_them() -> None:
    h = harness(settings=TO_SIDE)
    numbers = [n if n % 7 else -n for n in range(1, 41)]
    h.process_columns(batch(*numbers, at=3))
    good = [n for n in numbers if n > 0]
    assert results(h.wait_for(len(good))) == [n * n for n in good]
    errors = h.side("errors")
    assert [row.record.n for row in errors] == [n for n in numbers if n < 0]
    assert all(row.error.startswith("ValueError: negative") for row in errors)
    h.close()


def test_error_without_a_side_output_names_the_record() -> None:
    h = harness()
    h.process_columns(batch(*range(1, 20), -5))
    with pytest.raises(StreamError, match=r"Squares failed for .*n=-5.*ValueError: negative"):
        h.wait_for(1_000)
    h.close()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (pa.array([1]), "Returns.infer returned 1 rows for 2 records"),
        ([1, 2], "Returns.infer returned list: return an Arrow RecordBatch or Array"),
        (None, "Returns.infer returned NoneType"),
        (
            pa.RecordBatch.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"]),
            "returned two columns named 'a'",
        ),
    ],
)
def test_result_of_another_length_or_type_fails_the_task(result: Any, text: str) -> None:
    """Also with a side output for errors: the model is at fault, and no record."""
    h = harness(Returns(result), TO_SIDE)
    h.process_columns(batch(1, 2))
    with pytest.raises(ModelResultError, match=text):
        h.wait_for(1)
    h.close()


def test_column_of_the_model_must_not_be_one_of_the_records() -> None:
    h = harness(Returns(pa.record_batch({"n": [1]})))
    h.process_columns(batch(1))
    with pytest.raises(StreamError, match=r"returns a column 'n', which the records have"):
        h.wait_for(1)
    h.close()


def test_request_without_an_answer_is_sent_again_and_then_in_halves() -> None:
    """The third record kills each replica that gets it."""

    def outcome(numbers: list[int], attempt: int) -> Exception | None:
        return ModelUnavailableError("it died") if 3 in numbers else None

    services = Services(outcome)
    h = harness(settings=replace(TO_SIDE, retries=1), services=services)
    h.process_columns(batch(1, 2, 3, 4))
    assert results(h.wait_for(3)) == [1, 4, 16]
    assert [row.error for row in h.side("errors")] == ["it died"]
    assert services.made.requests == [[1, 2, 3, 4]] * 2 + [[1, 2], [3, 4], [3, 4], [3], [4], [3]]
    h.close()


def test_single_record_is_tried_again_when_the_model_fails() -> None:
    services = Services(lambda numbers, attempt: ModelError("not yet", 1) if attempt < 3 else None)
    h = harness(services=services)
    h.process_columns(batch(5))
    assert results(h.wait_for(1)) == [25]
    assert services.made.requests == [[5], [5], [5]]
    h.close()


@pytest.mark.parametrize("is_ordered", [True, False])
def test_batches_leave_in_order_or_as_they_are_answered(is_ordered: bool) -> None:
    services = Services(no_error, held=(1,))
    h = harness(settings=replace(SETTINGS, is_ordered=is_ordered), services=services)
    h.process_columns(batch(1))
    h.process_columns(batch(2))
    h.watermark(9)
    if not is_ordered:
        assert results(h.wait_for(1)) == [4]
    services.made.let_answer(1)
    found = h.wait_for(3 if is_ordered else 2)
    assert results(found) == ([1, 4] if is_ordered else [1])
    assert found[-1] == Watermark(9)
    h.close()


def test_batches_without_an_answer_are_sent_again_after_a_restore() -> None:
    services = Services(no_error, held=(1,))
    h = harness(settings=replace(SETTINGS, is_ordered=False), services=services)
    h.process_columns(batch(1, 3, at=5))
    h.process_columns(batch(2))
    assert results(h.wait_for(1)) == [4]
    kept = h.snapshot()
    h.close()

    h = harness(restore=kept)
    assert h.wait_for(2) == [
        Record(Row.of(["n", "result"], [1, 1]), 5),
        Record(Row.of(["n", "result"], [3, 9]), 5),
    ]
    h.close()


class Notes(ModelFunction):
    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, event: str) -> None:
        with self.path.open("a") as file:
            file.write(event + "\n")

    def open(self, context: ModelContext) -> None:
        self.note(f"open {context.name}")

    def infer(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["n"]

    def close(self) -> None:
        self.note("close")


def test_model_of_a_local_program_is_opened_once_and_closed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    descriptor = ModelDescriptor.of(Notes(notes), 1, 1, ResourceProfile(1.0, 0), "shared")
    with none_left():
        h = OperatorHarness(InferOperator(descriptor, SETTINGS, None))
        for number in range(3):
            h.process_columns(batch(number))
        h.finish()
        h.close()
        h.close()
    assert notes.read_text().split("\n") == ["open shared", "close", ""]


class Gated(ModelFunction):
    """Loads and computes only when a file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, context: ModelContext) -> None:
        wait_until((self.folder / "load").exists, 60, "leave to load")

    def infer(self, batch: pa.RecordBatch) -> pa.Array:
        wait_until((self.folder / "infer").exists, 60, "leave to compute")
        return batch["n"]


def test_model_of_a_local_program_has_two_batches_at_a_time_once_it_is_loaded(
    tmp_path: Path,
) -> None:
    """Batches that wait for the model take none of the time that it may take for a batch."""
    services = Services(no_error)
    h = harness(Gated(tmp_path), services=services)
    for number in range(4):
        h.process_columns(batch(number))
    wait_until(lambda: services.made.waiting == 4, 60, "all batches to wait for the model")
    (tmp_path / "load").touch()
    wait_until(lambda: services.made.waiting == 2, 60, "two batches to be computed")
    (tmp_path / "infer").touch()
    assert results(h.wait_for(4)) == [0, 1, 2, 3]
    assert services.made.waiting == 0
    h.close()


def test_model_of_a_local_program_that_cannot_be_loaded_fails_the_task() -> None:
    class Missing(ModelFunction):
        def open(self, context: ModelContext) -> None:
            raise OSError("no such file: the model")

        def infer(self, batch: pa.RecordBatch) -> pa.Array:
            return batch["n"]

    h = harness(Missing(), TO_SIDE)
    h.process_columns(batch(1, 2))
    with pytest.raises(OSError, match="no such file: the model"):
        h.wait_for(1)
    h.close()


def test_model_that_runs_out_of_memory_says_for_how_many_records() -> None:
    class Hungry(ModelFunction):
        def infer(self, batch: pa.RecordBatch) -> pa.Array:
            if batch.num_rows > 2:
                raise MemoryError
            return batch["n"]

    with pytest.raises(ModelError, match="ran out of memory with a batch of 3 records"):
        answer(Hungry(), serialized(batch(1, 2, 3).batch))
    h = harness(Hungry())
    h.process_columns(batch(*range(10)))
    assert results(h.wait_for(10)) == list(range(10))
    h.close()
