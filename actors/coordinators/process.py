"""Base for all kinds of operator coordinators: how their processes start, connect and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from flinkray.rpc import EndpointSpec, RpcGateway, RpcService
from flinkray.scheduler.job.coordinator_events import CoordinatorID


@dataclass(frozen=True, slots=True)
class ConnectedCoordinator:
    """Connection to a coordinator, with the calls that every kind of coordinator answers."""

    gateway: RpcGateway
    """Gateway whose death means the death of the coordinator."""
    request_heartbeat: Callable[[], Coroutine[Any, Any, None]]
    """Requests a heartbeat.
    The coordinator answers at once, whatever user code does at the moment.
    """
    stop: Callable[[], Coroutine[Any, Any, None]]
    """Tells the coordinator to end everything that it has started, and then its process."""


class CoordinatorProcess(ABC):
    """Base class with one subclass for each kind of coordinator.
    A subclass knows how to start processes of its kind and how to connect to them.
    """

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

    async def prepared(self, spec: EndpointSpec) -> EndpointSpec:
        """Wait until the process can be started. The default does not wait.

        Returns:
            *spec*, possibly with more arguments and with the node on which the process must run.
        """
        return spec

    @abstractmethod
    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        """Connect to the running coordinator process at *address*, and return the connection."""
