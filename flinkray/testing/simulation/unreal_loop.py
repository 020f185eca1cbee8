"""An event loop that reaches nothing real."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from flinkray.testing.simulation.errors import ForbiddenInSimulationError


def _forbidden(name: str) -> Callable[..., Any]:
    def refuse(self: UnrealLoop, *args: Any, **kwargs: Any) -> Any:
        raise self.refusal(f"{name} of its event loop is called, and nothing real can be reached")

    return refuse


class UnrealLoop(asyncio.AbstractEventLoop):
    """Sockets, pipes, signals and other processes are refused."""

    is_unreal = True
    """For RPC services: no thread can be started."""

    @abstractmethod
    def refusal(self, what: str) -> ForbiddenInSimulationError:
        """The error of something forbidden, which the run is going to end with."""

    set_default_executor: Any = _forbidden("set_default_executor")
    getaddrinfo: Any = _forbidden("getaddrinfo")
    getnameinfo: Any = _forbidden("getnameinfo")
    create_connection: Any = _forbidden("create_connection")
    create_server: Any = _forbidden("create_server")
    start_tls: Any = _forbidden("start_tls")
    create_unix_connection: Any = _forbidden("create_unix_connection")
    create_unix_server: Any = _forbidden("create_unix_server")
    connect_accepted_socket: Any = _forbidden("connect_accepted_socket")
    create_datagram_endpoint: Any = _forbidden("create_datagram_endpoint")
    sendfile: Any = _forbidden("sendfile")
    connect_read_pipe: Any = _forbidden("connect_read_pipe")
    connect_write_pipe: Any = _forbidden("connect_write_pipe")
    subprocess_shell: Any = _forbidden("subprocess_shell")
    subprocess_exec: Any = _forbidden("subprocess_exec")
    add_reader: Any = _forbidden("add_reader")
    remove_reader: Any = _forbidden("remove_reader")
    add_writer: Any = _forbidden("add_writer")
    remove_writer: Any = _forbidden("remove_writer")
    sock_recv: Any = _forbidden("sock_recv")
    sock_recv_into: Any = _forbidden("sock_recv_into")
    sock_recvfrom: Any = _forbidden("sock_recvfrom")
    sock_recvfrom_into: Any = _forbidden("sock_recvfrom_into")
    sock_sendall: Any = _forbidden("sock_sendall")
    sock_sendto: Any = _forbidden("sock_sendto")
    sock_connect: Any = _forbidden("sock_connect")
    sock_accept: Any = _forbidden("sock_accept")
    sock_sendfile: Any = _forbidden("sock_sendfile")
    add_signal_handler: Any = _forbidden("add_signal_handler")
    remove_signal_handler: Any = _forbidden("remove_signal_handler")
