"""Ray under a cluster: joining it, starting a local one, and what only Ray can tell.  Blocking."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import grpc
import ray
from ray._private import services, utils, worker
from ray._private.grpc_utils import init_grpc_channel
from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
    PlacementGroupID,
)
from ray.actor import ActorHandle
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_put,
)
from ray.util import list_named_actors, placement_group_table
from ray.util.client import ray as ray_client
from ray.util.placement_group import PlacementGroup, remove_placement_group

from flinkray.core.config import Configuration
from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.options import OPTIONS
from flinkray.rpc.ray.head import head_node_id as head_node_id
from flinkray.spark.ray_java import java_on_path

log = logging.getLogger(__name__)

T = TypeVar("T")

RAY_ADDRESS = "RAY_ADDRESS"
RAY_AUTH_MODE = "RAY_AUTH_MODE"
_STARTS = 3
"""Of Ray, if it takes too long."""
_MOST_WORDS = 240
"""Characters of Ray's own, of which there can be thousands."""
RAY_CLIENT = "ray://"
"""How addresses of Ray Client servers begin."""

_DISPATCHER = re.compile(r"Dispatcher(-\d+)?")
"""Names of the processes that lead as Dispatchers, or wait to."""
_MASTER = re.compile(r"(Dispatcher|ResourceManager)(-\d+)?")
_STARTER = "ClusterStarter"
"""Name of what is there while a command starts the cluster."""
_CLUSTER = b"cluster"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\[\]/]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535
_CONNECT_TIMEOUT = 5.0
"""Seconds for a TCP connection, before Ray is asked to join: Ray itself tries for minutes."""


class ClusterNotFoundError(FlinkRayError):
    """No Ray, or no flinkray cluster in it, where one was expected; the text has the way out."""


class RayStartError(ClusterNotFoundError):
    """A Ray of this process's own was to be started, and did not start."""


@dataclass(frozen=True)
class RayRuntime:
    """The Ray that this process is a driver of."""

    session_dir: str | None
    """On this machine; None: it was joined by Ray Client, and is elsewhere."""
    dashboard_url: str | None
    was_entered: bool
    """It was joined or started here (not by the caller before), and has to be left at the end."""


@dataclass(frozen=True)
class ClusterRecord:
    """What a cluster was started with: by it, clients find who leads."""

    configuration: dict[str, str]
    storage_dir: str

    @property
    def of_elections(self) -> Configuration:
        """As much as is needed to find who leads: a client may know less options than the cluster's
        version does."""
        return Configuration(
            {
                key: value
                for key, value in self.configuration.items()
                if key in OPTIONS and key.startswith(("high-availability.", "cluster."))
            }
        )

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterRecord:
        """What :meth:`encode` wrote."""
        read = json.loads(data)
        return cls(dict(read["configuration"]), str(read["storage_dir"]))


def cluster_namespace(cluster_id: str) -> str:
    """Ray namespace of a cluster's actors."""
    return f"flinkray-{cluster_id}"


def is_connected() -> bool:
    return bool(ray.is_initialized())


def is_elsewhere() -> bool:
    """Whether this process was connected by Ray Client: its machine need be none of the cluster."""
    return bool(ray_client.is_connected())


def present_ray() -> RayRuntime:
    """Of the Ray that this process is connected to already."""
    if ray_client.is_connected():
        return RayRuntime(None, None, was_entered=False)
    return _runtime(ray.init(ignore_reinit_error=True, configure_logging=False), was_entered=False)


