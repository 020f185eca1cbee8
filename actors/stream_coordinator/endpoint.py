"""The endpoint of a stream job's coordinator.

The coordinator survives the JobMaster that has started it. The job's next JobMaster takes it over
(adopts it) and gives the orders then. If none does so within a timeout, the coordinator ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_ENDPOINT,
    AdoptedCoordinator,
    AggregateAnswer,
    AggregateUpdate,
    CollectorPlace,
    CoordinatorSnapshot,
    Holders,
    KeptPart,
    PrintedPart,
    PrintedText,
    ReaderProgress,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    alignment_name,
)
from flinkray.actors.shared.chain_code import ChainCode
from flinkray.actors.shared.job_files import JobFiles
from flinkray.actors.shared.job_master_watch import JobMasterWatch
from flinkray.actors.shared.user_calls import call_user_code, described
from flinkray.actors.stream_coordinator.global_aggregates import AggregateUpdates
from flinkray.actors.stream_coordinator.global_formats import GlobalFormats
from flinkray.actors.stream_coordinator.master_hooks import HostedMasterHooks
from flinkray.actors.stream_coordinator.printed_lines_store import PrintedLines
from flinkray.actors.stream_coordinator.source_holds import SourceHolds
from flinkray.actors.stream_coordinator.source_host import SourceHost
from flinkray.blob import BlobClient, BlobOwner
from flinkray.checkpoint.handles import StateLocation
from flinkray.checkpoint.layout import DEFAULT_INLINE_THRESHOLD, state_writer
from flinkray.checkpoint.metadata import MasterState
from flinkray.checkpoint.state_files import read_bytes
from flinkray.core.blobs import BlobKey
from flinkray.core.captured_output import note_output
from flinkray.core.error_text import message_of, traceback_of, type_of
from flinkray.core.errors import (
    CoordinatorReplacedError,
    FlinkRayError,
    RpcConnectionError,
    RpcError,
)
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.core.private_files import permit
from flinkray.core.recurring_errors import outlook_of
from flinkray.file_results import published_location, stream_execution
from flinkray.ha.entries import decode_entry, encode_entry
from flinkray.rpc import RpcEndpoint, RpcService, TimerHandle
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, CheckpointCompleted
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure, GlobalFormatsCall
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sources.source import Source
from flinkray.streaming.sources.source_progress import EnumeratorState, SourceProgress
from flinkray.streaming.sources.spark import SparkSource
from flinkray.streaming.time.watermark_alignment import AlignmentGroups
from flinkray.user_code import load_function

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
"""Longest pause in seconds before the JobMaster is asked again to keep a part.
The pause doubles each time from _FIRST_PAUSE.
"""
_KEPT_SHARE = 2
"""Share of a message that the progress of one source may fill: 1/2. More progress is not kept."""


def create_stream_coordinator(
    rpc_service: RpcService, arguments: StreamCoordinatorArguments
) -> StreamCoordinator:
    """Create the endpoint of the process that hosts the split enumerators of a job's sources."""
    permit(arguments.storage_permissions)
    return StreamCoordinator(rpc_service, arguments)


