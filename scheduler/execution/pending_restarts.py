"""Tracks regions that wait for a restart."""

from __future__ import annotations

from collections.abc import Iterable


class PendingRestart:
    """A restart, not carried out yet, of regions that failed together, by one or several
    failures."""

    __slots__ = ("delay_is_over", "generation", "is_global", "regions", "unended")

    def __init__(self, generation: int, is_global: bool) -> None:
        self.generation = generation
        self.is_global = is_global
        self.regions: dict[int, None] = {}
        self.unended = 0
        """Number of regions in which something still runs."""
        self.delay_is_over = False

    @property
    def is_due(self) -> bool:
        return self.delay_is_over and not self.unended


class PendingRestarts:
    """All restarts that are decided and not carried out yet. A region waits for at most one
    restart: that of its last failure. A later failure takes over regions from an earlier restart,
    which then no longer restarts them (EX-15)."""

    def __init__(self) -> None:
        self._by_generation: dict[int, PendingRestart] = {}
        self._of_region: dict[int, PendingRestart] = {}

    def __bool__(self) -> bool:
        return bool(self._by_generation)

    def __contains__(self, region: int) -> bool:
        return region in self._of_region

    def add(
        self, generation: int, regions: Iterable[int], unended: set[int], *, is_global: bool
    ) -> tuple[PendingRestart, list[PendingRestart]]:
        """Add a restart of *regions*, which takes over regions from earlier restarts. Returns (the
        restart, earlier restarts that are due now).  *unended*: regions in which a task still runs.

        An earlier restart becomes due if it waited only for regions that the new restart has taken
        over.
        """
        restart = PendingRestart(generation, is_global)
        earlier: dict[int, PendingRestart] = {}
        for index in regions:
            before = self._of_region.get(index)
            if before is not None:
                del before.regions[index]
                before.unended -= index in unended
                restart.is_global |= before.is_global
                earlier[before.generation] = before
            self._of_region[index] = restart
            restart.regions[index] = None
            restart.unended += index in unended
        self._by_generation[generation] = restart
        for before in earlier.values():
            if not before.regions:
                del self._by_generation[before.generation]
        due = [before for before in earlier.values() if before.regions and before.is_due]
        return restart, due

    def delay_is_over(self, generation: int) -> PendingRestart | None:
        """Mark the delay of a restart as over, and return the restart; None if it no longer
        exists."""
        restart = self._by_generation.get(generation)
        if restart is not None:
            restart.delay_is_over = True
        return restart

    def due(self) -> list[PendingRestart]:
        """Return the restarts whose delay is over and whose regions have no running tasks."""
        return [restart for restart in self._by_generation.values() if restart.is_due]

    def find(self, generation: int) -> PendingRestart | None:
        """Return the restart with this number (generation); None if it no longer exists."""
        return self._by_generation.get(generation)

    def region_ended(self, index: int) -> PendingRestart | None:
        """Make the restart that waits for the region wait no longer for it, because all tasks of
        the region have ended. Returns the restart; None if there is none."""
        restart = self._of_region.get(index)
        if restart is not None:
            restart.unended -= 1
        return restart

    def take(self, restart: PendingRestart) -> list[int]:
        """Remove a restart, because it is carried out now.  Returns the indices of its regions."""
        del self._by_generation[restart.generation]
        indices = sorted(restart.regions)
        restart.regions.clear()
        for index in indices:
            del self._of_region[index]
        return indices

    def clear(self) -> None:
        """Forget all pending restarts."""
        self._by_generation.clear()
        self._of_region.clear()
