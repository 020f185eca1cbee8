"""Classes for checkpoint storage (PyFlink's ``pyflink.datastream.checkpoint_storage``)."""

from __future__ import annotations


class CheckpointStorage:
    """Base of the classes that say where checkpoints are stored."""

    def get_savepoint_path(self) -> str | None:
        """Return None: checkpoint storage has no directory for savepoints. The request for a
        savepoint names its directory; otherwise the environment's default is used."""
        return None


class JobManagerCheckpointStorage(CheckpointStorage):
    """Checkpoint storage in the JobMaster, and in a directory if a path is given.

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
        """Return the directory of checkpoints. None: only the JobMaster keeps them."""
        return self._path

    def get_max_state_size(self) -> int:
        """Return the largest number of bytes that one state of a subtask may have."""
        return self._max_state_size

    def __str__(self) -> str:
        return "JobManagerCheckpointStorage"


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoint storage in a directory of a file system.

    >>> FileSystemCheckpointStorage("file:///checkpoints/").get_checkpoint_path()
    'file:///checkpoints'

    Raises:
        ValueError: *file_state_size_threshold* is negative, or more than 1 MiB.
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
        """Whether the threshold was given.
        If not, the option of the program or of the cluster counts."""
        self._buffer = 4096 if write_buffer_size < 0 else write_buffer_size

    def get_checkpoint_path(self) -> str:
        """Return the directory of checkpoints."""
        return self._path

    def get_min_file_size_threshold(self) -> int:
        """Return the size in bytes up to which a state is stored in the checkpoint's metadata file;
        a larger state gets a file of its own."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        """Return the size of the write buffer in bytes. It is at least
        :meth:`get_min_file_size_threshold`."""
        return max(self._buffer, self._threshold)

    def __str__(self) -> str:
        return "FileSystemCheckpointStorage"
