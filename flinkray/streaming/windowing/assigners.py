"""Window assigners: they decide to which windows a record belongs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.state.descriptors import ValueStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.windowing import window
from flinkray.streaming.windowing.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from flinkray.streaming.windowing.window import (
    GLOBAL_WINDOW,
    CountWindow,
    GlobalWindow,
    TimeWindow,
)

_Self = TypeVar("_Self")
T = TypeVar("T", contravariant=True, default=Any)
W = TypeVar("W", default=Any)

Span = Time | Duration | int


class WindowAssignerContext(ABC):
    """Context of a window assigner: gives it the processing time and the runtime context."""

    @abstractmethod
    def get_current_processing_time(self) -> int: ...

    @abstractmethod
    def get_runtime_context(self) -> Any:
        """Return the runtime context, with the state of the record's key."""


class _Contexts:
    """Makes PyFlink's name ``WindowAssigner.WindowAssignerContext`` available."""

    WindowAssignerContext = WindowAssignerContext


class WindowAssigner(_Contexts, ABC, Generic[T, W]):
    """Assigns records of type T to windows of type W."""

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssignerContext
    ) -> Collection[W]:
        """Return the windows to which a record belongs. Without windows, the record is left out."""

    @abstractmethod
    def get_default_trigger(self, env: Any = None) -> Trigger[T, W]: ...

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether windows end by event time (watermarks). False: by processing time."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows can merge, such as session windows."""

    MergeCallback: TypeAlias = window.MergeCallback

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: window.MergeCallback[W]) -> None:
        """Call *callback* for each group of several windows that merge into one."""


def _check_timestamp(timestamp: int) -> None:
    if timestamp == MIN_TIMESTAMP:
        raise StreamError(
            "the record has no timestamp, which windows of event time need: call "
            "assign_timestamps_and_watermarks before window"
        )


class _OfTime(WindowAssigner[Any, TimeWindow]):
    event_time: bool

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return self.event_time


class _TimeWindows(_OfTime):
    def __init__(self, size: int, slide: int, offset: int) -> None:
        if size <= 0 or slide <= 0 or abs(offset) >= slide:
            name = "size" if size == slide else "slide"
            raise ValueError(
                f"{type(self).__name__}: abs(offset) < {name} and size > 0 must hold, got size "
                f"{size}, slide {slide}, offset {offset} ms"
            )
        self.size = size
        self.slide = slide
        self.offset = offset

    def windows_of(self, timestamp: int) -> list[TimeWindow]:
        """Return the windows that contain *timestamp*, the latest first."""
        size, slide = self.size, self.slide
        last = timestamp - (timestamp - self.offset) % slide
        return [TimeWindow(start, start + size) for start in range(last, timestamp - size, -slide)]

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssignerContext
    ) -> Collection[TimeWindow]:
        if not self.event_time:
            return self.windows_of(context.get_current_processing_time())
        _check_timestamp(timestamp)
        return self.windows_of(timestamp)

    @property
    def is_aligned(self) -> bool:
        """Whether the windows follow from size, slide and offset alone. False if a subclass
        overrides the method that computes them."""
        own = type(self)
        as_here = (own.assign_windows, own.windows_of)
        return as_here == (_TimeWindows.assign_windows, _TimeWindows.windows_of)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.slide}, {self.offset})"


class _Tumbling(_TimeWindows):
    @classmethod
    def of(cls: type[_Self], size: Span, offset: Span | None = None) -> _Self:
        """Return an assigner of windows of *size*, aligned to the epoch plus *offset*."""
        length = milliseconds(size)
        return cls(length, length, milliseconds(offset or 0))  # type: ignore[call-arg]


class TumblingEventTimeWindows(_Tumbling):
    """Assigns records to windows of event time that follow each other without overlap."""

    event_time = True


class TumblingProcessingTimeWindows(_Tumbling):
    """Assigns records to windows of processing time that follow each other without overlap."""

    event_time = False


class _Sliding(_TimeWindows):
    @classmethod
    def of(cls: type[_Self], size: Span, slide: Span, offset: Span | None = None) -> _Self:
        """Return an assigner of windows of *size*, a new window every *slide*.
        Windows are aligned to the epoch plus *offset*."""
        times = milliseconds(size), milliseconds(slide), milliseconds(offset or 0)
        return cls(*times)  # type: ignore[call-arg]


