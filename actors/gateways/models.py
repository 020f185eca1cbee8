"""Gateway of the replicas of models, which answer requests in their task processes."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.ids import KvStateID
from flinkray.core.message import message
from flinkray.rpc.gateway import RpcGateway, ask_timeout

REPLICAS = "flinkray.replicas"
"""Name under which the replicas of a model are found.
A replica registers as a queryable state does: the name, with its subtask as the only key group.
"""


@message
class ModelAnswer:
    """The answer of a replica to a request."""

    contents: bytes
    """Record batch as bytes in Arrow's format."""


class ModelReplicaGateway(RpcGateway):
    """The replicas of models in one task process."""

    @abstractmethod
    @ask_timeout(None)
    async def infer(self, replica: KvStateID, request: bytes, others_wait: bool) -> ModelAnswer:
        """Return the answer of the replica to a request: a record batch in Arrow's format. A
        replica answers requests in their order. *others_wait*: whether further requests of the
        caller wait until a replica has room.

        Raises:
            UnknownKvStateIdError: the replica is not, or no longer, in this process.
            ModelError: the model failed for this request.
            ModelResultError: the model did not return one row per record.
        """
