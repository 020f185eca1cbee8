"""Ray's own report of a process's death.

A broken socket tells of a killed process within a millisecond or so.  Ray knows of what breaks no
socket: a node that is gone.  It is asked by a call to the process's actor that stays open while
the process lives, and is made again now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from flinkray.core.errors import RpcError
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.ray.futures import result_of

_FIRST = 1.0
"""Seconds until Ray is asked.  Many connections are given up before, and a node that is gone is
noticed by Ray after many more."""
_AGAIN = 1.0
"""Seconds between two questions while Ray says "unavailable" of a process that answers us."""


async def death_of(
    run: Callable[..., Awaitable[Any]],
    connection: ClientConnection,
    namespace: str,
    actor_name: str,
    actor_id: str,
    node_id: str | None,
    ping_timeout: float,
    give_up: Callable[[Any], None],
) -> str:
    """Return, with the reason, when the process of *connection* is dead according to Ray.

    *run* runs blocking calls off the loop.  *give_up* takes the call that stays open when nobody
    waits for it any more: an actor has room for so many.  What is on a node that Ray has given up
    is dead, be it that a process there still answers: Ray starts it again elsewhere.  Whatever else
    Ray says, or its head being away, is no death while the process answers a ping within
    *ping_timeout* seconds.
    """
    name = connection.process_name

    def park() -> Any:
        handle = ray.get_actor(actor_name, namespace)
        if handle._actor_id.hex() != actor_id:
            return None
        return handle.park.remote()

    await asyncio.sleep(_FIRST)
    while True:
        parked: Any = None
        try:
            parked = await run(park)
            if parked is None:
                reason = f"another actor is named {actor_name} now"
            elif await result_of(parked):
                return f"the process {name} has ended"
            else:
                continue
        except asyncio.CancelledError:
            if parked is not None:
                give_up(parked)
            raise
        except ray.exceptions.ActorDiedError as error:
            return f"the process {name} died: {error}"
        except ValueError:
            reason = f"Ray has no actor {actor_name} any more"
        except ray.exceptions.RayError as error:
            reason = f"the process {name} is not reachable: {error}"
        try:
            if await run(is_node_dead, node_id):
                return f"Ray has given up node {node_id}, where the process {name} was"
            await connection.ping(ping_timeout)
        except RpcError:
            return reason
        await asyncio.sleep(_AGAIN)


def is_node_dead(node_id: str | None) -> bool:
    """Whether Ray has given up the node; False when Ray's head is away."""
    try:
        nodes: list[dict[str, Any]] = ray.nodes()
    except ray.exceptions.RayError:
        return False
    return any(node["NodeID"] == node_id and not node["Alive"] for node in nodes)
