"""What a JobMaster tells the coordinator of a job's sources, and when."""

from __future__ import annotations

import asyncio
from typing import cast

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.gateways.stream_coordinator import (
    CoordinatorSnapshot,
    StreamCoordinatorGateway,
)
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.checkpoint.handles import FileState
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.ids import ExecutionGraphID, JobMasterId
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.checkpoints import events as c
from flinkray.scheduler.checkpoints.actions import ResetSubtasks, SnapshotCoordinators
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.streaming.errors import UnavailableError
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.job_master.test_notes import COORDINATOR, TOKEN, VERTEX
from tests.actors.resource_cluster import number

STATE = FileState("/chk-4/of-records", 10)
RESET = ResetSubtasks(4, {"records": ((0, 3),)})


class Running:
    """The coordinator's process is there."""

    def __init__(self, address: str) -> None:
        self.address = address

    def address_of(self, coordinator: CoordinatorID) -> str:
        return self.address


class Coordinated:
    """A JobMaster whose notes are acknowledged when they may be. A master hook fails."""

    def __init__(self, *, has_hooks: bool = False) -> None:
        network = LocalNetwork()
        service = LocalRpcService("JobMaster", network)
        master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", TOKEN)
        master.start()
        self.may_be_noted = asyncio.Event()
        self.resets: list[object] = []
        process = TestingGateway(StreamCoordinatorGateway)
        process.on(StreamCoordinatorGateway.reset_subtasks).calling(self._reset)
        process.on(StreamCoordinatorGateway.snapshot).calling(self._snapshot)
        process.on(StreamCoordinatorGateway.master_states).calling(self._master_states)
        process.start(LocalRpcService("StreamCoordinator", network), "streams")
        self.sources = SourceCoordination(
            master,
            cast(CoordinatorRunner, Running(process.address)),
            (VERTEX,),
            cast(NotesForSuccessor, self),
            new_restart_strategy(FixedDelayRestart(3, 0.0)),
            lambda why: None,
            has_hooks=has_hooks,
        )
        self.sources.beginning(COORDINATOR, number(ExecutionGraphID, 1))
        self.sources.started(COORDINATOR)

    async def acknowledged(self) -> None:
        await self.may_be_noted.wait()

    async def _reset(self, *arguments: object) -> None:
        self.resets.append(arguments[1:])

    async def _snapshot(self, *arguments: object) -> tuple[CoordinatorSnapshot, ...]:
        return (CoordinatorSnapshot("records", STATE),)

    async def _master_states(self, *arguments: object) -> tuple[MasterState, ...]:
        raise UnavailableError("the hook is out")


@on_virtual_time
async def test_source_readers_are_reset_only_once_their_attempts_are_in_the_recovery_notes() -> (
    None
):
    """Otherwise the next JobMaster could deploy an earlier attempt, to which a coordinator that was
    told of a later attempt gives nothing (seed 400326)."""
    coordinated = Coordinated()
    coordinated.sources.reset(RESET)
    await asyncio.sleep(1)
    assert coordinated.resets == []
    coordinated.may_be_noted.set()
    await asyncio.sleep(1)
    assert coordinated.resets == [(RESET.checkpoint_id, RESET.subtasks)]


@on_virtual_time
async def test_reset_of_readers_that_the_recovery_notes_know_already_is_sent_at_once() -> None:
    """The last JobMaster has noted the attempts, and this JobMaster may have no SlotPool yet."""
    coordinated = Coordinated()
    coordinated.sources.reset(RESET, are_known=True)
    await asyncio.sleep(1)
    assert coordinated.resets == [(RESET.checkpoint_id, RESET.subtasks)]


@on_virtual_time
async def test_failed_master_hook_fails_the_checkpoint_and_reports_states_to_be_deleted() -> None:
    """CP-31: so that files which were written after the checkpoint had expired are deleted."""
    told: list[c.CheckpointEvent] = []
    coordinated = Coordinated(has_hooks=True)
    coordinated.sources.snapshot(SnapshotCoordinators(4, 0, ("records",), "/chk-4"), told.append)
    await asyncio.sleep(1)
    failed, given_back = told
    assert failed == c.CoordinatorNotCheckpointed(4, None, "the hook is out")
    assert given_back == c.CoordinatorCheckpointed(4, "records", STATE)