class SlidingEventTimeWindows(_Sliding):
    """Assigns records to windows of event time; a new window begins every *slide*."""

    event_time = True


class SlidingProcessingTimeWindows(_Sliding):
    """Assigns records to windows of processing time; a new window begins every *slide*."""

    event_time = False


class SessionWindowTimeGapExtractor(ABC):
    """Interface of a user's class that returns, for a record, the gap after which its session
    ends."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap after the record, in milliseconds; it must be greater than zero."""


class _SessionWindows(_OfTime, MergingWindowAssigner[Any, TimeWindow]):
    def __init__(self, gap: int | Callable[[Any], int]) -> None:
        if isinstance(gap, int) and gap <= 0:
            raise ValueError(f"a session's gap must be positive, got {gap} ms")
        self._gap = gap

    @classmethod
    def with_gap(cls: type[_Self], size: Span) -> _Self:
        """Return an assigner of sessions that end after the gap *size*."""
        return cls(milliseconds(size))  # type: ignore[call-arg]

    @classmethod
    def with_dynamic_gap(cls: type[_Self], extractor: Any) -> _Self:
        """Return an assigner of sessions whose gap depends on the record.
        *extractor*: a SessionWindowTimeGapExtractor or a function."""
        extract = getattr(extractor, "extract", extractor)
        if not callable(extract):
            raise TypeError(f"a SessionWindowTimeGapExtractor is needed, got {extractor!r}")
        refuse_coroutines(extractor, "extract")
        return cls(extract)  # type: ignore[call-arg]

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssignerContext
    ) -> Collection[TimeWindow]:
        if self.event_time:
            _check_timestamp(timestamp)
        else:
            timestamp = context.get_current_processing_time()
        gap = self._gap if isinstance(self._gap, int) else self._gap(element)
        if gap <= 0:
            raise StreamError(f"a session's gap must be positive, got {gap} ms")
        return (TimeWindow(timestamp, timestamp + gap),)

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: window.MergeCallback[TimeWindow]
    ) -> None:
        TimeWindow.merge_windows(windows, callback)


class EventTimeSessionWindows(_SessionWindows):
    """Assigns records to sessions of event time, which end after a gap without records."""

    event_time = True


class ProcessingTimeSessionWindows(_SessionWindows):
    """Assigns records to sessions of processing time, which end after a gap without records."""

    event_time = False


class GlobalWindows(WindowAssigner[Any, GlobalWindow]):
    """Assigns all records of a key to one window, which fires only if a trigger is set."""

    @staticmethod
    def create() -> GlobalWindows:
        """Create the assigner of one window for all records of a key."""
        return GlobalWindows()

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        return (GLOBAL_WINDOW,)

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return NeverTrigger()

    def is_event_time(self) -> bool:
        return False


class CountSlidingWindowAssigner(WindowAssigner[Any, CountWindow]):
    """Assigns the records of a key to windows of *window_size* records. A new window begins every
    *window_slide* records. A window that fires is full, so its contents are removed."""

    def __init__(self, window_size: int, window_slide: int) -> None:
        if window_size <= 0 or window_slide <= 0:
            raise ValueError(
                f"size and slide must be positive, got {window_size} and {window_slide}"
            )
        self._size = window_size
        self._slide = window_slide
        self._count: ValueStateDescriptor[int] = ValueStateDescriptor("window-count")

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return an assigner of windows of *window_size* records, one every *window_slide*."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssignerContext
    ) -> Collection[CountWindow]:
        state = context.get_runtime_context().get_state(self._count)
        count = state.value() or 0
        state.update(count + 1)
        last = count // self._slide
        first = max(0, -((self._size - 1 - count) // self._slide))
        return [CountWindow(number) for number in range(last, first - 1, -1)]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return PurgingTrigger(CountTrigger(self._size))

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountSlidingWindowAssigner):
    """Assigns the records of a key to windows of *window_size* records, without overlap."""

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, window_size)

    @staticmethod
    def of(window_size: int, window_slide: int | None = None) -> CountTumblingWindowAssigner:
        """Create an assigner of windows of *window_size* records. *window_slide* is ignored."""
        return CountTumblingWindowAssigner(window_size)
