"""How a JobMaster finds the Spark session that a stage is to run in, or has it begun."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import RpcError
from flinkray.core.ids import JobID
from flinkray.scheduler.shared.states import JobStatus
from flinkray.spark.gateway import (
    SPARK_SESSION_ENDPOINT,
    SparkSessionGateway,
    SparkStageDescriptor,
    spark_drivers_of_job,
)
from flinkray.spark.shared_session import SparkSessionEndedError, session_graph

log = logging.getLogger(__name__)

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """Where guests are expected."""

    address: str
    """A :class:`SparkSessionGateway`."""
    node_id: str
    """Ray's."""


async def open_session(services: ClusterServices, guest: SparkStageDescriptor) -> OpenedSession:
    """Returns when it is open, which takes as long as it waits for its slots.

    Raises:
        SparkSessionEndedError: it could not be opened, or was cancelled.
        JobSubmissionError: it cannot be begun.
    """
    assert guest.session is not None
    of_session = session_graph(guest)
    awaited: JobID | None = None
    while True:
        try:
            dispatcher = await services.connect_to_dispatcher()
            graph = replace(of_session, job_id=JobID.generate())  # each begins once
            job_id = await dispatcher.ensure_spark_session(graph)
            if awaited is not None and awaited != job_id:
                await _refuse_failed(dispatcher, guest.session.name, awaited)
            awaited = job_id
            found = await _open(services, job_id)
        except RpcError as error:  # a Dispatcher that goes, or a session
            log.info("the Spark session %r: %s", guest.session.name, error)
            found = None
        if found is not None:
            return found
        await services.rpc_service.pause(_PAUSE)


async def _open(services: ClusterServices, job_id: JobID) -> OpenedSession | None:
    """None: its driver is not there (yet)."""
    service = services.rpc_service
    processes = await service.process_names(spark_drivers_of_job(job_id))
    for process in sorted(processes, key=_attempt_number, reverse=True):  # others are about to end
        address = f"{process}/{SPARK_SESSION_ENDPOINT}"
        session = await service.connect(address, SparkSessionGateway)
        try:
            return OpenedSession(address, await session.await_open())
        except SparkSessionEndedError as error:
            log.info("%s: %s", process, error)
    return None


def _attempt_number(process: str) -> int:
    return int(process.rpartition("-")[2])


async def _refuse_failed(dispatcher: DispatcherGateway, name: str, job_id: JobID) -> None:
    """One that has ended because nobody was there does not count."""
    result = await dispatcher.request_job_result(job_id)
    if result.status is JobStatus.FAILED:
        why = f"has failed: {result.failure}"
    elif result.status is JobStatus.CANCELED:
        why = "was cancelled"
    else:
        return
    raise SparkSessionEndedError(f"the Spark session {name!r} (job {job_id}) {why}")
