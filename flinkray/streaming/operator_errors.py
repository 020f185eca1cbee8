"""Errors of user code: the function, the record, and where the record came from."""

from __future__ import annotations

import traceback
from types import FrameType, TracebackType
from typing import Any

from flinkray.core import cloud_pickle
from flinkray.core.error_text import traceback_of
from flinkray.core.errors import FlinkRayError
from flinkray.streaming.errors import UnpicklableRecordsError

_OURS = ("flinkray.streaming", "flinkray.state", "flinkray.datastream", "flinkray.actors")
_LEADING = (*_OURS, "flinkray.kernels", "flinkray.rpc", "asyncio", "concurrent.futures")
"""Modules whose frames come before user code in a traceback, in tasks and in enumerators."""
_PICKLERS = (cloud_pickle.__name__, "cloudpickle", "pickle")


Reading = tuple[Any, Any]
"""(block, iterator over the block's values, which shows the last record that was read)."""


def reading_at(block: Any, place: int) -> Reading:
    """Return a pair of *block* and an iterator over its values that has just returned the value at
    index *place*. Errors find the failing record by such a pair."""
    records = iter(list(block.values))
    for _ in range(place + 1):
        next(records)
    return block, records


class OperatorError(FlinkRayError):
    """A user's function, or an operator, failed on a record. The message has the user's traceback,
    then operator and subtask, the record, and where the record entered the job. If no record was
    being processed, the message names the timer or window. ``__cause__`` is the original error."""

    only_says_where = True

    def __init__(
        self,
        operator: str,
        subtask: str,
        record: str,
        origin: str,
        story: str,
        occasion: str = "",
    ) -> None:
        super().__init__(operator, subtask, record, origin, story, occasion)
        self.operator = operator
        self.subtask = subtask
        self.record = record
        self.origin = origin
        self.story = story
        self.occasion = occasion

    def __str__(self) -> str:
        place = f"in operator {self.operator!r}"
        if self.subtask != self.operator:
            place += f", subtask {self.subtask}"
        lines = [self.story.rstrip(), place]
        if self.record:
            lines.append(f"on record {self.record}")
        elif self.occasion:
            lines.append(f"on {self.occasion}")
        if self.origin:
            lines.append(f"which came from {self.origin}")
        return "\n".join(lines)


class _Scene:
    """Collects which operator failed, and on which record, from the frames of a traceback."""

    def __init__(self, task_name: str) -> None:
        self.operator = self.subtask = task_name
        self.acting: Any = None
        self._forget()

    def _forget(self) -> None:
        self.record = self.origin = self.occasion = ""

    def enter(self, frame: FrameType) -> None:
        """Take from a frame of flinkray's code which operator runs in it, and its record. Call with
        the outermost frame first, so that the innermost operator remains."""
        owner = _owner(frame)
        context: Any = getattr(owner, "context", None)
        name = getattr(context, "name", None)
        if name is not None and hasattr(owner, "describe_record") and owner is not self.acting:
            self._forget()
            self.acting = owner
            self.operator = name
            self.subtask = f"{context.subtask_index + 1}/{context.parallelism}"
            self.occasion = owner.describe_occasion()
        self._read(getattr(owner, "reading", None))
        for value in frame.f_locals.values():
            if hasattr(value, "timestamps") and getattr(value, "origin", None) is not None:
                self.origin = str(value.origin)

    def _read(self, reading: Reading | None) -> None:
        if reading is None:
            return
        block, records = reading
        place = len(block) - records.__length_hint__() - 1
        if place < 0 or _is_exhausted(records):
            return
        self.origin = "" if block.origin is None else str(block.origin)
        if hasattr(self.acting, "describe_record"):
            self.record = self.acting.describe_record(block, place)


def _owner(frame: FrameType) -> Any:
    """Return the object whose method runs in the frame, which is the first argument.
    None if the function has no arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _is_exhausted(records: Any) -> bool:
    """Return whether a list iterator is at its end, where it no longer refers to its list."""
    rebuilt = records.__reduce__()
    return len(rebuilt) > 1 and not rebuilt[1][0] and records.__length_hint__() == 0


def operator_error(error: BaseException, task_name: str) -> OperatorError:
    """Return an error that names the operator and the record, as found from the traceback.

    The traceback is used so that processing a record needs no extra work. The frames show the
    methods of operators that run. An object with a ``reading`` keeps the block and the iterator
    over its values; the iterator's position tells the record. ``describe_occasion`` of an operator
    tells about timers and windows.
    """
    scene = _Scene(task_name)
    step = error.__traceback__
    while step is not None:
        if _is_ours(step):
            scene.enter(step.tb_frame)
        step = step.tb_next
    if isinstance(error, UnpicklableRecordsError):
        return _not_sent(error, scene)
    story = traceback_of(error, user_frames(error))
    return OperatorError(
        scene.operator, scene.subtask, scene.record, scene.origin, story, scene.occasion
    )


def _not_sent(error: UnpicklableRecordsError, scene: _Scene) -> OperatorError:
    """Return the :class:`OperatorError` for records that could not be pickled and sent.
    Batches are sent later than they are made, so the traceback shows other records."""
    story = "".join(traceback.format_exception_only(type(error), error))
    cause = error.__cause__
    frames = None if cause is None else user_frames(cause, (*_LEADING, *_PICKLERS))
    if cause is not None and frames is not None and frames is not cause.__traceback__:
        story = traceback_of(cause, frames, chain=False) + story
    return OperatorError(
        error.operator or scene.operator,
        error.subtask or scene.subtask,
        error.record,
        error.origin or scene.origin,
        story,
    )


def _is_ours(step: TracebackType, modules: tuple[str, ...] = _OURS) -> bool:
    module = str(step.tb_frame.f_globals.get("__name__", ""))
    return module.startswith(modules)


def user_frames(error: BaseException, leading: tuple[str, ...] = _LEADING) -> TracebackType | None:
    """Return the traceback from the first frame of the user's code on. If no frame is the user's:
    None for an error of flinkray, whose text says what to change; else the whole traceback."""
    step = error.__traceback__
    while step is not None and _is_ours(step, leading):
        step = step.tb_next
    if step is None and not isinstance(error, FlinkRayError):
        return error.__traceback__
    return step
