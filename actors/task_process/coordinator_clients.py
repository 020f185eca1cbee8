"""Connects a source task to the job's coordinator: for splits, for the alignment of watermarks, and
to learn whether consumers are behind."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from flinkray.actors.gateways.stream_coordinator import (
    Holders,
    ReaderProgress,
    StreamCoordinatorGateway,
    alignment_name,
    stream_coordinator_address,
)
from flinkray.actors.shared.chain_code import HELD_BY, HELD_BY_LOOK_UPS
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.task_metrics import IS_HELD
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import MASTER_HOOK
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.sources.source import SourceHold
from flinkray.streaming.task.task_thread import TaskLoop
from flinkray.streaming.time.watermark_alignment import TaskAlignment

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
"""Longest pause in seconds before the coordinator is looked up again.
The pause doubles each time from _FIRST_PAUSE.
"""


class SplitClient:
    """Requests splits for a source task from the coordinator, and passes the coordinator's events
    to the task. Created on the event loop; requests come from the task's thread. They are repeated
    until the coordinator answers, because it may not have started yet or may be replaced.

    Before a checkpoint the reader gets all events that the coordinator counts as before the
    checkpoint. Later events wait until the task has taken its snapshot, or has given up the
    checkpoint.
    """

    def __init__(self, rpc_service: RpcService, address: str, reader: ReaderProgress) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._reader = reader
        self._requests = 0
        self._position = 0
        self._checkpoint = 0
        """The latest checkpoint for which the task has taken its snapshot, or has given up."""
        self._triggers: deque[tuple[int, Callable[[], None]]] = deque()
        self._triggered: int | None = None
        """The checkpoint whose events were given, while the task has not taken its snapshot.
        Else None.
        """
        self._task_loop: TaskLoop | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, task_loop: TaskLoop) -> None:
        """Set the task that receives events, and make the first call to the coordinator, so that it
        knows the reader. Called by the task's thread."""
        self._task_loop = task_loop
        self._call(self._ask_anew)

    def request_split(self) -> None:
        """Ask the coordinator for one more split. Called by the task's thread."""
        self._call(self._count_request)

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the task has taken its snapshot for a checkpoint, or will not take it.
        Called by the task's thread.
        """
        self._call(partial(self._go_on_after, checkpoint_id))

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        """Call *then* when the reader has received all events that belong before the checkpoint.
        *then* orders the task to begin the checkpoint, which it does after these events. Called on
        the event loop."""
        self._triggers.append((checkpoint_id, then))
        self._ask_anew()

    def close(self) -> None:
        """Stop requesting: the task has ended. Called on the event loop."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()

    def _call(self, function: Callable[[], None]) -> None:
        self._rpc_service.loop.call_soon_threadsafe(function)

    def _count_request(self) -> None:
        self._requests += 1
        self._ask_anew()

    def _go_on_after(self, checkpoint_id: int) -> None:
        self._checkpoint = max(self._checkpoint, checkpoint_id)
        if self._triggered is not None and self._triggered <= checkpoint_id:
            self._triggered = None
            self._ask_anew()

    def _ask_anew(self) -> None:
        """Replace the present call to the coordinator by a new call, with the latest request."""
        if self._asking is not None:
            self._asking.cancel()
        if not self._is_closed and self._task_loop is not None:
            self._asking = asyncio.ensure_future(self._ask(self._task_loop))

    async def _ask(self, task_loop: TaskLoop) -> None:
        pause = _FIRST_PAUSE
        while self._triggered is None:
            try:
                gateway = await self._rpc_service.connect(self._address, StreamCoordinatorGateway)
                if self._triggers:
                    await self._take_cut(gateway, task_loop)
                    continue
                events = await gateway.exchange(self._progress())
            except FlinkRayError as error:
                log.info("no splits from %s yet: %s", self._address, error)
                await self._rpc_service.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if not events:  # a later attempt of the task has replaced this one
                await self._rpc_service.pause(_LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            self._give(events, task_loop)

    async def _take_cut(self, gateway: StreamCoordinatorGateway, task_loop: TaskLoop) -> None:
        checkpoint_id, then = self._triggers[0]
        events = await gateway.exchange_until_cut(self._progress(), checkpoint_id)
        self._triggers.popleft()
        self._give(events, task_loop)
        self._triggered = checkpoint_id
        then()

    def _give(self, events: tuple[bytes, ...], task_loop: TaskLoop) -> None:
        self._position += len(events)
        task_loop.told(events)

    def _progress(self) -> ReaderProgress:
        return replace(
            self._reader,
            requests=self._requests,
            position=self._position,
            checkpoint_id=self._checkpoint,
        )


_PAUSE = 0.1
"""Seconds until an unanswered report is repeated."""


class AlignmentClient:
    """Reports a source task's watermarks, and tells the task the least watermark of its group.
    Created on the event loop; the task's thread reports. If a member reports faster than the
    coordinator answers, only its last report is sent.
    """

    def __init__(
        self, rpc_service: RpcService, address: str, job_master_id: JobMasterId, task: str
    ) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._job_master_id = job_master_id
        self.alignment = TaskAlignment(task, self._report)
        """Holds the source back while its group is behind. Used by the task's thread."""
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._unsent: dict[tuple[str, str], int] = {}
        self._sending: asyncio.Task[None] | None = None

    def attach(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Set *post*, which runs a function in the task's thread. Called by this thread."""
        self._post = post

    def _report(self, group: str, member: str, watermark: int) -> None:
        self._rpc_service.loop.call_soon_threadsafe(self._note, group, member, watermark)

    def _note(self, group: str, member: str, watermark: int) -> None:
        self._unsent[group, member] = watermark
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._unsent:
            (group, member), watermark = next(iter(self._unsent.items()))
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                least = await coordinator.report_watermark(
                    self._job_master_id, group, member, watermark
                )
            except FlinkRayError as error:
                log.info("no watermarks of others from %s: %s", self._address, error)
                await self._rpc_service.pause(_PAUSE)
                continue
            if self._unsent.get((group, member)) == watermark:
                del self._unsent[group, member]
            self._announce(group, least)
        self._sending = None

    def _announce(self, group: str, least: int) -> None:
        if self._post is not None:
            self._post(lambda: self.alignment.announce(group, least))

    async def flush(self) -> None:
        """Wait until all watermarks are reported. If the last watermark of an ended task were
        missing, the other sources of its group would wait for it."""
        while self._sending is not None:
            await asyncio.shield(self._sending)

    def close(self) -> None:
        """Stop reporting: the task has ended."""
        if self._sending is not None:
            self._sending.cancel()


"""Longest pause in seconds before an unanswered request is repeated.
The pause doubles each time from _FIRST_PAUSE.
"""


class HoldClient:
    """Asks the coordinator whether the source must pause because consumers are behind, and tells
    the task. Created on the event loop. Requests are repeated until the coordinator answers,
    because it may not have started yet or may be replaced. Until then its last answer applies.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        address: str,
        owner: JobMasterId,
        holders: Holders,
    ) -> None:
        self._rpc_service = rpc_service
        self._address = address
        self._owner = owner
        self._holders = holders
        self.hold = SourceHold()
        """Last answer of the coordinator. Used by the task's thread."""
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def attach(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin to ask. Called by the task's thread; *post* runs a function in this thread."""
        self._rpc_service.loop.call_soon_threadsafe(self._begin, post)

    def _begin(self, post: Callable[[Callable[[], None]], None]) -> None:
        if not self._is_closed:
            self._asking = asyncio.ensure_future(self._ask(post))

    async def _ask(self, post: Callable[[Callable[[], None]], None]) -> None:
        known: bool | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                coordinator = await self._rpc_service.connect(
                    self._address, StreamCoordinatorGateway
                )
                known = await coordinator.await_hold(self._owner, self._holders, known)
            except FlinkRayError as error:
                log.info("%s does not say whether to wait yet: %s", self._address, error)
                await self._rpc_service.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            post(partial(self.hold.tell, known))

    def close(self) -> None:
        """Stop asking: the task has ended. Called on the event loop."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()


class CoordinatorClients:
    """Connects one task to the job's coordinator. Has only those clients that the task needs."""

    def __init__(self, rpc_service: RpcService, deployed: DeployedTask) -> None:
        """Create the clients of *deployed*. Called on the event loop."""
        self._rpc_service = rpc_service
        self._deployed = deployed
        self._address = stream_coordinator_address(deployed.job.job_id, deployed.coordinator_owner)
        reads_source = not deployed.vertex.inputs
        self.splits = self._split_client() if reads_source else None
        """Client of the enumerator. None: the vertex has inputs: channels, or files whose rows its
        tasks divide by themselves.
        """
        self.alignment = self._alignment_client() if reads_source else None
        """Client of the watermark alignment. None: the vertex has inputs."""
        self.hold = self._hold_client()
        """Says whether the source must not be read for now, because a consumer is behind.
        None unless a Spark stage takes the results of its records, or records wait in look-ups.
        """

    def _split_client(self) -> SplitClient:
        deployed, task = self._deployed, self._deployed.task
        reader = ReaderProgress(
            deployed.coordinator_owner,
            deployed.vertex.vertex_id,
            task.subtask_index,
            task.attempt_number,
            deployed.vertex.parallelism,
            0,
            0,
            deployed.blob_server,
            task.restores,
            0 if task.restored is None else task.restored.checkpoint_id,
        )
        return SplitClient(self._rpc_service, self._address, reader)

    def _alignment_client(self) -> AlignmentClient:
        deployed = self._deployed
        name = alignment_name(deployed.vertex.vertex_id, deployed.task.subtask_index)
        return AlignmentClient(self._rpc_service, self._address, deployed.coordinator_owner, name)

    def _hold_client(self) -> HoldClient | None:
        settings = self._deployed.vertex.invokable.configuration
        stages = tuple(map(JobVertexID.from_hex, settings.get(HELD_BY, "").split()))
        look_ups = tuple(settings.get(HELD_BY_LOOK_UPS, "").split())
        restores = self._deployed.task.restores if MASTER_HOOK in settings else None
        if not stages and not look_ups and restores is None:
            return None
        owner, holders = self._deployed.coordinator_owner, Holders(stages, look_ups, restores)
        return HoldClient(self._rpc_service, self._address, owner, holders)

    def attach(self, loop: TaskLoop, metrics: MetricGroup) -> None:
        """Begin to ask and to report for the task of *loop*. Called by the task's thread."""
        if self.splits is not None:
            self.splits.attach(loop)
        if self.alignment is not None:
            self.alignment.attach(loop.post)
        if self.hold is not None:
            hold = self.hold.hold
            metrics.gauge(IS_HELD, lambda: int(hold.is_held))
            self.hold.attach(loop.post)

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the task has taken its snapshot for a checkpoint, or will not take it.
        Called by the task's thread.
        """
        if self.splits is not None:
            self.splits.checkpointed(checkpoint_id)

    async def flush(self) -> None:
        """Wait until all watermarks of the task are reported (:meth:`AlignmentClient.flush`)."""
        if self.alignment is not None:
            await self.alignment.flush()

    def close(self) -> None:
        """Stop asking and reporting: the task has ended. Called on the event loop."""
        for client in (self.splits, self.alignment, self.hold):
            if client is not None:
                client.close()
