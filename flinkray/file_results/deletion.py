"""Deletes directories of results, for processes that do nothing else with results."""

from __future__ import annotations


def delete_directory(location: str) -> None:
    """Delete the directory with all its contents; no error if it does not exist. Blocks.

    Args:
        location: a path of this machine, or a URI.

    Raises:
        OSError: the storage fails.
    """
    from flinkray.file_results.directory import ResultDirectory  # pyarrow takes its time to load

    ResultDirectory(location).delete()
