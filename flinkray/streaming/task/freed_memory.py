"""Memory that one batch has used and the next one uses again.

The C library gives freed memory back to the system as soon as there is more of it than twice the
largest piece that was freed so far.  With columns of some hundred kilobytes that can happen with
every batch, whose arrays then lie in new pages: each costs the system more than the arithmetic that
is done on it.
"""

from __future__ import annotations

import numpy as np

_LARGEST: int = 31 << 20
"""Bytes.  The C library learns from pieces of up to 32 MiB, and from no larger ones."""


def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to about 60 MiB at the end of its heap.

    A large piece of memory is taken and freed, from which glibc learns that such pieces come
    (``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` in mallopt(3)); it is never touched, so that it
    costs two calls of the system.  Where the user has set these by environment variables, they
    stay; with other C libraries nothing happens.
    """
    np.empty(_LARGEST, np.uint8)
