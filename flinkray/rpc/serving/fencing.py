"""Fencing: an endpoint of a leader session refuses calls that are meant for another one.

Each call carries the token of the leader that its sender follows.  One whose token is missing, of
the past or foreign is refused before its handler runs, tells as well as asks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

from flinkray.core.errors import FencingTokenError, RpcSerializationError
from flinkray.core.ids import FencingToken
from flinkray.rpc.endpoint import FencedRpcEndpoint
from flinkray.rpc.gateway import GatewayMethod
from flinkray.rpc.mailbox import HostedEndpoint
from flinkray.rpc.wire import codec


def token_of(endpoint: HostedEndpoint) -> bytes | None:
    """What a call must carry, encoded; None: calls need none."""
    if isinstance(endpoint, FencedRpcEndpoint):
        return codec.encode(endpoint.fencing_token)
    return None


def refuse_token(
    endpoint: HostedEndpoint, method: GatewayMethod, received: bytes | None
) -> NoReturn:
    """Raises FencingTokenError, with what came in the place of the endpoint's token."""
    assert isinstance(endpoint, FencedRpcEndpoint)
    token: object = None
    if received is not None:
        with suppress(RpcSerializationError):  # then it is nobody's
            token = codec.decode(received)
    raise FencingTokenError(
        endpoint.address,
        method.full_name,
        endpoint.fencing_token,
        token if isinstance(token, FencingToken) else None,
    )
