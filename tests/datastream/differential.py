"""Random stream programs, and what they amount to by a naive evaluator.

A program is data: a list of records, and what is done with them.  It is built as a stream program,
and evaluated by going through the records one after the other, with deep copies wherever a value
changes hands.  Records come from one subtask in a known order, so that rolling results and late
records are the same in every run; behind branches the order is unknown, and only what does not
depend on it is asked for.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import random
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flinkray.datastream import (
    AggregateFunction,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row
from flinkray.datastream.common.watermark_strategy import TimestampAssigner, WatermarkGenerator
from flinkray.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

Choose = Callable[[Sequence[Any]], Any]
"""Picks one of several; where the choices come from is the test's."""

# --- records --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    x: int
    y: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


NOON = datetime.datetime(2026, 7, 1, 12, 0, tzinfo=datetime.timezone.utc)
KEYS: list[list[Any]] = [
    [1, 1.0, True, np.int64(1), decimal.Decimal(1)],
    [0, False, 0.0, np.float32(0)],
    ["a", "".join(["a"])],
    [("a", 1), ("a", 1.0), ("a", True)],
    [float("nan"), np.nan, np.float64("nan")],
    [NOON, NOON.astimezone(zoneinfo.ZoneInfo("Europe/Berlin"))],
    [Point(1, "p")],
    [Colour.RED],
    [b"bytes"],
    [("b", (1, ("c",)))],
    [-5, -5.0],
]
"""Those of a list are one key."""


def new_value(key: int, variant: int, time: int, as_row: bool) -> Any:
    """Key, time, and a list that functions go on to change."""
    fields = [key, variant % len(KEYS[key]), time, [time]]
    return Row(*fields) if as_row else fields


def key_of(value: Any) -> Any:
    return KEYS[value[0]][value[1]]


# --- programs -------------------------------------------------------------------------------------


@dataclass
class Program:
    """See the module."""

    records: list[Any]
    delay: int
    """Of watermarks, one of which follows each record."""
    steps: list[str]
    """Of one record each."""
    branches: list[list[str]]
    """Each has steps of its own; what comes out of all is put together.  None: there are none."""
    keyed: str
    """What is done by key."""
    size: int = 10
    slide: int = 5
    lateness: int = 0
    parallelism: int = 1
    """Of what is done by key."""

    @property
    def keeps_the_rules_of_reuse(self) -> bool:
        """Whether no function keeps what it puts out or changes what it was given."""
        used = {*self.steps, *(step for branch in self.branches for step in branch)}
        return not used & CHANGING and self.keyed not in CHANGING

    def __str__(self) -> str:
        return (
            f"{self.records!r} | {self.steps} | {self.branches} | {self.keyed} delay={self.delay} "
            f"size={self.size} slide={self.slide} lateness={self.lateness}"
        )


STEPS = ["append", "kept", "growing", "odd times", "tagged", "twice"]
CHANGING = {"append", "kept", "growing", "trail", "reduce", "lists", "maps"}
IN_ANY_ORDER = ["tumbling", "sliding", "sessions"]
IN_ORDER = [*IN_ANY_ORDER, "trail", "reduce", "lists", "maps", "timers", "none"]


def seeded_programs(seeds: Iterable[int]) -> dict[int, Program]:
    """One for each seed."""
    return {seed: any_program(random.Random(seed).choice) for seed in seeds}


def any_program(choose: Choose) -> Program:
    """A program made of choices."""
    as_row = choose([False, True])
    keys = [choose(range(len(KEYS))) for _ in range(choose([1, 2, 3]))]
    records, time = [], 0
    for _ in range(choose([0, 1, 3, 8, 20])):
        time = max(0, time + choose([0, 1, 1, 2, 4, 9, -1, -3, -12]))
        records.append(new_value(choose(keys), choose(range(5)), time, as_row))
    steps = [choose(STEPS) for _ in range(choose([0, 1, 2, 3]))]
    branches = [
        [choose(STEPS) for _ in range(choose([0, 1, 2]))] for _ in range(choose([0, 0, 2, 3]))
    ]
    if branches:
        # nothing may be late there: whether it is depends on who comes first
        kind, size = choose(IN_ANY_ORDER), choose([3, 10])
        return Program(records, 1000, steps, branches, kind, size, choose([1, 2, 3]))
    return Program(
        records,
        choose([0, 2, 10, 1000]),
        steps,
        [],
        choose(IN_ORDER),
        choose([3, 10]),
        choose([1, 2, 3]),
        choose([0, 0, 4]),
    )


