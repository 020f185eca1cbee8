"""Finds the storage for a location."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import storage_errors
from flinkray.checkpoint.files import InputFile, LocalStateFiles, StateFiles

_LOCAL = LocalStateFiles()
_known: dict[tuple[str, str, str], StateFiles] = {}
_schemes: dict[str, Callable[[str], StateFiles]] = {}


def register_state_files(scheme: str, opener: Callable[[str], StateFiles]) -> None:
    """Register a storage for a URI scheme in this process.
    :func:`files_at` calls *opener* with each URI of *scheme*."""
    _schemes[scheme] = opener


def files_at(location: str) -> StateFiles:
    """Return the storage that contains a location. A storage of pyarrow is opened once per process.
    Raises CheckpointStorageError."""
    if locations.is_local(location):
        return _LOCAL
    storage = locations.storage_of(location)
    if storage[0] in _schemes:
        return _schemes[storage[0]](location)
    if storage not in _known:
        from flinkray.checkpoint.arrow_files import ArrowStateFiles  # pyarrow takes its time

        _known[storage] = ArrowStateFiles.of(location)
    return _known[storage]


@contextmanager
def opened(location: str) -> Iterator[InputFile]:
    """Open the file at *location* for reading while the context lasts.
    Raises CheckpointStorageError if the file cannot be opened."""
    with storage_errors(location, "read"):
        file = files_at(location).open(location)
    try:
        yield file
    finally:
        file.close()
