"""Describes the operators that are chained into a job vertex, with the ids that identify their
state.
"""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored


@stored("VertexOperator")
@message
class VertexOperator:
    """An operator that is chained into a vertex."""

    operator_id: str
    """Id derived from the uid.  Without a uid: derived from the operator's position in the program.
    """
    name: str
    uid: str | None = None
    """The uid that the program's author has set; None if not set."""
    uid_hash: str | None = None
    """Id that the author has set, or None; a restore looks for state under this id first."""

    def __str__(self) -> str:
        return operator_text(self.name, self.uid)


def operator_text(name: str, uid: str | None) -> str:
    """Return the name and uid of an operator as text for users."""
    return f"{name!r} (uid {uid!r})" if uid is not None else f"{name!r} (without a uid)"
