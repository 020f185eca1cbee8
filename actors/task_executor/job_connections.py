"""The jobs that have slots in a TaskExecutor, and the connections to their JobMasters."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.shared.leader_connection import LeaderConnection
from flinkray.actors.shared.notifications import tell
from flinkray.actors.task_executor.started_tasks import without_texts
from flinkray.core.errors import FencingTokenError, FrameTooLargeError, IllegalTransitionError
from flinkray.core.ids import FencingToken, JobID, JobMasterId, ResourceID
from flinkray.ha import HighAvailabilityServices
from flinkray.rpc import (
    HeartbeatManager,
    HeartbeatSettings,
    RegistrationFailure,
    RegistrationRejection,
    RegistrationSettings,
    RpcEndpoint,
)
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import TaskExecutorReport

S = TypeVar("S")
C = TypeVar("C")


class Job(Generic[S, C]):
    """A job in a JobTable: its services, and its connection while a JobMaster is registered."""

    def __init__(self, job_id: JobID, services: S, close_services: Callable[[S], None]) -> None:
        self.job_id = job_id
        self._services = services
        self._close_services = close_services
        self._connection: C | None = None
        self._is_closed = False

    @property
    def services(self) -> S:
        """The services of the job. They exist until :meth:`close`.

        Raises:
            IllegalTransitionError: the job is closed. All other methods raise it then, too.
        """
        self._require_open("use the services")
        return self._services

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> C:
        """The connection to the JobMaster. Raises IllegalTransitionError if not connected."""
        self._require_open("use the connection")
        if self._connection is None:
            raise self._illegal("use the connection", "it is not connected")
        return self._connection

    def connect(self, connection: C) -> None:
        """Set the connection after the JobMaster has accepted the registration.

        Raises:
            IllegalTransitionError: the job is already connected.
        """
        self._require_open("connect")
        if self._connection is not None:
            raise self._illegal("connect", "it is connected already")
        self._connection = connection

    def disconnect(self) -> C:
        """Remove the connection and return it.

        Raises:
            IllegalTransitionError: the job is not connected.
        """
        self._require_open("disconnect")
        if self._connection is None:
            raise self._illegal("disconnect", "it is not connected")
        connection, self._connection = self._connection, None
        return connection

    def close(self) -> None:
        """Close the services of a job without a connection. Idempotent."""
        if self._connection is not None:
            raise self._illegal("close", "it is still connected")
        if not self._is_closed:
            self._is_closed = True
            self._close_services(self._services)

    def _require_open(self, wanted: str) -> None:
        if self._is_closed:
            raise self._illegal(wanted, "it is closed")

    def _illegal(self, wanted: str, why: str) -> IllegalTransitionError:
        return IllegalTransitionError(f"job {self.job_id} cannot {wanted} here: {why}")


class JobTable(Generic[S, C]):
    """The jobs that have slots or results in a TaskExecutor, one :class:`Job` each."""

    def __init__(self, close_services: Callable[[S], None]) -> None:
        """Create a table without jobs.
        *close_services* is called once for each entry, when it is closed.
        """
        self._close_services = close_services
        self._jobs: dict[JobID, Job[S, C]] = {}

    def get(self, job_id: JobID) -> Job[S, C] | None:
        return self._jobs.get(job_id)

    def get_or_create(self, job_id: JobID, new_services: Callable[[], S]) -> Job[S, C]:
        """Return the entry of the job. *new_services* is called if there was none."""
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = Job(job_id, new_services(), self._close_services)
        return job

    def remove(self, job_id: JobID) -> None:
        """Close and remove an entry without a connection. Idempotent.

        Raises:
            IllegalTransitionError: the job is still connected.
        """
        job = self._jobs.get(job_id)
        if job is not None:
            job.close()
            del self._jobs[job_id]

    def close(self) -> None:
        """Disconnect and close the entries of all jobs."""
        for job in tuple(self._jobs.values()):
            if job.is_connected:
                job.disconnect()
            self.remove(job.job_id)

    def __iter__(self) -> Iterator[Job[S, C]]:
        """Iterate over the jobs, oldest first. Entries may be removed meanwhile."""
        return iter(tuple(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)


log = logging.getLogger(__name__)

_LeaderConnection = LeaderConnection[JobMasterGateway, TaskExecutorToJobMasterRegistrationSuccess]
_Answer = TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection


@dataclass(slots=True)
class _Following:
    """The leader of a job and the connection to it, while the job has slots here."""

    named: JobMasterId
    """The JobMaster that the last request for slots has named."""
    leader: _LeaderConnection
    has_said_goodbye: bool = False
    """Whether the JobMaster has forgotten this TaskExecutor.
    The JobMaster then accepts only reports that tasks have ended from it.
    """

    @property
    def job_master_id(self) -> JobMasterId:
        """The JobMaster that leads the job: the elected one if there is one, otherwise the one that
        the last slot request has named, which is older or will be elected."""
        elected = self.leader.last_leader_id
        return elected if isinstance(elected, JobMasterId) else self.named


@dataclass(frozen=True, slots=True)
class _Registered:
    master: JobMasterGateway
    resource_id: ResourceID


_Job = Job[_Following, _Registered]


class JobLeaderListener(Protocol):
    """Callbacks of a JobLeaderService. They run on the TaskExecutor's main thread."""

    def report_for(self, job_id: JobID, leader: FencingToken) -> TaskExecutorReport:
        """Return the report of the job's slots, tasks and stored notes on this TaskExecutor, to be
        sent to the JobMaster *leader* at once."""

    def report_nothing(self, job_id: JobID) -> TaskExecutorReport:
        """End the job's tasks in slots that are reserved for its next JobMaster, and return a
        report without tasks. Called if the full report is too large to be sent."""

    def job_master_connected(self, job_id: JobID) -> None:
        """Called when the TaskExecutor is registered at the job's JobMaster."""

    def job_master_gone(self, job_id: JobID, reason: str) -> None:
        """Called when the JobMaster is lost, or does not accept this TaskExecutor (TM-17)."""

    def slots_reported(self, report: AllocatedSlotReport) -> None:
        """Called when a JobMaster's heartbeat has arrived, with the slots that the JobMaster
        knows here.
        """

    def heartbeat_payload(self, job_id: JobID) -> TaskExecutorHeartbeat:
        """Return what the TaskExecutor answers to a heartbeat of the job's JobMaster."""


