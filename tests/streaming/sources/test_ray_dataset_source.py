"""The source of a Ray Data dataset: where its readers go on, and what they refuse."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from flinkray.file_results import NonDeterministicSourceError
from flinkray.streaming.sources.ray_dataset import BATCH_ROWS, RayDatasetSource
from flinkray.streaming.sources.source import NOTHING_NOW
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, batches_by, reader_of, values_of

pytestmark = pytest.mark.ray

BLOCK = 2 * BATCH_ROWS + 10

ray_data: Any = pytest.importorskip("ray.data")


def test_source_made_anew_goes_on_at_its_row_and_refuses_other_rows(ray_cluster: object) -> None:
    """A program that is submitted again with a savepoint makes its source anew."""

    def source(first: int) -> RayDatasetSource:
        tables = [pa.table({"n": range(n + first, n + first + BLOCK)}) for n in (0, BLOCK)]
        return RayDatasetSource(ray_data.from_arrow(tables))

    before, readers = source(0), Readers(1)
    enumerator = before.create_enumerator(readers, ManualClock())  # type: ignore[arg-type]
    while not readers.done:
        enumerator.handle_split_request(0)
    reader = reader_of(before, *readers.assigned[0])
    read = [next(polled for _ in count() if (polled := reader.poll(9)) is not NOTHING_NOW)]
    read.append(reader.poll(9))
    state = reader.snapshot_state(1)
    assert [row["n"] for row in values_of(read)] == list(range(2 * BATCH_ROWS))

    rest = batches_by(reader_of(source(0), *state))
    assert [row["n"] for row in values_of(rest)] == list(range(2 * BATCH_ROWS, 2 * BLOCK))
    with pytest.raises(NonDeterministicSourceError, match=r"dataset\.materialize\(\)"):
        batches_by(reader_of(source(1), *state))
