"""The other end of a channel in a process of its own, to be killed.

``python -m tests.streaming.network.other_process produce``: says where partition "p" is, and writes
to it.  ``… consume <address>``: reads the first batch of partition "p" and says so.
"""

from __future__ import annotations

import sys
import threading

from flinkray.rpc.wire import codec
from flinkray.streaming.network import ChannelSource, NetworkEnvironment
from flinkray.streaming.records.elements import Block
from tests.streaming.network.networks import SECRET, Reading


def main(role: str, *arguments: str) -> None:
    environment = NetworkEnvironment(f"the {role}r", SECRET, node_id="node")
    if role == "produce":
        partition = environment.create_partition("p", "Map (1/2)", 1, buffer_timeout=0)
        partition.subpartitions[0].put(Block([1]))
        say(codec.encode(environment.address).hex())
    else:
        address = codec.decode(bytes.fromhex(arguments[0]))
        gate = environment.create_gate("Sink (2/2)", [ChannelSource("p", 0, address)])
        Reading(gate).next()
        say("read")
    threading.Event().wait()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
