"""The spec of a new process: where it is placed, which endpoint it hosts, how long it lives."""

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
"""At the end of an address: matches any rest of an endpoint id."""


@message
class Placement:
    """The node or worker group of a process, and the resources that the process reserves in Ray."""

    num_cpus: float = 0
    memory: int = 0
    """The memory in bytes."""
    resources: dict[str, float] = field(default_factory=dict)
    """Amounts of accelerators (``GPU``) and of Ray's other named resources."""
    worker_group: WorkerGroupId | None = None
    bundle_index: int = -1
    """The bundle of the worker group; -1: any."""
    node_id: str | None = None
    """The Ray node in hex, preferred but not required. Not together with a worker group."""


@message
class Renewal:
    """Settings that say when a process that has grown is replaced by a fresh process.

    Ray keeps 20 to 70 kB of data for each actor that a process has created or called, for as long
    as the process lives.
    """

    growth: int
    """The process is replaced when its own memory has grown by more than this many bytes."""
    age: float = 600.0
    """The process lives at least this many seconds, as a fresh process may grow at first, too."""
    interval: float = 10.0
    """Seconds between two checks."""

    def __post_init__(self) -> None:
        if self.growth <= 0:
            raise ConfigurationError(f"a process grows by more than {self.growth} bytes at once")


@message
class EndpointSpec:
    """Describes a process to be started: its name, its main endpoint, and how it lives."""

    kind: str
    """The class name of the Ray actor, shown by the dashboard: ``JobMaster``."""
    name: str
    """The name of the process, unique in the cluster."""
    factory: str
    """The path ``package.module:function`` of the factory of the endpoint.

    The function is plain or async: ``(rpc_service, arguments) -> RpcEndpoint``. The service starts
    the endpoint; the factory must not.
    """
    arguments: object = None
    """The arguments of the factory: one registered message, or None."""
    placement: Placement = field(default_factory=Placement)
    detached: bool = False
    """False: the process dies with its spawner's process. True: the process lives on."""
    max_restarts: int = 0
    """How often a process that died is started again with the same arguments; -1: always.

    A process that ended because its main endpoint was closed, or that was killed by
    :meth:`RpcService.kill`, is never restarted.
    """
    may_take_over: bool = False
    """Whether a prestarted process may take this role (:meth:`RpcService.keep_prestarted`).

    If True, *placement*, *max_restarts* and *environment* must have their defaults.
    """
    environment: dict[str, str] = field(default_factory=dict)
    """Variables set in ``os.environ`` before the factory's module is imported.

    The local service ignores them, as its processes share one environment.
    """
    renewal: Renewal | None = None
    """When the process ends to be started again, as if it had died; needs *max_restarts*.

    None: never. The local service ignores this, as its processes share one memory.
    """
    is_ahead: bool = False
    """Whether nobody waits for the process: on Ray, the factory's module is imported at the lowest
    priority."""
    may_return: bool = False
    """Whether a prestarted process that had this role may take another one when the endpoint has
    closed without an error, if it has run no code of users (``has_run_user_code``).

    Needs *may_take_over* and *detached*.
    """

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
        if self.may_return and not (self.may_take_over and self.detached):
            raise ConfigurationError(
                f"the process of {self.name} cannot take another role afterwards: it is not "
                "detached, or is not prestarted"
            )


def split_address(address: str) -> tuple[str, str]:
    """Return process name and endpoint id.

    Raises:
        ValueError: *address* is not of the form ``<process>/<endpoint>``.
    """
    process, separator, endpoint = address.rpartition(ADDRESS_SEPARATOR)
    if not separator or not process or not endpoint:
        raise ValueError(f"not an address: {address!r} (expected <process>/<endpoint>)")
    return process, endpoint


def process_of(identity: str) -> str:
    """Return the process name in an :attr:`~flinkray.rpc.service.RpcService.identity`."""
    return identity.rpartition("#")[0]


def load_factory(path: str) -> Callable[..., Any]:
    """Import and return ``package.module:function``.

    Raises:
        ConfigurationError: there is no such module or function, or importing it fails.
    """
    module_name, _, function_name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # the module may raise anything
        raise ConfigurationError(
            f"cannot load the factory {path!r}: {summary_of(error)}"
        ) from error
    if not callable(factory):
        raise ConfigurationError(f"the factory {path!r} is not a function")
    return factory  # type: ignore[no-any-return]
