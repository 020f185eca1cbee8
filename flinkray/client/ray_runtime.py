"""Wraps blocking calls of Ray: joins or starts Ray, and stores records of clusters in Ray."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import random
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import ray
from ray._private import node, parameter, services, worker
from ray._private.grpc_utils import init_grpc_channel
from ray._private.ray_constants import (
    DEFAULT_DASHBOARD_AGENT_LISTEN_PORT,
    GLOBAL_GRPC_OPTIONS,
    PROCESS_TYPE_RAYLET,
)
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
)
from ray.actor import ActorHandle
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_put,
)
from ray.util import list_named_actors
from ray.util.client import ray as ray_client

from flinkray.client.termination import sigterm_is_not_ours_any_more, sigterm_is_ours
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.options import OPTIONS
from flinkray.core.private_files import restrict_folder
from flinkray.rpc.ray.head import head_node_id as head_node_id
from flinkray.spark.ray_java import java_on_path

log = logging.getLogger(__name__)

T = TypeVar("T")

RAY_ADDRESS = "RAY_ADDRESS"
RAY_AUTH_MODE = "RAY_AUTH_MODE"
_STARTS = 3
"""How many times Ray is started if a start takes too long."""
_TOO_SLOW = ("timed out during startup", "raylet_start_wait_time_s")
_PORT_TAKEN = re.compile(r"address already in use|already occupied|failed to bind", re.IGNORECASE)
_MORE_TIME = (
    "on a machine that is so busy, give Ray more time by RAY_raylet_start_wait_time_s (in seconds) "
    "in the environment"
)
_LISTEN_PORT = "dashboard_agent_listen_port"
_AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    _LISTEN_PORT,
)
"""Names of the ports of a node's agents, as Ray's parameters have them."""
_PORTS = range(20_000, 30_000)
"""Ports for agents: above those of Ray's workers, below those that Kubernetes gives to services."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_WORDS = 240
"""Most characters of Ray's own error text, which can have thousands."""
RAY_CLIENT = "ray://"
"""Beginning of addresses of Ray Client servers."""

_DISPATCHER = re.compile(r"Dispatcher(-\d+)?")
"""Names of the processes that lead as Dispatchers, or wait to lead."""
_MASTER = re.compile(r"(Dispatcher|ResourceManager)(-\d+)?")
_STARTER = "ClusterStarter"
"""Name of the actor that exists while a command starts the cluster."""
_CLUSTER = b"cluster"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\[\]/]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535
_CONNECT_TIMEOUT = 5.0
"""Seconds for a TCP connection before Ray is asked to join: Ray itself tries for minutes."""


class ClusterNotFoundError(FlinkRayError):
    """Raised when Ray, or a flinkray cluster in it, was not found. The text says what to do."""


class RayStartError(ClusterNotFoundError):
    """Raised when this process could not start a Ray of its own."""


@dataclass(frozen=True)
class RayRuntime:
    """Describes the Ray cluster to which this process is connected as a driver."""

    session_dir: str | None
    """Session directory on this machine. None: Ray was joined by Ray Client and runs elsewhere."""
    dashboard_url: str | None
    was_entered: bool
    """Whether this module joined or started Ray, and so has to leave it at the end."""


@dataclass(frozen=True)
class ClusterRecord:
    """Settings with which a cluster was started. Clients need some of them to find the leader."""

    configuration: dict[str, str]
    storage_dir: str

    @property
    def of_elections(self) -> ReadableConfig:
        """Return the options that are needed to find the leader. Other options are left out,
        because a client of another version may not know them."""
        return ReadableConfig(
            {
                key: value
                for key, value in self.configuration.items()
                if key in OPTIONS and key.startswith(("high-availability.", "cluster."))
            }
        )

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterRecord:
        """Read a record that :meth:`encode` wrote."""
        read = json.loads(data)
        return cls(dict(read["configuration"]), str(read["storage_dir"]))


def cluster_namespace(cluster_id: str) -> str:
    """Return the Ray namespace of a cluster's actors."""
    return f"flinkray-{cluster_id}"


def is_connected() -> bool:
    return bool(ray.is_initialized())


def is_elsewhere() -> bool:
    """Return whether this process uses Ray Client, so it may run outside of the Ray cluster."""
    return bool(ray_client.is_connected())


