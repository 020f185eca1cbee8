"""Fencing: an endpoint of a leader session refuses calls meant for another session.

Each call carries the token of the leader that the sender follows. A call without a token, or with
an old or foreign token, is refused before its handler runs. This applies to tells and asks.
:mod:`flinkray.rpc.serving.dispatch` compares the tokens; here are the encoded token and the error.
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
    """Return the encoded token that calls to *endpoint* must carry; None: calls need no token."""
    if isinstance(endpoint, FencedRpcEndpoint):
        return codec.encode(endpoint.fencing_token)
    return None


def refuse_token(
    endpoint: HostedEndpoint, method: GatewayMethod, received: bytes | None
) -> NoReturn:
    """Raise the FencingTokenError for a call of *method* that carried the wrong token.
    The error has the received token and the endpoint's own token.
    """
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
