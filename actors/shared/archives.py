"""Unpacks the archives that travel with jobs: zip and tar, compressed or not."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

from flinkray.core.errors import FlinkRayError


class ArchiveError(FlinkRayError):
    """Raised when a file to be unpacked is not an archive, or is a broken archive."""


def is_archive(path: str) -> bool:
    """Return whether :func:`unpack` can unpack the file, judged by the file's beginning and end."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def unpack(content: bytes, folder: Path) -> None:
    """Unpack an archive into *folder*, which is created if absent.
    Files keep their permissions, and links stay links.

    Raises:
        ArchiveError: the content is not an archive, or a member leads out of the folder.
        OSError: the disk has no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO(content)
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                for member in packed.infolist():
                    _unpack_member(packed, member, folder)
            return
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            # As the tarfile manual recommends: Python versions without filters unpack as before.
            archive.extraction_filter = getattr(tarfile, "tar_filter", lambda member, path: member)
            archive.extractall(folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ArchiveError(f"it is no zip or tar archive, or a broken one: {error}") from error


def _unpack_member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Extract one member with its permissions and links, which ``ZipFile.extract`` ignores."""
    mode = member.external_attr >> 16
    path = Path(packed.extract(member, folder))
    if stat.S_ISLNK(mode):
        target = path.read_text()
        path.unlink()
        path.symlink_to(target)
    elif not member.is_dir() and mode & 0o111:
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)
