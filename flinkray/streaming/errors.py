"""Failures of user code: which function, which record, where the record came from."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from flinkray.core.errors import FlinkRayError


class StreamError(FlinkRayError):
    """A stream program that cannot run as it is written; the text says what to change."""


class OperatorError(FlinkRayError):
    """A function of the user, or an operator, failed on a record.

    The message has the user's traceback first, then operator and subtask, the record, and its
    origin.  ``__cause__`` is the error itself.
    """

    def __init__(self, operator: str, subtask: str, record: str, origin: str, story: str) -> None:
        super().__init__(operator, subtask, record, origin, story)
        self.operator = operator
        self.subtask = subtask
        self.record = record
        self.origin = origin
        self.story = story

    def __str__(self) -> str:
        lines = [self.story.rstrip(), f"in operator {self.operator!r}, subtask {self.subtask}"]
        if self.record:
            lines.append(f"on record {self.record}")
        if self.origin:
            lines.append(f"which came from {self.origin}")
        return "\n".join(lines)


def operator_error(error: BaseException, task_name: str) -> OperatorError:
    """What happened, read from the traceback: nothing has to be noted while records flow.

    Operators call user code in frames that hold ``self``, the batch as ``block`` and an iterator
    over its values as ``records``; how far the iterator came tells the record.
    """
    operator, subtask, record, origin = task_name, task_name, "", ""
    user_frames = error.__traceback__
    step: TracebackType | None = error.__traceback__
    while step is not None:
        seen = step.tb_frame.f_locals
        acting = seen.get("self")
        context: Any = getattr(acting, "context", None)
        name = getattr(context, "name", None)
        if name is not None and hasattr(acting, "describe_record"):
            operator, subtask = name, f"{context.subtask_index + 1}/{context.parallelism}"
            record, origin = _record(acting, seen.get("block"), seen.get("records"))
        if _is_ours(step) and step.tb_next is not None:
            user_frames = step.tb_next
        step = step.tb_next
    if user_frames is not None and _only_ours(user_frames):
        user_frames = error.__traceback__
    story = "".join(traceback.format_exception(type(error), error, user_frames))
    return OperatorError(operator, subtask, record, origin, story)


def _record(operator: Any, block: Any, records: Any) -> tuple[str, str]:
    if block is None:
        return "", ""
    origin = "" if block.origin is None else str(block.origin)
    remaining = getattr(records, "__length_hint__", None)
    if remaining is None:
        return "", origin
    place = len(block) - remaining() - 1
    if not 0 <= place < len(block):
        return "", origin
    return operator.describe_record(block, place), origin


def _is_ours(step: TracebackType) -> bool:
    module = str(step.tb_frame.f_globals.get("__name__", ""))
    return module.startswith(("flinkray.streaming", "flinkray.state", "flinkray.datastream"))


def _only_ours(step: TracebackType | None) -> bool:
    while step is not None:
        if not _is_ours(step):
            return False
        step = step.tb_next
    return True
