"""What all kinds of operator coordinators have in common: start, connection and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from flinkray.rpc import EndpointSpec, RpcGateway, RpcService
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator


@dataclass(frozen=True, slots=True)
class ConnectedCoordinator:
    """The calls that every coordinator answers, whatever its kind."""

    gateway: RpcGateway
    """The gateway to watch."""
    request_heartbeat: Callable[[], Coroutine[Any, Any, None]]
    """Calls the coordinator, which answers at once, whatever user code does at the moment."""
    stop: Callable[[], Coroutine[Any, Any, None]]
    """Tells the coordinator to end what it has started, and then its process."""


class CoordinatorProcess(ABC):
    """Describes the processes of one kind of coordinator, and connects to started processes."""

    title: str
    """Name of the coordinator in texts for people: ``the Spark driver``."""
    ends_by_itself: float = 0.0
    """Seconds that a coordinator has to end by itself when its JobMaster ends.
    0: it is killed at once and leaves nothing behind.
    """
    outlives_its_job_master = False
    """Whether the job's next JobMaster may take over the coordinator.
    If so, the coordinator is asked to stop when its JobMaster ends, and refuses if another
    JobMaster has taken it over.
    """
    is_killed_when_lost = False
    """Whether a coordinator that counts as dead is killed.
    It may still live, and the next attempt must not begin beside it.
    """
    has_fixed_name = True
    """Whether the processes of all attempts under one JobMaster have the same name."""

    def name_of(self, coordinator: CoordinatorID) -> str:
        """Return the coordinator's name for log lines. The default is :attr:`title`."""
        return self.title

    @abstractmethod
    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        """Return the process to start for an attempt.
        *blob_server* is the address of the server for code that is not in the action.
        """

    async def prepared(self, spec: EndpointSpec) -> EndpointSpec:
        """Wait until everything that the process needs is ready.

        Returns:
            *spec*, with the arguments and the node that became known during the wait.
        """
        return spec

    @abstractmethod
    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        """Connect to a process that was spawned."""
