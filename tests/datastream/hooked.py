"""A source of numbers whose master hook keeps a diary, and misbehaves on command."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from flinkray.datastream.connectors import (
    DataGeneratorSource,
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
)
from flinkray.testing.waiting import wait_until


class Diary(MasterTriggerRestoreHook[dict[str, int]]):
    """Writes each of its calls into ``<folder>/<identifier>``.

    Files of these names in the folder change what it does:

    - ``fail``: trigger_checkpoint raises
    - ``hang``: trigger_checkpoint returns a future that is never done
    - ``fail to restore``: restore_checkpoint and reset raise
    - ``wait``: restore_checkpoint waits until the file is gone
    """

    def __init__(self, identifier: str, folder: Path, *, has_state: bool) -> None:
        self._identifier = identifier
        self._folder = folder
        self._has_state = has_state
        self._note("create")

    def _note(self, line: str) -> None:
        with (self._folder / self._identifier).open("a") as diary:
            diary.write(f"{line}\n")

    def _is_told_to(self, what: str) -> bool:
        return (self._folder / what).exists()

    def get_identifier(self) -> str:
        return self._identifier

    def trigger_checkpoint(
        self, checkpoint_id: int, timestamp: int
    ) -> dict[str, int] | Future[dict[str, int] | None] | None:
        self._note(f"trigger {checkpoint_id}")
        if self._is_told_to("fail"):
            raise ValueError("no room for a bookmark")
        future: Future[dict[str, int] | None] = Future()
        if self._is_told_to("hang"):
            return future
        state = {"checkpoint": checkpoint_id} if self._has_state else None
        if checkpoint_id % 2:
            return state
        future.set_result(state)
        return future

    def restore_checkpoint(
        self, checkpoint_id: int, checkpoint_data: dict[str, int] | None
    ) -> None:
        self._note(f"restore {checkpoint_id} {checkpoint_data}")
        if self._is_told_to("fail to restore"):
            raise ValueError("no such bookmark")
        wait_until(lambda: not self._is_told_to("wait"), 300, "the permission to go on")

    def reset(self) -> None:
        self._note("reset")
        if self._is_told_to("fail to restore"):
            raise ValueError("no first page")

    def close(self) -> None:
        self._note("close")


class HookedNumbers(DataGeneratorSource, WithMasterCheckpointHook[dict[str, int]]):
    """The numbers below *count*."""

    def __init__(
        self,
        identifier: str,
        folder: Path,
        count: int,
        per_second: float,
        *,
        has_state: bool = True,
    ) -> None:
        super().__init__(lambda n: n, count, per_second)
        self.folder = folder
        self._identifier = identifier
        self._has_state = has_state

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[dict[str, int]]:
        return Diary(self._identifier, self.folder, has_state=self._has_state)


def diary(folder: Path, identifier: str, what: str = "") -> list[str]:
    """The lines of a hook's diary that begin with *what*."""
    path = folder / identifier
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(what)]


def wait_for_line(folder: Path, identifier: str, what: str, count: int = 1) -> list[str]:
    def found() -> Any:
        lines = diary(folder, identifier, what)
        return lines if len(lines) >= count else None

    return wait_until(found, 150, f"{what!r} in the diary of {identifier}")


def restored_from(folder: Path, identifier: str, count: int = 1) -> int:
    """Wait until a hook was restored *count* times. Return the last checkpoint, whose state the
    hook must have got."""
    lines = wait_for_line(folder, identifier, "restore", count)
    assert len(lines) == count
    _, checkpoint_id, data = lines[-1].split(maxsplit=2)
    assert data == f"{{'checkpoint': {checkpoint_id}}}"
    return int(checkpoint_id)
