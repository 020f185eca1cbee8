"""Finds the files to which a job's processes write the output of user code.

Ray gives each process a file for standard output and one for standard error in the ``logs`` folder
of its session; the names of these files are numbers that say nothing about jobs. A process that
begins to work for a job adds links to these files: ``flinkray-<job id>-<process>.out`` and
``.err``. Output files of the JVMs of a Spark stage have such names from the beginning.
"""

from __future__ import annotations

import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from flinkray.core.ids import JobID

OUTPUT, ERRORS = ".out", ".err"
OUTPUT_OF_JOBS = f"flinkray-*{OUTPUT}"
"""Pattern of the files that contain what processes of jobs have printed."""

_RAYS_FILES = "worker-"
_RAYS_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""Prefixes of the lines that Ray writes into output files for its own use."""


@lru_cache
def note_output(job_id: JobID, process_name: str) -> None:
    """Link the output files of this process, so that :func:`files_of_job` finds them for the job.
    Does nothing if the process was not started by Ray or has no output files."""
    for stream, ending in ((1, OUTPUT), (2, ERRORS)):
        file = Path(os.readlink(f"/proc/self/fd/{stream}"))
        if not file.name.startswith(_RAYS_FILES) or not file.is_file():
            continue
        link = file.with_name(f"flinkray-{job_id}-{process_name}{ending}")
        link.unlink(missing_ok=True)  # of an earlier process of that name
        link.symlink_to(file.name)


def files_of_job(folder: str, job_id: JobID) -> list[Path]:
    """Return the job's output files in a ``logs`` folder, sorted.
    Links to files that are gone are left out."""
    return sorted(file for file in Path(folder).glob(f"flinkray-*{job_id}*") if file.is_file())


def printed(data: bytes) -> bytes:
    """Return *data* without the lines that Ray has added for its own use.
    *data* begins at the beginning of a line."""
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(_RAYS_MARKS))


def last_lines(file: Path, number: int, most_bytes: int = 2**20) -> bytes:
    """Return the last lines of an output file, without the lines that Ray has added.
    At most *number* lines and *most_bytes* bytes are returned. If the last line is longer, only its
    end is returned."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(0, size - most_bytes - 1))
        data = opened.read()
    if size > most_bytes:  # the first byte tells whether a line begins after it
        data = data.partition(b"\n")[2] or data[1:]
    # a line that was overwritten, for example by a progress bar, counts as one line
    return b"".join(BytesIO(printed(data)).readlines()[-number:]) if number else b""
