"""Window functions that users implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from flinkray.streaming.functions.functions import IN, KEY, OUT, Function, Tagged, W
from flinkray.streaming.functions.runtime_context import KeyedStateStore

WINDOW = TypeVar("WINDOW", covariant=True, default=Any)


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """A function that returns the results of a window of one key."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the key's window."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """A function that returns the results of a window over the whole stream."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the window."""


class WindowContext(ABC, Generic[WINDOW]):
    """Context of the window that a process window function processes."""

    @abstractmethod
    def window(self) -> WINDOW:
        """Return the window that is evaluated or cleared."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; the least possible time before the first watermark."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return state of this key and window. Clear it in ``clear``."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return state of this key, which all its windows share."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """A function that returns the results of a window of one key, with state and time."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(
        self, key: KEY, context: WindowContext[W], elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the key's window."""

    def clear(self, context: WindowContext[W]) -> None:
        """Called when the window is removed: clear its state."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """A function that returns the results of a window over the whole stream.
    It can use state and time."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(
        self, context: WindowContext[W], elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the window."""

    def clear(self, context: WindowContext[W]) -> None:
        """Called when the window is removed: clear its state."""
