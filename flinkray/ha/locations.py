"""Opens directories by location: a path, or a URI of a file system that pyarrow knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flinkray.ha.directory import Directory, LocalDirectory


def absolute_location(location: str) -> str:
    """Return a location that means the same in every process of this machine and user.

    ``~`` and relative paths are resolved, a ``file:`` URI becomes its path, and other URIs stay.
    """
    uri = urlsplit(location)
    if uri.scheme == "file":
        return unquote(uri.path)
    if uri.scheme:
        return location
    return str(Path(location).expanduser().absolute())


_schemes: dict[str, Callable[[str], Directory]] = {}


def register_scheme(scheme: str, opener: Callable[[str], Directory]) -> None:
    """Register *opener*, with which :func:`open_directory` opens URIs of *scheme* in this
    process."""
    _schemes[scheme] = opener


def open_directory(location: str) -> Directory:
    """Return the directory at a path (``~`` is expanded) or URI.

    Raises ValueError if neither pyarrow nor :func:`register_scheme` knows the scheme of the URI, or
    if the URI has no path.
    """
    location = absolute_location(location)
    scheme = urlsplit(location).scheme
    if scheme in _schemes:
        return _schemes[scheme](location)
    if not scheme:
        return LocalDirectory(Path(location))
    from flinkray.ha.arrow_directory import ArrowDirectory  # importing pyarrow is slow

    return ArrowDirectory.from_uri(location)
