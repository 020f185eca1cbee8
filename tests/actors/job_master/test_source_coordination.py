"""What a JobMaster tells the coordinator of a job's sources, and when."""

from __future__ import annotations

import asyncio
from typing import cast

from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.gateways.stream_coordinator import StreamCoordinatorGateway
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.core.ids import ExecutionGraphID
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.checkpoints.actions import ResetSubtasks
from flinkray.scheduler.execution.restarts import new_restart_strategy
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.job_master.test_kept_parts import VERTEX, Surroundings

COORDINATOR = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)
RESET = ResetSubtasks(4, {"records": ((0, 3),)})


class Running:
    """The coordinator's process is there."""

    def __init__(self, address: str) -> None:
        self.address = address

    def address_of(self, coordinator: CoordinatorID) -> str:
        return self.address


class Coordinated:
    """A JobMaster whose notes are acknowledged when they may be."""

    def __init__(self) -> None:
        around = Surroundings()
        self.may_be_noted = asyncio.Event()
        self.resets: list[object] = []
        process = TestingGateway(StreamCoordinatorGateway)
        process.on(StreamCoordinatorGateway.reset_subtasks).calling(self._reset)
        process.start(LocalRpcService("StreamCoordinator", around.network), "streams")
        self.sources = SourceCoordination(
            around.master,
            lambda: cast(CoordinatorRunner, Running(process.address)),
            (VERTEX,),
            around.parts,
            new_restart_strategy(FixedDelayRestart(3, 0.0)),
            lambda why: None,
            ExecutionGraphID.generate,
            self._noted,
        )
        self.sources.beginning(COORDINATOR)
        self.sources.started(COORDINATOR)

    async def _noted(self) -> None:
        await self.may_be_noted.wait()

    async def _reset(self, *arguments: object) -> None:
        self.resets.append(arguments[1:])


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
async def test_reset_of_source_readers_that_run_before_a_take_over_is_sent_at_once() -> None:
    """The last JobMaster has noted the attempts, and this JobMaster may have no SlotPool yet."""
    coordinated = Coordinated()
    coordinated.sources.reset(RESET, are_known=True)
    await asyncio.sleep(1)
    assert coordinated.resets == [(RESET.checkpoint_id, RESET.subtasks)]
