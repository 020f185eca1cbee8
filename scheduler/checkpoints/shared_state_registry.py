"""Tracks which checkpoints refer to a shared file, and decides when the file can be deleted."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.checkpoint.handles import FileState


class SharedStateRegistry:
    """Tracks which checkpoints refer to each shared file, and decides when the file can be
    deleted."""

    def __init__(self) -> None:
        self._users: dict[str, set[int]] = {}
        """Path -> ids of the retained checkpoints that refer to the file."""
        self._used: dict[int, dict[str, FileState]] = {}
        """Id of a retained checkpoint -> files that it refers to, by path."""
        self._awaiting: dict[str, tuple[FileState, set[int]]] = {}
        """Path -> (file, ids of pending checkpoints that may use the file).
        No retained checkpoint uses the file."""
        self._foreign: set[str] = set()

    def knows(self, path: str) -> bool:
        """Return whether a checkpoint may refer to the file or the file belongs to a user, so that
        the file must not be deleted now."""
        return path in self._users or path in self._awaiting or path in self._foreign

    def register(
        self, checkpoint_id: int, files: Iterable[FileState], *, is_foreign: bool = False
    ) -> None:
        """Register the files of a retained checkpoint. *is_foreign*: the files belong to the user
        of a savepoint, so this registry never returns them for deletion."""
        used = {file.path: file for file in files}
        self._used[checkpoint_id] = used
        for path in used:
            self._users.setdefault(path, set()).add(checkpoint_id)
            self._awaiting.pop(path, None)
        if is_foreign:
            self._foreign.update(used)

    def unregister(self, checkpoint_id: int, pending: Iterable[int]) -> list[FileState]:
        """Unregister a checkpoint that is no longer retained.  Returns the files to delete now.
        *pending*: ids of the checkpoints in progress, which may still refer to the files."""
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
        """Stop keeping files for a checkpoint that was in progress and is now complete or aborted.
        Returns the files to delete now."""
        unused: list[FileState] = []
        for path, (file, pending) in tuple(self._awaiting.items()):
            pending.discard(checkpoint_id)
            if not pending:
                del self._awaiting[path]
                unused.append(file)
        return unused
