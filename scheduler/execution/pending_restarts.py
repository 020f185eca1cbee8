"""Regions that wait for their restart: until nothing of them runs and the delay is over."""

from __future__ import annotations

from collections.abc import Iterable


class PendingRestart:
    """Regions that one failure, or several at the same time, restart together."""

    __slots__ = ("delay_is_over", "generation", "is_global", "regions", "unended")

    def __init__(self, generation: int, is_global: bool) -> None:
        self.generation = generation
        self.is_global = is_global
        self.regions: dict[int, None] = {}
        self.unended = 0
        """Regions of which something still runs."""
        self.delay_is_over = False

    @property
    def is_due(self) -> bool:
        return self.delay_is_over and not self.unended


class PendingRestarts:
    """A region waits for one restart at most: that of its last failure.

    A later failure takes regions over from an earlier restart, which then does not concern them
    any more: what was decided for an older version of a vertex has no effect (EX-15).
    """

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
        """*unended*: those of the regions of which something still runs.

        The second of what is returned are earlier restarts that are due now: what they still waited
        for are regions that this one has taken over.
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
        """The restart whose delay that was, if there is still one."""
        restart = self._by_generation.get(generation)
        if restart is not None:
            restart.delay_is_over = True
        return restart

    def due(self) -> list[PendingRestart]:
        """Those that nothing runs of any more, and whose delay is over."""
        return [restart for restart in self._by_generation.values() if restart.is_due]

    def find(self, generation: int) -> PendingRestart | None:
        """The restart of that generation, if there is still one."""
        return self._by_generation.get(generation)

    def region_ended(self, index: int) -> PendingRestart | None:
        """Nothing of a region runs any more; the restart that it waits for."""
        restart = self._of_region.get(index)
        if restart is not None:
            restart.unended -= 1
        return restart

    def take(self, restart: PendingRestart) -> list[int]:
        """It is carried out; its regions, which it has no more."""
        del self._by_generation[restart.generation]
        indices = sorted(restart.regions)
        restart.regions.clear()
        for index in indices:
            del self._of_region[index]
        return indices

    def clear(self) -> None:
        """There will be no restarts any more."""
        self._by_generation.clear()
        self._of_region.clear()
