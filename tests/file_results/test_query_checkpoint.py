"""What Spark keeps of a streaming query is cut after a micro-batch, and goes to another place."""

from __future__ import annotations

import io
import json
import tarfile
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


def moved(source: Path, target: Path, batches: int) -> set[str]:
    """The files of the copy, each as it was; without its id."""
    QueryCheckpoint(str(target)).restore(QueryCheckpoint(str(source)).pieces(batches))
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    for path in files - {"metadata"}:
        assert (target / path).read_bytes() == (source / path).read_bytes()
    return files - {"metadata"}


def test_what_later_batches_have_noted_is_left_out(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=5, commits=4)
    assert moved(tmp_path / "a", tmp_path / "b", 3) == {
        *("offsets/0", "offsets/1", "offsets/2"),
        *("commits/0", "commits/1", "commits/2"),
        *("sources/0/0", "sources/0/1"),
    }


def test_the_copy_is_another_query(tmp_path: Path) -> None:
    """Spark runs no two of one id at a time."""
    logs(tmp_path / "a", offsets=1, commits=1)
    for name in "bc":
        moved(tmp_path / "a", tmp_path / name, 1)
    first, second = (json.loads((tmp_path / name / "metadata").read_text()) for name in "bc")
    assert first.keys() == second.keys() == {"id"}
    assert first != second


def test_of_its_state_there_is_what_the_next_batch_needs(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=9, commits=9)
    state = "state/0/1/left-keyToNumValues"
    write(tmp_path / "a", *(f"{state}/{version}.delta" for version in range(1, 10)))
    write(tmp_path / "a", f"{state}/3.snapshot", f"{state}/6.snapshot", f"{state}/9.snapshot")
    write(tmp_path / "a", "state/0/2/1.delta", "state/0/2/2.delta", "state/0/_metadata/metadata")
    write(tmp_path / "a", "state/1/0/4.zip", "state/1/0/8.zip", "state/1/0/SSTs/4f.sst")
    write(tmp_path / "a", "state/1/0/9_1d.changelog", "state/1/0/8_a1.changelog")
    files = moved(tmp_path / "a", tmp_path / "b", 8)
    assert {path for path in files if path.startswith("state/")} == {
        *(f"{state}/6.snapshot", f"{state}/6.delta", f"{state}/7.delta", f"{state}/8.delta"),
        *("state/0/2/1.delta", "state/0/2/2.delta", "state/0/_metadata/metadata"),
        *("state/1/0/8.zip", "state/1/0/8_a1.changelog", "state/1/0/SSTs/4f.sst"),
    }


def test_a_batch_that_is_not_committed_needs_the_state_before_it(tmp_path: Path) -> None:
    """It is computed again.  A snapshot of what it has made may be there already."""
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


def test_what_is_not_finished_is_left_out(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=1, commits=1)
    write(tmp_path / "a", "offsets/.0.crc", "sources/0/.2.5c.tmp", "state/0/0/.temp.1.delta")
    assert moved(tmp_path / "a", tmp_path / "b", 1) == {
        *("offsets/0", "commits/0", "sources/0/0", "sources/0/1")
    }


def test_large_files_and_long_names_come_whole(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=1, commits=1)
    path = f"state/0/0/{'x' * 200}"
    (tmp_path / "a/state/0/0").mkdir(parents=True)
    (tmp_path / "a" / path).write_bytes(bytes(range(256)) * 40_000)
    assert path in moved(tmp_path / "a", tmp_path / "b", 1)


@pytest.mark.parametrize(("offsets", "commits"), [(2, 2), (3, 1), (3, 0)])
def test_a_batch_of_which_spark_has_deleted_its_notes_is_named(
    tmp_path: Path, offsets: int, commits: int
) -> None:
    logs(tmp_path, offsets, commits)
    with pytest.raises(QueryCheckpointError, match=r"micro-batch 2,.*minBatchesToRetain"):
        list(QueryCheckpoint(str(tmp_path)).pieces(3))


def test_files_that_sources_put_together_meanwhile_are_looked_for_again(
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
def test_a_copy_cannot_write_elsewhere(tmp_path: Path, path: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(path), io.BytesIO())
    with pytest.raises(QueryCheckpointError, match="has no file"):
        QueryCheckpoint(str(tmp_path / "b")).restore([content.getvalue()])
    assert not (tmp_path / "b").exists()


def test_a_copy_that_is_damaged_is_named(tmp_path: Path) -> None:
    logs(tmp_path / "a", offsets=2, commits=2)
    pieces = list(QueryCheckpoint(str(tmp_path / "a")).pieces(2))
    for damaged in ([b"?" * 1024], pieces[:1], []):
        with pytest.raises(QueryCheckpointError, match="cannot be read"):
            QueryCheckpoint(str(tmp_path / "b")).restore(damaged)
