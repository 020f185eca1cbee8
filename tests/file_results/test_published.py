"""Partitions that are read while others are still computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.file_results import (
    FileResultLostError,
    NonDeterministicSourceError,
    Publication,
    PublishedPartitions,
    digest_of,
)
from flinkray.ha.directory import TakenOverError

SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch([pa.array([1, 2, 3])], schema=SCHEMA)


def published_in(path: Path) -> PublishedPartitions:
    published = PublishedPartitions(str(path))
    published.begin("a")
    return published


def there(published: PublishedPartitions) -> list[int]:
    publication = published.publication()
    assert publication is not None
    return sorted(published.list(publication))


def test_publication_is_none_before_an_attempt_has_begun_it(tmp_path: Path) -> None:
    assert PublishedPartitions(str(tmp_path / "none")).publication() is None


def test_partition_is_listed_once_it_is_written_completely_and_accepted(tmp_path: Path) -> None:
    published = published_in(tmp_path)
    seen: list[list[int]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        seen.append(there(published))
        yield BATCH

    one = published.write("a", 4, SCHEMA, batches())
    assert (seen, there(published)) == ([[]], [])

    published.accept("a", one)

    assert there(published) == [4]


def test_partition_whose_writing_fails_is_not_listed(tmp_path: Path) -> None:
    published = published_in(tmp_path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise ValueError("the task is lost")

    with pytest.raises(ValueError, match="lost"):
        published.write("a", 4, SCHEMA, batches())

    assert there(published) == []


def test_partition_stays_readable_in_every_attempt_that_was_accepted(tmp_path: Path) -> None:
    published = published_in(tmp_path)
    first = published.write("a", 0, SCHEMA, [BATCH])
    second = published.write("a", 0, SCHEMA, [BATCH])
    for one in (first, second, first):
        published.accept("a", one)

    assert first.name != second.name
    assert there(published) == [0]
    for one in (first, second):
        assert published.open("a", one.name).read_all().num_rows == one.rows == 3


def test_partition_of_an_attempt_that_was_not_accepted_is_not_listed(tmp_path: Path) -> None:
    """Its input may have broken off, so that it wrote only a part of the rows."""
    published = published_in(tmp_path)
    part, whole = (published.write("a", 0, SCHEMA, [BATCH] * number) for number in (1, 2))
    published.accept("a", whole)
    published.seal("a", {0: 6})

    publication = published.publication()
    assert publication is not None
    assert published.list(publication) == {0: whole}
    assert part.name != whole.name


def test_partition_whose_file_is_gone_is_not_listed(tmp_path: Path) -> None:
    published = published_in(tmp_path)
    first, second = (published.write("a", 0, SCHEMA, [BATCH]) for _ in range(2))
    for one in (first, second):
        published.accept("a", one)
    (tmp_path / "a" / first.name).unlink()
    assert published.list(Publication("a", None)) == {0: second}
    (tmp_path / "a" / second.name).unlink()
    assert there(published) == []


def test_empty_partition_has_its_columns(tmp_path: Path) -> None:
    published = published_in(tmp_path)
    one = published.write("a", 0, SCHEMA, [])
    assert published.open("a", one.name).schema == SCHEMA


def test_publication_is_complete_once_it_is_sealed(tmp_path: Path) -> None:
    published = published_in(tmp_path)
    assert published.publication() == Publication("a", None)

    published.seal("a", {0: 3, 1: 0})

    assert published.publication() == Publication("a", {0: 3, 1: 0})


def test_second_seal_does_not_replace_the_first_publication(tmp_path: Path) -> None:
    published = PublishedPartitions(str(tmp_path))
    published.seal("first", {0: 3})
    published.seal("late", {0: 4})
    assert published.publication() == Publication("first", {0: 3})


def test_publication_without_a_begin_marker_is_visible_only_once_it_is_sealed(
    tmp_path: Path,
) -> None:
    published = PublishedPartitions(str(tmp_path))
    published.accept("attempt", published.write("attempt", 0, SCHEMA, [BATCH]))
    assert published.publication() is None

    published.seal("attempt", {0: 3})

    assert there(published) == [0]


def test_different_rows_may_not_be_published_once_a_partition_is_accepted(
    tmp_path: Path,
) -> None:
    published = published_in(tmp_path)
    published.begin("b")
    published.accept("b", published.write("b", 0, SCHEMA, [BATCH]))
    published.begin("b")

    with pytest.raises(NonDeterministicSourceError, match="what is computed now is c"):
        published.begin("c")


def test_opening_a_missing_partition_raises_an_error_with_its_file_name(tmp_path: Path) -> None:
    with pytest.raises(FileResultLostError, match=r"000007-1-x\.arrow"):
        published_in(tmp_path).open("a", "000007-1-x.arrow")


def digest_as_read(folder: Path, *batches: pa.RecordBatch) -> int:
    published, digest = published_in(folder), 0
    one = published.write("a", 0, batches[0].schema, batches)
    file = published.open("a", one.name)
    for place in range(file.num_record_batches):
        digest = digest_of(file.get_batch(place), digest)
    return digest


def test_partition_digests_are_equal_if_and_only_if_rows_and_their_order_are_equal(
    tmp_path: Path,
) -> None:
    nested = pa.struct([("a", pa.list_(pa.string())), ("b", pa.int32())])
    rows: list[list[Any]] = [
        [1, 2, 3],
        [1, 3, 2],
        [1, 2, None],
        [1, 2, 0],
        [{"a": ["x", "y"], "b": 1}],
        [{"a": ["x", "z"], "b": 1}],
        [{"a": ["x", "y"], "b": None}],
        [{"a": None, "b": 1}],
        [{"a": ["xy"], "b": 1}],
    ]

    def batch(values: list[Any]) -> pa.RecordBatch:
        kind = nested if isinstance(values[0], dict) else pa.int64()
        return pa.record_batch({"n": pa.array(values, kind)})

    digests = [digest_as_read(tmp_path, batch(values)) for values in rows]
    assert len({*digests}) == len(rows)
    assert [digest_as_read(tmp_path, batch(values)) for values in rows] == digests
    one, other = batch([1, 2]), batch([3])
    assert digest_as_read(tmp_path, one, other) != digest_as_read(tmp_path, other, one)


def test_attempt_with_a_successor_can_neither_begin_nor_seal_a_publication(tmp_path: Path) -> None:
    """The attempt is paused between its check and its write. Otherwise a reader of the successor's
    partitions would find the attempt's partitions in their place."""
    first, second = PublishedPartitions(str(tmp_path)), PublishedPartitions(str(tmp_path))
    first.begin("a")
    second.begin("b")
    second.accept("b", second.write("b", 0, SCHEMA, [BATCH]))
    acts: tuple[Callable[[], None], ...] = (
        lambda: first.begin("a"),
        lambda: first.seal("a", {0: 3}),
    )
    for act in acts:
        with pytest.raises(TakenOverError):
            act()
    assert PublishedPartitions(str(tmp_path)).publication() == Publication("b", None)
    second.seal("b", {0: 3})
    assert PublishedPartitions(str(tmp_path)).publication() == Publication("b", {0: 3})


@pytest.mark.parametrize("name", ["_begun.json", "_sealed.json"])
def test_publication_begun_by_an_earlier_version_is_continued_and_sealed(
    tmp_path: Path, name: str
) -> None:
    rows = [[0, 3]]
    content = {"version": 1, "id": "a", "rows": rows, "division": {"key": "value"}}
    (tmp_path / name).write_text(json.dumps(content))
    is_sealed = name == "_sealed.json"
    known = Publication("a", {0: 3} if is_sealed else None, {"key": "value"})
    assert PublishedPartitions(str(tmp_path)).publication() == known
    PublishedPartitions(str(tmp_path)).seal("a", {0: 3}, {"key": "value"})
    sealed = Publication("a", {0: 3}, {"key": "value"})
    assert PublishedPartitions(str(tmp_path)).publication() == sealed


def test_division_into_partitions_by_the_first_attempt_is_kept_by_the_second(
    tmp_path: Path,
) -> None:
    first, second = PublishedPartitions(str(tmp_path)), PublishedPartitions(str(tmp_path))
    first.divide_as({"partitions": "4"})
    second.divide_as({"partitions": "8"})
    assert second.division() == first.division() == {"partitions": "4"}
