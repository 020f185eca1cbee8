"""Everything that PYFLINK-API lists is there, documented, and what it refuses it refuses early."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
import json
import subprocess
import sys
from functools import partial, reduce
from typing import Any

import pytest

import flinkray.datastream as api
from flinkray.datastream import common, connectors, functions, metrics, state, window
from flinkray.datastream.common import JobStatus, io
from flinkray.datastream.formats import csv as csv_format
from flinkray.datastream.formats import json as json_format
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions import global_aggregates, runtime_context
from tests.datastream.pyflink_signatures import PYFLINK

MODULES = (
    api, common, connectors, csv_format, functions, global_aggregates, json_format, metrics,
    runtime_context, state, window,
)  # fmt: skip
BEYOND_PYFLINK = {
    "StreamExecutionEnvironment": "create_input",
    "DataStream": "map_batches write_using_output_format",
    "WindowedStream": "aggregate_columns",
    "AllWindowedStream": "trigger allowed_lateness side_output_late_data reduce aggregate apply "
    "process",
    "AsyncFunction": "open close",
    "AsyncRetryPredicate": "result_predicate exception_predicate",
    "CsvSchema": "builder get_type_info",
    "CsvSchemaBuilder": "build",
    "CsvRowDeserializationSchema.Builder": "set_field_delimiter set_null_literal "
    "set_ignore_parse_errors build",
    "CsvRowSerializationSchema.Builder": "set_field_delimiter build",
    "JsonRowDeserializationSchema": "builder deserialize",
    "JsonRowDeserializationSchema.Builder": "type_info fail_on_missing_field ignore_parse_errors "
    "json_schema build",
    "JsonRowSerializationSchema": "builder serialize",
    "JsonRowSerializationSchema.Builder": "with_type_info build",
    "RuntimeContext": "get_global_aggregate_manager",
    "GlobalAggregateManager": "update_global_aggregate",
    "KeyedProcessFunction.Context": "timestamp timer_service get_current_key",
    "KeyedProcessFunction.OnTimerContext": "time_domain",
    "BroadcastProcessFunction.Context": "get_broadcast_state timestamp",
    "ProcessWindowFunction.Context": "window current_watermark window_state global_state",
    "MapState": "__contains__ __getitem__ __setitem__ __iter__",
    "StateTtlConfig": "UpdateType StateVisibility",
    "Counter": "inc get_count",
    "Meter": "mark_event get_count",
    "Distribution": "update",
    "Gauge": "get_value",
    "TimeWindow": "start end",
    "CountWindow": "id",
    "FileSink": "create_writer",
}
"""Names that the API must have and `PYFLINK` does not list, by class."""


def class_named(name: str) -> Any:
    first, *inner = name.split(".")
    found = next(getattr(module, first) for module in MODULES if hasattr(module, first))
    return reduce(getattr, inner, found)


SURFACE: list[tuple[Any, set[str]]] = [
    (class_named(name), {*PYFLINK.get(name, ()), *BEYOND_PYFLINK.get(name, "").split()})
    for name in sorted({*PYFLINK, *BEYOND_PYFLINK})
    if not name.startswith("Kafka")
]
"""Classes of the API, each with the names that it must have."""
WITH_DOCTESTS = [
    "async_data_stream", "checkpoint_storage", "closeable_iterator", "common.configuration",
    "common.execution_config",
    "common.job_status", "common.restart_strategy", "common.serialization", "common.time",
    "connectors.file_system", "connected_streams", "joined_streams", "keyed_stream", "stream",
    "windowed_streams", "operator_settings", "environment_settings",
    "slot_sharing_group", "state_backend", "stream_execution_environment", "window",
]  # fmt: skip
"""Modules of ``flinkray.datastream`` whose docstrings have examples."""


@pytest.mark.parametrize(
    ("owner", "names"), SURFACE, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_listed_name_of_the_api_exists(owner: Any, names: set[str]) -> None:
    assert [name for name in names if not hasattr(owner, name)] == []


@pytest.mark.parametrize(
    "package",
    ["", ".common", ".connectors", ".functions", ".metrics", ".state", ".window", ".output_tag",
     ".common.typeinfo", ".common.time", ".common.types", ".common.watermark_strategy"],
)  # fmt: skip
def test_every_public_class_has_a_docstring(package: str) -> None:
    module = importlib.import_module(f"flinkray.datastream{package}")
    exported = {name: getattr(module, name) for name in module.__all__}
    classes = {name for name, value in exported.items() if inspect.isclass(value)}
    assert classes or exported
    assert {name for name in classes if not exported[name].__doc__} == set()


@pytest.mark.parametrize("module", WITH_DOCTESTS)
def test_examples_in_docstrings_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"flinkray.datastream.{module}"))
    assert found.failed == 0
    assert found.attempted > 0


def test_local_stream_runs_without_importing_ray_pyspark_or_pandas() -> None:
    program = """
