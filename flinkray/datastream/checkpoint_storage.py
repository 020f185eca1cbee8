"""Where checkpoints are kept."""

from __future__ import annotations


class FileSystemCheckpointStorage:
    """Checkpoints in a directory of a file system.

    >>> FileSystemCheckpointStorage("file:///checkpoints/").get_checkpoint_path()
    'file:///checkpoints'
    """

    MAX_FILE_STATE_THRESHOLD = 1 << 20

    def __init__(
        self,
        checkpoint_path: str,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int | None = None,
    ) -> None:
        threshold = 20480 if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= self.MAX_FILE_STATE_THRESHOLD:
            raise ValueError(
                f"the threshold must be 0 to {self.MAX_FILE_STATE_THRESHOLD} bytes, got {threshold}"
            )
        self._path = checkpoint_path.rstrip("/")
        self._threshold = threshold
        self._buffer = 4096 if write_buffer_size is None else write_buffer_size

    def get_checkpoint_path(self) -> str:
        return self._path

    def get_savepoint_path(self) -> str | None:
        """None: savepoints are told their place, or go to the environment's default directory."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """State up to so many bytes is stored with the checkpoint's metadata."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        return max(self._buffer, self._threshold)
