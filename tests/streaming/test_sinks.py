"""Sinks: files that appear whole, printing, callbacks, commits with checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.datastream import Row, StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import CallbackSink, FileSink, ParquetFormat, Sink
from flinkray.streaming.elements import Block
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sinks.files import RenamingCommitter
from flinkray.streaming.sinks.sink import SinkOperator
from flinkray.testing.operator_harness import OperatorHarness


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def test_files_are_hidden_until_their_checkpoint_is_complete(tmp_path: Path) -> None:
    operator = SinkOperator(FileSink(tmp_path))
    h = OperatorHarness(operator)
    h.process("a", "b")
    assert visible(tmp_path) == []
    h.snapshot(1)
    h.process("c")
    h.snapshot(2)
    assert visible(tmp_path) == []
    operator.notify_checkpoint_complete(1)
    assert [path.name for path in visible(tmp_path)] == ["part-0-0-0.txt"]
    assert visible(tmp_path)[0].read_text() == "a\nb\n"
    h.process("d")
    h.finish()
    operator.close()
    assert [path.read_text() for path in visible(tmp_path)] == ["a\nb\n", "c\n", "d\n"]
    assert len(list(tmp_path.iterdir())) == 3


def test_failed_attempt_leaves_no_file_and_its_checkpoint_is_committed_by_the_next(
    tmp_path: Path,
) -> None:
    operator = SinkOperator(FileSink(tmp_path))
    h = OperatorHarness(operator)
    h.process("covered")
    snapshot = h.snapshot(1)
    h.process("lost")
    operator.close()
    restored = OperatorHarness(SinkOperator(FileSink(tmp_path)), restore=snapshot)
    assert [path.read_text() for path in visible(tmp_path)] == ["covered\n"]
    restored.operator.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_committing_again_changes_nothing(tmp_path: Path) -> None:
    hidden, shown = tmp_path / ".x", tmp_path / "x"
    hidden.write_text("once")
    for _ in range(2):
        RenamingCommitter().commit([(str(hidden), str(shown))])  # type: ignore[list-item]
    assert shown.read_text() == "once"


def write(sink: Sink[Any], values: list[Any], type_info: Any = None) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(values, type_info).sink_to(sink)
    env.execute()


ROWS = [Row.of(["x", "name"], [n, f"n{n}"]) for n in range(5)]


def test_formats(tmp_path: Path) -> None:
    for file_format in ("csv", "json", "parquet"):
        write(FileSink(tmp_path / file_format, file_format), ROWS)
    (csv_file,) = visible(tmp_path / "csv")
    assert csv_file.read_text() == "0,n0\n1,n1\n2,n2\n3,n3\n4,n4\n"
    (json_file,) = visible(tmp_path / "json")
    lines = json_file.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row.as_dict() for row in ROWS]
    assert pq.read_table(tmp_path / "parquet").to_pylist() == [row.as_dict() for row in ROWS]
    with pytest.raises(StreamError, match="unknown file format 'xml'"):
        FileSink(tmp_path, "xml")


def test_parquet_has_the_declared_types(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    write(FileSink(tmp_path, ParquetFormat(kind)), [(1, "x"), (2, None)])
    table = pq.read_table(tmp_path)
    assert table.schema.field("a").type == pa.int16()
    assert table.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_full_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    h = OperatorHarness(SinkOperator(FileSink(tmp_path, roll_size=10)))
    for _ in range(3):
        h.process("0123456789")
    h.finish()
    assert [path.name for path in visible(tmp_path)] == [
        "part-0-0-0.txt", "part-0-0-1.txt", "part-0-0-2.txt",
    ]  # fmt: skip


def test_printing_names_the_subtask_where_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    typed = env.from_collection([("a", True)], Types.TUPLE([Types.STRING(), Types.BOOLEAN()]))
    typed.print()
    env.execute()
    assert capsys.readouterr().out == "(a,true)\n"
    stream = env.from_collection([1, 2]).rebalance().map(lambda v: v).set_parallelism(2)
    stream.print("out").set_parallelism(2)
    env.execute()
    assert {line.partition("> ")[0] for line in capsys.readouterr().out.splitlines()} == {
        "out:1", "out:2",
    }  # fmt: skip


def test_callbacks_take_values_or_batches() -> None:
    values: list[Any] = []
    batches: list[Any] = []
    write(CallbackSink(values.append), [1, 2])
    write(CallbackSink(on_batch=batches.append), [1, 2])
    assert (values, batches) == ([1, 2], [[1, 2]])
    with pytest.raises(ValueError, match="either"):
        CallbackSink()


def test_writer_is_closed_also_when_nothing_was_written(tmp_path: Path) -> None:
    operator = SinkOperator(FileSink(tmp_path / "new"))
    h = OperatorHarness(operator)
    operator.process_block(Block(["x"]))
    operator.close()
    assert list((tmp_path / "new").iterdir()) == []
    assert h.values() == []
