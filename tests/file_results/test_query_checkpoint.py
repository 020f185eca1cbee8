"""What Spark keeps of a streaming query is cut after a micro-batch, and goes to another place."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.file_results import QueryCheckpoint, QueryCheckpointError, ResultDirectory


def write(folder: Path, *paths: str) -> None:
    """Files that contain their own paths."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def logs(folder: Path, offsets: int, commits: int) -> None:
    """Of so many batches."""
    write(folder, "metadata", "sources/0/0", "sources/0/1")
    write(folder, *(f"offsets/{number}" for number in range(offsets)))
    write(folder, *(f"commits/{number}" for number in range(commits)))


def snapshot(folder: Path, path: str, *shared: str) -> None:
    """One of RocksDB, that consists of files that may be those of others, too."""
    write(folder, path)
    with zipfile.ZipFile(folder / path, "w") as archive:
        files = [{"localFileName": "7.sst", "dfsSstFileName": name} for name in shared]
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': files})}")


def moved(source: Path, target: Path, batches: int) -> set[str]:
    """The files of the copy, each as it was; without its id."""
    pieces = QueryCheckpoint(str(source)).pieces(batches)
    assert QueryCheckpoint(str(target)).restore(pieces) == batches
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    for path in files - {"metadata"}:
        assert (target / path).read_bytes() == (source / path).read_bytes()
    return files - {"metadata"}


def test_copy_of_a_query_checkpoint_leaves_out_later_and_unneeded_batches(
    tmp_path: Path,
) -> None:
    logs(tmp_path / "a", offsets=6, commits=5)
    assert moved(tmp_path / "a", tmp_path / "b", 4) == {
        *("offsets/2", "offsets/3", "commits/2", "commits/3"),
        *("sources/0/0", "sources/0/1"),
    }


def test_copy_of_a_query_checkpoint_without_batches_has_the_start_of_its_sources(
    tmp_path: Path,
) -> None:
    """Such as where they started."""
    logs(tmp_path / "a", offsets=1, commits=0)
    write(tmp_path / "a", "state/0/_metadata/metadata")
    assert moved(tmp_path / "a", tmp_path / "b", 0) == {"sources/0/0", "sources/0/1"}
    assert moved(tmp_path / "nothing", tmp_path / "c", 0) == set()


def test_copied_query_checkpoint_has_a_new_query_id(tmp_path: Path) -> None:
    """Spark does not run two queries with one id at the same time."""
    logs(tmp_path / "a", offsets=1, commits=1)
    for name in "bc":
        moved(tmp_path / "a", tmp_path / name, 1)
    first, second = (json.loads((tmp_path / name / "metadata").read_text()) for name in "bc")
    assert first.keys() == second.keys() == {"id"}
    assert first != second


def test_copy_has_only_the_state_files_that_the_next_batch_needs(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=9, commits=9)
    state = "state/0/1/left-keyToNumValues"
    write(tmp_path / "a", *(f"{state}/{version}.delta" for version in range(1, 10)))
    write(tmp_path / "a", f"{state}/3.snapshot", f"{state}/6.snapshot", f"{state}/9.snapshot")
    write(tmp_path / "a", "state/0/2/1.delta", "state/0/2/2.delta", "state/0/_metadata/metadata")
    write(
        tmp_path / "a", *(f"state/1/0/{version}_{version}d.changelog" for version in range(1, 10))
    )
    snapshot(tmp_path / "a", "state/1/0/4_4d.zip", "7-a1.sst")
    snapshot(tmp_path / "a", "state/1/0/7_7d.zip", "7-a1.sst", "8-4f.sst")
    files = moved(tmp_path / "a", tmp_path / "b", 8)
    assert {path for path in files if path.startswith("state/")} == {
        *(f"{state}/6.snapshot", f"{state}/6.delta", f"{state}/7.delta", f"{state}/8.delta"),
        *("state/0/2/1.delta", "state/0/2/2.delta", "state/0/_metadata/metadata"),
        *("state/1/0/7_7d.zip", "state/1/0/7_7d.changelog", "state/1/0/8_8d.changelog"),
    }


