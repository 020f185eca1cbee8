"""How a state was written: messages, for which no NumPy or Arrow is loaded."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored


@stored("state.RecordForm")
@message
class RecordForm:
    """A class as it was when values of it were stored."""

    name: str
    """``module:qualified name``, or the name that it was registered under."""
    fields: tuple[str, ...]


@stored("state.SerializerSnapshot")
@message
class SerializerSnapshot:
    """How a state was written: what a reader has to know of it before it reads."""

    name: str
    version: int
    declared: str | None
    """Type and time to live of its descriptor, as JSON."""
    keys: tuple[RecordForm, ...] = ()
    """Classes with fields that are in keys and namespaces."""
    values: tuple[RecordForm, ...] = ()
    """And in values."""
    pickled: tuple[str, ...] = ()
    """Types that nothing but pickle covers: they cannot be migrated."""
