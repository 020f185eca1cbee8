"""Spare task processes: they are started ahead and wait for a job."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessHost
from flinkray.core.error_text import summary_of
from flinkray.core.ids import ResourceID
from flinkray.rpc import RpcEndpoint, TerminationWatch, TimerHandle

log = logging.getLogger(__name__)

RESTART_PAUSE = 1.0
"""Seconds from a failed start to the next one."""

START_TIMEOUT = 60.0
"""Seconds after which a start is given up.
Ray starts few processes at a time. A process that dies while starting takes the place of others for
a minute, and some starts never finish.
"""

REFILL_PAUSE = 1.0
"""Seconds from taking a process to starting its replacement, to not slow a job's deployment."""

DEMAND_TIME = 120.0
"""Seconds for which a process that was taken counts as demand."""


@dataclass(frozen=True, slots=True, eq=False)
class StartedProcess:
    """A task process that has started and serves no job yet."""

    name: str
    gateway: TaskProcessGateway
    host: TaskProcessHost | None
    """The operating system process. None for a simulated process."""


class ProcessRequest:
    """A request for a process that has not been answered yet."""

    def __init__(
        self, on_started: Callable[[StartedProcess], None], on_failed: Callable[[str], None]
    ) -> None:
        self.on_started = on_started
        self.on_failed = on_failed


def _is_stopped(host: TaskProcessHost | None) -> bool:
    try:
        status = "" if host is None else psutil.Process(host.pid).status()
    except psutil.Error:
        return False  # it has died, which its watch reports
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class SpareTaskProcesses:
    """Starts task processes ahead and gives them to jobs. Lives on its TaskExecutor's main thread.

    Each process is given away once: it serves one job and ends with this job.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        resource_id: ResourceID,
        start_process: Callable[[str, bool], Awaitable[StartedProcess]],
        end_process: Callable[[StartedProcess], object],
        most_ahead: int = 1,
    ) -> None:
        """Create the object without processes.

        Args:
            start_process: gets the name of the process, and whether no job waits for it. May raise
                anything.
            most_ahead: how many processes that no job waits for are started at the same time.
        """
        self._endpoint = endpoint
        self._resource_id = resource_id
        self._start_process = start_process
        self._end_process = end_process
        self._most_ahead = most_ahead
        self._wanted = 0
        self._most_wanted = 0
        self._taken: deque[float] = deque()
        """The times at which processes were taken in the last DEMAND_TIME seconds."""
        self._ready: dict[StartedProcess, TerminationWatch] = {}
        self._requests: deque[ProcessRequest] = deque()
        self._starting = 0
        self._started = 0
        self._is_pausing = False
        """Whether no process is started at present, because a start has just failed."""
        self._refill: TimerHandle | None = None

    def keep(self, number: int, most: int = 0) -> None:
        """Set how many processes must wait for jobs. If more are waiting, they stay.

        As many as were taken in the last minutes wait, too, up to *most*.
        """
        self._wanted, self._most_wanted = number, most
        self._fill()

    def _number_wanted(self) -> int:
        now = self._endpoint.clock.monotonic()
        while self._taken and now - self._taken[0] > DEMAND_TIME:
            self._taken.popleft()
        return max(self._wanted, min(self._most_wanted, len(self._taken)))

    def end_pause(self) -> None:
        """Start missing processes at once, because a job has ended and the next may follow soon.
        Otherwise they start some time after the last process was taken."""
        if self._refill is not None:
            self._refill.cancel()
            self._refill_now()

    def request(
        self, on_started: Callable[[StartedProcess], None], on_failed: Callable[[str], None]
    ) -> ProcessRequest | None:
        """Call *on_started* with a process for a job: now if a process waits, else once one has
        started; or *on_failed* if it fails to start. Returns the request, which can be withdrawn
        until then; None if *on_started* was called. Waiting processes that were stopped (SIGSTOP)
        are ended."""
        self._taken.append(self._endpoint.clock.monotonic())
        while self._ready:
            process = next(iter(self._ready))
            self._ready.pop(process).cancel()
            if _is_stopped(process.host):
                log.warning("%s is stopped: it is ended, and replaced", process.name)
                self._end_process(process)
                continue
            self._fill_later()
            on_started(process)
            return None
        request = ProcessRequest(on_started, on_failed)
        self._requests.append(request)
        self._fill()
        return request

    def withdraw(self, request: ProcessRequest) -> None:
        """Withdraw a request: no callback follows. The process that is being started waits for
        another job."""
        if request in self._requests:
            self._requests.remove(request)

    def _fill_later(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
        self._refill = self._endpoint.schedule_run_async(REFILL_PAUSE, self._refill_now)

    def _refill_now(self) -> None:
        self._refill = None
        self._fill()

    def _fill(self) -> None:
        if self._is_pausing:
            return
        requests = len(self._requests)
        wanted = requests
        if self._refill is None:
            wanted = min(
                wanted + self._number_wanted(), requests + self._most_ahead + len(self._ready)
            )
        while len(self._ready) + self._starting < wanted:
            is_ahead = self._starting >= requests
            self._starting += 1
            self._started += 1
            name = f"TaskProcess-{self._started}-{self._resource_id}"
            self._endpoint.create_task(self._start(name, is_ahead), f"start {name}")

    async def _start(self, name: str, is_ahead: bool) -> None:
        deadlines = self._endpoint.rpc_service.deadlines
        try:
            process = await deadlines.within(START_TIMEOUT, self._start_process(name, is_ahead))
        except asyncio.TimeoutError:
            self._starting -= 1
            cause = f"{name} could not be started within {START_TIMEOUT:g} s"
            self._could_not_start(cause, is_ahead)
            return
        except Exception as error:  # noqa: BLE001 - whatever the new process raised while it started
            self._starting -= 1
            self._could_not_start(f"{name} could not be started: {summary_of(error)}", is_ahead)
            return
        self._starting -= 1
        if self._requests:
            self._requests.popleft().on_started(process)
            self._fill()
            return
        watch = self._endpoint.watch(process.gateway, lambda reason: self._died(process, reason))
        self._ready[process] = watch
        self._fill()

    def _could_not_start(self, cause: str, is_ahead: bool) -> None:
        """Start others after a pause. *is_ahead*: no job waited when the start began; a job that
        waits now gets a start of its own, which no lower priority slows down."""
        log.warning("%s", cause)
        if not self._is_pausing:
            self._is_pausing = True
            self._endpoint.schedule_run_async(RESTART_PAUSE, self._pause_over)
        if self._requests and not is_ahead:
            self._requests.popleft().on_failed(cause)

    def _pause_over(self) -> None:
        self._is_pausing = False
        self._fill()

    def _died(self, process: StartedProcess, reason: str) -> None:
        if self._ready.pop(process, None) is not None:
            log.warning("%s died: %s", process.name, reason)
            self._fill()
