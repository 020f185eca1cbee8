"""Values, declared types and what is collected are PyFlink's, and where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import (
    Row,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import (
    Instant,
)
from flinkray.datastream.connectors.file_system import (
    FileEnumeratorProvider,
    FileSource,
    FileSplitAssignerProvider,
    StreamFormat,
)
from flinkray.streaming.errors import OperatorError
from tests.datastream.pyflink_streams import PAIR, RememberMap, results


def test_rows_keep_python_numbers_whatever_type_is_declared(env: Any) -> None:
    numbers = env.from_collection([("a", 2**31 - 1), ("a", 1)])
    sums = numbers.map(lambda v: v, PAIR).key_by(lambda v: v[0]).sum(1)
    assert [v for _, v in sums.execute_and_collect()][-1] == 2**31
    tenths = env.from_collection([1]).map(lambda v: v / 10, Types.FLOAT())
    assert list(tenths.execute_and_collect()) == [0.1]


def test_numbers_in_columns_have_the_range_and_precision_of_their_type(env: Any) -> None:
    def columns(value: Any, kind: Any) -> Any:
        return env.from_collection([value], kind).map_batches(lambda b: b).execute_and_collect()

    assert [row.value for row in columns(0.1, Types.FLOAT())] == [0.10000000149011612]
    with pytest.raises(OperatorError, match=r"128 too large to fit|128 not in range"):
        list(columns(128, Types.BYTE()))
    table = pa.table({"k": ["a", "a"], "v": [2**63 - 1, 1]})
    sums = [row.v for row in env.from_arrow(table).key_by("k").sum("v").execute_and_collect()]
    assert sums == [2**63 - 1, -(2**63)]


def test_collecting_returns_a_list_with_a_limit_and_an_iterator_without(env: Any) -> None:
    """PF-18"""
    stream = env.from_collection([1, 2, 3])
    assert stream.execute_and_collect(limit=2) == [1, 2]
    assert stream.execute_and_collect(limit=100) == [1, 2, 3]
    with env.from_collection([4, 5]).execute_and_collect("job name") as iterator:
        assert next(iterator) == 4
        assert list(iterator) == [5]


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


def test_objects_of_custom_classes_pass_through_untyped_streams(env: Any) -> None:
    """PF-19"""
    stream = env.from_collection([Custom(1), Custom(2)]).map(lambda c: Custom(c.value * 10))
    assert results(stream.rebalance().map(lambda c: c.value)) == [10, 20]


def test_row_types_make_rows_with_field_names(env: Any) -> None:
    stream = env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()]))
    assert results(stream.map(str)) == ["Row(f0=1, f1='a')"]
    named = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    assert results(stream.map(lambda r: (r[0], r.f1), named)) == [Row.of(["id", "name"], [1, "a"])]
    assert results(stream.map(lambda r: r, PAIR)) == [(1, "a")]


def test_instants_can_be_values_and_keys(env: Any) -> None:
    moments = [(Instant.of_epoch_milli(milli),) for milli in (5, -1, 5)]
    stream = env.from_collection(moments, Types.TUPLE([Types.INSTANT()])).key_by(lambda v: v[0])
    before = list(stream.map(RememberMap()).execute_and_collect())
    assert sorted(before, key=str) == [Instant(0, 5_000_000), None, None]
    for nanos in (-1, 1_000_000_000):
        with pytest.raises(ValueError, match="nanos must be 0 to 999999999"):
            Instant(0, nanos)


def test_file_source_accepts_the_enumerators_and_split_assigner_of_flink(
    env: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3\n")
    for enumerator in (
        FileEnumeratorProvider.default_splittable_file_enumerator(),
        FileEnumeratorProvider.default_non_splittable_file_enumerator(),
    ):
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))
        source.set_file_enumerator(enumerator)
        source.set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        lines = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines")
        assert results(lines) == ["1", "2", "3"]
