"""Functions of Arrow batches."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.columnar.map_batches import MapBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.row import Row
from flinkray.testing.operator_harness import OperatorHarness


def test_map_batches_turns_rows_into_columns_and_takes_any_kind_of_result() -> None:
    import pyarrow as pa

    def function(batch: Any) -> Any:
        table = pa.Table.from_batches([batch])
        return [table, None, [batch.slice(0, 1)]]

    h = OperatorHarness(MapBatchesOperator(function))
    h.process(Row(x=1), Row(x=2), at=[5, 6])
    assert h.records() == [(Row(x=1), 5), (Row(x=2), 6), (Row(x=1), None)]
    h = OperatorHarness(MapBatchesOperator(lambda batch: 5))
    with pytest.raises(StreamError, match="returns an Arrow RecordBatch"):
        h.process(1, 2)
    with pytest.raises(StreamError, match="declare an output type"):
        h.process(1, "two")
