"""Finds the Spark session in which a stage is to run, or starts the session."""

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
from flinkray.spark.session_requests import SparkSessionEndedError, session_graph

log = logging.getLogger(__name__)

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The address and node of an open Spark session, in which stages of jobs can run."""

    address: str
    """Address of a :class:`SparkSessionGateway`."""
    node_id: str
    """Ray's id of the node."""


async def open_session(services: ClusterServices, guest: SparkStageDescriptor) -> OpenedSession:
    """Return the Spark session for the stage *guest*, once the session is open.
    Starts the session if there is none. Waits as long as the session waits for its slots.

    Raises:
        SparkSessionEndedError: the session could not be opened, or was cancelled.
        JobSubmissionError: the session cannot be started.
    """
    assert guest.session is not None
    of_session = session_graph(guest)
    awaited: JobID | None = None
    while True:
        try:
            dispatcher = await services.connect_to_dispatcher()
            # a session is started once per job id
            graph = replace(of_session, job_id=JobID.generate())
            job_id = await dispatcher.ensure_spark_session(graph)
            if awaited is not None and awaited != job_id:
                await _refuse_failed(dispatcher, guest.session.name, awaited)
            awaited = job_id
            found = await _open(services, guest.session.name, job_id)
        except RpcError as error:  # a Dispatcher or a session that is about to go
            log.info("the Spark session %r: %s", guest.session.name, error)
            found = None
        if found is not None:
            return found
        await services.rpc_service.pause(_PAUSE)


async def _open(services: ClusterServices, name: str, job_id: JobID) -> OpenedSession | None:
    """Wait until the session *name*, which runs as job *job_id*, is open, and return its address
    and node. None if no driver of the session is found, or all of them have ended."""
    service = services.rpc_service
    processes = await service.process_names(spark_drivers_of_job(job_id))
    # earlier ones are about to end
    for process in sorted(processes, key=_attempt_number, reverse=True):
        address = f"{process}/{SPARK_SESSION_ENDPOINT}"
        session = await service.connect(address, SparkSessionGateway)
        try:
            return OpenedSession(address, await session.await_open())
        except SparkSessionEndedError as error:
            log.info("the Spark session %r (%s): %s", name, process, error)
    return None


def _attempt_number(process: str) -> int:
    return int(process.rpartition("-")[2])


async def _refuse_failed(dispatcher: DispatcherGateway, name: str, job_id: JobID) -> None:
    """Raise SparkSessionEndedError if the session's job has failed or was cancelled.
    A session that has finished, because no stage used it any more, is no error.
    """
    result = await dispatcher.request_job_result(job_id)
    if result.status is JobStatus.FAILED:
        why = f"has failed: {result.failure}"
    elif result.status is JobStatus.CANCELED:
        why = "was cancelled"
    else:
        return
    raise SparkSessionEndedError(f"the Spark session {name!r} (job {job_id}) {why}")
