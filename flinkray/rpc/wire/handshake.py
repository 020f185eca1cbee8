"""The handshake: both sides of a new connection prove that they belong to the cluster.

Hello (client, with a nonce) → challenge (server, with a nonce and its proof) → proof (client) →
welcome. A proof is an HMAC-SHA256, keyed with the cluster's secret, over the role of the prover,
the hello and the server's nonce; so the secret is never sent, and a recorded proof cannot be used
again. No envelope is read before the client's proof was checked. Frames after the handshake are
neither signed nor encrypted: on an untrusted network use TLS below.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, Protocol

import msgpack

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION

_MAGIC = "flinkray"
_NONCE_SIZE = 32


class HandshakeStream(Protocol):
    """The methods of a new connection that the handshake uses."""

    def send(self, frame: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return the next frame; raise RpcConnectionError if the connection has ended."""


async def introduce(
    stream: HandshakeStream, secret: bytes, identity: str, process_name: str, incarnation: str
) -> None:
    """Do the client's part of the handshake.

    *identity* is the client's own; *process_name* and *incarnation* name the wanted server. Raises
    HandshakeError (version or secret differ), RpcConnectionError (wrong process, or it is lost).
    """
    hello = msgpack.packb(
        (_MAGIC, PROTOCOL_VERSION, os.urandom(_NONCE_SIZE), identity, process_name, incarnation)
    )
    stream.send(hello)
    nonce, server_proof = await _expect(stream, "challenge", 2, process_name)
    if not _is_proof(server_proof, secret, b"server", hello, nonce):
        raise HandshakeError(f"{process_name} does not know the cluster's secret")
    stream.send(msgpack.packb(("proof", _proof(secret, b"client", hello, nonce))))
    await _expect(stream, "welcome", 0, process_name)


async def receive(
    stream: HandshakeStream, secret: bytes, process_name: str, incarnation: str
) -> str:
    """Do the server's part of the handshake; return the client's identity.

    Raises HandshakeError (the client was refused and got the reason) or RpcConnectionError
    (connection lost).
    """
    hello = await stream.receive()
    parts = _unpack(hello)
    if len(parts) != 6 or parts[0] != _MAGIC:
        raise _refuse(stream, "protocol", "not a hello of flinkray")
    _, version, client_nonce, identity, wanted_process, wanted_incarnation = parts
    if version != PROTOCOL_VERSION:
        raise _refuse(
            stream, "protocol", f"protocol version {version!r}, {PROTOCOL_VERSION} is spoken here"
        )
    if type(client_nonce) is not bytes or len(client_nonce) != _NONCE_SIZE:
        raise _refuse(stream, "protocol", "a hello without nonce")
    if (wanted_process, wanted_incarnation) != (process_name, incarnation):
        raise _refuse(stream, "process", f"this is {process_name}, incarnation {incarnation}")
    nonce = os.urandom(_NONCE_SIZE)
    stream.send(msgpack.packb(("challenge", nonce, _proof(secret, b"server", hello, nonce))))
    answer = _unpack(await stream.receive())
    if (
        len(answer) != 2
        or answer[0] != "proof"
        or not _is_proof(answer[1], secret, b"client", hello, nonce)
    ):
        raise _refuse(stream, "secret", "the client does not know the cluster's secret")
    stream.send(msgpack.packb(("welcome",)))
    return str(identity)


def _proof(secret: bytes, who: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, who + b"\0" + nonce + hello, hashlib.sha256).digest()


def _is_proof(proof: object, secret: bytes, who: bytes, hello: bytes, nonce: object) -> bool:
    return (
        isinstance(proof, bytes)
        and isinstance(nonce, bytes)
        and hmac.compare_digest(proof, _proof(secret, who, hello, nonce))
    )


def _refuse(stream: HandshakeStream, kind: str, reason: str) -> HandshakeError:
    stream.send(msgpack.packb(("refused", kind, reason)))
    return HandshakeError(reason)


def _unpack(frame: bytes) -> tuple[Any, ...]:
    try:
        parts = msgpack.unpackb(frame, use_list=False)
    except (ValueError, msgpack.UnpackException, RecursionError):
        return ()
    return parts if isinstance(parts, tuple) else ()


async def _expect(stream: HandshakeStream, word: str, count: int, process: str) -> tuple[Any, ...]:
    parts = _unpack(await stream.receive())
    if len(parts) == 3 and parts[0] == "refused":
        _, kind, reason = parts
        if kind == "process":
            raise RpcConnectionError(f"{process} is not there any more: {reason}")
        raise HandshakeError(f"{process} refused the connection: {reason}")
    if len(parts) != count + 1 or parts[0] != word:
        raise HandshakeError(f"{process} does not speak the protocol: no {word} came")
    return parts[1:]
