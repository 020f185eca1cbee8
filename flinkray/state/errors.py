"""What can be wrong with the use of state."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class StateError(FlinkRayError):
    """State was used in a way it does not allow; the text names the state and the way out."""


class StateMigrationError(StateError):
    """Stored state does not fit what is asked for; the text says why, and what would fit."""
