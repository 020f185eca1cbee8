"""Functions of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from flinkray.streaming.functions.functions import Function
from flinkray.streaming.functions.runtime_context import KeyedStateStore

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """The results of one key's window."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Results for the records of the key's window."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """The results of a window over the whole stream."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Results for the records of the window."""


class WindowContext(ABC, Generic[W]):
    """What a process window function may ask about its window."""

    @abstractmethod
    def window(self) -> W:
        """The window that is evaluated or cleared."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The clock's time, milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The smallest possible number before the first watermark."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and window; to be cleared in ``clear``."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """The results of one key's window, with state and time."""

    Context = WindowContext

    @abstractmethod
    def process(
        self, key: KEY, context: WindowContext[W], elements: Iterable[IN]
    ) -> Iterable[OUT] | None:
        """Results for the records of the key's window."""

    def clear(self, context: WindowContext[W]) -> None:
        """The window ends: clear its state."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """The results of a window over the whole stream, with state and time."""

    Context = WindowContext

    @abstractmethod
    def process(self, context: WindowContext[W], elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Results for the records of the window."""

    def clear(self, context: WindowContext[W]) -> None:
        """The window ends: clear its state."""
