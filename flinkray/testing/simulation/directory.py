"""The stores' directories on simulated disks."""

from __future__ import annotations

from urllib.parse import urlsplit

from flinkray.ha.directory import UNFINISHED, Directory
from flinkray.testing.simulation.disk import SimulatedDisk

SCHEME = "simulated"
"""Of the URIs by which a simulated process opens directories: ``simulated://<disk>/<path>``."""


class SimulatedDirectory(Directory):
    """Writes as :class:`~flinkray.ha.directory.LocalDirectory` does, step by step."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path.strip("/")

    def location(self, name: str = "") -> str:
        return self._disk.url(self._of(name) if name else self._path)

    def read(self, name: str) -> bytes | None:
        return self._disk.read(self._of(name))

    def write(self, name: str, data: bytes) -> None:
        unfinished = self._of(name) + UNFINISHED
        self._disk.write(unfinished, data)
        self._disk.sync(unfinished)
        self._disk.rename(unfinished, self._of(name))
        self._disk.sync_directory(self._path)

    def delete(self, name: str) -> None:
        self._disk.delete(self._of(name))
        self._disk.sync_directory(self._path)

    def names(self) -> list[str]:
        return [name for name in self._disk.list(self._path) if not name.endswith(UNFINISHED)]

    def subdirectory(self, name: str) -> SimulatedDirectory:
        return SimulatedDirectory(self._disk, self._of(name))

    def delete_all(self) -> None:
        self._disk.delete_tree(self._path)

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name


def open_simulated_directory(uri: str) -> SimulatedDirectory:
    """The directory of a ``simulated://`` URI, on a disk of the simulation that runs."""
    from flinkray.testing.simulation.simulation import Simulation

    parts = urlsplit(uri)
    return SimulatedDirectory(Simulation.current().disk(parts.netloc), parts.path)