class JobLeaderService:
    """Keeps a TaskExecutor registered at the JobMaster of each of its jobs, with heartbeats.

    Lives on the endpoint's main thread.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        high_availability: HighAvailabilityServices,
        registration: RegistrationSettings,
        heartbeat: HeartbeatSettings,
        *,
        location: WorkerLocation,
        listener: JobLeaderListener,
    ) -> None:
        self._endpoint = endpoint
        self._high_availability = high_availability
        self._registration = registration
        self._location = location
        self._listener = listener
        self._jobs: JobTable[_Following, _Registered] = JobTable(lambda _: None)
        self._heartbeats: HeartbeatManager[TaskExecutorHeartbeat, AllocatedSlotReport] = (
            HeartbeatManager(
                endpoint,
                heartbeat,
                payload=self._payload_for,
                on_heartbeat=lambda _, report: listener.slots_reported(report),
                on_timeout=lambda target: self._deaf(
                    target, f"no heartbeat from it for {heartbeat.timeout:g} s"
                ),
                on_unreachable=lambda target: self._deaf(target, "it is unreachable"),
            )
        )

    async def add_job(self, job_id: JobID, address: str, job_master_id: JobMasterId) -> None:
        """Connect to the job's JobMaster, unless connected.
        If another JobMaster of the job was connected, it is disconnected first (TM-15).

        If JobMasters are elected, elections decide which JobMaster is followed. A slot request that
        names another JobMaster changes nothing.
        """
        while (known := self._jobs.get(job_id)) is not None:  # perhaps added by a concurrent call
            services = known.services
            is_led = (
                self._high_availability.elects_job_masters
                or services.job_master_id == job_master_id
            )
            if is_led and not services.has_said_goodbye:
                return
            await self.remove_job(job_id)
        leader: _LeaderConnection = LeaderConnection(
            self._endpoint,
            target_name=f"JobMaster of job {job_id}",
            gateway=JobMasterGateway,
            token_type=JobMasterId,
            register=lambda master: self._register(job, master),
            on_connected=lambda master, success: self._connected(
                job, master, success.job_master_resource_id
            ),
            on_lost=lambda reason: self._lost(job, reason),
            on_rejection=lambda rejection: self._rejected(job, rejection),
            settings=self._registration,
        )
        job = self._jobs.get_or_create(job_id, lambda: _Following(job_master_id, leader))
        await leader.start(
            self._high_availability.get_job_master_leader_retriever(
                job_id, address, job_master_id.leader_session()
            )
        )

    def _register(self, job: _Job, master: JobMasterGateway) -> Awaitable[_Answer]:
        """Register at the JobMaster, with a report of everything that the job has here.
        This ends the effect of :meth:`said_goodbye`.
        """
        job.services.has_said_goodbye = False
        assert master.fencing_token is not None
        report = self._listener.report_for(job.job_id, master.fencing_token)
        return self._registered_with(job.job_id, master, report)

    async def _registered_with(
        self, job_id: JobID, master: JobMasterGateway, report: TaskExecutorReport
    ) -> _Answer:
        try:
            return await master.register_task_executor(job_id, report)
        except FrameTooLargeError as error:
            log.info("job %s: the report has shortened failure texts: %s", job_id, error)
        try:
            return await master.register_task_executor(job_id, without_texts(report))
        except FrameTooLargeError as error:
            log.warning("job %s has too much here for another JobMaster: %s", job_id, error)
        return await master.register_task_executor(job_id, self._listener.report_nothing(job_id))

    def said_goodbye(self, job_id: JobID, job_master_id: JobMasterId) -> bool:
        """Note that *job_master_id* has disconnected this TaskExecutor. Returns False, without
        effect, if another JobMaster leads the job; otherwise True. The TaskExecutor registers again
        when the JobMaster next requests a slot here, not by a late answer to an earlier
        registration."""
        job = self._jobs.get(job_id)
        if job is None or job.services.job_master_id != job_master_id:
            return False
        job.services.has_said_goodbye = True
        return True

    async def remove_job(self, job_id: JobID) -> None:
        """Disconnect from a job's JobMaster, because the job has neither slots nor results here
        (TM-14). Idempotent.
        """
        job = self._jobs.get(job_id)
        if job is not None:
            leader = job.services.leader
            self._disconnect(job)
            self._jobs.remove(job_id)
            await leader.stop()

    async def stop(self) -> None:
        """Disconnect from the JobMasters of all jobs."""
        for job in self._jobs:
            await self.remove_job(job.job_id)
        self._heartbeats.stop()

    def job_master(self, job_id: JobID) -> JobMasterGateway | None:
        """Return the job's JobMaster while registered at it. Otherwise None."""
        job = self._jobs.get(job_id)
        return None if job is None else job.services.leader.target_gateway

    def is_led_by(self, job_id: JobID, job_master_id: JobMasterId) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.services.job_master_id == job_master_id

    def is_succeeded_by(self, job_id: JobID, job_master_id: JobMasterId) -> bool:
        """Return whether this TaskExecutor must change to *job_master_id*, which another process
        has named as the job's JobMaster. False if it follows this JobMaster already, or if it
        follows an elected JobMaster: then it changes only after the next election."""
        job = self._jobs.get(job_id)
        is_elected = job is not None and job.services.leader.last_leader_id is not None
        if is_elected and self._high_availability.elects_job_masters:
            return False
        return not self.is_led_by(job_id, job_master_id)

    def refuse_others(self, job_id: JobID, job_master_id: JobMasterId, method: str) -> None:
        """Raise FencingTokenError unless *job_master_id* leads the job, as far as is known here."""
        job = self._jobs.get(job_id)
        leader = None if job is None else job.services.job_master_id
        if leader != job_master_id:
            raise FencingTokenError(self._endpoint.address, method, leader, job_master_id)

    def heartbeat_received(
        self, resource_id: ResourceID, job_master_id: JobMasterId, report: AllocatedSlotReport
    ) -> None:
        if self.is_led_by(report.job_id, job_master_id):
            self._heartbeats.request_heartbeat(resource_id, report)

    def _connected(self, job: _Job, master: JobMasterGateway, resource_id: ResourceID) -> None:
        self._disconnect(job)
        job.connect(_Registered(master, resource_id))
        self._heartbeats.monitor_target(
            resource_id,
            lambda payload: master.heartbeat_from_task_executor(
                self._location.resource_id, payload
            ),
        )
        self._listener.job_master_connected(job.job_id)

    def _lost(self, job: _Job, reason: str) -> None:
        if self._jobs.get(job.job_id) is job:
            self._disconnect(job)
            self._listener.job_master_gone(job.job_id, reason)

    def _rejected(self, job: _Job, rejection: RegistrationRejection) -> None:
        self._lost(job, f"it rejected the registration: {rejection.reason}")

    def _deaf(self, resource_id: ResourceID, reason: str) -> None:
        """Disconnect from a JobMaster that sends no heartbeats, and register again (TM-05)."""
        job = self._job_at(resource_id)
        if job is not None:
            goodbye = job.connection.master.disconnect_task_executor(
                self._location.resource_id, reason
            )
            tell(self._endpoint, goodbye, resource_id)
            job.services.leader.reconnect(reason)

    def _disconnect(self, job: _Job) -> None:
        if job.is_connected:
            self._heartbeats.unmonitor_target(job.disconnect().resource_id)

    def _payload_for(self, resource_id: ResourceID) -> TaskExecutorHeartbeat:
        job = self._job_at(resource_id)
        if job is None:
            return TaskExecutorHeartbeat(())
        return self._listener.heartbeat_payload(job.job_id)

    def _job_at(self, resource_id: ResourceID) -> _Job | None:
        at = (job for job in self._jobs if job.is_connected)
        return next((job for job in at if job.connection.resource_id == resource_id), None)
