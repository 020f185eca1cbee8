"""Opens streams to other processes of a Ray cluster: directly if possible, else by Ray calls."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.ray.directory import ProcessRecord
from flinkray.rpc.service import TransportChoice
from flinkray.rpc.time_limit import within
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.call_transport import CallingStream
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.listener import HANDSHAKE_TIMEOUT
from flinkray.rpc.wire.tls import SWITCH, Tls

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5.0
"""The longest time to open a socket, in seconds."""

HIDDEN_FOR = 60.0
"""Seconds until a host that could not be reached directly is tried again."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The incarnation that a connection has reached, and whether Ray calls carry its frames."""

    record: ProcessRecord
    is_carried: bool


class RayDialler:
    """Opens streams to processes whose addresses are in the directory, and does the handshake."""

    def __init__(
        self,
        namespace: str,
        identity: str,
        secret: bytes,
        node_id: str | None,
        tls: Tls | None,
        choice: TransportChoice,
        run: Callable[..., Awaitable[Any]],
        frame_limit: Callable[[], int],
    ) -> None:
        """Create a dialler for the process *identity*.

        *node_id* is Ray's node id; None: this process is not on a Ray node. *run* runs blocking
        calls off the loop; *frame_limit* returns the largest size of a frame in bytes.
        """
        self._namespace = namespace
        self._identity = identity
        self._secret = secret
        self.node_id = node_id
        self._tls = tls
        self.choice = choice
        self._run = run
        self._frame_limit = frame_limit
        self._reached_hosts: set[str] = set()
        self._hidden_hosts: dict[str, float] = {}

    async def dial(
        self, process_name: str, record: ProcessRecord, was_carried: bool | None
    ) -> tuple[FrameStream | CallingStream, bool]:
        """Return a stream to the incarnation of *record*, and whether Ray's calls carry the stream.

        *was_carried*: whether Ray's calls carried the previous stream; None: this is the first
        stream. A process that was reached directly before and refuses connections now is dead.
        Raises RpcConnectionError.
        """
        is_carried = was_carried
        if is_carried is None:
            is_carried = self.choice == "ray" or self._is_hidden(record.host)
        if not is_carried:
            try:
                return await self._dial_directly(process_name, record), False
            except _CannotOpenError as error:
                reason = str(error)
                if was_carried is not None or not self._may_be_hidden(record):
                    raise RpcConnectionError(reason) from error
            stream = await self._dial_through_ray(process_name, record)
            self._hide(record.host, process_name, reason)
            return stream, True
        return await self._dial_through_ray(process_name, record), True

    async def is_refused(self, record: ProcessRecord) -> bool:
        """Return whether the host of *record* answers but the process does not listen there any
        more. False if another host may answer under this address."""
        if record.node_id != self.node_id and record.host not in self._reached_hosts:
            return False  # another host may answer under this address
        connecting = asyncio.open_connection(record.host, record.port)
        try:
            _, writer = await within(CONNECT_TIMEOUT, connecting)
        except ConnectionRefusedError:
            return True
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return False

    # --- directly -----------------------------------------------------------------------------

    async def _dial_directly(self, process_name: str, record: ProcessRecord) -> FrameStream:
        try:
            stream = await within(
                CONNECT_TIMEOUT + HANDSHAKE_TIMEOUT, self._open(process_name, record)
            )
        except ssl.SSLError as error:
            raise HandshakeError(
                f"no TLS connection to {process_name} at {record.host}:{record.port}: {error}"
            ) from error
        except (OSError, asyncio.TimeoutError) as error:
            raise _CannotOpenError(
                f"no process {process_name} is running (it was process {record.pid} at "
                f"{record.host}:{record.port}): {error!r}"
            ) from error
        self._reached_hosts.add(record.host)
        await self._introduce(stream, process_name, record, f"{record.host}:{record.port}")
        return stream

    async def _open(self, process_name: str, record: ProcessRecord) -> FrameStream:
        loop = asyncio.get_running_loop()

        def protocol() -> FrameStream:
            return FrameStream(self._frame_limit())

        if record.unix_path is not None and record.node_id == self.node_id:
            try:
                _, stream = await loop.create_unix_connection(protocol, record.unix_path)
            except OSError:
                pass  # dead, or in another container on this node: try TCP
            else:
                return stream
        if record.has_tls != (self._tls is not None):
            one, other = ("with", "off") if record.has_tls else ("without", "on")
            raise HandshakeError(
                f"{process_name} at {record.host}:{record.port} listens {one} TLS, which is "
                f"{other} in this process: set {SWITCH} alike in the whole cluster"
            )
        if self._tls is None:
            connecting = loop.create_connection(protocol, record.host, record.port)
        else:
            connecting = loop.create_connection(
                protocol,
                record.host,
                record.port,
                ssl=self._tls.client,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
            )
        _, stream = await connecting
        return stream

    # --- through Ray --------------------------------------------------------------------------

    async def _dial_through_ray(self, process_name: str, record: ProcessRecord) -> CallingStream:
        if record.actor_id is None:
            raise RpcConnectionError(
                f"{process_name} is a driver, no actor: it can be reached only directly, at "
                f"{record.host}:{record.port}"
            )
        actor_id = record.actor_id

        def find() -> Any:
            handle = ray.get_actor(record.actor_name, self._namespace)
            return handle if handle._actor_id.hex() == actor_id else None

        try:
            handle = await self._run(find)
        except ValueError as error:
            raise RpcConnectionError(f"no process {process_name} is running") from error
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise RpcConnectionError(f"cannot ask Ray for {process_name}: {error}") from error
        if handle is None:
            raise RpcConnectionError(f"another process named {process_name} has come since")

        def call(request: bytes) -> asyncio.Future[bytes]:
            try:
                return asyncio.wrap_future(handle.carry.remote(request).future())
            except (ray.exceptions.RayError, RuntimeError, OSError) as error:  # Ray was left
                failed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                failed.set_exception(error)
                return failed

        stream = CallingStream(os.urandom(16), call, self._frame_limit())
        await self._introduce(stream, process_name, record, f"actor {actor_id}")
        return stream

    async def _introduce(
        self,
        stream: FrameStream | CallingStream,
        process_name: str,
        record: ProcessRecord,
        place: str,
    ) -> None:
        try:
            await within(
                HANDSHAKE_TIMEOUT,
                handshake.introduce(
                    stream, self._secret, self._identity, process_name, record.incarnation
                ),
            )
        except asyncio.TimeoutError as error:
            stream.abort("no handshake")
            raise RpcConnectionError(
                f"{process_name} at {place} did not answer the handshake within "
                f"{HANDSHAKE_TIMEOUT:g} s"
            ) from error
        except BaseException:
            stream.abort("no handshake")
            raise

    # --- which of the two ---------------------------------------------------------------------

    def _is_hidden(self, host: str) -> bool:
        until = self._hidden_hosts.get(host)
        return until is not None and asyncio.get_running_loop().time() < until

    def _may_be_hidden(self, record: ProcessRecord) -> bool:
        return (
            self.choice == "auto"
            and record.actor_id is not None
            and record.node_id != self.node_id
            and record.host not in self._reached_hosts
        )

    def _hide(self, host: str, process_name: str, reason: str) -> None:
        if host not in self._hidden_hosts:
            logger.warning(
                "%s is alive and cannot be reached directly (%s): from now on, messages to "
                "processes on %s go through Ray's actor calls, which is slower. Open the network "
                "between here and there to have direct connections.",
                process_name, reason, host,
            )  # fmt: skip
        self._hidden_hosts[host] = asyncio.get_running_loop().time() + HIDDEN_FOR


class _CannotOpenError(Exception):
    """Raised when nobody listens at an address, or the address cannot be reached."""
