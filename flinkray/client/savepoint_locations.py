"""Where savepoints are, as their users name it."""

from __future__ import annotations

from flinkray.checkpoint import locations
from flinkray.core.errors import ConfigurationError


def absolute_location(text: str) -> str:
    """A path or URI that means the same on every node: paths are relative to this process.

    Raises:
        ConfigurationError: it is neither.
    """
    if not text.strip():
        raise ConfigurationError("an empty text is neither a path nor a URI")
    try:
        return locations.normal(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is neither a path nor a URI: {error}") from error
