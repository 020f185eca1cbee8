"""A JobMaster whose ResourceManager changes while the JobMaster takes over its job."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from flinkray.actors.gateways import ResourceManagerGateway, SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import JobMasterRegistrationSuccess
from flinkray.actors.gateways.slot_pool import HandedOver
from flinkray.actors.job_master.endpoint import JobMaster, win_job
from flinkray.core.ids import JobMasterId, ResourceID, ResourceManagerId
from flinkray.rpc import LocalRpcService
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import number
from tests.actors.test_fencing import JobMasterScene

PAST = number(JobMasterId, 99)


@on_virtual_time
async def test_requirements_go_to_the_resource_manager_that_leads_after_a_take_over(
    tmp_path: Path,
) -> None:
    """The JobMaster handles the loss of the first ResourceManager after the take-over. By then the
    second ResourceManager leads, and the loss must not disconnect the second one."""
    scene = JobMasterScene(tmp_path)
    arguments = replace(scene._job, has_predecessors=True)
    may_answer = asyncio.Event()

    async def hand_over(_: JobMasterId) -> HandedOver:
        await may_answer.wait()
        return HandedOver((), ())

    past = TestingGateway(SlotPoolGateway, PAST).lenient()
    past.on(SlotPoolGateway.hand_over).calling(hand_over)
    process = slot_pool_process(scene.job_id, PAST)
    past.start(LocalRpcService(process, scene.network), "slotpool")
    leadership = await win_job(scene._services, arguments)
    JobMaster(scene.service, scene._services, arguments, leadership).start()
    await asyncio.sleep(0.1)

    for n in (1, 2):
        token, name = number(ResourceManagerId, n), f"ResourceManager-{n}"
        manager = TestingGateway(ResourceManagerGateway, token).lenient()
        manager.on(ResourceManagerGateway.register_job_master).returning(
            JobMasterRegistrationSuccess(token, ResourceID(name))
        )
        manager.start(LocalRpcService(name, scene.network), "resourcemanager")
        scene.leaders.manager.tell(manager.address, token)
        await manager.wait_for(ResourceManagerGateway.register_job_master)
        await asyncio.sleep(0.1)
    may_answer.set()

    await asyncio.wait_for(
        manager.wait_for(ResourceManagerGateway.declare_required_resources), timeout=5
    )
