"""Records that look rows up, as whole programs: what comes out is what a naive evaluator says.  A
plain bounded source stands where the rows of Spark come in.  Failures and other parallelism in
between are in ``tests/streaming/test_rescaled_stories.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.datastream import (
    DataStream,
    ProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row
from flinkray.datastream.connected_streams import looked_up
from flinkray.streaming.operators.batch_mode import BroadcastFirstOperator
from flinkray.testing.manual_clock import ManualClock
from tests.datastream.differential import KEYS, AfterEach
from tests.datastream.trickling import PAUSE, Trickle

UNKNOWN = -1
"""In place of the number of a key: None."""


@dataclass(frozen=True)
class Program:
    """Records are (number of the key, variant of it, number, timestamp), or a pause."""

    records: Sequence[Any]
    table: Sequence[Sequence[Any]]
    """In parts that are read by two subtasks: (number of the key, variant), or a pause."""
    delay: int
    """Of watermarks, one of which follows each record."""


def key_of(number: int, variant: int) -> Any:
    return None if number == UNKNOWN else KEYS[number][variant % len(KEYS[number])]


def name_of(number: int) -> str:
    return f"row {number}"


def expected(program: Program) -> tuple[dict[int, list[Any]], set[int]]:
    """By key what comes out of its records, in their order; and the numbers of those that are
    late."""
    rows = {row[0] for part in program.table for row in part if row != PAUSE} - {UNKNOWN}
    answers: dict[int, list[Any]] = {}
    late: set[int] = set()
    latest = -(1 << 62)
    for record in program.records:
        if record == PAUSE:
            continue
        key, _, number, time = record
        if time <= latest - program.delay - 1:
            late.add(number)
        latest = max(latest, time)
        row = name_of(key) if key in rows else None
        answers.setdefault(key, []).append((key, number, row, time))
    return answers, late


class Witness(ProcessFunction[Any, Any]):
    """Notes the timestamp, and whether time has overtaken the record."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (*value, ctx.timestamp(), ctx.timestamp() <= ctx.timer_service().current_watermark())


def answered(record: Any, row: Any) -> Any:
    return record[0], record[2], row and row["name"]


def rows_of(part: Sequence[Any]) -> list[Any]:
    return [row if row == PAUSE else Row(key=key_of(*row), name=name_of(row[0])) for row in part]


def build(program: Program, env: StreamExecutionEnvironment, parallelism: int) -> DataStream:
    records = Trickle([program.records], time_of=lambda record: record[3])
    by_time = WatermarkStrategy.for_generator(lambda: AfterEach(program.delay))
    stream = env.from_source(records, by_time, "records").set_parallelism(1).uid("records")
    table = env.from_source(Trickle(map(rows_of, program.table)), None, "table")
    rows = table.set_parallelism(2).uid("table").key_by("key")
    by_key = stream.key_by(lambda record: key_of(*record[:2]))
    found = looked_up(by_key, rows, answered, "names").set_parallelism(parallelism).uid("look up")
    return found.process(Witness()).set_parallelism(parallelism).uid("witness")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    keys = st.integers(UNKNOWN, len(KEYS) - 1)
    pauses = st.integers(0, 3)
    records: list[Any] = []
    moves = st.tuples(keys, st.integers(0, 4), st.integers(-6, 9), pauses)
    now = 0
    for number, (key, variant, move, pause) in enumerate(draw(st.lists(moves, max_size=25))):
        now = max(0, now + move)
        records += [PAUSE] * pause + [(key, variant, number, now)]
    table: list[list[Any]] = [[], [], []]
    rows = st.lists(st.tuples(keys, st.integers(0, 4)), unique_by=lambda row: row[0], max_size=9)
    for row in draw(rows):
        part = table[draw(st.integers(0, 2))]
        part += [PAUSE] * draw(pauses) + [row]
    if draw(st.booleans()):
        table[0] += [(UNKNOWN, 0), (UNKNOWN, 0)]
    return Program(records, table, draw(st.integers(0, 8)))


def assert_right(program: Program, results: list[Any]) -> None:
    answers, late = expected(program)
    found: dict[int, list[Any]] = {}
    for *answer, is_late in results:
        key, number, *_ = answer
        found.setdefault(key, []).append(tuple(answer))
        assert not is_late or number in late
    assert found == answers


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([1, 2, 4]))
def test_look_up_answers_equal_those_of_a_naive_evaluator(
    program: Program, parallelism: int
) -> None:
    env = StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(1)
    assert_right(program, list(build(program, env, parallelism).execute_and_collect()))


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([1, 2, 4]))
def test_look_up_answers_in_batch_mode_equal_those_of_a_naive_evaluator(
    program: Program, parallelism: int
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    assert_right(program, list(build(program, env, parallelism).execute_and_collect()))


def test_look_up_in_batch_mode_reads_the_table_before_the_stream() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    build(Program([], [[]], 0), env, 1)
    (node,) = (node for node in env.get_stream_graph().nodes if node.uid == "look up")
    assert isinstance(node.operator, BroadcastFirstOperator)