def present_ray() -> RayRuntime:
    """Return a description of the Ray that this process is connected to. If it is not connected
    yet, join or start a Ray as ``ray.init()`` does."""
    if ray_client.is_connected():
        return RayRuntime(None, None, was_entered=False)
    return _runtime(ray.init(ignore_reinit_error=True, configure_logging=False), was_entered=False)


def check_is_present(address: str) -> None:
    """Check that *address* may be that of the Ray that this process is connected to: only the ports
    are compared, because a host has many names.

    Raises:
        ClusterNotFoundError: *address* (``host:port``) has another port, or a Ray Client is
            involved, whose server cannot be compared.
        ConfigurationError: not such an address.
    """
    _place_of(address.removeprefix(RAY_CLIENT))
    if address.startswith(RAY_CLIENT) or ray_client.is_connected():
        raise ClusterNotFoundError(
            f"this process is connected to a Ray already, which may not be the one at {address}; "
            "call ray.shutdown() first, or leave the address out"
        )
    _check_reachable(address)
    present = ray.get_runtime_context().gcs_address
    if address.rpartition(":")[2] != present.rpartition(":")[2]:  # a host has many names
        raise ClusterNotFoundError(
            f"this process is connected to the Ray at {present} and cannot join the one at "
            f"{address} too; call ray.shutdown() first, or leave the address out"
        )


def start_local_ray(namespace: str, options: Mapping[str, object]) -> RayRuntime:
    """Start a Ray that ends with this process. *options*: arguments of ``ray.init``, which override
    the defaults of this function. Raises RayStartError: Ray does not start; the text has the
    reason."""
    arguments: dict[str, object] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,  # its warnings explain Ray, not the job
        # Ray runs its Python workers at nice 15 and its Java workers at 0: a busy machine would
        # favour executors over their driver and over the cluster's masters.
        "_system_config": {"worker_niceness": 0, "agent_register_timeout_ms": 120_000},
        **options,
    }
    wants_dashboard = arguments.pop("include_dashboard", True) is not False
    if wants_dashboard:
        arguments["include_dashboard"] = None  # Ray then runs without it if it fails

    show_messages_on_standard_error()

    def start() -> Any:
        with ports_for_agents():
            return ray.init(
                address="local",
                namespace=namespace,
                **arguments,  # type: ignore[arg-type]
            )

    try:
        with java_on_path(), sigterm_is_ours(), _without_logs_of_dashboard():
            context = in_time(start)
    except Exception as error:  # Ray raises some errors as bare Exceptions
        more_time = f"; {_MORE_TIME}" if _is_too_slow(error) else ""
        raise RayStartError(
            f"no Ray could be started on this machine: {_words_of(error)}. What its processes say "
            f"is in {_logs_of_ray()}; to look at it alone: ray start --head{more_time}"
        ) from error
    # output and failures of programs
    restrict_folder(os.path.join(context.address_info["session_dir"], "logs"))
    runtime = _runtime(context, was_entered=True)
    if wants_dashboard and runtime.dashboard_url is None:
        log.warning(
            "Ray's dashboard has not started, and the cluster goes on without: %s says why",
            os.path.join(runtime.session_dir or _logs_of_ray(), "logs", "dashboard.log"),
        )
    return runtime