# --- as a stream ----------------------------------------------------------------------------------

TAG: OutputTag[Any] = OutputTag("tagged")
LATE: OutputTag[Any] = OutputTag("late")


class Third(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[2])


class AfterEach(WatermarkGenerator):
    """A watermark behind each record."""

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.latest = -(1 << 62)

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        self.latest = max(self.latest, event_timestamp)
        output.emit_watermark(self.latest - self.delay - 1)

    def on_periodic_emit(self, output: Any) -> None:
        return None


def append(value: Any) -> Any:
    """Changes what it was given."""
    value[3].append(-1)
    return value


class Kept(ProcessFunction[Any, Any]):
    """Keeps all that it has put out, and changes it."""

    def open(self, runtime_context: Any) -> None:
        self.kept: list[Any] = []

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for earlier in self.kept:
            earlier[3].append(-2)
        self.kept.append(value)
        yield value


def growing(value: Any) -> Iterator[Any]:
    """Changes what it has yielded."""
    for number in range(2):
        value[3].append(number)
        yield value


class Tagged(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[2] % 3 == 0:
            yield TAG, value
        else:
            yield value


def twice(value: Any) -> list[Any]:
    return [copy.deepcopy(value), copy.deepcopy(value)]


class Trail(KeyedProcessFunction[Any, Any, Any]):
    """Changes what it has read, keeps it and puts it out."""

    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("trail"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        trail = self.state.value() or []
        trail.append(value[3])
        if len(trail) % 4:  # else the change is not stored
            self.state.update(trail)
        value[3].append(-3)
        yield value[0], trail


class Lists(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_list_state(ListStateDescriptor("list"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.state.add(value[3])
        value[3].append(-4)
        found = list(self.state.get())
        found[0].append(-5)
        yield value[0], found


class Maps(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_map_state(MapStateDescriptor("map"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.state.put(value[2] % 2, value[3])
        value[3].append(-6)
        for _, part in self.state.items():
            part.append(-7)
        yield value[0], sorted(map(repr, self.state.items()))


class Timers(KeyedProcessFunction[Any, Any, Any]):
    """Counts, and tells the count at the end of each stretch of ten."""

    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> None:
        key, count = self.state.value() or (value[0], 0)
        self.state.update((key, count + 1))
        ctx.timer_service().register_event_time_timer(value[2] // 10 * 10 + 9)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (*self.state.value(), timestamp)


def reduce_in_place(first: Any, second: Any) -> Any:
    first[3].extend(second[3])
    return first


class Contents(AggregateFunction[Any, Any, Any]):
    """The lists of a window, in an accumulator that is changed in place and given away."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append((value[0], sorted(value[3])))
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


def by_content(contents: Any) -> Any:
    """Of a window, whatever the order in which records came into it."""
    return sorted(contents)


def marked(mark: str) -> Callable[[Any], Any]:
    return lambda value: (mark, value)


def build(program: Program, env: StreamExecutionEnvironment) -> DataStream:
    """Its results, those of side outputs included, each with a mark of where it came out."""
    source = env.from_collection(program.records).set_parallelism(1)
    strategy = (
        WatermarkStrategy.for_generator(lambda: AfterEach(program.delay))
    ).with_timestamp_assigner(Third())  # fmt: skip
    stream = source.assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    outputs: list[DataStream] = []

    def taken(steps: list[str], stream: DataStream) -> DataStream:
        for step in steps:
            stream = _with_step(stream, step, outputs)
        return stream

    stream = taken(program.steps, stream)
    if program.branches:
        ends = [taken(branch, stream) for branch in program.branches]
        stream = ends[0].union(*ends[1:])
    outputs.append(_by_key(program, stream, outputs).map(marked("main")))
    return outputs[0].union(*outputs[1:])


def _with_number(number: int, value: Any) -> tuple[int, Any]:
    return number, value


def build_together(programs: Mapping[int, Program], env: StreamExecutionEnvironment) -> DataStream:
    """Several as one job; each result comes with its program's number."""
    streams = [
        build(program, env).map(partial(_with_number, number))
        for number, program in programs.items()
    ]
    return streams[0].union(*streams[1:])


def assert_as_expected(programs: Mapping[int, Program], results: Iterable[Any]) -> None:
    """Of programs that were built together."""
    found: dict[int, list[str]] = {number: [] for number in programs}
    for number, value in results:
        found[number].append(repr(value))
    for number, program in programs.items():
        assert sorted(found[number]) == expected(program), f"{number}: {program}"


def _with_step(stream: DataStream, step: str, outputs: list[DataStream]) -> DataStream:
    if step == "append":
        stream = stream.map(append)
    elif step == "kept":
        stream = stream.process(Kept())
    elif step == "growing":
        stream = stream.flat_map(growing)
    elif step == "odd times":
        stream = stream.filter(lambda value: value[2] % 2 == 1)
    elif step == "twice":
        stream = stream.flat_map(twice)
    else:
        stream = stream.process(Tagged()).set_parallelism(1)
        outputs.append(stream.get_side_output(TAG).map(marked("tagged")).set_parallelism(1))
        return stream
    return stream.set_parallelism(1)


def _by_key(program: Program, stream: DataStream, outputs: list[DataStream]) -> DataStream:
    kind = program.keyed
    if kind == "none":
        return stream.map(lambda value: [value[0], *value[2:]]).set_parallelism(1)
    keyed = stream.key_by(key_of)
    if kind in FUNCTIONS:
        return keyed.process(FUNCTIONS[kind]())
    if kind == "reduce":
        return keyed.reduce(reduce_in_place).map(lambda value: [value[0], *value[2:]])
    assigner: Any = {
        "tumbling": TumblingEventTimeWindows.of(program.size),
        "sliding": SlidingEventTimeWindows.of(program.size, program.slide),
        "sessions": EventTimeSessionWindows.with_gap(program.size),
    }[kind]
    windows = keyed.window(assigner).allowed_lateness(program.lateness)
    result = windows.side_output_late_data(LATE).aggregate(Contents())
    late = result.get_side_output(LATE).map(lambda value: [value[0], *value[2:]])
    outputs.append(late.map(marked("late")))
    return result.map(by_content)


FUNCTIONS: dict[str, Any] = {"trail": Trail, "lists": Lists, "maps": Maps, "timers": Timers}

# --- naively --------------------------------------------------------------------------------------


@dataclass
class Naive:
    """Goes through the records of a program one after the other."""

    program: Program
    results: list[Any] = field(default_factory=list)
    watermark: int = -(1 << 62)
    state: dict[Any, Any] = field(default_factory=dict)
    latest: int = -(1 << 62)

    def run(self) -> list[str]:
        program = self.program
        for record in program.records:
            ends = self._steps(program.steps, [copy.deepcopy(record)])
            if program.branches:
                ends = [
                    value
                    for branch in program.branches
                    for value in self._steps(branch, copy.deepcopy(ends))
                ]
            for value in ends:
                self._by_key(value, record[2])
            self.latest = max(self.latest, record[2])
            self._advance(self.latest - program.delay - 1)
        self._advance(1 << 62)
        return sorted(map(repr, self.results))

    def _put_out(self, mark: str, value: Any) -> None:
        self.results.append((mark, copy.deepcopy(value)))

    def _steps(self, steps: list[str], values: list[Any]) -> list[Any]:
        for step in steps:
            following = []
            for value in values:
                if step == "append":
                    value[3].append(-1)
                    following.append(value)
                elif step == "growing":
                    for number in range(2):
                        value[3].append(number)
                        following.append(copy.deepcopy(value))
                elif step == "twice":
                    following += [copy.deepcopy(value), copy.deepcopy(value)]
                elif step == "odd times":
                    following += [value] if value[2] % 2 else []
                elif step == "tagged" and value[2] % 3 == 0:
                    self._put_out("tagged", value)
                else:  # what it keeps and changes concerns nobody
                    following.append(value)
            values = following
        return values

    def _by_key(self, value: Any, time: int) -> None:
        key, kind, state = value[0], self.program.keyed, self.state
        told = [value[0], *value[2:]]
        if kind == "none":
            self._put_out("main", told)
        elif kind == "trail":
            trail = copy.deepcopy(state.get(key, []))
            trail.append(copy.deepcopy(value[3]))
            if len(trail) % 4:
                state[key] = copy.deepcopy(trail)
            trail[-1].append(-3)  # the function changed its record, which is in the trail
            self._put_out("main", (key, trail))
        elif kind == "lists":
            state.setdefault(key, []).append(copy.deepcopy(value[3]))
            found = copy.deepcopy(state[key])
            found[0].append(-5)
            self._put_out("main", (key, found))
        elif kind == "maps":
            state.setdefault(key, {})[value[2] % 2] = copy.deepcopy(value[3])
            self._put_out("main", (key, sorted(map(repr, state[key].items()))))
        elif kind == "timers":
            count, timers = state.get(key, (0, set()))
            state[key] = (count + 1, timers | {time // 10 * 10 + 9})
        elif kind == "reduce":
            if key in state:
                state[key][2].extend(copy.deepcopy(value[3]))
            else:
                state[key] = copy.deepcopy(told)
            self._put_out("main", state[key])
        else:
            self._into_windows(key, value, told, time)

    def _into_windows(self, key: int, value: Any, told: Any, time: int) -> None:
        program = self.program
        content = (key, sorted(value[3]))
        if program.keyed == "sessions":
            windows = [self._session(key, time)]
        else:
            size = program.size
            slide = program.slide if program.keyed == "sliding" else size
            last = time - time % slide
            windows = [(start, start + size) for start in range(last, time - size, -slide)]
        in_time = False
        for window in windows:
            if window is None or window[1] - 1 + program.lateness <= self.watermark:
                continue
            in_time = True
            self.state.setdefault((key, window), []).append(content)
            if window[1] - 1 <= self.watermark:
                self._put_out("main", sorted(self.state[key, window]))
        if not in_time:
            self._put_out("late", told)

    def _session(self, key: int, time: int) -> Any:
        """The session of a record, with which those that it joins are merged."""
        program = self.program
        start, end = time, time + program.size
        touching = [
            (other, window)
            for other, window in self.state
            if other == key and window[0] <= end and start <= window[1]
        ]
        for _, window in touching:
            start, end = min(start, window[0]), max(end, window[1])
        if end - 1 + program.lateness <= self.watermark:
            return None
        contents = [content for place in touching for content in self.state.pop(place)]
        if contents:
            self.state[key, (start, end)] = contents
        return (start, end)

    def _advance(self, watermark: int) -> None:
        program, before = self.program, self.watermark
        if watermark <= before:
            return
        self.watermark = watermark
        if program.keyed == "timers":
            for key, (count, timers) in list(self.state.items()):
                due = {timer for timer in timers if timer <= self.watermark}
                for timer in sorted(due):
                    self._put_out("main", (key, count, timer))
                self.state[key] = (count, timers - due)
        elif program.keyed in IN_ANY_ORDER:
            for place in list(self.state):
                _, (_, end) = place
                if before < end - 1 <= self.watermark:
                    self._put_out("main", sorted(self.state[place]))
                if end - 1 + program.lateness <= self.watermark:
                    del self.state[place]


def expected(program: Program) -> list[str]:
    """All results, as text, sorted."""
    return Naive(program).run()
