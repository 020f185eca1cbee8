"""Archives that travel with jobs: zip and tar, compressed or not."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

from flinkray.core.errors import FlinkRayError


class ArchiveError(FlinkRayError):
    """What was to be unpacked is no archive, or a broken one."""


def is_archive(path: str) -> bool:
    """Whether :func:`unpack` can unpack the file, as far as its beginning and end tell."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def unpack(content: bytes, folder: Path) -> None:
    """Unpack into a folder, which is made if it is not there.  Files keep their permissions, and
    links stay links.

    Raises:
        ArchiveError: it is no archive, or leads out of the folder.
        OSError: there is no room.
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
            # As the manual has it: Pythons without filters unpack as they always have.
            archive.extraction_filter = getattr(tarfile, "tar_filter", lambda member, path: member)
            archive.extractall(folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ArchiveError(f"it is no zip or tar archive, or a broken one: {error}") from error


def _unpack_member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """``extract`` knows neither permissions nor links."""
    mode = member.external_attr >> 16
    path = Path(packed.extract(member, folder))
    if stat.S_ISLNK(mode):
        target = path.read_text()
        path.unlink()
        path.symlink_to(target)
    elif not member.is_dir() and mode & 0o111:
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)