def test_copy_at_an_uncommitted_batch_has_the_state_before_that_batch(tmp_path: Path) -> None:
    """The batch is computed again. A snapshot of its state may exist already."""
    logs(tmp_path / "a", offsets=3, commits=2)
    write(tmp_path / "a", "state/0/0/1.delta", "state/0/0/2.delta", "state/0/0/3.delta")
    write(tmp_path / "a", "state/0/0/3.snapshot")
    files = moved(tmp_path / "a", tmp_path / "b", 3)
    assert {path for path in files if path.startswith("state/")} == {
        "state/0/0/1.delta",
        "state/0/0/2.delta",
    }
    assert "offsets/2" in files
    assert "commits/2" not in files


def test_copy_leaves_out_files_that_no_needed_snapshot_names(tmp_path: Path) -> None:
    """Spark may delete them at any time."""
    logs(tmp_path / "a", offsets=3, commits=3)
    for version in (1, 2, 3):
        snapshot(tmp_path / "a", f"state/0/0/{version}.zip", f"7-{version}.sst", f"8-{version}.log")
        write(tmp_path / "a", f"state/0/0/SSTs/7-{version}.sst", f"state/0/0/logs/8-{version}.log")
    write(
        tmp_path / "a", "state/0/1/1.changelog", "state/0/1/2.changelog", "state/0/1/SSTs/7-9.sst"
    )
    files = moved(tmp_path / "a", tmp_path / "b", 2)
    assert {path for path in files if path.startswith("state/")} == {
        *("state/0/0/2.zip", "state/0/0/SSTs/7-2.sst", "state/0/0/logs/8-2.log"),
        *("state/0/1/1.changelog", "state/0/1/2.changelog"),
    }


def test_copy_does_not_rely_on_a_state_snapshot_of_an_attempt_perhaps_not_committed(
    tmp_path: Path,
) -> None:
    """Spark's later format names files by attempts, and its commits say which attempt counts."""
    logs(tmp_path / "a", offsets=4, commits=4)
    write(
        tmp_path / "a", *(f"state/0/0/{version}_a{version}.changelog" for version in (1, 2, 3, 4))
    )
    write(tmp_path / "a", "state/0/0/3_b3.changelog")
    for name in ("2_a2", "3_b3"):
        snapshot(tmp_path / "a", f"state/0/0/{name}.zip")
    state = {path for path in moved(tmp_path / "a", tmp_path / "b", 4) if path.startswith("state/")}
    assert {"state/0/0/2_a2.zip", "state/0/0/3_a3.changelog", "state/0/0/4_a4.changelog"} <= state


def test_copy_of_a_query_checkpoint_contains_old_state_of_removed_operators(
    tmp_path: Path,
) -> None:
    logs(tmp_path / "a", offsets=9, commits=9)
    write(tmp_path / "a", "state/1/0/3.snapshot", "state/1/0/4.delta")
    assert {"state/1/0/3.snapshot", "state/1/0/4.delta"} <= moved(tmp_path / "a", tmp_path / "b", 9)


def test_copy_leaves_out_unfinished_files_and_checksum_files(tmp_path: Path) -> None:
    """Spark 4.1 and Hadoop write checksum files."""
    logs(tmp_path / "a", offsets=1, commits=1)
    write(tmp_path / "a", "offsets/.0.crc", "sources/0/.2.5c.tmp", "state/0/0/.temp.1.delta")
    write(tmp_path / "a", "state/0/0/1.delta.crc")
    assert moved(tmp_path / "a", tmp_path / "b", 1) == {
        *("offsets/0", "commits/0", "sources/0/0", "sources/0/1")
    }


