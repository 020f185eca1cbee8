"""What a Dispatcher has stored of its jobs, as its successor would find it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from flinkray.core.ids import JobID
from flinkray.ha.entries import decode_entry
from flinkray.ha.epoch_directory import EpochContents
from flinkray.testing.simulation.disk import SimulatedDisk

GRAPHS, RESULTS = "job-graphs", "job-results"


class StoredJobs:
    """For invariants: neither fails nor takes time.

    *durable*: whether to tell what is there if the power goes now and all is lost that can be.
    """

    def __init__(self, disk: SimulatedDisk, cluster: str = "cluster") -> None:
        self._disk = disk
        self._cluster = cluster
        self._places: dict[bool, dict[str, str]] = {}
        """Paths of the entries that count, by folder and name."""
        self._changes = -1

    def graph(self, job_id: JobID, *, durable: bool = False) -> bytes | None:
        return self._content(f"{GRAPHS}/{job_id}.graph", durable)

    def result(self, job_id: JobID, *, durable: bool = False) -> bytes | None:
        """Clean or dirty."""
        clean = self.result_in("clean", job_id, durable=durable)
        return self.result_in("dirty", job_id, durable=durable) if clean is None else clean

    def result_in(self, state: str, job_id: JobID, *, durable: bool = False) -> bytes | None:
        """*state*: ``"clean"`` or ``"dirty"``."""
        return self._content(f"{RESULTS}/{job_id}.{state}", durable)

    def results(self, job_id: JobID) -> list[str]:
        """Paths of those that a job has."""
        places = self._look(False)
        names = [f"{RESULTS}/{job_id}.{state}" for state in ("clean", "dirty")]
        return [places[name] for name in names if name in places]

    def _content(self, name: str, durable: bool) -> bytes | None:
        path = self._look(durable).get(name)
        if path is None:
            return None
        return self._disk.durable(path) if durable else self._disk.content(path)

    def _look(self, durable: bool) -> Mapping[str, str]:
        if self._changes != self._disk.changes:
            self._changes = self._disk.changes
            self._places.clear()
        if durable not in self._places:
            files = self._disk.durable_paths() if durable else self._disk.paths()
            beginning = f"{self._cluster}/job-"
            found = [path for path in files if path.startswith(beginning)]
            of_folders = {}
            for folder in (GRAPHS, RESULTS):
                directory = f"{self._cluster}/{folder}/"
                names = [path[len(directory) :] for path in found if path.startswith(directory)]
                of_folders.update(self._that_count(folder, names, durable))
            self._places[durable] = of_folders
        return self._places[durable]

    def _that_count(self, folder: str, names: list[str], durable: bool) -> dict[str, str]:
        directory = f"{self._cluster}/{folder}"
        claim = f".{folder}-claim"
        owners = {name.removesuffix(claim) for name in names if name.endswith(claim)}
        for name in sorted((n for n in names if n.endswith(f".{folder}")), reverse=True):
            path = f"{directory}/{name}"
            data = self._disk.durable(path) if durable else self._disk.content(path)
            owner = name.removesuffix(f".{folder}").rpartition("-")[0]
            if owner in owners and data is not None:
                entries = _pointers(data).items()
                return {f"{folder}/{entry}": f"{directory}/{file}" for entry, file in entries}
        return {}


@lru_cache(64)
def _pointers(data: bytes) -> dict[str, str]:
    entries = decode_entry(data, EpochContents).entries
    return {entry.name: (entry.data or entry.name.encode()).decode() for entry in entries}
