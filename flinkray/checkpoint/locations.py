"""Locations as texts: local paths, and URIs of file systems that pyarrow knows.

A location is absolute and has one normal form: a local location is a path, not a ``file:`` URI.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from flinkray.ha.locations import absolute_location

_KNOWN = 1024
"""Number of results that each cache keeps; the same locations are needed several times."""


def normal(location: str) -> str:
    """Return the normal form of a location given by a user; ``~`` and relative paths are resolved.
    Raises ValueError if *location* is not valid."""
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
    """Return whether the location is a local path and not a URI."""
    return location.startswith("/")


def storage_of(location: str) -> tuple[str, str, str]:
    """Return (scheme, host or bucket, query) of the location, which identify its storage.
    Locations are in one storage if these are equal. For a local path, all three are empty."""
    uri = _split(location)
    return uri.scheme, uri.netloc, uri.query


def path_of(location: str) -> str:
    """Return the path of the location within its storage."""
    return _split(location).path


@lru_cache(_KNOWN)
def join(location: str, *names: str) -> str:
    """Return *location* with *names* appended to its path."""
    uri = _split(location)
    return _joined(uri, posixpath.join(uri.path or "/", *names))


@lru_cache(_KNOWN)
def parent_of(location: str) -> str:
    """Return the location of the directory that contains *location*."""
    uri = _split(location)
    return _joined(uri, posixpath.dirname(uri.path))


def name_of(location: str) -> str:
    """Return the last part of the location's path."""
    return posixpath.basename(path_of(location))


@lru_cache(_KNOWN)
def relative(location: str, directory: str) -> str:
    """Return *location* relative to *directory*; unchanged if both are in different storages."""
    if storage_of(location) != storage_of(directory):
        return location
    return posixpath.relpath(path_of(location), path_of(directory))


@lru_cache(_KNOWN)
def resolved(text: str, directory: str) -> str:
    """Return the absolute location of *text*, which :func:`relative` returned for *directory*."""
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
