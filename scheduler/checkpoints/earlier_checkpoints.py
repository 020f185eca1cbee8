"""Takes over the checkpoints that a job's earlier JobMasters took or began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.actions import DiscardDirectory
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import CheckpointStep
from flinkray.scheduler.checkpoints.kept_checkpoints import AbortedCheckpoints, KeptCheckpoints
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, CheckpointCompleted
from flinkray.scheduler.checkpoints.plan import CheckpointedTopology, outcome_orders

MOST_GIVEN_UP = 64
"""Number of an earlier JobMaster's last checkpoints that tasks are told to abort.
No more than this number can be in progress at a time."""

Actions = list[CheckpointStep]


class EarlierCheckpoints:
    """Takes over the checkpoints of earlier JobMasters: retains the complete ones, and aborts the
    ones that were in progress. Tells by a checkpoint's id whether this JobMaster began it.

    Args:
        coordinators: ids of the operators that have a coordinator.
    """

    def __init__(
        self, kept: KeptCheckpoints, aborted: AbortedCheckpoints, coordinators: tuple[str, ...]
    ) -> None:
        self._kept = kept
        self._aborted = aborted
        self._coordinators = coordinators
        self.last_id = 0
        """Highest id of a checkpoint so far; 0 before the first one."""
        self._last_timestamp = 0
        self._first_own_id: int | None = None
        """Id of the first checkpoint that this JobMaster began; None if it began none yet.
        Earlier JobMasters began the checkpoints with lower ids."""

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Retain the complete checkpoints that an earlier JobMaster left (CP-28)."""
        self._kept.recover(checkpoints)
        for checkpoint in self._kept.retained:
            self.last_id = max(self.last_id, checkpoint.checkpoint_id)
            self._last_timestamp = max(self._last_timestamp, checkpoint.metadata.timestamp)

    def take_over(
        self,
        begun: Mapping[int, str],
        running: Sequence[ExecutionAttemptID],
        topology: CheckpointedTopology,
    ) -> Actions:
        """Tell running tasks which checkpoint was the last complete one, and which are aborted.
        The earlier JobMaster may not have told them.  *begun*: checkpoints after the last complete
        one that have an id, with their directories."""
        latest = self._kept.latest
        actions: Actions = []
        if latest is not None and not latest.properties.is_savepoint:
            order = CheckpointCompleted(latest.checkpoint_id)
            actions += outcome_orders(topology, running, self._coordinators, order)
        return actions + self._give_up_begun(begun, running, topology)

    def _give_up_begun(
        self,
        begun: Mapping[int, str],
        running: Sequence[ExecutionAttemptID],
        topology: CheckpointedTopology,
    ) -> Actions:
        """Abort the checkpoints that an earlier JobMaster began and may have told tasks to take."""
        latest = self._kept.latest
        latest_id = 0 if latest is None else latest.checkpoint_id
        actions: Actions = []
        for checkpoint_id in sorted(begun)[-MOST_GIVEN_UP:]:
            if checkpoint_id <= self.last_id:
                continue
            self.last_id = checkpoint_id
            order = CheckpointAborted(checkpoint_id, latest_id)
            actions += outcome_orders(topology, running, self._coordinators, order)
            directories = self._aborted.add(checkpoint_id, begun[checkpoint_id], running)
            actions += map(DiscardDirectory, directories)
        return actions

    def begin_own(self, checkpoint_id: int, timestamp: int) -> int:
        """Record that this JobMaster begins a checkpoint at *timestamp* (milliseconds since the
        epoch). Returns the checkpoint's timestamp: *timestamp*, or that of an earlier checkpoint if
        it is higher."""
        self.last_id = checkpoint_id
        if self._first_own_id is None:
            self._first_own_id = checkpoint_id
        self._last_timestamp = max(self._last_timestamp, timestamp)
        return self._last_timestamp

    def may_be_complete(self, checkpoint_id: int) -> bool:
        """Return whether state of the checkpoint must not be deleted: the checkpoint is complete
        and still needed, or another JobMaster began it and may have completed it."""
        first = self._first_own_id
        is_own = first is not None and first <= checkpoint_id <= self.last_id
        return not is_own or self._kept.needs(checkpoint_id)
