"""How a JobMaster tells the Dispatcher that its job has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.job_master.reports_to_dispatcher import report_end
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import FrameTooLargeError
from flinkray.core.ids import DispatcherId, JobID, JobMasterId
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.leaders import ManualLeaders, ManualRetrieval
from tests.actors.resource_cluster import number

JOB = number(JobID, 1)
TOKEN = number(DispatcherId, 1)


class LeaderIsKnown(ManualRetrieval):
    """Of each retrieval, at once."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def start(self, listener: object) -> None:
        await super().start(listener)  # type: ignore[arg-type]
        self.tell(self._address, TOKEN)


@on_virtual_time
async def test_job_end_report_too_large_for_a_message_is_repeated_with_pauses(
    tmp_path: Path,
) -> None:
    """Without pauses the report was repeated 13,800 times a second."""
    service = LocalRpcService("JobMaster")
    dispatcher = TestingGateway(DispatcherGateway, TOKEN)
    attempts = 0

    def refuses(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 1000:  # or it would never come to an end without pauses
            raise FrameTooLargeError("whatever it is")

    dispatcher.on(DispatcherGateway.job_reached_terminal_state).calling(refuses)
    dispatcher.start(service, "dispatcher")
    arguments = ClusterArguments("test", {}, str(tmp_path))
    leaders = ManualLeaders(service.executor)
    leaders.dispatcher = LeaderIsKnown(dispatcher.address)
    configuration = ClusterServices.create(service, arguments).configuration
    services = ClusterServices(service, arguments, configuration, leaders)
    result = JobResult(JOB, "job", JobStatus.FINISHED, 1.0)
    details = JobDetails(JOB, "job", JobStatus.FINISHED, 0.0, 1.0, {}, 0)

    report = asyncio.ensure_future(report_end(services, number(JobMasterId, 1), result, details))
    await asyncio.sleep(60)
    assert 90 <= attempts <= 125

    dispatcher.on(DispatcherGateway.job_reached_terminal_state).returning(None)
    await asyncio.wait_for(report, 1)
    await service.close()
