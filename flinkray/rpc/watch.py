"""Being told, once, that an endpoint is no more."""

from __future__ import annotations

from collections.abc import Callable


class TerminationWatch:
    """Calls back once, with the reason, on the loop of the service that watches."""

    def __init__(self, address: str, on_terminated: Callable[[str], None]) -> None:
        self.address = address
        self._on_terminated: Callable[[str], None] | None = on_terminated
        self._on_end: Callable[[], None] | None = None

    @property
    def is_active(self) -> bool:
        """False once it has fired or was cancelled."""
        return self._on_terminated is not None

    def cancel(self) -> None:
        """No call back after this; idempotent."""
        self._on_terminated = None
        self._end()

    def fire(self, reason: str) -> None:
        """For services: report the end; ignored when cancelled or already fired."""
        callback, self._on_terminated = self._on_terminated, None
        if callback is not None:
            self._end()
            callback(reason)

    def on_end(self, release: Callable[[], None]) -> None:
        """For services: *release* what the watch holds, when it fires or is cancelled."""
        if self.is_active:
            self._on_end = release
        else:
            release()

    def _end(self) -> None:
        release, self._on_end = self._on_end, None
        if release is not None:
            release()
