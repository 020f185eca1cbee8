"""Directories by their location: a path, or a URI of whatever pyarrow has a file system for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flinkray.ha.directory import Directory, LocalDirectory


def absolute_location(location: str) -> str:
    """The same for every process of this machine and user: ``~`` and relative paths are resolved
    here, and of a ``file:`` URI it is the path; another URI stays as it is."""
    uri = urlsplit(location)
    if uri.scheme == "file":
        return unquote(uri.path)
    if uri.scheme:
        return location
    return str(Path(location).expanduser().absolute())


_schemes: dict[str, Callable[[str], Directory]] = {}


def register_scheme(scheme: str, opener: Callable[[str], Directory]) -> None:
    """Have :func:`open_directory` open the URIs of *scheme* with *opener*, in this process."""
    _schemes[scheme] = opener


def open_directory(location: str) -> Directory:
    """The directory at a path (``~`` is expanded) or URI.

    Raises:
        ValueError: a URI of a scheme that neither pyarrow nor :func:`register_scheme` knows, or
            without a path.
    """
    location = absolute_location(location)
    scheme = urlsplit(location).scheme
    if scheme in _schemes:
        return _schemes[scheme](location)
    if not scheme:
        return LocalDirectory(Path(location))
    from flinkray.ha.arrow_directory import ArrowDirectory  # pyarrow takes its time to load

    return ArrowDirectory.from_uri(location)
