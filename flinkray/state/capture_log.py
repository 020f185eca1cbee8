"""Which captures of a columnar table later ones may begin at, and what was removed since then."""

from __future__ import annotations

_MOST_KNOWN = 1000
"""Captures that others may begin at."""


class CaptureLog:
    """Numbers the captures: whatever changes keeps the number as it is then, and has changed since
    an earlier capture if that is not less than what :meth:`begin` says of it."""

    def __init__(self) -> None:
        self.number = 0
        """Captures so far."""
        self._known: dict[int, int] = {}
        """Of captures that others may begin at: how many there were with it."""
        self._removals: list[tuple[int, int]] = []
        """Numbers, and up to which namespace everything was removed."""

    @property
    def oldest(self) -> int:
        """What has changed before is in all captures that others may begin at."""
        return min(self._known.values(), default=self.number)

    def begin(self, since: int | None) -> int | None:
        """The first number that changes since a capture have, which will be named again; those
        before it will not.  None: it is not known (any more)."""
        begin = None if since is None else self._known.get(since)
        if begin is not None:
            self._known = {known: at for known, at in self._known.items() if at >= begin}
        return begin

    def removed(self, begin: int | None) -> int | None:
        """Up to which namespace what was there has been removed since then."""
        if begin is None:
            return None
        return max((namespace for at, namespace in self._removals if at >= begin), default=None)

    def remove(self, namespace: int) -> None:
        """Everything up to that namespace is removed."""
        if self._removals and self._removals[-1][0] == self.number:
            namespace = max(namespace, self._removals.pop()[1])
        self._removals.append((self.number, namespace))

    def captured(self, checkpoint_id: int | None) -> None:
        """A capture may begin at this moment: nothing has changed since."""
        self.number += 1
        if checkpoint_id is not None:
            self._known[checkpoint_id] = self.number
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        oldest = self.oldest
        self._removals = [removal for removal in self._removals if removal[0] >= oldest]
