"""What a JobMaster tells the SlotPool that replaces a lost one, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import SlotPoolArguments
from flinkray.actors.slot_pool import endpoint
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.test_fencing import JobMasterScene


@on_virtual_time
async def test_next_slot_pool_has_all_requests_before_task_executors_may_offer_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it refuses a slot that a request waits for, and the TaskExecutor frees the slot."""
    scene = JobMasterScene(tmp_path)
    master = await scene.set(has_slot=False)
    place = WorkerLocation(
        ResourceID("te"), scene.executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
    )
    await master.register_task_executor(scene.job_id, TaskExecutorReport(place, (), ()))
    token = scene.endpoint.fencing_token
    pool = TestingGateway(SlotPoolGateway, token).lenient()
    pool.on(SlotPoolGateway.request_heartbeat).returning(0)

    async def create(service: RpcService, _: SlotPoolArguments) -> RpcEndpoint:
        return pool.create_endpoint(service, "slotpool")

    monkeypatch.setattr(endpoint, "create_slot_pool", create)
    await scene.service.kill(slot_pool_process(scene.job_id, token))

    assert await pool.wait_for(SlotPoolGateway.register_task_executors) == ((place,),)
    await pool.wait_for(SlotPoolGateway.request_slots)
    methods = [call.method for call in pool.calls]
    assert methods.index("request_slots") < methods.index("register_task_executors")
