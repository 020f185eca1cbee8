"""Whether a storage can hold what clusters write: by writing, replacing, reading and deleting."""

from __future__ import annotations

from flinkray.ha.locations import open_directory


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
