"""JSON as it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


def to_json(value: object) -> str:
    """Raises ValueError: a number in it is none."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class JsonText:
    """What has been written already."""

    text: str


class WrittenOnce:
    """What many look at is written once, and not once for each."""

    def __init__(self) -> None:
        self._source: object = None
        self._written = JsonText("null")

    def of(self, source: object, body: Callable[[], object]) -> JsonText:
        """*body* as it was when it was asked for first since *source* is this object."""
        if source is not self._source:
            self._written, self._source = JsonText(to_json(body())), source
        return self._written
