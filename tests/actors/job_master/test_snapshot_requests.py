"""How often, and into which directories, a JobMaster tries to take a snapshot that a user wants."""

from __future__ import annotations

from typing import cast

import pytest

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.actors.job_master.snapshot_requests import PATIENCE, SnapshotRequests
from flinkray.core.ids import JobID, JobMasterId, TriggerID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.failures import CheckpointError, CheckpointFailureReason
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.simulation import Simulation, simulate
from tests.actors.resource_cluster import number

JOB = number(JobID, 1)
CLOSING = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING


class FailingCheckpoints:
    """Fails the first snapshots with the given errors. Takes the next snapshot."""

    status, takes_any = JobStatus.RUNNING, True

    def __init__(self, simulation: Simulation, errors: list[CheckpointError]) -> None:
        self.service = simulation.service("master")
        self.errors = errors
        self.directories: list[str | None] = []

    async def place_of_savepoint(self, request: SnapshotRequest, attempt: int = 1) -> str:
        return f"savepoint-{attempt}"

    async def request(
        self, properties: CheckpointProperties | None, directory: str | None
    ) -> SnapshotFinished:
        self.directories.append(directory)
        await self.service.pause(0.01)
        if self.errors:
            return SnapshotFinished(1, None, None, self.errors.pop(0))
        return SnapshotFinished(1, directory or "checkpoint", 9)

    async def until_end_is_stored(self) -> None:
        """Returns at once."""


def requests(checkpoints: FailingCheckpoints) -> SnapshotRequests:
    endpoint = FencedRpcEndpoint(checkpoints.service, "jobmaster", number(JobMasterId, 1))
    endpoint.start()
    graph = JobGraph(JOB, "job", ())
    return SnapshotRequests(endpoint, graph, cast("CheckpointCarrier", checkpoints))


@pytest.mark.parametrize("kind", SnapshotType)
@simulate(seeds=1)
async def test_snapshot_is_taken_again_if_a_task_finished_meanwhile(
    simulation: Simulation, kind: SnapshotType
) -> None:
    """Once before the snapshot has an id, and once after tasks may have written into its directory,
    which the JobMaster deletes."""

    checkpoints = FailingCheckpoints(
        simulation, [CheckpointError(JOB, CLOSING), CheckpointError(JOB, CLOSING, 7)]
    )
    wanted = SnapshotRequest(number(TriggerID, 1), kind, "savepoints")
    taken = await requests(checkpoints).take(wanted)
    if kind is SnapshotType.CHECKPOINT:
        assert taken == SnapshotTaken("checkpoint")
        assert checkpoints.directories == [None] * 3
    else:
        assert taken == SnapshotTaken("savepoint-2")
        assert checkpoints.directories == ["savepoint-1", "savepoint-1", "savepoint-2"]


@simulate(seeds=1)
async def test_snapshot_is_given_up_if_tasks_finish_all_the_time(simulation: Simulation) -> None:
    checkpoints = FailingCheckpoints(simulation, [CheckpointError(JOB, CLOSING, 7)] * 100_000)
    wanted = SnapshotRequest(number(TriggerID, 1), SnapshotType.SAVEPOINT, "savepoints")
    begin = simulation.now
    with pytest.raises(CheckpointError, match="a task has ended or is ending"):
        await requests(checkpoints).take(wanted)
    assert PATIENCE <= simulation.now - begin < 2 * PATIENCE


@simulate(seeds=1)
async def test_snapshot_is_not_taken_again_after_another_failure(simulation: Simulation) -> None:
    declined = CheckpointError(JOB, CheckpointFailureReason.CHECKPOINT_DECLINED, 7)
    checkpoints = FailingCheckpoints(simulation, [declined])
    wanted = SnapshotRequest(number(TriggerID, 1), SnapshotType.SAVEPOINT, "savepoints")
    with pytest.raises(CheckpointError, match="declined"):
        await requests(checkpoints).take(wanted)
    assert checkpoints.directories == ["savepoint-1"]
