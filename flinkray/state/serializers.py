"""How what is in a state table becomes bytes."""

from __future__ import annotations

import pickle
from typing import Any, Protocol


class StateSerializer(Protocol):
    """Of one table.  It may be used by another thread than the task's."""

    def dumps(self, value: Any) -> bytes: ...
    def loads(self, data: bytes) -> Any: ...


class PickleSerializer:
    """For values of any type."""

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value, 5)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


PICKLE = PickleSerializer()
