"""skeleton"""

from __future__ import annotations

from flinkray.rpc.local_service import LocalRpcService


class RayRpcService(LocalRpcService):
    """The RPC service of a process on a Ray cluster."""

    @classmethod
    async def open(
        cls, namespace: str, process_name: str | None = None, *, ask_timeout: float = 10.0
    ) -> RayRpcService:
        """Join the cluster of that namespace from this process, on the running loop.

        Ray must be initialised (``ray.init``) in this process.  *process_name* defaults to
        ``client-<random>``.
        """
        raise NotImplementedError