class StreamCoordinator(RpcEndpoint, StreamCoordinatorGateway):
    """Endpoint of the coordinator: hosts enumerators and master hooks, and carries out the
    JobMaster's orders.
    """

    def __init__(self, rpc_service: RpcService, arguments: StreamCoordinatorArguments) -> None:
        super().__init__(rpc_service, STREAM_COORDINATOR_ENDPOINT)
        self._job_id = arguments.job_id
        # parts of an earlier coordinator's state are pickled objects of users
        self.has_run_user_code = bool(arguments.restored or arguments.kept)
        self._owner = arguments.owner
        """The JobMaster by whose id tasks know this coordinator."""
        self._leader = arguments.job_master_id
        """The JobMaster whose orders this coordinator takes."""
        self._leader_address = arguments.listener_address
        self._keeper: JobMasterGateway | None = None
        """Gateway of the JobMaster that keeps this coordinator's parts.
        None while not connected.
        """
        self._watch: JobMasterWatch | None = None
        """Watch of the JobMaster whose orders are taken.
        None if it is lost, or was not reached yet.
        """
        self._takeover_timeout = arguments.takeover_timeout
        self._deadline: TimerHandle | None = None
        """Timer at whose end this coordinator ends without a JobMaster.
        None while its JobMaster lives.
        """
        self._orders = asyncio.Lock()
        """Held for one order at a time. So orders of a past JobMaster end before later ones."""
        self._vertices = {vertex.vertex_id: vertex for vertex in arguments.vertices}
        self._restored = arguments.restored
        self._kept = {part.vertex_id: part for part in arguments.kept}
        """Parts of the state of an earlier coordinator, with which this coordinator begins."""
        self._version = max((part.version for part in arguments.kept), default=0)
        self._restores = 0 if arguments.restored is not None else arguments.restores
        self._restored_now: asyncio.Future[None] = rpc_service.loop.create_future()
        """Completed at the next restore.
        Calls of readers that belong to a later restore wait for it.
        """
        self._hosts: dict[JobVertexID, SourceHost] = {}
        self._replaced: list[SourceHost] = []
        self._job_files = arguments.files
        self._storage_dir = arguments.storage_dir
        self._graph_id = arguments.graph_id
        self._files = JobFiles(rpc_service, arguments.cluster_id)
        self._alignment = AlignmentGroups()
        self._holds = SourceHolds(
            self,
            self._storage_dir,
            self._job_id,
            arguments.max_waiting_epochs,
            self._execution,
        )
        self._hooks = HostedMasterHooks(
            self,
            self._job_id,
            (
                (vertex.name, partial(self._load, vertex, arguments.blob_server))
                for vertex in arguments.vertices
                if vertex.has_hook
            ),
            self._failed,
            allow_non_restored_state=arguments.allow_non_restored_state,
        )
        self._attempts = dict(_attempts(arguments.kept))
        """Number of the latest attempt of each source task that has called."""
        self._coordinator = arguments.coordinator
        self._failure: CoordinatorFailure | None = None
        self._cleaned_up: asyncio.Task[None] | None = None
        name = f"{rpc_service.process_name}#{arguments.coordinator.attempt_number}"
        self._printed = PrintedLines(rpc_service, name)
        self._aggregates = AggregateUpdates(rpc_service, name, self._provide_files)
        self._formats = GlobalFormats(
            rpc_service, arguments.formats, self._provide_code, self._failed
        )
        self._place: CollectorPlace | None = None
        self._place_changed: asyncio.Future[None] = rpc_service.loop.create_future()

    async def on_start(self) -> None:
        if self._restored is None:
            self._make_hosts({}, 0)
        else:
            await self._restore(self._restored)
        results = self._kept.get(None)
        self._place = None if results is None else results.place
        self._kept.clear()
        self.create_task(self._watch_leader(self._leader), "watch the JobMaster")

    async def on_stop(self) -> None:
        await self._clean_up()

    async def stop(self, job_master_id: JobMasterId) -> None:
        self._refuse_other_leaders(job_master_id)
        await self._printed.end()
        await self._clean_up()
        self.close()

    # --- its JobMaster ----------------------------------------------------------------------------

    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        self._refuse_other_leaders(job_master_id)
        if self._deadline is not None:  # the leader counted as dead, and lives
            self._begin_to_watch()

    async def adopt(
        self, owner: JobMasterId, job_master_id: JobMasterId, listener_address: str
    ) -> AdoptedCoordinator:
        self._refuse_others(owner)
        if job_master_id != self._leader:
            await self._refuse_while_led(job_master_id)
            log.info("%s goes on under JobMaster %s", self.address, job_master_id)
            self._leader, self._leader_address = job_master_id, listener_address
            self._keeper = None
            self._begin_to_watch()
            for host in self._hosts.values():
                host.keep_again()
            if self._place is not None:
                self.create_task(self._keep_place(self._place), "keep where results are")
            if self._failure is not None:
                self.create_task(self._report(self._failure), "report a failure")
        has_readers = bool(self._attempts)
        return AdoptedCoordinator(self._coordinator, self._restores, has_readers)

    async def _refuse_while_led(self, successor: JobMasterId) -> None:
        leader, watch = self._leader, self._watch
        if watch is not None:
            await watch.look()
        if self._deadline is None or self._leader != leader:
            raise CoordinatorReplacedError(
                f"JobMaster {successor} gets no sources of job {self._job_id}: {self._leader} lives"
            )

    def _begin_to_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.create_task(self._watch_leader(self._leader), "watch the JobMaster")

    async def _watch_leader(self, leader: JobMasterId) -> None:
        try:
            job_master = await self.connect(self._leader_address, JobMasterGateway, leader)
        except RpcError as error:
            if leader == self._leader:
                self._leader_lost(str(error))
            return
        if leader == self._leader and self._watch is None:
            self._watch = JobMasterWatch(self, job_master, self._leader_lost)

    def _leader_lost(self, reason: str) -> None:
        self._watch = None
        if self._deadline is None:
            log.warning(
                "%s goes on without JobMaster %s for %g s: %s",
                self.address,
                self._leader,
                self._takeover_timeout,
                reason,
            )
            self._deadline = self.schedule_deadline(self._takeover_timeout, self._end_alone)

    def _end_alone(self) -> None:
        """Begin to close the endpoint, because no JobMaster has taken over this coordinator in
        time."""
        log.warning("%s ends: no JobMaster has adopted it", self.address)
        self.close()

    # --- what others keep -------------------------------------------------------------------------

    async def _keep_source(
        self, vertex_id: JobVertexID, restores: int, progress: SourceProgress | None
    ) -> bool:
        """Ask the JobMaster to store the progress of a source, in case this process dies. Returns
        True once it is stored, and False if it is too large for a message. *progress* None: from
        now on only this process knows the source's progress, and if it dies, the job begins from
        its last checkpoint."""
        name = self._vertices[vertex_id].name
        if progress is None:
            log.warning(
                "%s: nobody else knows how far it is. If this process dies, the job begins from "
                "its last checkpoint",
                name,
            )
        elif (size := _size(progress)) > self.rpc_service.max_frame_size // _KEPT_SHARE:
            log.warning("%s: the progress takes %d bytes, too many to be stored", name, size)
            return False
        self._version += 1
        await self._keep(KeptPart(vertex_id, restores, self._version, progress))
        return True

    async def _keep_place(self, place: CollectorPlace) -> None:
        self._version += 1
        await self._keep(KeptPart(None, self._restores, self._version, place=place))

    async def _keep(self, part: KeptPart) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if self._keeper is None:
                    self._keeper = await self.connect(
                        self._leader_address, JobMasterGateway, self._leader
                    )
                await self._keeper.keep_part(self._owner, self._coordinator, part)
                return
            except FlinkRayError as error:
                log.info("%s: the progress of sources is not stored yet: %s", self.address, error)
                self._keeper = None
            await self.rpc_service.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _all_kept(self) -> None:
        """Wait until the JobMaster has stored the latest progress of all sources.
        Called before an order is answered: if this process dies, its successor begins from the
        stored progress, and gets only the orders that were not answered.
        """
        for host in self._hosts.values():
            await host.kept()

    def _refuse_other_leaders(self, job_master_id: JobMasterId) -> None:
        if job_master_id != self._leader:
            raise CoordinatorReplacedError(
                f"the coordinator of job {self._job_id} takes its orders of JobMaster "
                f"{self._leader}, not of {job_master_id}"
            )

    # --- the end ----------------------------------------------------------------------------------

    async def _clean_up(self) -> None:
        if self._cleaned_up is None:
            self._cleaned_up = asyncio.ensure_future(self._end_hosts())
        await asyncio.shield(self._cleaned_up)

    async def _end_hosts(self) -> None:
        try:
            for host in (*self._replaced, *self._hosts.values()):
                await host.close()
        finally:  # an enumerator may raise an error
            await self._hooks.close()
            self._files.close()

    # --- checkpoints ------------------------------------------------------------------------------

    async def snapshot(
        self, job_master_id: JobMasterId, checkpoint_id: int, timestamp: int, directory: str
    ) -> tuple[CoordinatorSnapshot, ...]:
        async with self._orders:
            self._refuse_other_leaders(job_master_id)
            snapshots = []
            for vertex_id, vertex in self._vertices.items():
                state = await self._hosts[vertex_id].snapshot(checkpoint_id)
                location = None
                if state is not None:
                    location = await self.rpc_service.run_blocking(_written, state, directory)
                snapshots.append(CoordinatorSnapshot(vertex.operator_id, location))
            await self._all_kept()
            if self._hooks.are_there:
                self._hooks.trigger(checkpoint_id, timestamp)
            return tuple(snapshots)

    async def master_states(
        self, job_master_id: JobMasterId, checkpoint_id: int
    ) -> tuple[MasterState, ...]:
        self._refuse_other_leaders(job_master_id)
        return await self._hooks.states(checkpoint_id)

    async def restore(self, job_master_id: JobMasterId, restored: RestoredCoordinators) -> None:
        self._refuse_other_leaders(job_master_id)  # needs no lock: a restore begins anew
        await self._restore(restored)

    async def _restore(self, restored: RestoredCoordinators) -> None:
        if restored.restores <= self._restores:
            return
        states = {
            snapshot.operator_id: await self.rpc_service.run_blocking(_read, snapshot.state)
            for snapshot in restored.states
            if snapshot.state is not None
        }
        for host in self._hosts.values():
            self._replaced.append(host)
            self.create_task(host.close(), "close the enumerator before")
        self._restores = restored.restores
        self._make_hosts(states, restored.checkpoint_id)
        self._hooks.restore(restored)
        self._alignment = AlignmentGroups()
        self._attempts.clear()
        self._restored_now.set_result(None)
        self._restored_now = self.rpc_service.loop.create_future()

    def _make_hosts(self, states: Mapping[str, EnumeratorState], checkpoint_id: int) -> None:
        self._hosts = {
            vertex.vertex_id: self._new_host(vertex, states.get(vertex.operator_id), checkpoint_id)
            for vertex in self._vertices.values()
        }

    async def reset_subtasks(
        self,
        job_master_id: JobMasterId,
        checkpoint_id: int,
        subtasks: dict[str, tuple[tuple[int, int], ...]],
    ) -> None:
        async with self._orders:
            self._refuse_other_leaders(job_master_id)
            for vertex_id, vertex in self._vertices.items():
                for subtask, attempt in subtasks.get(vertex.operator_id, ()):
                    await self._hosts[vertex_id].reset_subtask(subtask, attempt, checkpoint_id)
            await self._all_kept()

    async def checkpoint_ended(
        self, job_master_id: JobMasterId, order: CheckpointCompleted | CheckpointAborted
    ) -> None:
        async with self._orders:
            self._refuse_other_leaders(job_master_id)
            self._hooks.checkpoint_over(order.checkpoint_id)
            for host in self._hosts.values():
                if isinstance(order, CheckpointCompleted):
                    await host.checkpoint_completed(order.checkpoint_id)
                else:
                    await host.checkpoint_completed(order.latest_completed)
                    host.checkpoint_aborted(order.checkpoint_id)
            await self._all_kept()

    async def call_global_formats(
        self, job_master_id: JobMasterId, call: GlobalFormatsCall, blob_server: str | None
    ) -> None:
        self._refuse_other_leaders(job_master_id)
        await self._formats.call(call, blob_server)

    async def _is_of_the_present(self, restores: int) -> bool:
        """Return whether a reader's task was deployed after the last restore of the sources.
        *restores*: how often they had been restored when the task was deployed. If that is more
        often than this coordinator knows of, the call waits for the next restore."""
        while restores > self._restores:
            await asyncio.shield(self._restored_now)
        return restores == self._restores

    # --- sources ----------------------------------------------------------------------------------

    def _new_host(
        self, vertex: VertexCode, state: EnumeratorState | None, checkpoint_id: int
    ) -> SourceHost:
        execution = self._execution()

        async def load(blob_server: str | None) -> Source[object]:
            source = await self._load(vertex, blob_server)
            if isinstance(source, SparkSource):
                location = published_location(self._storage_dir, self._job_id, source.vertex_id)
                source.locate(location, execution)
            return source

        kept = self._kept.get(vertex.vertex_id)
        is_present = kept is not None and kept.restores == self._restores
        return SourceHost(
            self,
            vertex.name,
            load,
            self._failed,
            partial(self._keep_source, vertex.vertex_id, self._restores),
            state,
            checkpoint_id,
            kept.progress if kept is not None and is_present else None,
        )

    async def _load(self, vertex: VertexCode, blob_server: str | None) -> Source[object]:
        code = await self._provide_code(vertex.code, blob_server)
        return await call_user_code(
            self.rpc_service,
            lambda: _load_source(code),
            lambda error: described(error, f"enumerator of {vertex.name}"),
        )

    async def _provide_code(self, code: bytes | BlobKey, blob_server: str | None) -> bytes:
        """Return pickled code of the job, after making the job's files importable."""
        await self._provide_files(blob_server)
        return await self._fetch(blob_server, code) if isinstance(code, BlobKey) else code

    async def _provide_files(self, blob_server: str | None) -> None:
        """Fetch and unpack the files that user code of the job imports.
        Called before each use of user code.
        """
        self.has_run_user_code = True
        if self.rpc_service.has_own_process:
            note_output(self._job_id, self.rpc_service.process_name)
        fetch = partial(self._fetch, blob_server)
        await self._files.provide(self._job_id, self._job_files, fetch)

    async def _fetch(self, blob_server: str | None, key: BlobKey) -> bytes:
        if blob_server is None:
            raise RpcConnectionError(f"no blob server is known to have the code {key}")
        client = BlobClient(self.rpc_service, blob_server)
        return await client.get(BlobOwner.of_job(self._job_id), key)

    def _execution(self) -> str:
        return stream_execution(self._graph_id, self._restores)

    def _failed(self, error: FlinkRayError) -> None:
        """Report the first failure of this coordinator to the JobMaster, which lets the job begin
        anew with another coordinator. Later failures are ignored. While there is no JobMaster, the
        report waits for the next one."""
        if self._failure is None:
            outlook = outlook_of(error)
            self._failure = CoordinatorFailure(
                type_of(error),
                message_of(error),
                traceback_of(error, error.__traceback__),
                is_user_error=True,
                suppress_restarts=outlook.will_recur,
                program_error=outlook.program_error,
            )
            if self._deadline is None:
                self.create_task(self._report(self._failure), "report a failure")

    async def _report(self, failure: CoordinatorFailure) -> None:
        """Report a failure to the JobMaster. If the JobMaster is lost, the next one gets the report
        when it takes over. If it lives but cannot be reached, the coordinator closes, which it
        notices."""
        leader, watch = self._leader, self._watch
        try:
            job_master = await self.connect(self._leader_address, JobMasterGateway, leader)
            await job_master.coordinator_told(self._coordinator, failure)
        except RpcError as error:
            if watch is not None:
                await watch.look()
            if self._deadline is None and self._leader == leader:
                log.warning(
                    "%s ends: a failure cannot be reported to its JobMaster: %s",
                    self.address,
                    error,
                )
                self.close()

    async def exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        self._refuse_others(reader.job_master_id)
        if not await self._is_of_the_present(reader.restores):
            return ()
        name = alignment_name(reader.vertex_id, reader.subtask_index)
        if self._attempts.get(name, reader.attempt_number) < reader.attempt_number:
            self._alignment.forget(name)
        self._attempts[name] = max(self._attempts.get(name, 0), reader.attempt_number)
        return await self._hosts[reader.vertex_id].exchange(reader)

    async def exchange_until_cut(
        self, reader: ReaderProgress, checkpoint_id: int
    ) -> tuple[bytes, ...]:
        self._refuse_others(reader.job_master_id)
        if not await self._is_of_the_present(reader.restores):
            return ()
        return await self._hosts[reader.vertex_id].events_before(reader, checkpoint_id)

    async def results_are_at(self, job_master_id: JobMasterId, place: CollectorPlace) -> None:
        self._refuse_others(job_master_id)
        if self._place is not None and _is_of_earlier_attempt(place, self._place):
            return
        self._place = place
        self._place_changed.set_result(None)
        self._place_changed = self.rpc_service.loop.create_future()
        await self._keep_place(place)

    async def report_watermark(
        self, job_master_id: JobMasterId, group: str, member: str, watermark: int
    ) -> int:
        self._refuse_others(job_master_id)
        return self._alignment.report(group, member, watermark)

    async def await_hold(
        self, job_master_id: JobMasterId, holders: Holders, known: bool | None
    ) -> bool:
        self._refuse_others(job_master_id)
        if holders.restores is not None and await self._is_of_the_present(holders.restores):
            await self._hooks.ready()
        return await self._holds.await_other_than(known, holders)

    async def printed(self, text: PrintedText) -> None:
        self._refuse_others(text.job_master_id)
        await self._printed.add(text)

    async def update_global_aggregate(self, update: AggregateUpdate) -> AggregateAnswer:
        self._refuse_others(update.job_master_id)
        return await self._aggregates.update(update)

    async def read_printed(self, known: str | None, position: int) -> PrintedPart:
        return await self._printed.read(known, position)

    async def find_results(self, known: CollectorPlace | None) -> CollectorPlace:
        while self._place is None or self._place == known:
            await asyncio.shield(self._place_changed)
        return self._place

    def _refuse_others(self, owner: JobMasterId) -> None:
        if owner != self._owner:
            raise CoordinatorReplacedError(
                f"the coordinator of job {self._job_id} is not that of JobMaster {owner}"
            )


