"""Passes a stream's epochs to the user's function as DataFrames, one after the other.

An epoch is the rows that a stream has committed at one checkpoint.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.file_results import Epoch, Epochs, EpochsDone
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.result import InvalidStageResultError, described, user_failure
from flinkray.spark.stage_code import SparkEpochFunction

logger = logging.getLogger(__name__)

ReadParquet = Callable[..., Any]
"""Function that takes paths of files and returns a DataFrame of their rows."""

LOOK_INTERVAL = 0.2
"""Seconds between two checks for new epochs, while there is none."""


class EpochColumnsError(FlinkRayError):
    """Raised if tasks of a stream have written different columns for one epoch."""


def handed_over_before(location: str, execution: str) -> SparkResult | None:
    """Return the stage's result, if earlier attempts have called the function with all epochs of
    the stream. None: epochs are left, or more may come. *execution*: id of the stream's
    execution."""
    epochs = Epochs(location)
    if not epochs.is_ended(execution):
        return None
    done = epochs.last_done()
    return None if epochs.published(done.checkpoint_id) else _result(done)


class NoMoreWantedError(FlinkRayError):
    """Raised if no stream reads the results of epochs any more. The present epoch does not count as
    processed."""


class EpochTaker(ABC):
    """Handles the results that the user's function returns for epochs."""

    def is_over(self) -> bool:
        """Return whether the function need not be called with further epochs, because no stream
        reads their results."""
        return False

    @abstractmethod
    def is_taken(self, epoch: Epoch) -> bool:
        """Return whether an earlier attempt has already stored the function's result for this
        epoch."""

    @abstractmethod
    def take(self, returned: object, epoch: Epoch) -> None:
        """Store the value that the user's function has returned for an epoch. Raises
        InvalidStageResultError: the function must not return this value. NoMoreWantedError: no
        stream reads the result any more."""

    @abstractmethod
    def end(self) -> None:
        """Note that there are no epochs after the last one, so that readers of the results end."""


class WritesItself(EpochTaker):
    """Handles results of a function that writes its results itself and must return None. Epochs
    never count as stored by an earlier attempt, so the function may be called again with an
    epoch."""

    def is_taken(self, epoch: Epoch) -> bool:
        return False

    def take(self, returned: object, epoch: Epoch) -> None:
        if returned is not None:
            raise InvalidStageResultError(
                f"the function returned {described(returned)}; what it is given by to_spark it "
                "has to write itself, and returns None"
            )

    def end(self) -> None:
        """Do nothing: no reader waits for the end."""


class EpochHandOver:
    """Calls the user's function with each epoch, for one attempt of a stage. Used by one thread.

    Args:
        execution: id of the stream's execution; another id each time the stream goes back to a
            checkpoint.
        taker: handles the function's result for each epoch.
    """

    def __init__(self, location: str, execution: str, taker: EpochTaker) -> None:
        self._epochs = Epochs(location)
        self._execution = execution
        self._taker = taker
        self._at: Epoch | None = None
        """Epoch that the function has been given. None: no epoch at present."""

    def run(
        self, read: ReadParquet, function: SparkEpochFunction, stopping: threading.Event
    ) -> SparkResult:
        """Call the function with each epoch, in order.

        Returns when the stream has ended, or no further result is wanted.

        Raises:
            EpochColumnsError: rows of an epoch differ in their columns.
            InvalidStageResultError: the function has returned a value that it must not return.
            FileResultLostError: rows of an epoch are gone.
        """
        done = self._epochs.last_done()
        try:
            while not self._is_over(stopping):
                is_ended = self._epochs.is_ended(self._execution)
                found = self._epochs.published(done.checkpoint_id)
                for epoch in found:
                    if self._is_over(stopping):
                        break
                    if not self._taker.is_taken(epoch):
                        self._hand_over(read, function, epoch)
                    done = self._epochs.note_done(epoch, done)
                    self._epochs.forget(done)
                if is_ended and not found:
                    self._taker.end()
                    break
                if not found:
                    stopping.wait(LOOK_INTERVAL)
        except NoMoreWantedError as reason:
            logger.info("%s", reason)
        return _result(done)

    def _is_over(self, stopping: threading.Event) -> bool:
        return stopping.is_set() or self._taker.is_over()

    def _hand_over(self, read: ReadParquet, function: SparkEpochFunction, epoch: Epoch) -> None:
        logger.info("checkpoint %d: %d rows", epoch.checkpoint_id, epoch.rows)
        self._at = epoch
        returned: object = function(read(*self._paths(epoch)), epoch.checkpoint_id)
        self._taker.take(returned, epoch)
        self._at = None

    def _paths(self, epoch: Epoch) -> list[str]:
        columns = sorted({part.columns for part in epoch.parts})
        if len(columns) > 1:
            raise EpochColumnsError(
                f"rows of checkpoint {epoch.checkpoint_id} have the columns ({columns[0]}), and "
                f"others have ({columns[1]}): declare the type of the stream, as in "
                "map(..., output_type=...)"
            )
        directories = [self._epochs.part(part.name) for part in epoch.parts]
        return [f"{one.location}/{file.name}" for one in directories for file in one.list()]

    def failure(self, error: BaseException) -> CoordinatorFailure:
        """Return the failure to report to the JobMaster for *error*, which :meth:`run` raised. If
        the function was processing an epoch, the text names its checkpoint."""
        failure = user_failure(error)
        if self._at is None:
            return failure
        told = f"{failure.text} (with the rows of checkpoint {self._at.checkpoint_id})"
        return replace(failure, text=told)


def _result(done: EpochsDone) -> SparkResult:
    return SparkResult(None, done.rows, None)