@contextmanager
def ports_for_agents() -> Iterator[None]:
    """Context manager: choose free ports for the agents of a Ray that this process starts in the
    block. Otherwise the agents choose their ports, and the raylet waits 15 s for them, a time that
    cannot be configured (ray-project/ray#65983). On a busy machine agents need longer; the raylet
    then ends, and Ray's start fails."""
    chosen = dict(zip(_AGENT_PORTS, free_ports(len(_AGENT_PORTS)), strict=True))
    of_ray, start_process = parameter.RayParams, services.start_ray_process

    def with_ports(**arguments: Any) -> parameter.RayParams:
        # a port that somebody else has given stays; Ray's default can serve one Ray of a machine
        given = {name: arguments.get(name) for name in _AGENT_PORTS}
        unset = (None, 0, DEFAULT_DASHBOARD_AGENT_LISTEN_PORT)
        chosen.update({name: port for name, port in given.items() if port not in unset})
        return of_ray(**{**arguments, **chosen})

    def start(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        # Ray gives the raylet the other ports, but not this one
        if process_type == PROCESS_TYPE_RAYLET:
            command = [*command, f"--{_LISTEN_PORT}={chosen[_LISTEN_PORT]}"]
        return start_process(command, process_type, *arguments, **options)

    parameter.RayParams = with_ports  # type: ignore[misc, assignment]
    if hasattr(node, "wait_for_persisted_port"):  # Ray's versions whose raylet waits
        services.start_ray_process = start
    try:
        yield
    finally:
        parameter.RayParams = of_ray  # type: ignore[misc]
        services.start_ray_process = start_process


def free_ports(count: int) -> list[int]:
    """Choose *count* free ports that the system gives to no other program.

    An agent binds its port seconds after the choice. The system has a range of ports for outgoing
    connections and for servers that ask for any port. A port of that range can be taken before the
    agent binds it. The agent then ends, and Ray's node ends with the agent.

    Raises OSError if fewer ports are free.
    """
    first, last = _ports_of_the_system()
    outside = [port for port in _PORTS if not first <= port <= last] or list(_PORTS)
    random.shuffle(outside)
    free = list(itertools.islice(filter(_is_free, outside), count))
    if len(free) < count:
        raise OSError(
            errno.EADDRINUSE,
            f"address already in use: Ray's agents need {count} ports, and only {len(free)} of "
            f"{min(outside)} to {max(outside)} are free",
        )
    return free


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _ports_of_the_system() -> tuple[int, int]:
    """Return the first and the last port that the system itself chooses."""
    try:
        first, last = _PORT_RANGE.read_text("ascii").split()
    except FileNotFoundError:  # not on Linux
        return 49152, 65535  # the range of RFC 6335
    return int(first), int(last)


@contextmanager
def _without_logs_of_dashboard() -> Iterator[None]:
    of_services = logging.getLogger(services.__name__)
    level = of_services.level
    of_services.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        of_services.setLevel(level)


def show_messages_on_standard_error() -> None:
    """Make Ray show its messages to a driver on standard error from now on. Otherwise they go to
    standard output, between the program's results, whatever ``log_to_driver`` says."""
    show = worker.print_to_stdstream
    if getattr(show, "shows_on_standard_error", False):
        return

    def on_standard_error(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        show({**data, "is_err": True}, *arguments, **options)

    on_standard_error.shows_on_standard_error = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = on_standard_error


def in_time(start: Callable[[], T], clear_away: Callable[[], None] = ray.shutdown) -> T:
    """Call *start*, which starts Ray, and return its result. If Ray's start took too long or a port
    was taken, call *clear_away* and then *start* again, up to :data:`_STARTS` times in all: another
    process may take a free port at any moment."""
    for _ in range(_STARTS - 1):
        try:
            return start()
        except Exception as error:  # Ray raises a bare Exception
            if _is_too_slow(error):
                log.warning("Ray's node did not start in time, and is started again")
            elif _PORT_TAKEN.search(_words_of(error)):
                log.warning("Ray is started again, with other ports: %s", _cut(_words_of(error)))
            else:
                raise
            clear_away()
    return start()


def _is_too_slow(error: BaseException) -> bool:
    return any(words in _words_of(error) for words in _TOO_SLOW)


def _words_of(error: BaseException) -> str:
    said = _without_frames(str(error)).strip().rstrip(".") or type(error).__name__
    cause = error.__cause__
    if cause is None or cause is error:  # Ray's `raise error from error`
        return said
    return f"{said}: {_words_of(cause)}"


def _without_frames(text: str) -> str:
    before, mark, traceback = text.partition("Traceback (most recent call last):")
    return before + traceback.strip().splitlines()[-1].strip() if mark else text


def _cut(words: str) -> str:
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]} …"


def _logs_of_ray() -> str:
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(folder, "ray/session_latest/logs")


def join_ray(address: str, namespace: str) -> RayRuntime:
    """Join a running Ray.

    *address*: ``auto`` (``RAY_ADDRESS``, or else the Ray of this machine), ``host:port`` of its
    head, or ``ray://host:port`` of its Ray Client server.

    Raises:
        ClusterNotFoundError: Ray cannot be joined; the text has the reason and says what to do.
        ConfigurationError: not such an address.
    """
    if address == "auto":
        address = address_from_environment() or address  # Ray prefers the variable, too
    if address == "auto":
        address = _find_ray()
        _show_token()
    elif address.startswith(RAY_CLIENT):
        _check_reachable(address.removeprefix(RAY_CLIENT), "its Ray Client server (10001")
    else:
        _check_reachable(address)
    _check_answers(address)
    show_messages_on_standard_error()
    try:
        with sigterm_is_ours():
            context = ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except Exception as error:  # Ray raises some errors as bare Exceptions
        raise ClusterNotFoundError(
            f"cannot join the Ray at {address}: {_cut(_words_of(error))}{advice(error)}"
        ) from error
    if address.startswith(RAY_CLIENT):
        url: str | None = context.dashboard_url
        return RayRuntime(None, f"http://{url}" if url else None, was_entered=True)
    return _runtime(context, was_entered=True)


