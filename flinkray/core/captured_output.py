"""Where processes of a job write what user code prints: found by the job's id.

Ray gives each of its processes a file for standard output and one for standard error, named by
numbers that nobody knows, in the ``logs`` folder of its session.  A process that begins to work for
a job adds links to its two there, ``flinkray-<job id>-<process>.out`` and ``.err``.  What the JVMs
of a Spark stage write has such names from the beginning.
"""

from __future__ import annotations

import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from flinkray.core.ids import JobID

OUTPUT, ERRORS = ".out", ".err"
OUTPUT_OF_JOBS = f"flinkray-*{OUTPUT}"
"""Files of what processes of jobs have printed."""

_RAYS_FILES = "worker-"
_RAYS_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""How lines begin that Ray writes into them for its own use."""


@lru_cache
def note_output(job_id: JobID, process_name: str) -> None:
    """Let what this process prints be found as the job's; nothing happens where it is no process of
    Ray's, or keeps no files."""
    for stream, ending in ((1, OUTPUT), (2, ERRORS)):
        file = Path(os.readlink(f"/proc/self/fd/{stream}"))
        if not file.name.startswith(_RAYS_FILES) or not file.is_file():
            continue
        link = file.with_name(f"flinkray-{job_id}-{process_name}{ending}")
        link.unlink(missing_ok=True)  # of a predecessor of that name
        link.symlink_to(file.name)


def files_of_job(folder: str, job_id: JobID) -> list[Path]:
    """Of those in a ``logs`` folder, sorted; links to files that are gone are left out."""
    return sorted(file for file in Path(folder).glob(f"flinkray-*{job_id}*") if file.is_file())


def printed(data: bytes) -> bytes:
    """Without the lines that are Ray's own.  *data* begins at the beginning of a line."""
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(_RAYS_MARKS))


def last_lines(file: Path, number: int, most_bytes: int = 2**20) -> bytes:
    """The end of a file, without Ray's own lines: at most so many lines, and bytes.  Of a last line
    that is longer than that, its end."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(0, size - most_bytes - 1))
        data = opened.read()
    if size > most_bytes:  # the first byte tells whether a line begins after it
        data = data.partition(b"\n")[2] or data[1:]
    # a line that was written over, as by a progress bar, is one
    return b"".join(BytesIO(printed(data)).readlines()[-number:]) if number else b""
