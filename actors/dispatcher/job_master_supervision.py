"""Keeps one JobMaster alive for each job of a Dispatcher."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from flinkray.actors.dispatcher.managed_job import ManagedJob, RememberedOverview
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.job_processes import KINDS, job_master_process, processes_of_job
from flinkray.actors.gateways.messages import (
    ClusterArguments,
    JobMasterArguments,
    JobMasterToDispatcherRegistrationSuccess,
    job_master_resource_id,
    process_of_job_master,
)
from flinkray.actors.shared.leadership import Leadership
from flinkray.core.error_text import summary_of
from flinkray.core.errors import (
    ConfigurationError,
    FencingTokenError,
    JobStateError,
    RecipientUnreachableError,
    RpcError,
    RpcSerializationError,
)
from flinkray.core.ids import DispatcherId, JobID, JobMasterId, ResourceID
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    HeartbeatSender,
    HeartbeatSettings,
    RegistrationFailure,
    RegistrationRejection,
)
from flinkray.scheduler.elastic.parallelism import parallelism_bounds

log = logging.getLogger(__name__)

_HEARTBEATS_MISSED = 2
"""Number of missed heartbeats after which a remembered overview is not used any more."""
_CANCEL_RETRY_DELAY = 0.5
"""Seconds until an unanswered order to cancel is sent to a JobMaster again."""


class JobMasterSupervision:
    """Starts and watches the JobMasters of all jobs, and kills a JobMaster that does not answer.

    Lives on the Dispatcher's main thread; so do the callbacks. It makes no decisions about jobs.
    """

    def __init__(
        self,
        dispatcher: FencedRpcEndpoint[DispatcherId],
        cluster: ClusterArguments,
        leadership: Leadership,
        job_master_factory: str,
        *,
        job: Callable[[JobID], ManagedJob | None],
        on_terminated: Callable[[ManagedJob, JobMasterId | None, str], Awaitable[None]],
        on_unstartable: Callable[[ManagedJob, JobMasterId, str], Awaitable[None]],
    ) -> None:
        """Create the supervision; :meth:`begin` starts it.

        Args:
            job: returns a job that is not cleaned up yet, or None.
            on_terminated: called with the id of a JobMaster that is gone, and the reason. The id is
                None if no JobMaster was found.
            on_unstartable: called with the id and the reason if a JobMaster cannot be started, and
                another start would fail too.
        """
        self._dispatcher = dispatcher
        self._cluster = cluster
        self._leadership = leadership
        self._factory = job_master_factory
        self._job = job
        self._on_terminated = on_terminated
        self._on_unstartable = on_unstartable
        self._resource_id = ResourceID(dispatcher.rpc_service.process_name)

    def begin(self, settings: HeartbeatSettings) -> None:
        """Begin to send heartbeats to the JobMasters."""
        self._heartbeat_interval = settings.interval
        silence = f"no heartbeat from it for {settings.timeout:g} s"
        self._heartbeats: HeartbeatSender[None, None] = HeartbeatSender(
            self._dispatcher,
            settings,
            payload=lambda _: None,
            on_timeout=lambda target: self._deaf(target, silence),
            on_unreachable=lambda target: self._deaf(target, "it is unreachable"),
        )

    def stop(self) -> None:
        """Stop the heartbeats. The JobMasters continue to run."""
        self._heartbeats.stop()

    async def start(self, job: ManagedJob) -> None:
        """Start a JobMaster for the job, under a new JobMasterId."""
        service = self._dispatcher.rpc_service
        job_master_id = job.job_master_id = JobMasterId.generate()
        spec = EndpointSpec(
            kind="JobMaster",
            name=job_master_process(job.job_id),
            factory=self._factory,
            arguments=JobMasterArguments(
                self._cluster, job.graph, job_master_id, job.has_had_job_masters, job.has_run
            ),
            detached=True,
            may_take_over=True,
            may_return=True,
        )
        job.has_had_job_masters = True
        if not await self._leadership.is_certain():
            return  # the new leader takes care of the job
        try:
            # The process of that name may live: started by a previous Dispatcher, or hanging.
            await service.kill(spec.name)
            await service.spawn(spec)
        except (ConfigurationError, RpcSerializationError) as error:
            # its code is missing, or rejects its arguments: not the death of a process
            if job.job_master_id == job_master_id:
                await self._on_unstartable(job, job_master_id, summary_of(error))
            return
        except Exception as error:  # noqa: BLE001 - whatever the JobMaster's own start-up raised
            if job.job_master_id == job_master_id:
                reason = f"it did not start: {type(error).__name__}: {error}"
                await self._on_terminated(job, job_master_id, reason)
            return
        if job.job_master_id == job_master_id:
            self.watch(job, job_master_id)

    async def kill(self, job_id: JobID, patience: float = 0.0) -> None:
        """Kill the process of a job's JobMaster, and all processes that the JobMaster has started.
        Some of them outlive their JobMaster: SlotPools and coordinators of sources. The others have
        ended already, and only their recorded addresses are removed. Does nothing if this
        Dispatcher leads no more. *patience*: seconds that each process has to end by itself.
        """
        service = self._dispatcher.rpc_service
        if not await self._leadership.is_certain():
            return
        await service.kill(job_master_process(job_id), patience)
        for kind in KINDS:
            for name in await service.process_names(processes_of_job(kind, job_id)):
                await service.kill(name, patience)

    def watch(self, job: ManagedJob, job_master_id: JobMasterId | None) -> None:
        """Watch the job's JobMaster. *job_master_id* None: a previous Dispatcher has started it.

        The JobMaster must register within the heartbeat timeout, because a hanging JobMaster is not
        noticed before it registers.
        """

        def terminated(reason: str) -> None:
            self._dispatcher.create_task(self._terminated(job, job_master_id, reason))

        if job.watch is not None:
            job.watch.cancel()
        job.watch = self._dispatcher.watch(
            f"{job_master_process(job.job_id)}/jobmaster", terminated
        )
        if job.gateway is None:
            self._heartbeats.monitor_target(
                self._target(job.job_id, job_master_id), _not_registered_yet
            )

    async def _terminated(
        self, job: ManagedJob, job_master_id: JobMasterId | None, reason: str
    ) -> None:
        await self._on_terminated(job, job_master_id, reason)

    async def register(
        self, job_id: JobID, job_master_id: JobMasterId, address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """Register a JobMaster, and return the answer for it. Only the JobMaster that leads its job
        is accepted."""
        rejection = self._why_not_led_by(job_id, job_master_id)
        if rejection is not None:
            return RegistrationRejection(rejection)
        known = self._job(job_id)
        try:
            if known is not None and known.job_master_id is None:
                await self.refuse_past_ones(known, job_master_id)
            gateway = await self._dispatcher.connect(address, JobMasterGateway, job_master_id)
        except JobStateError as error:
            return RegistrationRejection(str(error))
        except RpcError as error:
            return RegistrationFailure(f"no JobMaster at {address}: {error}")
        rejection = self._why_not_led_by(job_id, job_master_id)  # may have been replaced meanwhile
        if rejection is not None:
            return RegistrationRejection(rejection)
        job = self._job(job_id)
        assert job is not None
        if job.job_master_id is None:  # started by a previous Dispatcher
            job.job_master_id = job_master_id
            self.watch(job, job_master_id)
        job.gateway = gateway
        job.remembered = RememberedOverview(
            _HEARTBEATS_MISSED * self._heartbeat_interval, self._dispatcher.clock.monotonic()
        )
        self._heartbeats.unmonitor_target(self._target(job_id, None))
        self._heartbeats.monitor_target(
            self._target(job_id, job_master_id),
            lambda _: gateway.heartbeat_from_dispatcher(
                self._resource_id, self._dispatcher.fencing_token
            ),
        )
        return JobMasterToDispatcherRegistrationSuccess(
            self._resource_id, job.cancel_requested, parallelism_bounds(job.graph)
        )

    async def refuse_past_ones(self, job: ManagedJob, job_master_id: JobMasterId) -> None:
        """Check whether *job_master_id*, which wants to register, may be the job's present
        JobMaster. Used if a previous Dispatcher has started the job's JobMaster, so that its id is
        not known here: a JobMaster that counted as dead but lives must not register.

        Raises:
            JobStateError: the process that has the name of the job's JobMaster is another one.
            RpcError: that process cannot be asked.
        """
        address = f"{job_master_process(job.job_id)}/jobmaster"
        try:
            gateway = await self._dispatcher.connect(address, JobMasterGateway, job_master_id)
            await gateway.request_job_status()
        except FencingTokenError as error:
            raise JobStateError(job.job_id, f"it is not led by {job_master_id}") from error
        except RecipientUnreachableError:
            return  # no other JobMaster leads the job

    def _why_not_led_by(self, job_id: JobID, job_master_id: JobMasterId) -> str | None:
        """Return a text that says why this JobMaster may not lead the job. None if it may."""
        job = self._job(job_id)
        if job is None or job.ending is not None or job.outcome is not None:
            return f"job {job_id} is not to be run by this cluster (any more)"
        if job.job_master_id not in (None, job_master_id):
            return f"{job.text} is led by {job.job_master_id}"
        return None

    @staticmethod
    def _target(job_id: JobID, job_master_id: JobMasterId | None) -> ResourceID:
        """Return the name under which heartbeats know the JobMaster.
        *job_master_id* None: the id is not known.
        """
        if job_master_id is None:
            return ResourceID(f"{job_master_process(job_id)}@")
        return job_master_resource_id(job_master_process(job_id), job_master_id)

    def heartbeat(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        """Note a JobMaster's heartbeat. Heartbeats of past JobMasters of the job are ignored."""
        self._heartbeats.receive_heartbeat(self._target(job_id, job_master_id), None)

    def forget(self, job: ManagedJob) -> None:
        """Stop the heartbeats to the job's JobMaster, and note that the job has none at present."""
        self._heartbeats.unmonitor_target(self._target(job.job_id, job.job_master_id))
        job.gateway = job.remembered = None
        job.job_master_id = None

    def _deaf(self, target: ResourceID, reason: str) -> None:
        """Kill a JobMaster that does not answer heartbeats.
        Its death is then reported by the watch of its process.
        """
        process = process_of_job_master(target)
        log.warning("%s is killed: %s", process, reason)
        self._dispatcher.create_task(self._kill(process), f"kill {process}")

    async def _kill(self, process: str) -> None:
        if await self._leadership.is_certain():
            await self._dispatcher.rpc_service.kill(process)

    # --- cancelling -------------------------------------------------------------------------------

    async def cancel(self, job: ManagedJob) -> None:
        """Order the JobMaster to cancel the job, repeatedly in the background until it answers.
        A later JobMaster learns of the cancellation when it registers.
        """
        if not await self._is_told_to_cancel(job):
            self._dispatcher.create_task(
                self._keep_telling_to_cancel(job), f"cancel job {job.job_id}"
            )

    async def _is_told_to_cancel(self, job: ManagedJob) -> bool:
        """Send the order to cancel, and return whether the JobMaster has answered.
        True also if there is no JobMaster.
        """
        if job.gateway is not None and job.outcome is None:
            try:
                await job.gateway.cancel(self._dispatcher.fencing_token)
            except RpcError as error:
                log.info("%s: the JobMaster is not told to cancel: %s", job.text, error)
                return False
        return True

    async def _keep_telling_to_cancel(self, job: ManagedJob) -> None:
        is_told = False
        while not is_told:
            await self._dispatcher.rpc_service.pause(_CANCEL_RETRY_DELAY)
            is_told = await self._is_told_to_cancel(job)


async def _not_registered_yet(_: None) -> None:
    """Do nothing: a JobMaster that has not registered yet cannot be asked for a heartbeat."""
