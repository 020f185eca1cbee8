"""Results as Parquet files: what is written once is read once, and what is lost is known."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.file_results import (
    FileResultLostError,
    ResultDirectory,
    ResultWriter,
    list_files,
    read_batches,
    share_of,
)
from flinkray.file_results.result_files import MANIFEST, ResultSchemaError

NUMBERS = pa.schema([("n", pa.int64())])


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=NUMBERS)


def written(path: Path, *batches: pa.RecordBatch) -> ResultDirectory:
    directory = ResultDirectory(str(path))
    writer = ResultWriter(directory, NUMBERS)
    for batch in batches:
        writer.write(batch)
    writer.finish()
    return directory


def read_by(reader: int, readers: int, *directories: ResultDirectory) -> list[int]:
    share = share_of(directories, reader, readers)
    return [n for batch in read_batches(share) for n in batch.column("n").to_pylist()]


@given(
    parts=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=3),
    readers=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_readers_of_a_result_together_read_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], readers: int
) -> None:
    root = tmp_path_factory.mktemp("result")
    first = 0
    directories = []
    for i, counts in enumerate(parts):
        batches = []
        for count in counts:
            batches.append(numbers(first, count))
            first += count
        directories.append(written(root / str(i), *batches))
    rows = [n for reader in range(readers) for n in read_by(reader, readers, *directories)]
    assert sorted(rows) == list(range(first))


def test_large_file_is_divided_among_several_readers(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", numbers(0, 400_000))
    shares = [len(read_by(reader, 2, directory)) for reader in range(2)]
    assert sum(shares) == 400_000
    assert min(shares) > 100_000


def test_result_without_rows_has_its_columns(tmp_path: Path) -> None:
    directory = written(tmp_path / "r")
    (file,) = directory.list()
    assert directory.open(file).schema_arrow.equals(NUMBERS)


def test_manifest_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    """Storages contain such manifests."""
    stored = (
        '{"version": 1, "files": [{"name": "part-00000.parquet", "size": %d, "row_groups": [3]}]}'
    )
    directory = written(tmp_path / "r", numbers(0, 3))
    (file,) = (tmp_path / "r").glob("*.parquet")
    (tmp_path / "r" / MANIFEST).write_text(stored % file.stat().st_size)
    assert [(f.name, f.row_groups) for f in directory.list()] == [("part-00000.parquet", (3,))]
    assert read_by(0, 1, directory) == [0, 1, 2]


def test_manifest_has_the_tasks_and_the_schemas_of_its_files(tmp_path: Path) -> None:
    """To write another format, keep reading this one and raise the version."""
    directory = ResultDirectory(str(tmp_path / "r"))
    writer = ResultWriter(directory, NUMBERS, task="stage (1/2)#0")
    writer.write(numbers(0, 3))
    writer.finish()
    stored = json.loads((tmp_path / "r" / MANIFEST).read_text())
    (file,) = stored["files"]
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(file["schema"])))
    assert (stored["version"], file["written_by"], schema) == (2, "stage (1/2)#0", NUMBERS)
    assert [asdict(read) for read in directory.list()] == [{**file, "row_groups": (3,)}]


def test_manifest_of_a_later_version_is_refused_with_its_version_number(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", numbers(0, 3))
    manifest = tmp_path / "r" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 7'))
    with pytest.raises(FileResultLostError, match="of version 7, and this knows 2"):
        directory.list()


def test_reading_a_result_without_a_manifest_raises_a_result_lost_error(tmp_path: Path) -> None:
    directory = ResultDirectory(str(tmp_path / "r"))
    ResultWriter(directory, NUMBERS).write(numbers(0, 3))
    with pytest.raises(FileResultLostError, match="has no manifest"):
        share_of([directory], 0, 1)


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_missing_or_truncated_result_file_raises_a_result_lost_error(
    tmp_path: Path, damage: str
) -> None:
    directory = written(tmp_path / "r", numbers(0, 3))
    (file,) = (tmp_path / "r").glob("*.parquet")
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(FileResultLostError, match=r"part-00000\.parquet is gone") as error:
        share_of([directory], 0, 1)
    assert error.value.location == directory.location


def test_result_file_deleted_before_it_is_read_raises_a_result_lost_error(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", numbers(0, 3))
    share = share_of([directory], 0, 1)
    next((tmp_path / "r").glob("*.parquet")).unlink()
    with pytest.raises(FileResultLostError, match="cannot be read"):
        list(read_batches(share))


def test_result_file_with_other_content_of_the_same_size_raises_a_result_lost_error(
    tmp_path: Path,
) -> None:
    """As after a loss of power."""
    directory = written(tmp_path / "r", numbers(0, 3000))
    (file,) = (tmp_path / "r").glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    with pytest.raises(FileResultLostError, match=r"part-00000\.parquet cannot be read"):
        list(read_batches(share_of([directory], 0, 1)))


def test_storage_error_while_reading_is_not_reported_as_a_lost_result(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", numbers(0, 3))
    (file,) = directory.list()
    with pytest.raises(OSError, match="later") as error, directory.reading(file):
        raise OSError(errno.EIO, "later")
    assert error.value.errno == errno.EIO


def test_damaged_manifest_raises_a_result_lost_error(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", numbers(0, 3))
    (tmp_path / "r" / MANIFEST).write_text("{")
    with pytest.raises(FileResultLostError, match="manifest cannot be read"):
        directory.list()


def test_rows_with_other_columns_are_refused_naming_both_schemas(tmp_path: Path) -> None:
    writer = ResultWriter(ResultDirectory(str(tmp_path / "r")))
    writer.write(numbers(0, 1))
    with pytest.raises(ResultSchemaError, match=r"columns n: int64 .* of columns n: double"):
        writer.write(pa.record_batch([pa.array([1.5])], names=["n"]))


def test_result_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    writer = ResultWriter(ResultDirectory(str(tmp_path / "r")))
    with pytest.raises(ResultSchemaError, match="several columns of the name 'n', of the columns"):
        writer.write(pa.record_batch([[1], [2], [3]], names=["m", "n", "n"]))


def parts(root: Path, *columns: dict[str, list[object]]) -> list[ResultDirectory]:
    """One directory for each task; the last task has written nothing."""
    directories = [ResultDirectory(str(root / str(task))) for task in range(len(columns) + 1)]
    for task, directory in enumerate(directories):
        writer = ResultWriter(directory, task=f"stage ({task + 1}/{len(directories)})#0")
        if task < len(columns):
            writer.write(pa.record_batch(columns[task]))
        writer.finish()
    return directories


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"m": [1]}, "m: int64"),
        ({"n": [1], "m": [1]}, "n: int64, m: int64"),
        ({"n": ["1"]}, "n: string"),
    ],
)
def test_tasks_that_have_written_different_columns_are_named_with_their_columns(
    tmp_path: Path, other: dict[str, list[object]], text: str
) -> None:
    directories = parts(tmp_path, {"n": [1]}, {"n": [2]}, other)
    expected = rf"stage \(1/4\)#0 has written n: int64, and stage \(3/4\)#0 has written {text}: "
    with pytest.raises(ResultSchemaError, match=expected):
        list_files(directories)


@pytest.mark.parametrize("other", [[None], [1.5]])
def test_tasks_may_write_a_column_of_different_types_that_have_a_common_type(
    tmp_path: Path, other: list[object]
) -> None:
    directories = parts(tmp_path, {"n": [1]}, {"n": other})
    assert [directory for directory, _ in list_files(directories)] == directories[:2]


def test_abandoned_result_writer_deletes_its_files(tmp_path: Path) -> None:
    writer = ResultWriter(ResultDirectory(str(tmp_path / "r")), NUMBERS)
    writer.write(numbers(0, 3))
    writer.abandon()
    assert not (tmp_path / "r").exists()


def test_sealing_a_folder_written_by_spark_lists_all_files_except_hidden_ones(
    tmp_path: Path,
) -> None:
    root = tmp_path / "r"
    root.mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), root / "part-0-uuid.snappy.parquet")
    (root / "_SUCCESS").touch()
    (root / ".part-0-uuid.snappy.parquet.crc").write_bytes(b"crc")
    directory = ResultDirectory(root.as_uri())
    directory.seal()
    assert read_by(0, 1, directory) == [1, 2]


def test_file_lost_before_its_result_is_finished_makes_the_result_fail(tmp_path: Path) -> None:
    """Otherwise the manifest would list only the remaining files."""
    writer = ResultWriter(ResultDirectory(str(tmp_path / "r")), NUMBERS)
    writer.write(numbers(0, 3))
    (file,) = (tmp_path / "r").iterdir()
    file.unlink()
    with pytest.raises(FileResultLostError, match="3 rows were written, and 0 are there"):
        writer.finish()
    with pytest.raises(FileResultLostError, match="it has no manifest"):
        ResultDirectory(str(tmp_path / "r")).list()
