"""Ray's own report of the death of a process, as no socket breaks when a node is gone.

This process asks Ray by a call to the other process's actor; the call stays open while the process
lives, and is repeated now and then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from flinkray.core.errors import RpcError
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.ray.futures import result_of

_FIRST = 1.0
"""Seconds until Ray is first asked.

Many connections are closed earlier, and Ray takes much longer to notice that a node is gone.
"""
_AGAIN = 1.0
"""Seconds between two questions while Ray reports a process as unavailable that answers pings."""


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
    """Wait until the process of *connection* is dead according to Ray; return the reason.

    *run* runs blocking calls off the loop. *give_up* cancels the open call when nobody waits for it
    any more, as an actor has room for a limited number of calls. If Ray reports a node as dead, its
    processes count as dead, as Ray starts them on other nodes. After any other report of Ray's, or
    without Ray's head, a process that answers a ping in *ping_timeout* seconds counts as alive.
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
            return f"the process {name} died: {_how(error)}"
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


_OF_ACTOR = re.compile(r"^\t(class_name|actor_id|name|namespace): .*\n?", re.MULTILINE)


def _how(error: ray.exceptions.ActorDiedError) -> str:
    """Return Ray's text about a dead actor, without the actor's name.

    The name would be wrong for a prestarted process: Ray uses its first name even hours later.
    """
    return _OF_ACTOR.sub("", str(error))


def is_node_dead(node_id: str | None) -> bool:
    """Return whether Ray reports the node as dead; False when Ray's head is away."""
    try:
        nodes: list[dict[str, Any]] = ray.nodes()
    except ray.exceptions.RayError:
        return False
    return any(node["NodeID"] == node_id and not node["Alive"] for node in nodes)
