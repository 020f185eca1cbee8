"""Deleting what lies there, by processes that do nothing else with it."""

from __future__ import annotations


def delete_directory(location: str) -> None:
    """With all that is in it; fine when it is not there.  Blocks.

    Args:
        location: a path of this machine, or a URI.

    Raises:
        OSError: the storage fails.
    """
    from flinkray.file_results.directory import ResultDirectory  # pyarrow takes its time to load

    ResultDirectory(location).delete()
