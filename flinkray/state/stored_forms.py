"""Messages that describe how a state was written; they need no NumPy or Arrow."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored


@stored("state.RecordForm")
@message
class RecordForm:
    """The name and the fields that a class had when values of the class were stored."""

    name: str
    """``module:qualified name``, or the name under which the class was registered."""
    fields: tuple[str, ...]


@stored("state.SerializerSnapshot")
@message
class SerializerSnapshot:
    """Says how a state was written: the information that a reader needs first."""

    name: str
    version: int
    declared: str | None
    """Type and time to live of the state's descriptor, as JSON."""
    keys: tuple[RecordForm, ...] = ()
    """Classes with fields that occur in keys and namespaces."""
    values: tuple[RecordForm, ...] = ()
    """Classes with fields that occur in values."""
    pickled: tuple[str, ...] = ()
    """Types that were pickled, and so cannot be migrated."""
