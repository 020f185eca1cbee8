"""Log lines as part of a story."""

from __future__ import annotations

import logging
from collections.abc import Callable


class StoryLog(logging.Handler):
    """Inside its context what flinkray logs is told, and goes to no other handler.

    Others may keep records: pytest does so until the end of an item, which may be thousands of
    runs.  A record holds what its line names, and by an exception's traceback a whole run.
    """

    def __init__(self, tell: Callable[..., None], level: int) -> None:
        super().__init__(level)
        self._tell = tell
        self._logger = logging.getLogger("flinkray")
        self._level_before = self._logger.level
        self._propagates = self._logger.propagate

    def __enter__(self) -> None:
        self._level_before = self._logger.level
        self._propagates = self._logger.propagate
        self._logger.setLevel(min(self._logger.getEffectiveLevel(), self.level))
        self._logger.propagate = False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates
        self._logger.setLevel(self._level_before)

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name.removeprefix("flinkray.")
        self._tell("%s %s: %s", record.levelname.lower(), name, record.getMessage())