def test_large_files_with_long_names_are_copied_completely(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=1, commits=1)
    path = f"state/0/0/{'x' * 200}"
    (tmp_path / "a/state/0/0").mkdir(parents=True)
    (tmp_path / "a" / path).write_bytes(bytes(range(256)) * 40_000)
    assert path in moved(tmp_path / "a", tmp_path / "b", 1)


@pytest.mark.parametrize(("offsets", "commits"), [(2, 2), (3, 1), (3, 0)])
def test_query_checkpoint_is_not_copied_at_a_batch_whose_logs_spark_has_deleted(
    tmp_path: Path, offsets: int, commits: int
) -> None:
    logs(tmp_path, offsets, commits)
    with pytest.raises(QueryCheckpointError, match=r"micro-batch 2,.*minBatchesToRetain"):
        list(QueryCheckpoint(str(tmp_path)).pieces(3))


def test_copy_at_a_batch_without_the_offsets_of_the_batch_before_raises_an_error(
    tmp_path: Path,
) -> None:
    logs(tmp_path, offsets=4, commits=4)
    (tmp_path / "offsets/1").unlink()
    with pytest.raises(QueryCheckpointError, match=r"micro-batch 2,.*minBatchesToRetain"):
        list(QueryCheckpoint(str(tmp_path)).pieces(3))


@pytest.mark.parametrize("gone", ["2.snapshot", "3.delta", "4.delta"])
def test_copy_with_a_missing_state_file_raises_an_error(tmp_path: Path, gone: str) -> None:
    logs(tmp_path, offsets=6, commits=6)
    write(tmp_path, "state/0/0/2.snapshot", *(f"state/0/0/{it}.delta" for it in (3, 4, 5, 6)))
    (tmp_path / "state/0/0" / gone).unlink()
    with pytest.raises(QueryCheckpointError, match=r"micro-batch 3,.*minBatchesToRetain"):
        list(QueryCheckpoint(str(tmp_path)).pieces(4))


def test_query_checkpoint_whose_state_is_deleted_during_the_copy_names_the_batch(
    tmp_path: Path,
) -> None:
    logs(tmp_path, offsets=2, commits=2)
    write(tmp_path, "state/0/0/1.delta", "state/0/0/2.delta")
    pieces = QueryCheckpoint(str(tmp_path)).pieces(2)
    next(pieces)
    (tmp_path / "state/0/0/2.delta").unlink()
    with pytest.raises(QueryCheckpointError, match=r"micro-batch 1,.*minBatchesToRetain"):
        list(pieces)


@pytest.mark.parametrize("size", [0, 5, 5_000_000])
def test_file_replaced_by_another_attempt_during_the_copy_is_copied_completely(
    tmp_path: Path, size: int
) -> None:
    logs(tmp_path / "a", offsets=1, commits=1)
    write(tmp_path / "a", "state/0/0/1.delta", "state/0/1/1.delta")
    pieces = QueryCheckpoint(str(tmp_path / "a")).pieces(1)
    first = next(pieces)
    (tmp_path / "a/another").write_bytes(bytes(size))
    (tmp_path / "a/another").rename(tmp_path / "a/state/0/0/1.delta")
    QueryCheckpoint(str(tmp_path / "b")).restore([first, *pieces])
    assert (tmp_path / "b/state/0/0/1.delta").read_bytes() == bytes(size)
    assert (tmp_path / "b/state/0/1/1.delta").read_text() == "state/0/1/1.delta"


def test_copy_of_a_checkpoint_file_that_grows_during_the_copy_raises_an_error(
    tmp_path: Path,
) -> None:
    logs(tmp_path, offsets=1, commits=1)
    write(tmp_path, "state/0/0/1.delta")
    pieces = QueryCheckpoint(str(tmp_path)).pieces(1)
    for piece in pieces:
        if b"1.delta" in piece:
            break
    with (tmp_path / "state/0/0/1.delta").open("a") as file:
        file.write("more")
    with pytest.raises(QueryCheckpointError, match="was replaced while it was copied"):
        list(pieces)


