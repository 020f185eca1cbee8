"""Output formats: outputs that are written record by record, and prepared and finished as a
whole."""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic

from typing_extensions import TypeVar

from flinkray.core import cloud_pickle
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Block

logger = logging.getLogger(__name__)

IT = TypeVar("IT", contravariant=True, default=Any)


class OutputFormat(ABC, Generic[IT]):
    """Writes the records of a stream, for ``stream.write_using_output_format``.

    The format is pickled: each subtask has its own copy. A subtask opens its copy before the first
    record and closes it after the last record. An exception of a method fails the task. If a task
    is restarted, the next attempt has a new copy, which is given the records since the last
    checkpoint again, or all records if there is no checkpoint.

    A format that also is an :class:`InitializeOnMaster` or a :class:`FinalizeOnMaster` has another
    copy, whose methods are called once for all subtasks. On a cluster that copy is in the job's
    StreamCoordinator.
    """

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Take settings from the job's parameters (``set_global_job_parameters``). Called once for
        each copy, before all other methods."""
        return

    @abstractmethod
    def open(self, task_number: int, num_tasks: int) -> None:
        """Begin the output of subtask *task_number*, from 0, of *num_tasks* subtasks."""

    @abstractmethod
    def write_record(self, record: IT) -> None:
        """Write a record, or keep it to be written later.

        Kept records are lost if the process dies. In a job with checkpoints, those that came before
        the last checkpoint are not given to the next attempt.
        """

    def close(self) -> None:
        """Write what is kept, and release what :meth:`open` has acquired.

        Called at the end of the input. If the task fails, is cancelled or stops with a savepoint,
        the call comes when the task ends; after a failure, an error of this method is only logged.
        """
        return


class InitializeOnMaster(ABC):
    """Interface of output formats that prepare the whole output, for example create its folder."""

    @abstractmethod
    def initialize_global(self, parallelism: int) -> None:
        """Prepare the output of *parallelism* subtasks. Called before the job's first task runs.

        May be called again, if a process dies before the first task runs, or if no process knows
        how far the job is and the job begins anew. An error fails the job, without a restart.
        """


class FinalizeOnMaster(ABC):
    """Interface of output formats that finish the whole output, for example rename its folder."""

    @abstractmethod
    def finalize_global(self, parallelism: int) -> None:
        """Finish the output of *parallelism* subtasks. Called when all tasks have finished.

        The job is FINISHED only afterwards. A job that fails or is cancelled does not finalise.
        :meth:`InitializeOnMaster.initialize_global` may have been called for another copy of the
        format. If a process dies meanwhile, the method is called again, so it should be idempotent.
        After an error the job is restarted as after other failures.
        """


class CleanupWhenUnsuccessful(ABC):
    """Interface of output formats that clean up after a failed write."""

    @abstractmethod
    def try_cleanup_on_error(self) -> None:
        """Remove what this subtask has written, as far as possible. Called after ``close`` if
        ``open``, ``write_record`` or ``close`` has failed. Errors are only logged."""


class OutputFormatOperator(StreamOperator):
    """Writes the records of one subtask with an output format."""

    def __init__(self, output_format: OutputFormat) -> None:
        self.format = output_format
        self._is_open = False
        self._has_failed = False

    def open(self) -> None:
        context = self.context
        self.format.configure(context.job_parameters)
        self._is_open = True
        self._call(self.format.open, context.subtask_index, context.parallelism)

    def process_block(self, block: Block) -> None:
        self._call(self._write, block)

    def _write(self, block: Block) -> None:
        write = self.format.write_record
        for record in self.read(block):
            write(record)

    def process_watermark(self, timestamp: int) -> None:
        """Do nothing: no operator follows a sink."""

    def process_status(self, idle: bool) -> None:
        """Do nothing: no operator follows a sink."""

    def finish(self) -> None:
        self._is_open = False
        self._call(self.format.close)

    def close(self) -> None:
        is_open, self._is_open = self._is_open, False
        try:
            if is_open and self._has_failed:
                self._try(self.format.close)
            elif is_open:
                self._call(self.format.close)
        finally:
            has_failed, self._has_failed = self._has_failed, False
            if has_failed and isinstance(self.format, CleanupWhenUnsuccessful):
                self._try(self.format.try_cleanup_on_error)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except (Exception, SystemExit):  # not if the task is cancelled
            self._has_failed = True
            raise

    def _try(self, method: Callable[[], None]) -> None:
        try:
            method()
        except (Exception, SystemExit):
            name = f"{type(self.format).__name__}.{method.__name__}"
            logger.warning("%s() failed after an error", name, exc_info=True)


class GlobalFormat:
    """A copy of an output format whose methods are called once for all subtasks of its operator.
    All methods may raise whatever the format raises."""

    def __init__(
        self, operator: str, output_format: OutputFormat, parameters: Mapping[str, str]
    ) -> None:
        """Make a copy of *output_format*. *operator*: name of its operator, for errors.
        *parameters*: the job's parameters."""
        self.name = f"output format of {operator}"
        """Name for errors."""
        self._format: OutputFormat = pickle.loads(cloud_pickle.dumps(output_format))
        self._parameters = parameters
        self._is_configured = False

    def initialize(self, parallelism: int) -> None:
        """Call ``initialize_global`` of the format, if it is an InitializeOnMaster."""
        output_format = self._configured()
        if isinstance(output_format, InitializeOnMaster):
            output_format.initialize_global(parallelism)

    def finalize(self, parallelism: int) -> None:
        """Call ``finalize_global`` of the format, if it is a FinalizeOnMaster."""
        output_format = self._configured()
        if isinstance(output_format, FinalizeOnMaster):
            output_format.finalize_global(parallelism)

    def _configured(self) -> OutputFormat:
        if not self._is_configured:
            self._format.configure(self._parameters)
            self._is_configured = True
        return self._format


def is_global(operator: StreamOperator) -> bool:
    """Return whether the operator's output format has methods to be called once for all subtasks:
    it is an InitializeOnMaster or a FinalizeOnMaster."""
    return isinstance(operator, OutputFormatOperator) and isinstance(
        operator.format, (InitializeOnMaster, FinalizeOnMaster)
    )
