"""The process that runs an operator coordinator: what all kinds have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from flinkray.rpc import EndpointSpec, RpcGateway, RpcService
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator


@dataclass(frozen=True, slots=True)
class ConnectedCoordinator:
    """What every coordinator answers, whatever else it does."""

    gateway: RpcGateway
    """To be watched."""
    request_heartbeat: Callable[[], Coroutine[Any, Any, None]]
    """It answers, whatever user code does at the moment."""
    stop: Callable[[], Coroutine[Any, Any, None]]
    """It ends what it has started and has left behind; then the process ends."""


class CoordinatorProcess(ABC):
    """How coordinators of one kind are started and connected to."""

    title: str
    """For people: ``the Spark driver``."""
    ends_by_itself: float = 0.0
    """Seconds that one has for ending by itself when its JobMaster ends; 0: it is killed at once,
    and nothing of it stays."""
    outlives_its_job_master = False
    """Whether the job's next JobMaster may take it over: then it is asked to stop when its
    JobMaster ends, and refuses that if another one has."""
    is_killed_when_lost = False
    """Whether one that counts as dead, though it may live, is killed: the next attempt must not
    begin beside it."""
    has_fixed_name = True
    """Whether the process of another attempt of the same JobMaster has the same name."""

    @abstractmethod
    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        """The process of an attempt; *blob_server* is where code comes from that is not in it."""

    async def prepared(self, spec: EndpointSpec) -> EndpointSpec:
        """What the process needs is there.

        Returns:
            *spec*, with what became known by that.
        """
        return spec

    @abstractmethod
    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        """To a process that was spawned."""
