"""Fencing: an endpoint of a leader session refuses calls meant for another session.

Each call carries the token of the leader that the sender follows. A call without a token, or with
an old or foreign token, is refused before its handler runs. This applies to tells and asks.
"""

from __future__ import annotations

from contextlib import suppress

from flinkray.core.errors import FencingTokenError, RpcSerializationError
from flinkray.core.ids import FencingToken
from flinkray.rpc.endpoint import FencedRpcEndpoint
from flinkray.rpc.gateway import GatewayMethod
from flinkray.rpc.mailbox import HostedEndpoint
from flinkray.rpc.wire import codec


def token_of(endpoint: HostedEndpoint) -> bytes | None:
    """Return the encoded token that calls to *endpoint* must carry; None: calls need no token."""
    if isinstance(endpoint, FencedRpcEndpoint):
        return codec.encode(endpoint.fencing_token)
    return None


def check_token(
    endpoint: HostedEndpoint, method: GatewayMethod, expected: bytes, received: bytes | None
) -> None:
    """Raise FencingTokenError if a call of *method* did not carry the *expected* token of
    *endpoint*. The error has both tokens. The tokens are compared as encoded."""
    if received == expected:
        return
    assert isinstance(endpoint, FencedRpcEndpoint)
    token: object = None
    if received is not None:
        with suppress(RpcSerializationError):  # then no token is reported
            token = codec.decode(received)
    raise FencingTokenError(
        endpoint.address,
        method.full_name,
        endpoint.fencing_token,
        token if isinstance(token, FencingToken) else None,
    )
