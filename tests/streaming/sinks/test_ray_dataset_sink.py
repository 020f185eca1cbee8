"""The sink that makes a Ray Data dataset of the rows of each checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.ray_dataset import RayDatasetSink
from tests.streaming.operators.contract import columns
from tests.streaming.sinks.sink_harness import SinkHarness

pytestmark = pytest.mark.ray

pytest.importorskip("ray.data")


def test_rows_are_handed_over_with_their_checkpoint_and_again_after_a_restore(
    ray_cluster: object,
) -> None:
    told: list[tuple[int, list[int]]] = []

    def function(dataset: Any, checkpoint_id: int) -> None:
        told.append((checkpoint_id, sorted(row["x"] for row in dataset.take_all())))

    sink = RayDatasetSink(function)
    h = SinkHarness(sink)
    h.process(Row(x=1), Row(x=2))
    h.process_columns(columns(None, x=[3]))
    h.checkpoint()
    assert told == []
    h.process(Row(x=4))
    state = h.checkpoint()
    h.complete()
    assert told == [(1, [1, 2, 3]), (2, [4])]
    h.checkpoint()
    h.complete()
    assert len(told) == 2, "a checkpoint without rows is left out"

    told.clear()
    SinkHarness(sink, state)
    assert told == [(1, [1, 2, 3]), (2, [4])]


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function of a dataset and the id"):
        RayDatasetSink("train")  # type: ignore[arg-type]
