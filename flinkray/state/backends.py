"""Which backend keeps keyed state: decided here and nowhere else."""

from __future__ import annotations

from flinkray.state.backend import KeyedStateBackendFactory
from flinkray.state.heap import HeapKeyedStateBackend

DEFAULT: KeyedStateBackendFactory = HeapKeyedStateBackend
