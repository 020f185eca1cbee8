"""Keeps track of captures of a columnar table, and of removals between them."""

from __future__ import annotations

_MOST_KNOWN = 1000
"""Largest number of captures to which later captures can refer."""


class CaptureLog:
    """Counts the captures of a columnar table, so that a capture can contain only changes.
    The table marks each change with the present count (*number*). A change was made after a capture
    if its mark is at least the number that :meth:`begin` returns for the capture."""

    def __init__(self) -> None:
        self.number = 0
        """Number of captures so far."""
        self._known: dict[int, int] = {}
        """Number of captures up to and including the capture, by its checkpoint id.
        Later captures can refer to these captures."""
        self._removals: list[tuple[int, int]] = []
        """(current number, namespace up to which everything was removed)."""

    @property
    def oldest(self) -> int:
        """The lowest mark that :meth:`begin` can still return.
        Changes with lower marks are in all captures to which a later capture can refer."""
        return min(self._known.values(), default=self.number)

    def begin(self, since: int | None) -> int | None:
        """Return the lowest mark of the changes made after the capture with checkpoint id *since*.
        Returns None if *since* is None or not known (any more). Captures before *since*
        are forgotten."""
        begin = None if since is None else self._known.get(since)
        if begin is not None:
            self._known = {known: at for known, at in self._known.items() if at >= begin}
        return begin

    def removed(self, begin: int | None) -> int | None:
        """Return the highest namespace given to :meth:`remove` since the mark *begin*.
        Returns None if nothing was removed, or *begin* is None."""
        if begin is None:
            return None
        return max((namespace for at, namespace in self._removals if at >= begin), default=None)

    def remove(self, namespace: int) -> None:
        """Note that *namespace* and all lower namespaces are removed from the table now."""
        if self._removals and self._removals[-1][0] == self.number:
            namespace = max(namespace, self._removals.pop()[1])
        self._removals.append((self.number, namespace))

    def captured(self, checkpoint_id: int | None) -> None:
        """Note that a capture was made now.
        Later captures can refer to this one if it has a *checkpoint_id*."""
        self.number += 1
        if checkpoint_id is not None:
            self._known[checkpoint_id] = self.number
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        oldest = self.oldest
        self._removals = [removal for removal in self._removals if removal[0] >= oldest]
