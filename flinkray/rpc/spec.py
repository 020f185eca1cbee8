"""What a new process is to be: where it goes, what runs in it, how long it lives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import field
from typing import Any

from flinkray.core.error_text import summary_of
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import WorkerGroupId
from flinkray.core.message import message

ADDRESS_SEPARATOR = "/"

WILDCARD = "*"
"""At the end of an address: whatever follows."""


@message
class Placement:
    """Where a process runs, and what it takes there from Ray's books."""

    num_cpus: float = 0
    memory: int = 0
    """Bytes."""
    resources: dict[str, float] = field(default_factory=dict)
    worker_group: WorkerGroupId | None = None
    bundle_index: int = -1
    """Bundle of the worker group; -1: any."""
    node_id: str | None = None
    """Ray node, hex: preferred, not required.  Not together with a worker group."""


@message
class Renewal:
    """When a process that has grown makes way for a fresh one.

    Ray keeps something of each actor that a process has created or called, for as long as the
    process lives: 20 to 70 kB of each.
    """

    growth: int
    """Bytes that it has for itself more than when it had started."""
    age: float = 600.0
    """Seconds that it lives at least: growth may be what a fresh one needs just as well."""
    interval: float = 10.0
    """Seconds between two looks."""

    def __post_init__(self) -> None:
        if self.growth <= 0:
            raise ConfigurationError(f"a process grows by more than {self.growth} bytes at once")


@message
class EndpointSpec:
    """A process to be started and the endpoint that is the reason for it."""

    kind: str
    """Class name of the Ray actor as the dashboard shows it: ``JobMaster``."""
    name: str
    """Name of the process, unique in the cluster."""
    factory: str
    """``package.module:function``: plain or async, ``(rpc_service, arguments) -> RpcEndpoint``.

    The service starts the endpoint; the factory must not.
    """
    arguments: object = None
    """One registered message, or None."""
    placement: Placement = field(default_factory=Placement)
    detached: bool = False
    """False: the process dies with its spawner's process.  True: it lives on."""
    max_restarts: int = 0
    """How often a process that died is started again with the same arguments; -1: always.

    A process that ended because its main endpoint was closed, or that was killed by
    :meth:`RpcService.kill`, is never restarted.
    """
    may_take_over: bool = False
    """Whether a prestarted process may become it, where there are any (see
    :meth:`RpcService.keep_prestarted`): then neither *placement* nor *max_restarts* nor
    *environment* may say anything."""
    environment: dict[str, str] = field(default_factory=dict)
    """Set in ``os.environ`` before the factory's module is imported (not by the local service,
    whose processes share one environment)."""
    renewal: Renewal | None = None
    """When it ends only to be started again: as if it had died, so it needs *max_restarts*.  None:
    never.  (Not by the local service, whose processes share one memory.)"""

    def __post_init__(self) -> None:
        if not self.name or ADDRESS_SEPARATOR in self.name:
            raise ConfigurationError(f"not a process name: {self.name!r} (no '/', not empty)")
        if not self.kind.isidentifier():
            raise ConfigurationError(
                f"not a class name: {self.kind!r} (kind of process {self.name})"
            )
        if self.renewal is not None and self.max_restarts == 0:
            raise ConfigurationError(f"{self.name} would not be started again when it has grown")
        if self.may_take_over and (
            self.placement != Placement() or self.max_restarts or self.environment
        ):
            raise ConfigurationError(
                f"a prestarted process cannot become {self.name}, which has a placement, "
                "restarts or an environment of its own"
            )


def split_address(address: str) -> tuple[str, str]:
    """Process name and endpoint id.

    Raises:
        ValueError: not of the form ``<process>/<endpoint>``.
    """
    process, separator, endpoint = address.rpartition(ADDRESS_SEPARATOR)
    if not separator or not process or not endpoint:
        raise ValueError(f"not an address: {address!r} (expected <process>/<endpoint>)")
    return process, endpoint


def process_of(identity: str) -> str:
    """Name of the process of an :attr:`~flinkray.rpc.service.RpcService.identity`."""
    return identity.rpartition("#")[0]


def load_factory(path: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    Raises:
        ConfigurationError: there is no such module or function, or importing it fails.
    """
    module_name, _, function_name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # whatever the module raises as it is imported
        raise ConfigurationError(
            f"cannot load the factory {path!r}: {summary_of(error)}"
        ) from error
    if not callable(factory):
        raise ConfigurationError(f"the factory {path!r} is not a function")
    return factory  # type: ignore[no-any-return]