def check_is_present(address: str) -> None:
    """
    Raises:
        ClusterNotFoundError: *address* (``host:port``) is not that of the Ray that this process is
            connected to already.
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
    """Start a Ray of this process's own, which ends with it.

    Args:
        options: further arguments of ``ray.init`` (``num_cpus``, …).

    Raises:
        RayStartError: it does not start; the text has the reason.
    """
    arguments: dict[str, object] = {
        "include_dashboard": True,
        "log_to_driver": False,
        "logging_level": logging.ERROR,  # its warnings explain Ray, not the job
        # Ray runs its Python workers at nice 15 and its Java workers at 0: a busy machine would
        # favour executors over their driver and over the cluster's masters.
        "_system_config": {"worker_niceness": 0},
        **options,
    }

    show_messages_on_standard_error()

    def start() -> Any:
        return ray.init(
            address="local",
            namespace=namespace,
            **arguments,  # type: ignore[arg-type]
        )

    try:
        with java_on_path(), _sigterm_as_before():
            context = in_time(start)
    except Exception as error:  # Ray raises some of its own as bare Exceptions
        raise RayStartError(
            f"no Ray could be started on this machine: {_words_of(error)}. What its processes say "
            f"is in {_logs_of_ray()}; to look at it alone: ray start --head"
        ) from error
    return _runtime(context, was_entered=True)


def show_messages_on_standard_error() -> None:
    """What Ray tells a driver of its nodes goes to standard output, between the program's results,
    whatever ``log_to_driver`` says."""
    show = worker.print_to_stdstream
    if getattr(show, "shows_on_standard_error", False):
        return

    def on_standard_error(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        show({**data, "is_err": True}, *arguments, **options)

    on_standard_error.shows_on_standard_error = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = on_standard_error


def in_time(start: Callable[[], T], clear_away: Callable[[], None] = ray.shutdown) -> T:
    """What *start* returns, which is called again where Ray finds that its node has not started in
    time: a raylet gives up when its agent, in Python, takes 15 s to start, as on a busy machine."""
    for _ in range(_STARTS - 1):
        try:
            return start()
        except Exception as error:  # Ray raises a bare one
            if "timed out during startup" not in str(error):
                raise
            log.warning("Ray's node did not start in time, and is started again")
            clear_away()
    return start()


@contextmanager
def _sigterm_as_before() -> Iterator[None]:
    """Who has said what SIGTERM is to do keeps that.  Ray replaces it twice: by a function that
    exits with code 15, and beneath Python by one that prints the stacks of a crash."""
    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(before):
        yield
        return
    of_ray, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = of_ray
        signal.signal(signal.SIGTERM, before)


def _words_of(error: BaseException) -> str:
    """What it says, and what is behind it where Ray says only that something failed."""
    said = _without_frames(str(error)).strip().rstrip(".") or type(error).__name__
    cause = error.__cause__
    if cause is None or cause is error:  # Ray's `raise error from error`
        return said
    return f"{said}: {_words_of(cause)}"


def _without_frames(text: str) -> str:
    """Ray puts whole tracebacks into its words; what matters of one is its last line."""
    before, mark, traceback = text.partition("Traceback (most recent call last):")
    return before + traceback.strip().splitlines()[-1].strip() if mark else text


def _cut(words: str) -> str:
    """The way out comes after them, and is not to be lost."""
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]} …"


def _logs_of_ray() -> str:
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(folder, "ray/session_latest/logs")


def join_ray(address: str, namespace: str) -> RayRuntime:
    """Join a running Ray.

    Args:
        address: ``auto`` (``RAY_ADDRESS``, or else the Ray of this machine), ``host:port`` of its
            head, or ``ray://host:port`` of its Ray Client server.

    Raises:
        ClusterNotFoundError: it cannot be joined; the text has the reason and the way out.
        ConfigurationError: not such an address.
    """
    if address == "auto":
        address = address_from_environment() or address  # which Ray prefers, too
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
        with _sigterm_as_before():
            context = ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except Exception as error:  # Ray raises some of its own as bare Exceptions
        raise ClusterNotFoundError(
            f"cannot join the Ray at {address}: {_cut(_words_of(error))}{advice(error)}"
        ) from error
    if address.startswith(RAY_CLIENT):
        url: str | None = context.dashboard_url
        return RayRuntime(None, f"http://{url}" if url else None, was_entered=True)
    return _runtime(context, was_entered=True)


def _show_token() -> None:
    """Ray's own rule for ``auto``: on its own machine, who has a token shows it if nothing was said
    of that.  To other addresses it is sent only on demand."""
    if RAY_AUTH_MODE not in os.environ and _has_token():
        os.environ[RAY_AUTH_MODE] = "token"
        Config.initialize("")  # what Ray has read from the environment


def _has_token() -> bool:
    return bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))


def advice(error: BaseException) -> str:
    """The way out, where it is clear."""
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


def nodes_for_masters(number: int, avoid_head: bool) -> list[str | None]:
    """Hex ids of the nodes for so many masters of a kind; None: Ray does not say."""
    alive = sorted(str(node["NodeID"]) for node in ray.nodes() if node["Alive"])
    return places_of_masters(head_node_id(), alive, number, avoid_head)


def places_of_masters(
    head: str | None, alive: Sequence[str], number: int, avoid_head: bool
) -> list[str | None]:
    """The head node, unless it is to be avoided, then the other nodes, and again from the first of
    these; the head alone where there is no other."""
    others: list[str | None] = [node for node in alive if node != head]
    cycle = itertools.cycle(others or [head])
    if avoid_head:
        return list(itertools.islice(cycle, number))
    return [head, *itertools.islice(cycle, number - 1)]


def actors_of(namespace: str) -> list[str]:
    """Names of the live named actors of a namespace, sorted."""
    actors = list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == namespace)


def has_cluster(cluster_id: str) -> bool:
    """Whether a Dispatcher of it lives, or is being restarted by Ray."""
    return any(map(_DISPATCHER.fullmatch, actors_of(cluster_namespace(cluster_id))))


def has_masters(cluster_id: str) -> bool:
    """Whether any part of it lives: of a cluster that was ended halfway up, the ResourceManager."""
    return any(map(_MASTER.fullmatch, actors_of(cluster_namespace(cluster_id))))


def running_clusters() -> list[str]:
    """Ids of the flinkray clusters in this Ray: those that have a Dispatcher."""
    prefix = cluster_namespace("")
    return sorted(
        {
            actor["namespace"].removeprefix(prefix)
            for actor in list_named_actors(all_namespaces=True)
            if _DISPATCHER.fullmatch(actor["name"]) and actor["namespace"].startswith(prefix)
        }
    )


class _Starter:
    """Its name is what only one process can have at a time; it does nothing."""


def begin_to_start(cluster_id: str) -> ActorHandle[Any] | None:
    """A sign that this process starts the cluster, until :func:`end_to_start` or its end; None:
    another one does."""
    starter: Any = ray.remote(num_cpus=0, max_restarts=0)(_Starter)
    try:
        sign: ActorHandle[Any] = starter.options(
            name=_STARTER, namespace=cluster_namespace(cluster_id)
        ).remote()
    except ValueError:  # Ray's for a name that is taken
        return None
    return sign


def end_to_start(sign: ActorHandle[Any]) -> None:
    ray.kill(sign)


def remember_cluster(cluster_id: str, record: ClusterRecord) -> None:
    """Have clients find it, whatever they know of the cluster."""
    _internal_kv_put(_CLUSTER, record.encode(), overwrite=True, namespace=_space(cluster_id))


def recall_cluster(cluster_id: str) -> ClusterRecord | None:
    """None: no cluster of that name was started in this Ray, or it was ended."""
    data = _internal_kv_get(_CLUSTER, namespace=_space(cluster_id))
    return None if data is None else ClusterRecord.decode(data)


def forget_cluster(cluster_id: str) -> None:
    """It has been ended.  Idempotent."""
    _internal_kv_del(_CLUSTER, namespace=_space(cluster_id))


def _space(cluster_id: str) -> bytes:
    return cluster_namespace(cluster_id).encode()


def remove_placement_groups(cluster_id: str) -> list[str]:
    """Remove the worker groups of a cluster, with all actors in them; returns their names.

    Their names are ``flinkray-<cluster id>-<job id or shared>-<n>``.
    """
    pattern = re.compile(rf"{re.escape(cluster_namespace(cluster_id))}-([0-9a-f]{{32}}|shared)-\d+")
    removed = []
    for group_id, entry in placement_group_table().items():
        if entry["state"] != "REMOVED" and pattern.fullmatch(entry["name"]):
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))))
            removed.append(entry["name"])
    return sorted(removed)


def address_from_environment() -> str | None:
    """``RAY_ADDRESS``, or None."""
    return os.environ.get(RAY_ADDRESS) or None


def recorded_address() -> str | None:
    """Of the Ray that ``ray start`` started on this machine last, if that one answers."""
    address: str | None = services.find_bootstrap_address(None)
    return address if address is not None and _is_reachable(address) else None


def _find_ray() -> str:
    """The recorded Ray, or else the only one that runs here (one in another program, for example).

    Raises:
        ClusterNotFoundError: there is none, or several and none is the recorded one.
    """
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
    """Host and port.

    Raises:
        ConfigurationError: not such an address.
    """
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
    except (OSError, UnicodeError) as error:  # the latter of names that no host can have
        raise ClusterNotFoundError(
            f"nothing answers at the Ray address {address}: {error}. Is the port that "
            f"of {what} as a rule)?"
        ) from error


def _check_answers(address: str) -> None:
    """Ray itself tries for a minute to speak with a head that hangs, and then ends the process."""
    channel = init_grpc_channel(address.removeprefix(RAY_CLIENT), GLOBAL_GRPC_OPTIONS)
    try:
        # Any answer will do, also that there is no such method.  To wait until the channel is ready
        # would have its end wait for a poll of a fifth of a second.
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
