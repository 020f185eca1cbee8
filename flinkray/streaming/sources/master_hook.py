"""Hooks that a source calls on the master: once per checkpoint, and when the job is restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, Generic

from typing_extensions import TypeVar

HookStateT = TypeVar("HookStateT", default=Any)


class MasterTriggerRestoreHook(ABC, Generic[HookStateT]):
    """Code of a source that runs once per checkpoint, for instance to ask an external system for a
    checkpoint of its own.

    The hooks of a job run in the job's StreamCoordinator, beside the enumerators of its sources, in
    threads. A hook gets one call at a time. *HookStateT*: type of the hook's state.
    """

    @abstractmethod
    def get_identifier(self) -> str:
        """Return the id under which checkpoints hold the state. Unique within the job."""

    @abstractmethod
    def trigger_checkpoint(
        self, checkpoint_id: int, timestamp: int
    ) -> HookStateT | Future[HookStateT | None] | None:
        """Return the hook's state for a checkpoint, or a future of the state. None: no state.

        Called after the snapshots of all enumerators. The tasks of the job learn of the checkpoint
        when all hooks have their state. If the call or its future fails, or the state cannot be
        stored, the checkpoint fails. If the future is not done when the checkpoint fails or
        expires, the future is cancelled. The state is stored as the state of an enumerator is.

        A call that does not return blocks later calls of all hooks of the job: return a future if
        the state may take long.

        Args:
            timestamp: when the checkpoint was triggered, in milliseconds since 1970.
        """

    @abstractmethod
    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: HookStateT | None) -> None:
        """Go back to a checkpoint, with which the whole job is restored: at a start from a
        savepoint, and after each failure of a task or of the hook's process.

        No record is read before this returns, but enumerators and readers may have been created.
        *checkpoint_data* is None if the checkpoint has no state of this hook. An exception fails
        the job, which may then be restarted.
        """

    def reset(self) -> None:
        """Go back to the beginning. Does nothing by default.

        Called when the whole job starts or restarts and there is no checkpoint, so at the first
        start, too. No record is read before this returns. An exception fails the job.
        """

    def close(self) -> None:
        """Release resources. Called when the job ends or continues with another hook. Not called if
        the process of the hook dies, or if a call of a hook has not returned."""


class WithMasterCheckpointHook(ABC, Generic[HookStateT]):
    """Base class of sources that have a master hook, in addition to ``Source``.

    A job that cannot take checkpoints (a batch job) creates no hook.
    """

    @abstractmethod
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[HookStateT]:
        """Create the hook. Called on the master, with a copy of the source."""