def test_source_logs_that_spark_compacts_during_a_checkpoint_copy_are_still_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs(tmp_path / "a", offsets=2, commits=2)
    read = ResultDirectory.read_pieces

    def put_together(self: ResultDirectory, name: str) -> Iterator[bytes]:
        """When the log of a source is about to be read, it is another one."""
        if name == "sources/0/0":
            (tmp_path / "a/sources/0/0").unlink(missing_ok=True)
            (tmp_path / "a/sources/0/1").rename(tmp_path / "a/sources/0/1.compact")
        yield from read(self, name)

    monkeypatch.setattr(ResultDirectory, "read_pieces", put_together)
    pieces = list(QueryCheckpoint(str(tmp_path / "a")).pieces(2))
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        names = archive.getnames()
    assert [name for name in names if name.startswith("sources")] == ["sources/0/1.compact"]


@pytest.mark.parametrize(
    "path", ["../offsets/0", "offsets/../../0", "/offsets/0", "offsets", "rows/0", "offsets//0"]
)
def test_restore_of_a_copy_with_a_path_outside_the_checkpoint_is_refused(
    tmp_path: Path, path: str
) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(path), io.BytesIO())
    with pytest.raises(QueryCheckpointError, match="has no file"):
        QueryCheckpoint(str(tmp_path / "b")).restore([content.getvalue()])
    assert not (tmp_path / "b").exists()


def test_state_of_many_small_files_is_restored_completely(tmp_path: Path) -> None:
    """The files are written by several threads."""
    logs(tmp_path / "a", offsets=1, commits=1)
    paths = {f"state/0/{partition}/1.delta" for partition in range(100)}
    write(tmp_path / "a", *paths)
    assert paths < moved(tmp_path / "a", tmp_path / "b", 1)


def test_restore_fails_if_a_small_file_cannot_be_written(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=1, commits=1)
    write(tmp_path / "a", "state/0/0/1.delta")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/state").write_text("where a folder is to be")
    with pytest.raises(OSError, match="state"):
        moved(tmp_path / "a", tmp_path / "b", 1)
    assert not (tmp_path / "b/metadata").exists()


def test_restore_of_a_damaged_copy_raises_an_error(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=2, commits=2)
    pieces = list(QueryCheckpoint(str(tmp_path / "a")).pieces(2))
    for damaged in ([b"?" * 1024], pieces[:1], []):
        with pytest.raises(QueryCheckpointError, match="cannot be read"):
            QueryCheckpoint(str(tmp_path / "b")).restore(damaged)


def test_restore_of_a_copy_cut_between_two_files_raises_an_error(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=2, commits=2)
    *pieces, _ = QueryCheckpoint(str(tmp_path / "a")).pieces(2)
    with pytest.raises(QueryCheckpointError, match="cannot be read: it is cut short"):
        QueryCheckpoint(str(tmp_path / "b")).restore(pieces)
    assert not (tmp_path / "b/metadata").exists()


@pytest.mark.parametrize("size", range(0, 10_240, 512))
def test_restore_of_a_query_checkpoint_fails_if_the_last_read_of_its_copy_fails(
    tmp_path: Path, size: int
) -> None:
    """The storage detects a damaged copy only at its end."""
    logs(tmp_path / "a", offsets=1, commits=1)
    (tmp_path / "a/sources/0/2").write_bytes(bytes(size))

    def damaged() -> Iterator[bytes]:
        yield b"".join(QueryCheckpoint(str(tmp_path / "a")).pieces(1))
        raise OSError("its checksum does not match")

    with pytest.raises(OSError, match="its checksum does not match"):
        QueryCheckpoint(str(tmp_path / "b")).restore(damaged())
    assert not (tmp_path / "b/metadata").exists()
