"""What programs give by mistake is refused where they give it, and the text says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flinkray.core.durations import Duration, Time
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import (
    ModelFunction,
    OutputTag,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Configuration, Encoder, Types
from flinkray.datastream.connectors import DataGeneratorSource, FileSink, FileSource, ParquetFormat
from flinkray.datastream.connectors.file_system import StreamFormat
from flinkray.datastream.functions import KeyedProcessFunction, ProcessFunction
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from tests.streaming.sources.reading import read

Wrong = Any
"""Arguments that no type checker would let through."""

environment = StreamExecutionEnvironment.get_execution_environment


def wrong(value: object) -> Wrong:
    return value


FRAME = pd.DataFrame({"x": [1, 2]})


class Identity(ModelFunction):
    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def infer(model: ModelFunction, **arguments: Any) -> object:
    return environment().from_collection([1]).infer(model, **arguments)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a text for the parallelism": (
        lambda: environment().set_parallelism(wrong("2")),
        "parallelism is a whole number (int), got '2'",
    ),
    "a fraction for the parallelism": (
        lambda: environment().set_parallelism(wrong(1.5)),
        "parallelism is a whole number (int), got 1.5",
    ),
    "a truth value for an operator's parallelism": (
        lambda: environment().from_sequence(1, 2).set_parallelism(True),
        "parallelism is a whole number (int), got True",
    ),
    "a text for the max parallelism": (
        lambda: environment().set_max_parallelism(wrong("128")),
        "max parallelism is a whole number (int), got '128'",
    ),
    "a text for the checkpoint interval": (
        lambda: environment().enable_checkpointing(wrong("1000")),
        "a checkpoint interval in milliseconds is a whole number (int), got '1000'",
    ),
    "a duration for the checkpoint interval": (
        lambda: environment().enable_checkpointing(wrong(Duration.of_seconds(1))),
        "a checkpoint interval in milliseconds is a whole number (int), got Duration(1000 ms)",
    ),
    "a text for the buffer time-out": (
        lambda: environment().set_buffer_timeout(wrong("50")),
        "a buffer time-out in milliseconds is a whole number (int), got '50'",
    ),
    "no replica": (
        lambda: infer(Identity(), replicas=0),
        "infer: replicas must be a number from 1 to 1000, or two of them, (least, largest), not 0",
    ),
    "fewer replicas at most than at least": (
        lambda: infer(Identity(), replicas=(3, 2)),
        "infer: replicas must be a number from 1 to 1000, or two of them, (least, largest), not "
        "(3, 2)",
    ),
    "no record in a batch for a model": (
        lambda: infer(Identity(), batch_size=0),
        "infer: batch_size must be at least 1, got 0",
    ),
    "a negative wait for a batch for a model": (
        lambda: infer(Identity(), max_wait=-1),
        "infer: max_wait must not be negative, got -1",
    ),
    "a part of a device beside a whole one for a model": (
        lambda: infer(Identity(), gpu=1.5),
        "infer: GPU must be at most 1 or a whole number, not 1.5",
    ),
    "a replica without a processor": (
        lambda: infer(Identity(), cpu=0),
        "infer: cpu must be more than 0, not 0",
    ),
    "no time for a model": (
        lambda: infer(Identity(), timeout=0),
        "infer: timeout must be more than 0, not 0",
    ),
    "a negative number of retries of a model": (
        lambda: infer(Identity(), retries=-1),
        "infer: retries must not be negative, got -1",
    ),
    "an unknown output of a model": (
        lambda: infer(Identity(), output=wrong("both")),
        "infer: output must be one of append, replace, not 'both'",
    ),
    "a shared model without a name": (
        lambda: infer(Identity(), shared=""),
        "infer: shared must be printable characters, not ''",
    ),
    "a text for the errors of a model": (
        lambda: infer(Identity(), errors=wrong("errors")),
        "infer: errors must be an OutputTag, not str",
    ),
    "the class of a model": (
        lambda: infer(wrong(Identity)),
        "infer takes an object of a subclass of ModelFunction, not the class itself",
    ),
    "a function as a model": (
        lambda: infer(wrong(abs)),
        "infer takes an object of a subclass of ModelFunction, not builtin_function_or_method",
    ),
    "no rows in a batch": (
        lambda: environment().from_collection([1]).map_batches(lambda b: b, max_size=0),
        "map_batches: max_size must be at least 1, got 0",
    ),
    "a delay for a batch without a size": (
        lambda: environment().from_collection([1]).map_batches(lambda b: b, max_delay="20 ms"),
        "map_batches: max_delay needs max_size, the rows to wait for",
    ),
    "a negative delay for a batch": (
        lambda: (
            environment().from_collection([1]).map_batches(lambda b: b, max_size=2, max_delay=-1)
        ),
        "map_batches: max_delay must not be negative, got -1",
    ),
    "a part of a device beside a whole one": (
        lambda: (
            environment()
            .from_collection([1])
            .map(abs)
            .slot_sharing_group(
                SlotSharingGroup.builder("g")
                .set_cpu_cores(1)
                .set_task_heap_memory_mb(100)
                .set_external_resource("GPU", 1.5)
                .build()
            )
        ),
        "slot-sharing group 'g': GPU must be at most 1 or a whole number, not 1.5",
    ),
    "the name of a runtime mode": (
        lambda: environment().set_runtime_mode(wrong("BATCH")),
        "set_runtime_mode takes a RuntimeExecutionMode, such as RuntimeExecutionMode.BATCH, "
        "got 'BATCH'",
    ),
    "the name of a checkpointing mode": (
        lambda: environment().enable_checkpointing(1000, wrong("AT_LEAST_ONCE")),
        "a CheckpointingMode is needed, such as CheckpointingMode.EXACTLY_ONCE, "
        "got 'AT_LEAST_ONCE'",
    ),
    "a text for a span of seconds": (
        lambda: Time.seconds(wrong("5")),
        "a span of time takes a number, got '5'",
    ),
    "a text for a duration": (
        lambda: Duration.of_minutes(wrong("5")),
        "a span of time takes a number, got '5'",
    ),
    "a text for a span of milliseconds": (
        lambda: Time.milliseconds(wrong("5")),
        "a span of time takes a number, got '5'",
    ),
    "a dictionary for a configuration": (
        lambda: environment(wrong({"parallelism.default": "2"})),
        "a Configuration is needed, got {'parallelism.default': '2'}: Configuration.from_dict(…) "
        "makes one of a dictionary",
    ),
    "the address of a cluster": (
        lambda: environment(cluster=wrong("auto")),
        "cluster is a client as flinkray.connect() returns it, got 'auto'",
    ),
    "a data frame for a collection": (
        lambda: environment().from_collection(FRAME),
        "from_collection takes Python values, got a pandas DataFrame: "
        "env.from_arrow(pyarrow.Table.from_pandas(data)) reads its rows",
    ),
    "an Arrow table for a collection": (
        lambda: environment().from_collection(wrong(pa.table({"x": [1]}))),
        "from_collection takes Python values, got a pyarrow Table: env.from_arrow(…) reads the "
        "rows of Arrow tables",
    ),
    "a data frame for Arrow data": (
        lambda: environment().from_arrow(wrong(FRAME)),
        "from_arrow takes Arrow data, got a pandas DataFrame: "
        "env.from_arrow(pyarrow.Table.from_pandas(data)) reads its rows",
    ),
    "a type that is not called": (
        lambda: environment().from_collection([1], wrong(Types.INT)),
        "a type is needed, such as Types.STRING(), got Types.INT: write Types.INT()",
    ),
    "a type of Python": (
        lambda: environment().from_collection([1]).map(lambda v: v, output_type=wrong(int)),
        "a type is needed, such as Types.STRING(), got <class 'int'>",
    ),
    "a type of Python for a source": (
        lambda: environment().from_source(
            DataGeneratorSource(abs, 1), WatermarkStrategy.no_watermarks(), "n", wrong(int)
        ),
        "a type is needed, such as Types.STRING(), got <class 'int'>",
    ),
    "a type of Python for keys": (
        lambda: environment().from_collection([1]).key_by(abs, key_type=wrong(int)),
        "a type is needed, such as Types.STRING(), got <class 'int'>",
    ),
    "a part of a type that is not called": (
        lambda: Types.TUPLE([Types.STRING(), wrong(Types.INT)]),
        "a type is needed, such as Types.STRING(), got Types.INT: write Types.INT()",
    ),
    "None for a part of a type": (
        lambda: Types.LIST(wrong(None)),
        "a type is needed, such as Types.STRING(), got None",
    ),
    "a type of Python for the values of a map": (
        lambda: Types.MAP(Types.STRING(), wrong(int)),
        "a type is needed, such as Types.STRING(), got <class 'int'>",
    ),
    "a text for an output tag": (
        lambda: environment().from_collection([1]).get_side_output(wrong("late")),
        "get_side_output takes an OutputTag, got 'late'",
    ),
    "a fraction for the end of a sequence": (
        lambda: environment().from_sequence(1, wrong(5.5)),
        "the end of a number sequence is a whole number (int), got 5.5",
    ),
    "a fraction for a count": (
        lambda: DataGeneratorSource(abs, wrong(3.5)),
        "the count of records is a whole number (int), got 3.5",
    ),
    "a format in the place of another path": (
        lambda: FileSource("/data", "csv"),
        "FileSource takes paths without names, and 'csv' in their place looks like the format: "
        "give file_format='csv', or './csv' for a file or directory of that name",
    ),
    "a format in capitals in the place of another path": (
        lambda: FileSource("/data", "CSV"),
        "FileSource takes paths without names, and 'CSV' in their place looks like the format: "
        "give file_format='csv', or './CSV' for a file or directory of that name",
    ),
    "a PyFlink format in the place of another path": (
        lambda: FileSource("/data", wrong(StreamFormat.text_line_format())),
        "a path of a FileSource is a str or a pathlib.Path, "
        "got StreamFormat(file_format='text', encoding='UTF-8'); several are given one by one, "
        "and a format is given as file_format=",
    ),
    "a list of paths": (
        lambda: FileSource(wrong(["/data", "/more"])),
        "a path of a FileSource is a str or a pathlib.Path, got ['/data', '/more']; "
        "several are given one by one, and a format is given as file_format=",
    ),
    "a PyFlink format for the format of a source": (
        lambda: FileSource("/data", file_format=wrong(StreamFormat.text_line_format())),
        "file_format of a FileSource is one of 'text', 'csv', 'json', 'parquet', or a "
        "RecordFormat, got StreamFormat(file_format='text', encoding='UTF-8')",
    ),
    "a column's name for the names of columns": (
        lambda: FileSource("/data", file_format="csv", column_names=wrong("id")),
        "column_names is a list of texts, got 'id'",
    ),
    "an encoder for the format of a sink": (
        lambda: FileSink("/data", wrong(Encoder.simple_string_encoder())),
        "file_format of a FileSink is one of 'text', 'json', 'csv', 'parquet', or a FileFormat, "
        "got Encoder(file_format='text')",
    ),
    "a class for the format of a sink": (
        lambda: FileSink("/data", wrong(ParquetFormat)),
        "file_format of a FileSink is one of 'text', 'json', 'csv', 'parquet', or a FileFormat, "
        "got <class 'flinkray.streaming.sinks.file_formats.ParquetFormat'>",
    ),
    "several paths of a sink": (
        lambda: FileSink(wrong(["/data"])),
        "a path of a FileSink is a str or a pathlib.Path, got ['/data']",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistaken_argument_is_refused_at_once_with_a_message_that_names_it(mistake: str) -> None:
    give, words = REFUSED[mistake]
    errors = (TypeError, ValueError, StreamError, ConfigurationError)
    with pytest.raises(errors, match=f"^{re.escape(words)}$"):
        give()


def test_directory_named_like_a_format_is_read_when_given_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("csv", "text"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lines").write_text(f"{name}\n")
    for source in (FileSource("csv", "./text"), FileSource(Path("csv"), Path("text"))):
        assert sorted(read(source)) == ["csv", "text"]


def test_numpy_numbers_are_accepted_as_integers_and_floats() -> None:
    env = environment().set_parallelism(wrong(np.int64(2)))
    assert env.get_parallelism() == 2
    assert Time.seconds(wrong(np.float64(0.5))) == Time.milliseconds(500)


def test_negative_out_of_orderness_is_refused() -> None:
    with pytest.raises(ValueError, match="out-of-orderness must not be negative, got -5000 ms"):
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(-5))


class OpenedWithoutContext:
    def open(self) -> None:
        raise AssertionError("is not called")

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


class JavasProcessFunction(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> Any:  # type: ignore[override]
        out.collect(value)


class OpenedWithoutRuntimeContext(KeyedProcessFunction[Any, Any, Any]):
    def open(self) -> None:  # type: ignore[override]
        raise AssertionError("is not called")

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


class TimerWithoutContext(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def on_timer(self, timestamp: int) -> Any:  # type: ignore[override]
        raise AssertionError("is not called")


def pairs() -> Any:
    return environment().from_collection([(1, 2)])


ARGUMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "map with the parts of a pair": (
        lambda: pairs().map(lambda one, other: one + other),
        "<lambda>(one, other) is called with a single value, which may be a tuple: "
        "missing a required argument: 'other'",
    ),
    "filter without an argument": (
        lambda: pairs().filter(lambda: True),
        "<lambda>() is called with a single value, which may be a tuple: "
        "too many positional arguments",
    ),
    "key_by with the parts of a pair": (
        lambda: pairs().key_by(lambda one, other: one),
        "<lambda>(one, other) is called with a single value, which may be a tuple: "
        "missing a required argument: 'other'",
    ),
    "reduce of one value": (
        lambda: pairs().key_by(lambda pair: pair[0]).reduce(lambda total: total),
        "<lambda>(total) is called with 2 values: too many positional arguments",
    ),
    "process_element as in Java": (
        lambda: pairs().process(JavasProcessFunction()),
        "process_element(value, ctx, out) is called with 2 values, value and ctx: "
        "missing a required argument: 'out'",
    ),
    "open without a context": (
        lambda: pairs().key_by(lambda v: v[0]).process(OpenedWithoutRuntimeContext()),
        "open() is called with a single value, runtime_context: too many positional arguments",
    ),
    "on_timer without a context": (
        lambda: pairs().key_by(lambda v: v[0]).process(TimerWithoutContext()),
        "on_timer(timestamp) is called with 2 values, timestamp and ctx: "
        "too many positional arguments",
    ),
    "open of an object of batches": (
        lambda: pairs().map_batches(OpenedWithoutContext()),
        "open() is called with a single value, runtime_context: too many positional arguments",
    ),
}


@pytest.mark.parametrize("mistake", ARGUMENTS)
def test_function_with_a_wrong_number_of_parameters_is_refused_at_once(mistake: str) -> None:
    give, words = ARGUMENTS[mistake]
    with pytest.raises(TypeError, match=re.escape(words)):
        give()


def test_function_with_optional_parameters_is_accepted() -> None:
    def doubled(value: int, factor: int = 2) -> int:
        return value * factor

    def anything(*values: int) -> int:
        return sum(values)

    numbers = environment().from_collection([1, 2]).map(doubled).map(anything).map(abs).map(float)
    assert list(numbers.execute_and_collect()) == [2.0, 4.0]


def test_class_in_place_of_a_batch_function_object_is_refused() -> None:
    with pytest.raises(TypeError, match="make an object of it"):
        pairs().map_batches(OpenedWithoutContext)


def frames(batch: pa.RecordBatch) -> Any:
    return batch.to_pandas()


def dictionary(batch: pa.RecordBatch) -> Any:
    return {"x": batch["x"]}


def column(batch: pa.RecordBatch) -> Any:
    return batch["x"]


def array_of_numpy(batch: pa.RecordBatch) -> Any:
    return batch["x"].to_numpy()


def list_of_names(batch: pa.RecordBatch) -> Any:
    return batch.schema.names


def generated_frames(batch: pa.RecordBatch) -> Iterator[Any]:
    yield batch.to_pandas()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (frames, "got DataFrame: pyarrow.RecordBatch.from_pandas(frame) makes one of it"),
        (generated_frames, "got DataFrame: pyarrow.RecordBatch.from_pandas(frame) makes one of it"),
        (dictionary, "got dict: pyarrow.record_batch(columns) makes one of it"),
        (column, "got Int64Array"),
        (array_of_numpy, "got ndarray"),
        (list_of_names, "got str"),
    ],
)
def test_result_of_a_batch_function_that_is_no_batch_is_refused_by_type(
    function: Callable[[pa.RecordBatch], Any], words: str
) -> None:
    stream = environment().from_arrow(pa.table({"x": [1, 2]})).map_batches(function)
    with pytest.raises(OperatorError, match=re.escape(words)) as refused:
        list(stream.execute_and_collect())
    assert isinstance(refused.value.__cause__, StreamError)


def test_configuration_and_output_tag_are_accepted_as_arguments() -> None:
    configuration = Configuration.from_dict({"parallelism.default": "3"})
    env = environment(configuration)
    assert env.get_parallelism() == 3
    assert list(env.from_sequence(3, 3).get_side_output(OutputTag("t")).execute_and_collect()) == []
