"""The operators that are chained into a job vertex, as their state knows them."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.core.schema import stored


@stored("VertexOperator")
@message
class VertexOperator:
    """An operator that is chained into a vertex."""

    operator_id: str
    """Made of the uid, or, without one, of the operator's place in the program."""
    name: str
    uid: str | None = None
    """As the program's author has set it."""
    uid_hash: str | None = None
    """An id that the author has set: state is looked for under it before it is under the other."""

    def __str__(self) -> str:
        return operator_text(self.name, self.uid)


def operator_text(name: str, uid: str | None) -> str:
    """An operator, for people."""
    return f"{name!r} (uid {uid!r})" if uid is not None else f"{name!r} (without a uid)"
