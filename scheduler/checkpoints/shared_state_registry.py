"""Files that several checkpoints share: how long each is needed.

A task refers to files of checkpoints that it knows to be complete, and to those that it writes.
Which is the latest complete one, each trigger says.  So a checkpoint that is triggered after a
later one was complete does not refer to what only the earlier one had; one that was triggered
before may, and its acknowledgements are not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.checkpoint.handles import FileState


class SharedStateRegistry:
    """Files by their paths."""

    def __init__(self) -> None:
        self._users: dict[str, set[int]] = {}
        """Path -> the retained checkpoints that refer to it."""
        self._used: dict[int, dict[str, FileState]] = {}
        """The reverse."""
        self._awaiting: dict[str, tuple[FileState, set[int]]] = {}
        """What nobody refers to, with the pending checkpoints that still might."""
        self._foreign: set[str] = set()

    def knows(self, path: str) -> bool:
        """Whether it must not be deleted now."""
        return path in self._users or path in self._awaiting or path in self._foreign

    def register(
        self, checkpoint_id: int, files: Iterable[FileState], *, is_foreign: bool = False
    ) -> None:
        """A checkpoint is retained.  *is_foreign*: its files are somebody else's (a savepoint's),
        and never deleted here."""
        used = {file.path: file for file in files}
        self._used[checkpoint_id] = used
        for path in used:
            self._users.setdefault(path, set()).add(checkpoint_id)
            self._awaiting.pop(path, None)
        if is_foreign:
            self._foreign.update(used)

    def unregister(self, checkpoint_id: int, pending: Iterable[int]) -> list[FileState]:
        """A checkpoint is not retained any more, while *pending* ones are being taken: what can be
        deleted at once."""
        pending = set(pending)
        unused: list[FileState] = []
        for path, file in self._used.pop(checkpoint_id, {}).items():
            users = self._users[path]
            users.remove(checkpoint_id)
            if users:
                continue
            del self._users[path]
            if path in self._foreign:
                continue
            if pending:
                self._awaiting[path] = (file, set(pending))
            else:
                unused.append(file)
        return unused

    def pending_over(self, checkpoint_id: int) -> list[FileState]:
        """A pending checkpoint was aborted, or is registered by now: what can be deleted."""
        unused: list[FileState] = []
        for path, (file, pending) in tuple(self._awaiting.items()):
            pending.discard(checkpoint_id)
            if not pending:
                del self._awaiting[path]
                unused.append(file)
        return unused