def _show_token() -> None:
    """Make this process send Ray's authentication token, if the user has a token and no
    authentication mode is set. This is Ray's own rule for ``auto``. To other addresses a token is
    sent only on demand."""
    if RAY_AUTH_MODE not in os.environ and _has_token():
        os.environ[RAY_AUTH_MODE] = "token"
        Config.initialize("")  # Ray has read the old mode from the environment


def _has_token() -> bool:
    return bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))


def advice(error: BaseException) -> str:
    """Return advice to append to the text of an error that joining Ray raised; "" if no advice is
    known."""
    words = _words_of(error)
    if "ersion mismatch" in words:
        return ". Use the same versions of Ray and Python here"
    # Ray says that it has no node for this process, or waits for one in vain
    if re.search(r"\b(raylet|node)\b", words, re.IGNORECASE) and not _REFUSED.search(words):
        return (
            ". A driver needs a node of the cluster on its own machine, and that node's processes: "
            "look with ray status, or join from elsewhere by ray://"
        )
    return _token_advice()


_REFUSED = re.compile(r"auth|token", re.IGNORECASE)


def _token_advice() -> str:
    if os.environ.get(RAY_AUTH_MODE) != "token":
        return (
            ". A Ray that asks for a token, as Ray does where there is one, is joined with "
            f"{RAY_AUTH_MODE}=token in the environment"
        )
    if not _has_token():
        return ". There is no token here; Ray reads it from ~/.ray/auth_token"
    return ". If it asks for another token than that of this machine, bring that here"


def leave_ray() -> None:
    ray.shutdown()
    sigterm_is_not_ours_any_more()


def nodes_for_masters(number: int, avoid_head: bool) -> list[str | None]:
    """Return, for each of *number* masters of one kind, the hex id of the node to place it on.
    Nodes are repeated if there are too few. *avoid_head*: use Ray's head node only if there is no
    other node. None in place of an id: Ray does not say which node is the head."""
    alive = sorted(str(node["NodeID"]) for node in ray.nodes() if node["Alive"])
    return places_of_masters(head_node_id(), alive, number, avoid_head)


def places_of_masters(
    head: str | None, alive: Sequence[str], number: int, avoid_head: bool
) -> list[str | None]:
    """Return *number* nodes: the head first, unless *avoid_head*, then the other nodes in turn. If
    the head is the only node, all entries are the head."""
    others: list[str | None] = [node for node in alive if node != head]
    cycle = itertools.cycle(others or [head])
    if avoid_head:
        return list(itertools.islice(cycle, number))
    return [head, *itertools.islice(cycle, number - 1)]


def actors_of(namespace: str) -> list[str]:
    """Return the names of the live named actors of a namespace, sorted."""
    actors = list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == namespace)


def has_cluster(cluster_id: str) -> bool:
    """Return whether a Dispatcher of the cluster lives, or is being restarted by Ray."""
    return any(map(_DISPATCHER.fullmatch, actors_of(cluster_namespace(cluster_id))))


def has_masters(cluster_id: str) -> bool:
    """Return whether any master of the cluster lives. A half-started cluster may have only a
    ResourceManager."""
    return any(map(_MASTER.fullmatch, actors_of(cluster_namespace(cluster_id))))


def running_clusters() -> list[str]:
    """Return the ids of the flinkray clusters in this Ray that have a Dispatcher."""
    prefix = cluster_namespace("")
    return sorted(
        {
            actor["namespace"].removeprefix(prefix)
            for actor in list_named_actors(all_namespaces=True)
            if _DISPATCHER.fullmatch(actor["name"]) and actor["namespace"].startswith(prefix)
        }
    )


class _Starter:
    """Actor that a process creates while it starts a cluster. Its name is unique, so no other
    process can create it at the same time."""


def begin_to_start(cluster_id: str) -> ActorHandle[Any] | None:
    """Mark in Ray that this process starts the cluster; return the mark, for :func:`end_to_start`.
    The mark vanishes when this process ends. None: another process is starting the cluster."""
    starter: Any = ray.remote(num_cpus=0, max_restarts=0)(_Starter)
    try:
        sign: ActorHandle[Any] = starter.options(
            name=_STARTER, namespace=cluster_namespace(cluster_id)
        ).remote()
    except ValueError:  # Ray's error for a name that is in use
        return None
    return sign


