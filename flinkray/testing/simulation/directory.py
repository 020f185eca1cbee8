"""The directories on simulated disks: of the stores, and of results that are files."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyarrow.fs import FileSystem as ArrowFileSystem

from flinkray.ha.directory import FileDirectory
from flinkray.testing.simulation.arrow_files import arrow_file_system

SCHEME = "simulated"
"""Of the URIs by which a simulated process opens directories: ``simulated://<disk>/<path>``."""


def open_simulated_directory(uri: str) -> FileDirectory:
    """The directory of a ``simulated://`` URI, on a disk of the simulation that runs."""
    from flinkray.testing.simulation.simulation import Simulation

    parts = urlsplit(uri)
    simulation = Simulation.current()
    process = simulation.scheduler.current
    writer = "0" if process is None else str(process.number)
    return FileDirectory(simulation.disk(parts.netloc), parts.path.strip("/"), writer)


def open_simulated_files(uri: str) -> tuple[ArrowFileSystem, str]:
    """The disk of a ``simulated://`` URI, as pyarrow sees it, and the path on it."""
    from flinkray.testing.simulation.simulation import Simulation

    parts = urlsplit(uri)
    return arrow_file_system(Simulation.current().disk(parts.netloc)), parts.path.strip("/")
