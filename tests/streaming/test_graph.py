"""From a program to tasks: chaining, groups, ids, plans."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.resources import ResourceProfile
from flinkray.datastream import (
    CoMapFunction,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.channels import RecordWriter
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.global_aggregates import LocalGlobalAggregateManager
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.program.chain_builder import (
    ChainBuilder,
    OperatorCopies,
    pointwise_producers,
)
from flinkray.streaming.program.chain_plan import plan_chain
from flinkray.streaming.program.graph import StreamGraph
from flinkray.streaming.records.partitioners import ForwardPartitioner
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing import ManualClock


class Either(CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def chain_names(env: StreamExecutionEnvironment) -> list[str]:
    return [chain.name for chain in env.get_stream_graph().chains()]


def numbers(env: StreamExecutionEnvironment) -> Any:
    return env.from_collection([1, 2, 3])


def test_forward_operators_of_equal_parallelism_are_chained_into_one_task(env: Any) -> None:
    numbers(env).map(lambda v: v).filter(lambda v: v).print()
    assert chain_names(env) == [
        "Source: Collection Source -> Map -> Filter -> Sink: Print to Std. Out"
    ]


def test_several_operators_that_read_one_operator_are_chained_to_it(env: Any) -> None:
    mapped = numbers(env).map(lambda v: v)
    mapped.filter(lambda v: v).name("left")
    mapped.filter(lambda v: v).name("right")
    assert chain_names(env) == ["Source: Collection Source -> Map -> (left, right)"]


def test_other_parallelism_key_by_union_and_slot_groups_end_a_chain(env: Any) -> None:
    source = numbers(env)
    source.map(lambda v: v).set_parallelism(2).name("parallel")
    source.key_by(lambda v: v).reduce(lambda a, b: a).name("keyed")
    source.union(numbers(env)).map(lambda v: v).name("both")
    source.map(lambda v: v).slot_sharing_group("other").name("apart")
    source.rebalance().map(lambda v: v).name("rebalanced")
    names = chain_names(env)
    assert {"parallel", "keyed", "both", "apart", "rebalanced"} <= set(names)


def test_operator_has_the_parallelism_the_environment_had_when_it_was_created(env: Any) -> None:
    before = env.from_sequence(1, 3).name("before")
    env.set_parallelism(2)
    first = before.map(lambda v: v).name("first")
    env.set_parallelism(4)
    second = first.map(lambda v: v).name("second")
    second.print().name("sink")
    own = second.map(lambda v: v).name("own").set_parallelism(3)
    env.get_config().set_parallelism(5)
    own.key_by(lambda v: v).sum().name("keyed")
    own.map(lambda v: v).name("single").force_non_parallel()
    own.connect(second).map(Either()).name("both")
    env.set_parallelism(6)
    expected = {
        "before": 1, "first": 2, "second": 4, "sink": 4, "own": 3, "keyed": 5, "single": 1,
        "both": 5,
    }  # fmt: skip
    assert {node.name: node.parallelism for node in env.get_stream_graph().nodes} == expected
    plan = json.loads(env.get_execution_plan())["nodes"]
    assert {node["type"]: node["parallelism"] for node in plan} == expected


def test_operator_has_the_default_local_parallelism_at_its_creation(env: Any) -> None:
    env.set_default_local_parallelism(3)
    try:
        env.from_sequence(1, 3).name("three")
    finally:
        env.set_default_local_parallelism(1)
    env.from_sequence(1, 3).name("one")
    graph = env.get_stream_graph()
    assert {node.name: node.parallelism for node in graph.nodes} == {"three": 3, "one": 1}


def test_chaining_can_be_disabled_for_an_operator_and_for_the_environment(env: Any) -> None:
    stream = numbers(env).map(lambda v: v).name("a")
    stream.map(lambda v: v).name("b").start_new_chain().map(lambda v: v).name("c")
    stream.map(lambda v: v).name("d").disable_chaining().map(lambda v: v).name("e")
    assert chain_names(env) == ["Source: Collection Source -> a", "b -> c", "d", "e"]
    env.disable_operator_chaining()
    assert len(chain_names(env)) == 6
    assert not env.is_chaining_enabled()


def test_operator_inherits_the_slot_sharing_group_if_all_its_inputs_share_it(env: Any) -> None:
    group = SlotSharingGroup.builder("g").build()
    first = numbers(env).slot_sharing_group(group)
    second = numbers(env).slot_sharing_group("g")
    first.union(second).map(lambda v: v).name("of one")
    first.union(numbers(env)).map(lambda v: v).name("of two")
    groups = {node.name: node.slot_sharing_group for node in env.get_stream_graph().nodes}
    assert (groups["of one"], groups["of two"]) == ("g", "default")


def slots_with(gpu: float) -> SlotSharingGroup:
    builder = SlotSharingGroup.builder("g").set_cpu_cores(1).set_task_heap_memory_mb(100)
    return builder.set_external_resource("GPU", gpu).build()


def test_resources_of_a_slot_sharing_group_are_kept_and_must_not_differ(env: Any) -> None:
    first = numbers(env).slot_sharing_group(slots_with(1))
    profile = ResourceProfile(1.0, 100 << 20, {"GPU": 1.0})
    assert env.get_stream_graph().slot_profiles == {"g": profile}
    first.map(abs).slot_sharing_group(slots_with(1)).map(abs).slot_sharing_group(slots_with(2))
    with pytest.raises(ConfigurationError, match="'g' is given 1 CPU, 100m memory, 1 GPU and 1"):
        env.get_stream_graph()


def test_operator_ids_are_equal_each_time_the_program_is_built() -> None:
    def ids(extra: bool) -> dict[str, str]:
        env = StreamExecutionEnvironment.get_execution_environment()
        stream = numbers(env)
        if extra:
            stream = stream.map(lambda v: v).name("new")
        stream.map(lambda v: v).name("old").map(lambda v: v).name("named").uid("my-uid")
        graph = env.get_stream_graph()
        by_id = graph.operator_ids()
        return {node.name: by_id[node.id] for node in graph.nodes}

    assert ids(False) == ids(False)
    assert ids(False)["old"] != ids(True)["old"]
    assert ids(False)["named"] == ids(True)["named"]


def test_uid_hash_is_used_unchanged_as_the_operator_id(env: Any) -> None:
    numbers(env).map(lambda v: v).set_uid_hash("0123456789abcdef" * 2)
    graph = env.get_stream_graph()
    assert graph.operator_ids()[2] == "0123456789abcdef" * 2
    with pytest.raises(ValueError, match="32 lower-case hexadecimal"):
        numbers(env).set_uid_hash("xyz")


def test_duplicate_uid_is_refused(env: Any) -> None:
    numbers(env).map(lambda v: v).uid("same").map(lambda v: v).uid("same")
    with pytest.raises(ConfigurationError, match="same uid 'same'"):
        env.get_stream_graph()


def test_execution_plan_shows_nodes_and_ship_strategies(env: Any) -> None:
    env.set_parallelism(2)
    numbers(env).map(lambda v: v).key_by(lambda v: v).sum().print().name("out").set_description("x")
    plan = json.loads(env.get_execution_plan())["nodes"]
    assert [(n["id"], n["type"], n["pact"], n["parallelism"]) for n in plan] == [
        (1, "Source: Collection Source", "Data Source", 1),
        (2, "Map", "Operator", 2),
        (3, "Keyed Sum", "Operator", 2),
        (4, "out", "Data Sink", 2),
    ]
    assert [n["predecessors"][0]["ship_strategy"] for n in plan[1:]] == [
        "REBALANCE", "HASH", "FORWARD",
    ]  # fmt: skip
    assert plan[3]["contents"] == "x"
    assert plan[3]["predecessors"] == [{"id": 3, "ship_strategy": "FORWARD", "side": "second"}]


def test_batch_mode_adds_a_local_aggregate_of_columns_before_the_exchange(env: Any) -> None:
    env.set_parallelism(2)
    columns = env.from_arrow(pa.table({"k": [1, 2], "v": [1, 2]})).rebalance()
    columns.map_batches(lambda batch: batch).key_by("k").sum("v").print()
    first, second, third = "Source: Arrow", "MapBatches", "Keyed Sum -> Sink: Print to Std. Out"
    assert chain_names(env) == [first, second, third]
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    assert chain_names(env) == [first, f"{second} -> Local Keyed Sum", third]
    plan = json.loads(env.get_execution_plan())["nodes"]
    assert [n["predecessors"][0]["ship_strategy"] for n in plan[1:]] == [
        "REBALANCE", "FORWARD", "HASH", "FORWARD",
    ]  # fmt: skip


@pytest.mark.parametrize("parallelism", [1, 2])
def test_window_aggregate_of_columns_gets_a_local_operator_but_the_same_operator_ids(
    parallelism: int,
) -> None:
    def build(parallelism: int) -> StreamGraph:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        table = env.from_arrow(pa.table({"k": [1], "v": [1], "t": [0]}))
        by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        keyed = table.assign_timestamps_and_watermarks(by_time).key_by("k")
        keyed.window(TumblingEventTimeWindows.of(5)).aggregate_columns(n="count").print()
        return env.get_stream_graph()

    graph = build(parallelism)
    locals_ = [node.name for node in graph.nodes if node.is_local]
    name = "Local TumblingEventTimeWindows, Aggregate columns"
    assert locals_ == ([] if parallelism == 1 else [name])
    ids, others = graph.operator_ids(), build(3 - parallelism).operator_ids()
    by_name = {node.name: ids[node.id] for node in graph.nodes if not node.is_local}
    assert len(by_name) > 3
    assert set(by_name.values()) <= set(others.values())


def test_forward_between_different_parallelisms_is_refused(env: Any) -> None:
    numbers(env).forward().map(lambda v: v).set_parallelism(2)
    with pytest.raises(StreamError, match=r"use rebalance\(\)"):
        env.get_stream_graph()


def test_parallelism_above_max_parallelism_is_refused(env: Any) -> None:
    numbers(env).map(lambda v: v).set_parallelism(5).set_max_parallelism(4)
    with pytest.raises(StreamError, match="greater than its max parallelism 4"):
        env.get_stream_graph()


@pytest.mark.parametrize(
    ("sources", "targets", "producers"),
    [
        (3, 5, [[0], [0], [1], [1], [2]]),
        (5, 3, [[0], [1, 2], [3, 4]]),
        (6, 4, [[0], [1, 2], [3], [4, 5]]),
        (10, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
    ],
)
def test_rescale_exchange_connects_each_subtask_with_its_share_of_the_producers(
    sources: int, targets: int, producers: list[list[int]]
) -> None:
    found = [list(pointwise_producers(sources, targets, t)) for t in range(targets)]
    assert found == producers


def test_results_of_a_chained_operator_have_numbers_in_the_order_of_the_operators(env: Any) -> None:
    """Checkpoints refer to results by their position in the plan: the results of an operator
    precede those of operators chained after it."""
    source = numbers(env)
    source.map(lambda v: v).key_by(lambda v: v).reduce(lambda a, b: a)
    source.key_by(lambda v: v).reduce(lambda a, b: b)
    graph = env.get_stream_graph()
    plan = plan_chain(graph, graph.chains()[0])
    clock = ManualClock()
    made: dict[int, RecordWriter] = {}

    def make_writer(result: int) -> RecordWriter:
        made[result] = RecordWriter([], ForwardPartitioner())
        return made[result]

    builder = ChainBuilder(
        plan,
        OperatorCopies().copy_of,
        make_writer,
        0,
        1,
        0,
        clock,
        ProcessingTimeService(clock),
        MetricGroup(),
        LocalGlobalAggregateManager(),
    )
    builder.build()
    assert list(made) == [1, 0]
    assert builder.writers == [made[0], made[1]]
