"""The subtasks of one operator, which are captured, fail and go on with another parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flinkray.core.key_group_ranges import KeyGroupRange, key_group_range
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.operators.operator import (
    OperatorState,
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import Columns
from flinkray.testing.operator_harness import OperatorHarness

GROUPS = 8


class Subtasks:
    """Rows go where their keys' groups are.

    Args:
        keys: the columns of the keys, by input.
    """

    def __init__(
        self, make: Callable[[], StreamOperator], keys: tuple[str, ...], parallelism: int
    ) -> None:
        self._make = make
        self._keys = keys
        self._harnesses: list[OperatorHarness] = []
        self.restart(parallelism, [])

    def restart(
        self,
        parallelism: int,
        states: Sequence[OperatorState],
        checkpoint_id: int | None = None,
    ) -> None:
        """Fail, and go on from what was stored; by *checkpoint_id* if it is to be named."""
        self.close()
        self._ranges = [key_group_range(GROUPS, parallelism, n) for n in range(parallelism)]
        self._harnesses = [
            OperatorHarness(
                self._make(),
                keyed=True,
                restore=states,
                checkpoint_id=checkpoint_id,
                parallelism=parallelism,
                subtask_index=number,
                max_parallelism=GROUPS,
            )
            for number in range(parallelism)
        ]

    def process(self, columns: Columns, on: int = 0, as_rows: bool = False) -> None:
        keys = columns.batch.column(self._keys[on]).to_pylist()
        groups = np.array([key_group_of(key, GROUPS) for key in keys])
        for harness, own in zip(self._harnesses, self._ranges, strict=True):
            mine = np.flatnonzero((groups >= own.first) & (groups <= own.last))
            if len(mine):
                part = columns.take(mine)
                if as_rows:
                    block = part.to_block()
                    harness.process(*block.values, at=block.timestamps, on=on)
                else:
                    harness.process_columns(part, on=on)

    def watermark(self, timestamp: int, subtask: int | None = None) -> KeyGroupRange:
        """At all subtasks or, where others on the way are overtaken by a barrier, at one; gives the
        key groups for which time goes on."""
        for number, harness in enumerate(self._harnesses):
            if subtask in (None, number):
                for on in range(len(self._keys)):
                    harness.watermark(timestamp, on=on)
        return KeyGroupRange(0, GROUPS - 1) if subtask is None else self._ranges[subtask]

    @property
    def parallelism(self) -> int:
        """How many there are."""
        return len(self._harnesses)

    def records(self) -> list[tuple[Any, int | None]]:
        """Of all, since the last call."""
        return [record for harness in self._harnesses for record in harness.records()]

    def close(self) -> None:
        """Captures can still be written."""
        for harness in self._harnesses:
            harness.close()

    # --- snapshots ----------------------------------------------------------------------------

    def capture(self, checkpoint_id: int, since: int | None) -> list[OperatorStateCapture]:
        """Of each."""
        return [h.operator.capture(checkpoint_id, since) for h in self._harnesses]
