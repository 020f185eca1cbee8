"""Errors in the use of state."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class StateError(FlinkRayError):
    """State was used in a way that is not allowed; the text names the state and a solution."""


class StateMigrationError(StateError):
    """Stored state does not match the requested state; the text says why, and what would match."""
