"""State that was written with compiled kernels is restored without them, and the reverse."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from flinkray.kernels import compiled
from flinkray.state import ReducingStateDescriptor, ValueStateDescriptor
from flinkray.streaming.functions.functions import KeyedProcessFunction
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP
from flinkray.streaming.windowing.aligned import make_window_operator
from flinkray.streaming.windowing.assigners import TumblingEventTimeWindows
from flinkray.streaming.windowing.contents import ListContents, ReduceContents
from flinkray.streaming.windowing.operator import WindowSpec
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import BY_FIRST


def later(first: Any, second: Any) -> Any:
    return first[0], first[1] + second[1]


class Both(KeyedProcessFunction[Any, Any, Any]):
    """Keeps the last value and the sum of each key."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", later))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.add(value)
        yield self.last.value(), self.sum.get()
        self.last.update(value[1])


def operators() -> list[Any]:
    tumbling = TumblingEventTimeWindows.of(10)
    all_contents: list[Any] = [ListContents(), ReduceContents(later)]
    windows = [
        make_window_operator(WindowSpec(tumbling, tumbling.get_default_trigger(), it), BY_FIRST)
        for it in all_contents
    ]
    return [KeyedProcessOperator(Both(), BY_FIRST), *windows]


def run(states: list[Any] | None) -> tuple[list[Any], str]:
    """Process records and take snapshots, from *states* on. Returns snapshots and results."""
    snapshots, results = [], []
    for place, operator in enumerate(operators()):
        h = OperatorHarness(
            operator, keyed=True, restore=None if states is None else [states[place]]
        )
        for turn in range(3):
            h.process(*[(key, key + turn) for key in range(5)], at=[turn + key for key in range(5)])
            snapshot = h.snapshot(turn + 1)
        if states is not None:
            h.watermark(MAX_TIMESTAMP)
        snapshots.append(snapshot)
        results.append(h.output())
        h.close()
    return snapshots, repr(results)


PROGRAM = f"""
import pickle, sys
from {__name__} import run
sys.stdout.buffer.write(pickle.dumps(run(pickle.load(sys.stdin.buffer))))
"""


def run_elsewhere(kernels: str, states: list[Any] | None) -> tuple[list[Any], str]:
    """Call :func:`run` in another process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps(states),
        capture_output=True,
        env={**os.environ, compiled.SWITCH: kernels, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    found: tuple[list[Any], str] = pickle.loads(done.stdout)
    return found


@pytest.mark.skipif(compiled.native is None, reason="compares processes with and without kernels")
def test_state_crosses_between_processes_with_and_without_kernels() -> None:
    compiled_states, results = run(None)
    python_states, python_results = run_elsewhere("off", None)
    assert python_results == results
    _, expected = run(compiled_states)
    assert run(python_states)[1] == expected
    assert run_elsewhere("off", compiled_states)[1] == expected
