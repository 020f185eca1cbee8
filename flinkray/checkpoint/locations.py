"""Locations as texts: local paths, and URIs of file systems that pyarrow knows.

A location is absolute and has one form: a local one is a path, not a ``file:`` URI.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from flinkray.ha.locations import absolute_location

_KNOWN = 1024
"""Results that are remembered: of a checkpoint's files each is asked for several times."""


def normal(location: str) -> str:
    """The one form of a location that a user gave; ``~`` and relative paths are resolved.

    Raises:
        ValueError: it is none.
    """
    uri = urlsplit(location)
    text = unquote(uri.path) if uri.scheme == "file" else location
    if "\0" in text:
        raise ValueError("no name of a file or directory has a NUL in it")
    if uri.scheme == "file":
        if not text.startswith("/"):
            raise ValueError("the path of a file: URI begins with a slash")
        return posixpath.normpath(text)
    if uri.scheme:
        return urlunsplit(uri._replace(path=_normal_path(uri.path)))
    return posixpath.normpath(absolute_location(location))


def is_local(location: str) -> bool:
    """Whether it is a path, not a URI."""
    return location.startswith("/")


def storage_of(location: str) -> tuple[str, str, str]:
    """Equal for locations in one storage: scheme, host or bucket, and query of a URI."""
    uri = _split(location)
    return uri.scheme, uri.netloc, uri.query


def path_of(location: str) -> str:
    """The path within its storage."""
    return _split(location).path


@lru_cache(_KNOWN)
def join(location: str, *names: str) -> str:
    """What lies below a directory."""
    uri = _split(location)
    return _joined(uri, posixpath.join(uri.path or "/", *names))


@lru_cache(_KNOWN)
def parent_of(location: str) -> str:
    """The directory that something lies in."""
    uri = _split(location)
    return _joined(uri, posixpath.dirname(uri.path))


def name_of(location: str) -> str:
    """The last part."""
    return posixpath.basename(path_of(location))


@lru_cache(_KNOWN)
def relative(location: str, directory: str) -> str:
    """As seen from a directory of the same storage; as it is from other storage."""
    if storage_of(location) != storage_of(directory):
        return location
    return posixpath.relpath(path_of(location), path_of(directory))


@lru_cache(_KNOWN)
def resolved(text: str, directory: str) -> str:
    """The reverse of :func:`relative`."""
    if is_local(text) or urlsplit(text).scheme:
        return text
    uri = _split(directory)
    return _joined(uri, posixpath.normpath(posixpath.join(uri.path, text)))


@lru_cache(_KNOWN)
def _split(location: str) -> SplitResult:
    if is_local(location):  # may contain anything
        return SplitResult("", "", location, "", "")
    return urlsplit(location)


def _joined(uri: SplitResult, path: str) -> str:
    return urlunsplit(uri._replace(path=path)) if uri.scheme else path


def _normal_path(path: str) -> str:
    return posixpath.normpath(path) if path else "/"
