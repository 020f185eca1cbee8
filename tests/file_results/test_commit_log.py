"""What a committer notes before it commits, where files are not local: no name is given once."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from itertools import count
from typing import Any
from zlib import crc32

import pytest

from flinkray.file_results import FileCommitLog
from flinkray.file_results.commit_log import CommitLogError
from flinkray.ha.directory import TakenOverError
from flinkray.testing.simulation import Simulation, simulate

LOG = "simulated://shared/commits/op"


def settled(*committables: str) -> Sequence[Any]:
    return FileCommitLog(LOG).settle(committables)


async def commits_of_two(simulation: Simulation, pause_before: int) -> tuple[bool, list[Any]]:
    """Whether the first attempt stood still before its operation of that number while the second
    did all of its own; and what each of them, and a third one, goes on to commit."""
    disk, numbers, committed = simulation.disk(), count(1), []

    def second(what: str, path: str) -> bool:
        if next(numbers) == pause_before:
            disk.intercept = None
            committed.append(settled("second"))
        return False

    disk.intercept = second
    with contextlib.suppress(TakenOverError):
        committed.append(settled("first"))
    was_paused, disk.intercept = disk.intercept is None, None
    committed.append(settled("third"))
    return was_paused, committed


@simulate(seeds=1)
async def test_two_attempts_commit_the_same_committables_wherever_one_of_them_is_paused(
    simulation: Simulation,
) -> None:
    for pause_before in count(1):
        simulation.disk().wipe()
        was_paused, committed = await commits_of_two(simulation, pause_before)
        assert all(each == committed[0] for each in committed), pause_before
        if not was_paused:
            break
    assert pause_before > 5


@simulate(seeds=1)
async def test_committables_stored_by_an_older_version_without_epochs_are_committed(
    simulation: Simulation,
) -> None:
    """If the note is damaged, nothing is committed."""
    disk = simulation.disk()
    payload = pickle.dumps(["before"])
    for folder in ("commits", "commits/op"):
        disk.make_directory(folder)
    disk.write("commits/op/committables", crc32(payload).to_bytes(4, "little") + payload)
    for _ in range(2):
        assert settled("after") == ["before"]
    disk.write("commits/op/committables", b"1234" + payload)
    with pytest.raises(CommitLogError, match="damaged"):
        settled("after")
