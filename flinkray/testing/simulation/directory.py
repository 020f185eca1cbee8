"""The stores' directories on simulated disks."""

from __future__ import annotations

from urllib.parse import urlsplit

from flinkray.ha.directory import FileDirectory

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
