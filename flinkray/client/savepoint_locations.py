"""Converts locations of savepoints and checkpoints from the users' form to one for all nodes."""

from __future__ import annotations

from flinkray.checkpoint import locations
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import CHECKPOINTING_DIR, SAVEPOINT_DIR, STATE_RECOVERY_PATH

_OPTIONS = (CHECKPOINTING_DIR, SAVEPOINT_DIR, STATE_RECOVERY_PATH)


def absolute_locations(configuration: ReadableConfig) -> dict[str, str]:
    """Return the locations in a configuration, by option key, as paths or URIs that mean the same
    on every node. Raises ConfigurationError: a location is neither a path nor a URI."""
    found = ((option.key, configuration.get(option)) for option in _OPTIONS)
    return {key: absolute_location(location) for key, location in found if location is not None}


def absolute_location(text: str) -> str:
    """Return a path or URI that means the same on every node: a relative path is resolved in this
    process's directory. Raises ConfigurationError: *text* is neither a path nor a URI."""
    if not text.strip():
        raise ConfigurationError("an empty text is neither a path nor a URI")
    try:
        return locations.normal(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is neither a path nor a URI: {error}") from error