def end_to_start(sign: ActorHandle[Any]) -> None:
    ray.kill(sign)


def remember_cluster(cluster_id: str, record: ClusterRecord) -> None:
    """Store a cluster's record in Ray, so that clients find the cluster by its id alone."""
    _internal_kv_put(_CLUSTER, record.encode(), overwrite=True, namespace=_space(cluster_id))


def recall_cluster(cluster_id: str) -> ClusterRecord | None:
    """Return a cluster's record. None: no such cluster was started in this Ray, or it was ended."""
    data = _internal_kv_get(_CLUSTER, namespace=_space(cluster_id))
    return None if data is None else ClusterRecord.decode(data)


def forget_cluster(cluster_id: str) -> None:
    """Delete the record of an ended cluster. Idempotent."""
    _internal_kv_del(_CLUSTER, namespace=_space(cluster_id))


def _space(cluster_id: str) -> bytes:
    return cluster_namespace(cluster_id).encode()


def address_from_environment() -> str | None:
    """Return the value of ``RAY_ADDRESS``. None: it is not set."""
    return os.environ.get(RAY_ADDRESS) or None


def recorded_address() -> str | None:
    """Return the address of the Ray that ``ray start`` has started last on this machine. None: no
    address is recorded, or Ray does not answer there."""
    address: str | None = services.find_bootstrap_address(None)
    return address if address is not None and _is_reachable(address) else None


def _find_ray() -> str:
    """Return the address of the Ray that ``ray start`` started last on this machine; if it does not
    run, the address of the only Ray that does. Raises ClusterNotFoundError: no Ray runs, or several
    do."""
    recorded = recorded_address()
    if recorded is not None:
        return recorded
    running: set[str] = services.find_gcs_addresses()
    found = sorted(address for address in running if _is_reachable(address))
    if not found:
        raise ClusterNotFoundError(
            "no Ray runs on this machine; start one with: ray start --head && flinkray cluster up"
        )
    if len(found) > 1:
        raise ClusterNotFoundError(
            f"several Rays run on this machine, say which is meant: {', '.join(found)}"
        )
    return found[0]


def _is_reachable(address: str) -> bool:
    try:
        _check_reachable(address)
    except (ClusterNotFoundError, ConfigurationError):
        return False
    return True


def _place_of(address: str) -> tuple[str, int]:
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or int(match["port"]) > _HIGHEST_PORT:
        raise ConfigurationError(
            f"not an address of a Ray cluster: {address!r} (write 'auto', 'local' or 'host:port' "
            "of its head, or 'ray://host:port' of its Ray Client server)"
        )
    return match["ipv6"] or match["host"], int(match["port"])


def _check_reachable(address: str, what: str = "the head's GCS (6379") -> None:
    place = _place_of(address)
    try:
        socket.create_connection(place, timeout=_CONNECT_TIMEOUT).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise ClusterNotFoundError(
            f"nothing answers at the Ray address {address}: {error}. Is the port that "
            f"of {what} as a rule)?"
        ) from error


def _check_answers(address: str) -> None:
    """Check that Ray's head answers. Raises ClusterNotFoundError: it hangs, or is no Ray. Ray
    itself tries for a minute with a hanging head, and then ends the process."""
    channel = init_grpc_channel(address.removeprefix(RAY_CLIENT), GLOBAL_GRPC_OPTIONS)
    try:
        # Any answer will do, also that there is no such method. A wait until the channel is ready
        # would end up to a fifth of a second late, because it polls.
        call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        call(b"", timeout=_CONNECT_TIMEOUT, wait_for_ready=True)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ClusterNotFoundError(
                f"what listens at the Ray address {address} does not answer for "
                f"{_CONNECT_TIMEOUT:g} s: it is no Ray, hangs, or speaks TLS while this process "
                "does not (or the other way)"
            ) from None
    finally:
        channel.close()


def _runtime(context: object, *, was_entered: bool) -> RayRuntime:
    address_info: dict[str, str] = context.address_info  # type: ignore[attr-defined]
    url: str | None = context.dashboard_url  # type: ignore[attr-defined]
    return RayRuntime(address_info["session_dir"], f"http://{url}" if url else None, was_entered)
