"""Where checkpoints are kept (PyFlink's ``pyflink.datastream.checkpoint_storage``)."""

from __future__ import annotations


class CheckpointStorage:
    """Where checkpoints are kept."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """With the job's master, and in a directory if one is named.

    >>> JobManagerCheckpointStorage().get_max_state_size()
    5242880

    Raises:
        ValueError: *max_state_size* is not positive.
    """

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(
        self, checkpoint_path: str | None = None, max_state_size: int | None = None
    ) -> None:
        size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        if size <= 0:
            raise ValueError(f"the largest size of state must be positive, got {size} bytes")
        self._path = None if checkpoint_path is None else checkpoint_path.rstrip("/")
        self._max_state_size = size

    def get_checkpoint_path(self) -> str | None:
        """None: with the master alone."""
        return self._path

    def get_max_state_size(self) -> int:
        """Bytes that one state of a subtask may have."""
        return self._max_state_size

    def get_savepoint_path(self) -> str | None:
        """None: savepoints are told their place, or go to the environment's default directory."""
        return None

    def __str__(self) -> str:
        return "JobManagerCheckpointStorage"


class FileSystemCheckpointStorage(CheckpointStorage):
    """In a directory of a file system.

    >>> FileSystemCheckpointStorage("file:///checkpoints/").get_checkpoint_path()
    'file:///checkpoints'

    Raises:
        ValueError: the threshold is negative or too large.
    """

    MAX_FILE_STATE_THRESHOLD = 1 << 20

    def __init__(
        self,
        checkpoint_path: str,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
    ) -> None:
        threshold = 20480 if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= self.MAX_FILE_STATE_THRESHOLD:
            raise ValueError(
                f"the threshold must be 0 to {self.MAX_FILE_STATE_THRESHOLD} bytes, got {threshold}"
            )
        self._path = checkpoint_path.rstrip("/")
        self._threshold = threshold
        self.says_threshold = file_state_size_threshold is not None
        """Else the option counts, of the program or of the cluster."""
        self._buffer = 4096 if write_buffer_size < 0 else write_buffer_size

    def get_checkpoint_path(self) -> str:
        """The directory."""
        return self._path

    def get_savepoint_path(self) -> str | None:
        """None: savepoints are told their place, or go to the environment's default directory."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """State up to so many bytes is stored with the checkpoint's metadata."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        """Bytes; at least the threshold."""
        return max(self._buffer, self._threshold)

    def __str__(self) -> str:
        return "FileSystemCheckpointStorage"
