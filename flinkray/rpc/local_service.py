"""skeleton"""
from __future__ import annotations

from flinkray.core.clock import Clock
from flinkray.rpc.service import RpcService


class LocalNetwork:
    """Processes in one process: every spawned one has a service of its own on the same loop."""

    def crash(self, process_name: str) -> None:
        """The process dies as by SIGKILL; restarted as its spec says."""


class LocalRpcService(RpcService):
    """The RPC service of a pretended process; must be created on a running loop."""

    def __init__(
        self,
        process_name: str = "local",
        network: LocalNetwork | None = None,
        *,
        clock: Clock | None = None,
        ask_timeout: float = RpcService.DEFAULT_ASK_TIMEOUT,
    ) -> None:
        raise NotImplementedError
