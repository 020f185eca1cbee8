"""Whether a storage can hold what clusters write: by writing, replacing, reading and deleting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flinkray.ha.locations import open_directory

_MARK = "mark"


def try_storage(location: str, name: str) -> str | None:
    """What is wrong; None: nothing.  *name*: of the folder for the trial, which is deleted."""
    try:
        folder = open_directory(location).subdirectory(name)
        try:
            for content in (b"first", b"second"):  # the second one takes the place of the first
                folder.write("trial", content)
                if (read := folder.read("trial")) != content:
                    return f"{content!r} was written, and {read!r} read"
        finally:
            folder.delete_all()
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def marked(location: str, name: str) -> Iterator[bool]:
    """A file that every machine finds there which has the same storage; False: it could not be
    written.  *name*: of its folder, which is deleted at the end."""
    try:
        folder = open_directory(location).subdirectory(name)
        folder.write(_MARK, b"")
    except (OSError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        folder.delete_all()


def sees_mark(location: str, name: str) -> bool:
    """Whether :func:`marked` has written to what is this machine's storage, too."""
    try:
        return open_directory(location).subdirectory(name).read(_MARK) is not None
    except (OSError, ValueError):
        return False