def _is_of_earlier_attempt(place: CollectorPlace, known: CollectorPlace) -> bool:
    one, other = place.partition.partition, known.partition.partition
    return one.graph_id == other.graph_id and one.attempt_number < other.attempt_number


def _attempts(kept: Iterable[KeptPart]) -> Iterator[tuple[str, int]]:
    for part in kept:
        if part.vertex_id is not None and part.progress is not None:
            for reader in part.progress.readers:
                if reader.attempt is not None and reader.is_added:
                    yield alignment_name(part.vertex_id, reader.subtask), reader.attempt


def _size(progress: SourceProgress) -> int:
    state = progress.enumerator
    of_readers = (
        sum(map(len, reader.events)) + sum(len(one.split) for one in reader.assigned)
        for reader in progress.readers
    )
    return (0 if state is None else len(state.data)) + sum(of_readers)


def _written(state: EnumeratorState, directory: str) -> StateLocation:
    writer = state_writer(directory, DEFAULT_INLINE_THRESHOLD, is_savepoint=True)
    return writer.write_bytes(encode_entry(state))


def _read(location: StateLocation) -> EnumeratorState:
    return decode_entry(read_bytes(location), EnumeratorState)


def _load_source(code: bytes) -> Source[object]:
    chain = load_function(code)
    assert isinstance(chain, ChainCode)
    head = chain.load().operators[0].operator
    assert isinstance(head, SourceOperator)
    return head.source
