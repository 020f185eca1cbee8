"""Type variables of streams. A type argument that a program does not give is ``Any``."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar

T = TypeVar("T", covariant=True, default=Any)
"""Type of a stream's records."""
T1 = TypeVar("T1", covariant=True, default=Any)
"""Type of the records of the first of two streams."""
T2 = TypeVar("T2", covariant=True, default=Any)
"""Type of the records of the second of two streams."""
K = TypeVar("K", covariant=True, default=Any)
"""Type of the keys of a keyed stream."""
W = TypeVar("W", covariant=True, default=Any)
"""Type of the windows of a windowed stream."""
U = TypeVar("U", default=Any)
"""Type that a method takes from an argument, such as the type of another stream's records."""
R = TypeVar("R", default=Any)
"""Type of the results of a function."""
