"""Python's search for garbage in cycles, in processes that hold a great deal that is none."""

from __future__ import annotations

import gc

YOUNG = 50_000
"""New objects after which the youngest are searched.  With Python's 700 a master that builds a
thousand tasks is searched a hundred times, and older generations with it: at 20,000 tasks that was
a third of the time of all its decisions, in proportion to what is there and not to what is new."""
_OLDER = 20
"""Searches of one generation for one of the next."""
RARELY = (YOUNG, _OLDER, _OLDER)
"""The thresholds."""


def spare_what_is_there() -> None:
    """Search all that this process has now never again, and what comes more rarely.

    For processes of endpoints.  Idempotent; to be called when much was imported or built that
    stays.  Garbage without cycles, nearly all there is, is freed at once all the same.
    """
    gc.freeze()
    gc.set_threshold(*RARELY)
