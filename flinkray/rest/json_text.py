"""Writes JSON in the form in which it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


def to_json(value: object) -> str:
    """Return *value* as JSON. Raises ValueError: a number is not finite."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class JsonText:
    """JSON that is already written as text."""

    text: str


class WrittenOnce:
    """Keeps the last JSON text, so that an answer for many clients is written once."""

    def __init__(self) -> None:
        self._source: object = None
        self._written = JsonText("null")

    def of(self, source: object, body: Callable[[], object]) -> JsonText:
        """Return the JSON text of *body()*, which is made from *source*.
        If *source* is the same object as in the last call, the last text is returned.
        """
        if source is not self._source:
            self._written, self._source = JsonText(to_json(body())), source
        return self._written
