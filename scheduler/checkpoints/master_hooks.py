"""Keeps the ids of master hooks, which are called at each checkpoint and at each restore."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.checkpoint.metadata import MasterState
from flinkray.core.ids import JobID
from flinkray.scheduler.checkpoints.failures import StateRestoreError


class MasterHooks:
    """Registers the ids of a job's master hooks.  The JobMaster calls the hooks."""

    def __init__(self) -> None:
        self._hook_ids: dict[str, None] = {}
        self.are_initialized = False

    @property
    def hook_ids(self) -> tuple[str, ...]:
        """Ids of the hooks, in the order of registration."""
        return tuple(self._hook_ids)

    def register(self, hook_id: str) -> bool:
        """Register a hook.  Returns False if the id was registered already.

        Raises:
            ValueError: the id is empty.
        """
        if not hook_id:
            raise ValueError("a master hook needs an id")
        if hook_id in self._hook_ids:
            return False
        self._hook_ids[hook_id] = None
        return True

    def states_to_restore(
        self, job_id: JobID, states: Iterable[MasterState], *, allow_non_restored_state: bool
    ) -> dict[str, bytes | None]:
        """Return the state with which each hook is restored; None for a hook without state.

        Raises:
            StateRestoreError: there is state of a hook that the job does not have, and
                *allow_non_restored_state* is False.
        """
        found = {state.hook_id: state.data for state in states}
        unknown = [hook_id for hook_id in found if hook_id not in self._hook_ids]
        if unknown and not allow_non_restored_state:
            raise StateRestoreError(
                job_id,
                f"there is state of the master hook {unknown[0]!r}, which the job does not have: "
                "register it, or allow non-restored state (--allow-non-restored-state)",
            )
        return {hook_id: found.get(hook_id) for hook_id in self._hook_ids}
