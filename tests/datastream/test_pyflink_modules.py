"""Names and parameters of PyFlink."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import KeyedBroadcastProcessFunction, Row, RowKind
from flinkray.datastream.connectors import kafka
from tests.datastream.pyflink_modules import PYFLINK_MODULES, public_names
from tests.datastream.pyflink_signatures import PYFLINK
from tests.datastream.test_api_surface import SURFACE

NAMES = {module: names.split() for module, names in PYFLINK_MODULES.items()}

MISSING_MODULES = {
    "connectors of other systems": "connectors.cassandra connectors.dynamic_kafka "
    "connectors.elasticsearch connectors.hybrid_source connectors.jdbc "
    "connectors.kinesis connectors.pulsar connectors.rabbitmq",
    "formats for Java's readers and writers": "formats.avro formats.orc formats.parquet",
    "what runs in a JVM": "utils",
}
"""Modules of ``pyflink.datastream`` of which nothing is there, by what they are for."""

MISSING = {
    "what runs in a JVM": "AssignerWithPeriodicWatermarksWrapper BulkWriterFactory "
    "CustomCheckpointStorage CustomStateBackend JavaObjectWrapper "
    "RowDataBulkWriterFactory RowFieldExtractorSchema SourceFunction StreamTransformer "
    "SupportsPreprocessing",
    "the Table API and Flink 1": "ConfigOption ConfigOptions FlinkKafkaConsumer "
    "FlinkKafkaConsumerBase FlinkKafkaProducer FlinkKafkaProducerBase InputDependencyConstraint "
    "Semantic",
    "readers and compaction of files": "BulkFormat DefaultRollingPolicy FileCompactStrategy "
    "FileCompactor OnCheckpointRollingPolicy StreamingFileSink",
    "DataStream.cache": "CachedDataStream",
    "classes behind Types": "BasicType DateTypeInfo ExternalTypeInfo InstantTypeInfo "
    "LocalTimeTypeInfo SqlTimeTypeInfo TimeTypeInfo TimestampTypeInfo",
    "classes behind with_dynamic_gap": "DynamicEventTimeSessionWindows "
    "DynamicProcessingTimeSessionWindows",
    "how PyFlink runs functions": "FunctionWrapper InternalIterableAllWindowFunction "
    "InternalIterableProcessAllWindowFunction InternalIterableProcessWindowFunction "
    "InternalIterableWindowFunction InternalProcessAllWindowContext InternalProcessWindowContext "
    "InternalSingleValueAllWindowFunction InternalSingleValueProcessAllWindowFunction "
    "InternalSingleValueProcessWindowFunction InternalSingleValueWindowFunction "
    "InternalWindowFunction JavaFunctionWrapper Min OperatorStateStore "
    "PassThroughAllWindowFunction PassThroughWindowFunction ReduceFunctionWrapper "
    "WindowOperationDescriptor",
}
"""Names that are missing wherever PyFlink has them, by what they are for."""


def words(table: dict[str, str]) -> set[str]:
    return {word for text in table.values() for word in text.split()}


def find(module: str, name: str) -> Any:
    """What a program gets that changed its imports; None: an ImportError."""
    package, _, rest = module.partition(".")
    here = "flinkray.datastream" + ("" if package == "datastream" else f".{package}")
    try:
        return getattr(importlib.import_module(f"{here}.{rest}".rstrip(".")), name, None)
    except ModuleNotFoundError:
        return None


def not_found(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is neither there nor known to be missing."""
    modules = {f"datastream.{module}" for module in words(MISSING_MODULES)}
    here = {module: here for module, here in names.items() if module not in modules}
    absent = {
        module: [n for n in here if n not in words(MISSING) and find(module, n) is None]
        for module, here in here.items()
    }
    return {module: names for module, names in absent.items() if names}


def test_each_public_name_of_pyflink_is_in_the_same_module_or_listed_missing() -> None:
    assert not_found(NAMES) == {}


def test_check_of_pyflink_names_finds_unknown_names_and_modules() -> None:
    names = {"common.time": ["Duration", "Aeon"], "datastream.nowhere": ["DataStream"]}
    assert not_found(names) == {"common.time": ["Aeon"], "datastream.nowhere": ["DataStream"]}


def test_name_exported_by_several_modules_is_one_object() -> None:
    found: dict[str, set[int]] = {}
    for module, names in NAMES.items():
        for name in names:
            value = find(module, name)
            if value is not None:
                found.setdefault(name, set()).add(id(value))
    assert len(found) > 100
    assert {name for name, values in found.items() if len(values) > 1} == set()


