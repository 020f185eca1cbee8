"""Reads files of the client that travel with a job to the cluster."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from flinkray.actors.shared.job_files import is_archive
from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

_LEFT_OUT = "__pycache__"


class JobFileError(FlinkRayError):
    """Raised when a file that is to travel with a job cannot be read. The text names the file."""


def expect_to_be_there(path: str) -> None:
    """Check that a local file or directory exists, so that a wrong path is reported when the
    program names it. Raises JobFileError: it does not exist."""
    try:
        Path(path).expanduser().stat()
    except OSError as error:
        raise _not_readable(path, error) from None


def expect_archive(path: str) -> None:
    """Check that a local file is an archive. Raises JobFileError: it is none, or does not exist."""
    expect_to_be_there(path)
    file = Path(path).expanduser()
    if file.is_dir() or not is_archive(str(file)):
        raise _no_archive(path)


def take_along(path: str, name: str, use: JobFileUse, is_executable: bool = False) -> JobFile:
    """Return the JobFile with which a job carries a file, or a directory as an archive. Raises
    JobFileError: the file does not exist or cannot be read."""
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            return JobFile(name, use, _packed(file), is_directory=True)
        return JobFile(name, use, file.read_bytes(), is_executable=is_executable)
    except OSError as error:
        raise _not_readable(path, error) from error


def take_archive_along(path: str, target_dir: str) -> JobFile:
    """Return the JobFile with which a job carries an archive. Raises JobFileError: it is no
    archive."""
    expect_archive(path)
    return take_along(path, target_dir, JobFileUse.ARCHIVE)


def _not_readable(path: str, error: OSError) -> JobFileError:
    return JobFileError(
        f"{path} cannot be sent along with the program: {error.strerror}; it must be a file or "
        "directory of this machine"
    )


def _no_archive(path: str) -> JobFileError:
    return JobFileError(f"{path} cannot be sent along with the program: it is no zip or tar")


def _packed(directory: Path) -> bytes:
    """Return the files of a directory as a zip archive. Equal files give equal bytes, whatever
    their modification times."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(directory.rglob("*")):
            if file.is_file() and _LEFT_OUT not in file.parts:
                member = zipfile.ZipInfo(file.relative_to(directory).as_posix())
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, file.read_bytes())
    return packed.getvalue()