import sys
from flinkray.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
assert list(env.from_collection([1]).map(lambda v: v + 1).execute_and_collect()) == [2]
assert not {"ray", "pyspark", "pandas"} & set(sys.modules)
"""
    path = ":".join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_program_started_with_execute_async_finishes_and_returns_its_result(env: Any) -> None:
    env.from_collection([1, 2]).map(lambda v: v)
    client = env.execute_async("beside")
    result = client.get_job_execution_result().result(timeout=300)
    assert result.get_job_id() == client.get_job_id()
    assert client.get_job_status().result() is JobStatus.FINISHED


def test_execute_without_any_operator_raises_an_error(env: Any) -> None:
    with pytest.raises(StreamError, match="No operators defined"):
        env.execute("nothing")


def test_environment_has_no_operators_left_after_execute(env: Any) -> None:
    env.from_collection([1]).map(lambda v: v)
    assert len(json.loads(env.get_execution_plan())["nodes"]) == 2
    env.execute("first")
    with pytest.raises(StreamError, match="No operators defined"):
        env.get_execution_plan()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.map(5),
        lambda s: s.map(functions.MapFunction),
        lambda s: s.process(lambda v: v),
        lambda s: s.key_by(lambda v: v).process(lambda v: v),
        lambda s: s.key_by(lambda v: v).window("5 s"),
        lambda s: s.connect(s).map(lambda v: v),
        lambda s: s.sink_to(print),
        lambda s: s.project("name"),
        lambda s: s.key_by(5),
        lambda s: s.set_parallelism(0),
        lambda s: s.set_parallelism(2),
        lambda s: s.set_max_parallelism(0),
        lambda s: s.set_buffer_timeout(-2),
        lambda s: s.connect(s.key_by(lambda v: v)).process(None),
    ],
)
def test_wrong_argument_raises_an_error_in_the_call_that_takes_it(env: Any, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError, StreamError)):
        wrong(env.from_collection([1]))


async def awaited(*values: Any) -> Any:
    return values


async def awaited_results(*values: Any) -> Any:
    yield values


class AwaitedCall:
    async def __call__(self, *values: Any) -> Any:
        return values


class WithoutBase:
    """What operators take without a base class of flinkray."""

    map = flat_map = filter = get_key = invoke = partition = extract_timestamp = extract = awaited


def awaiting(kind: Any, *names: str) -> Any:
    """An object of that class, of whose methods those are `async def`."""
    methods: dict[str, Any] = {name: lambda *values: None for name in kind.__abstractmethods__}
    return type("Awaiting", (kind,), {**methods, **dict.fromkeys(names, awaited)})()


BY_FIVE = window.TumblingEventTimeWindows.of(5)
RULES: Any = state.MapStateDescriptor("rules")


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(awaited),
        lambda s: s.map(partial(awaited, 1)),
        lambda s: s.map(AwaitedCall()),
        lambda s: s.map(WithoutBase()),
        lambda s: s.map(awaiting(functions.MapFunction, "map")),
        lambda s: s.map(awaiting(functions.MapFunction, "open")),
        lambda s: api.AsyncDataStream.ordered_wait(
            s, awaiting(functions.AsyncFunction, "async_invoke", "timeout"), 1),
        lambda s: s.flat_map(awaited_results),
        lambda s: s.filter(awaited),
        lambda s: s.filter(WithoutBase()),
        lambda s: s.key_by(awaited),
        lambda s: s.key_by(WithoutBase()),
        lambda s: s.key_by(awaiting(functions.KeySelector, "get_key")),
        lambda s: s.process(awaiting(functions.ProcessFunction, "process_element")),
        lambda s: s.map_batches(awaited),
        lambda s: s.partition_custom(awaited, str),
        lambda s: s.partition_custom(pow, awaited),
        lambda s: s.add_sink(awaited),
        lambda s: s.add_sink(WithoutBase()),
        lambda s: s.write_using_output_format(
            awaiting(io.OutputFormat, "write_record")),
        lambda _: api.StreamExecutionEnvironment().create_input(
            awaiting(io.InputFormat, "next_record")),
        lambda s: s.key_by(str).map(awaited),
        lambda s: s.key_by(str).flat_map(awaited),
        lambda s: s.key_by(str).filter(awaited),
        lambda s: s.key_by(str).reduce(awaited),
        lambda s: s.key_by(str).process(
            awaiting(functions.KeyedProcessFunction, "on_timer")),
        lambda s: s.window_all(BY_FIVE).reduce(awaited),
        lambda s: s.window_all(BY_FIVE).reduce(
            max, awaiting(functions.ProcessAllWindowFunction, "process")),
        lambda s: s.window_all(BY_FIVE).aggregate(
            awaiting(functions.AggregateFunction, "add")),
        lambda s: s.key_by(str).window(BY_FIVE).apply(
            awaiting(functions.WindowFunction, "apply")),
        lambda s: s.key_by(str).window(BY_FIVE).process(
            awaiting(functions.ProcessWindowFunction, "clear")),
        lambda s: s.connect(s).map(awaiting(functions.CoMapFunction, "map2")),
        lambda s: s.connect(s).flat_map(
            awaiting(functions.CoFlatMapFunction, "flat_map1")),
        lambda s: s.connect(s).process(
            awaiting(functions.CoProcessFunction, "process_element2")),
        lambda s: s.connect(s).key_by(str, str).process(
            awaiting(functions.KeyedCoProcessFunction, "on_timer")),
        lambda s: s.connect(s.broadcast(RULES)).process(
            awaiting(functions.BroadcastProcessFunction, "process_broadcast_element")),
        lambda s: s.key_by(str).connect(s.broadcast(RULES)).process(
            awaiting(functions.KeyedBroadcastProcessFunction, "process_element")),
        lambda s: s.key_by(str).interval_join(s.key_by(str)).between(0, 1).process(
            awaiting(functions.ProcessJoinFunction, "process_element")),
        lambda s: s.join(s).where(str).equal_to(str).window(BY_FIVE).apply(awaited),
        lambda s: s.co_group(s).where(str).equal_to(awaited).window(BY_FIVE),
        lambda _: api.WatermarkStrategy.no_watermarks().with_timestamp_assigner(awaited),
        lambda _: api.WatermarkStrategy.no_watermarks().with_timestamp_assigner(WithoutBase()),
        lambda _: window.EventTimeSessionWindows.with_dynamic_gap(WithoutBase()),
        lambda _: connectors.DataGeneratorSource(awaited, 1),
        lambda _: connectors.CallbackSink(None, awaiting(functions.MapFunction, "map").map),
    ],
)  # fmt: skip
def test_async_function_where_a_plain_one_is_needed_is_refused_and_named(
    env: Any, build: Any
) -> None:
    with pytest.raises(TypeError, match=r"(?i)^\w*awaited\S* is `async def`.* plain function"):
        build(env.from_collection([1]))


def test_function_may_call_its_own_coroutine_methods_by_asyncio_run(env: Any) -> None:
    class Waits(functions.MapFunction[Any, Any]):
        def map(self, value: Any) -> Any:
            return asyncio.run(self.look_up(value))

        async def look_up(self, value: Any) -> Any:
            return value + 1

    assert env.from_collection([1]).map(Waits()).execute_and_collect(limit=1) == [2]


def test_batch_mode_refuses_an_unbounded_source(env: Any) -> None:
    env.set_runtime_mode(api.RuntimeExecutionMode.BATCH)
    env.socket_text_stream("localhost", 1)
    with pytest.raises(StreamError, match="bounded sources"):
        env.get_stream_graph()


def test_runtime_context_gives_a_function_its_subtask_parameters_and_metrics(env: Any) -> None:
    seen: list[Any] = []

    class Measured(functions.MapFunction[Any, Any]):
        def open(self, runtime_context: Any) -> None:
            self.place = (
                runtime_context.get_task_name(),
                runtime_context.get_index_of_this_subtask(),
                runtime_context.get_number_of_parallel_subtasks(),
                runtime_context.get_attempt_number(),
                runtime_context.get_job_parameter("who", "nobody"),
            )
            group = runtime_context.get_metrics_group().add_group("mine")
            self.counter = group.counter("records")
            self.meter = group.meter("rate")
            self.sizes = group.distribution("sizes")
            group.gauge("twice", lambda: 2 * self.counter.get_count())

        def map(self, value: Any) -> Any:
            self.counter.inc()
            self.meter.mark_event(2)
            self.sizes.update(value)
            return (*self.place, self.counter.get_count(), self.meter.get_count(), self.sizes.max)

    env.get_config().set_global_job_parameters({"who": "me"})
    stream = env.from_collection([5, 3]).map(Measured()).set_parallelism(1).name("measured")
    seen = list(stream.execute_and_collect())
    assert seen == [("measured", 0, 1, 0, "me", 1, 2, 5), ("measured", 0, 1, 0, "me", 2, 4, 5)]