FORMER_PLACES = [
    ("common.job_status", "JobStatus"),
    ("common.serialization", "SimpleStringSchema"),
    ("connectors.file_system", "FileSource"),
    ("connectors.file_system", "FileSink"),
    ("connectors.kafka", "KafkaSource"),
    ("connectors.kafka", "KafkaSink"),
    ("connectors.kafka", "KafkaRecordDeserializationSchema"),
    ("connectors.kafka", "_SerializesByParts"),
    ("connectors.postgresql", "FencedSinkError"),
]
"""Classes of programs in stored jobs, under the names by which they were pickled."""


@pytest.mark.parametrize(("module", "name"), FORMER_PLACES)
def test_class_that_moved_is_unpickled_under_its_former_name(module: str, name: str) -> None:
    pickled = f"cflinkray.datastream.{module}\n{name}\n.".encode()
    found = pickle.loads(pickled)
    assert found.__name__ == name
    assert not found.__module__.startswith("flinkray.datastream")
    assert pickle.loads(pickle.dumps(found)) is found


def test_pyflink_names_listed_as_missing_do_not_exist_in_flinkray() -> None:
    assert {name for names in NAMES.values() for name in names} >= words(MISSING)
    assert set(NAMES) >= {f"datastream.{module}" for module in words(MISSING_MODULES)}
    there = [
        (module, name)
        for module, names in NAMES.items()
        for name in names
        if module.removeprefix("datastream.") in words(MISSING_MODULES) or name in words(MISSING)
        if find(module, name) is not None
    ]
    assert there == []


def test_no_commonly_used_class_is_listed_as_missing() -> None:
    listed = {owner.__name__ for owner, _ in SURFACE} | set(PYFLINK)
    assert listed & words(MISSING) == set()


def test_each_public_name_of_an_installed_pyflink_is_in_the_same_module() -> None:
    """Any PyFlink from 2.0 on; the list of names is that of one version."""
    version = pytest.importorskip("pyflink.version", minversion="2.0").__version__
    names = public_names(Path(importlib.import_module("pyflink").__path__[0]))
    assert len(names) > 50
    assert not_found(names) == {}
    if version == "2.3.0":
        assert names == NAMES


OWNERS = {owner.__name__: owner for owner, _ in SURFACE} | {
    name: getattr(kafka, name) for name in kafka.__all__
}
CALLS = [(owner, name) for owner, calls in PYFLINK.items() for name in calls]
SPELT_OTHERWISE = {
    # Several descriptors: one and the others there.
    ("DataStream", "broadcast"),
}


def parameters_of(function: Any) -> list[tuple[str, str]]:
    """Names and defaults, as they are written in ``PYFLINK``."""
    kinds = inspect.Parameter
    prefixes: dict[Any, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        found.append((prefixes.get(parameter.kind, "") + parameter.name, default))
    return found


def listed(text: str) -> list[tuple[str, str]]:
    split = [entry.partition("=") for entry in text.split(", ") if entry]
    return [(name, default) for name, _, default in split]


@pytest.mark.parametrize(("owner", "name"), CALLS, ids=lambda value: value)
def test_each_call_has_the_parameters_of_pyflink(owner: str, name: str) -> None:
    if (owner, name) in SPELT_OTHERWISE:
        return
    expected = listed(PYFLINK[owner][name])
    actual = parameters_of(getattr(OWNERS[owner], name))
    assert [entry[0] for entry in actual[: len(expected)]] == [entry[0] for entry in expected]
    for (_, mine), (_, theirs) in zip(actual, expected, strict=False):
        if not re.match(r"<|.*\bobject at", theirs):
            assert mine == theirs
    # What there is beyond PyFlink must not be needed.
    assert all(default or name.startswith("*") for name, default in actual[len(expected) :])


def test_row_can_be_made_with_a_row_kind() -> None:
    row = Row.of_kind(RowKind.DELETE, "a", 1)
    assert (row.get_row_kind(), list(row)) == (RowKind.DELETE, ["a", 1])


def test_timer_context_of_broadcast_functions_has_the_names_of_pyflink() -> None:
    context = KeyedBroadcastProcessFunction.OnTimerContext
    assert {"get_current_key", "timer_service", "timestamp"} <= set(dir(context))
