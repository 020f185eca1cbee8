"""The consumer of ``benchmarks/slow_consumer.py``, a process of its own.

A line on standard input, ``<partition> <seconds per batch>``, has it read a partition to its end
and answer with what its memory grew by at most, in bytes.
"""

from __future__ import annotations

import sys
import threading

from _channels.contender import tell
from _channels.memory import Watch
from flinkray.rpc.wire import codec
from flinkray.streaming.network import ChannelSource, NetworkEnvironment
from flinkray.streaming.records.elements import EndOfInput

SECRET = b"benchmark".ljust(32)


def main(node: str, address: str) -> None:
    environment = NetworkEnvironment("slow", SECRET, node_id=node)
    producer = codec.decode(bytes.fromhex(address))
    pause = threading.Event()
    tell(codec.encode(environment.address).hex())
    for line in sys.stdin:
        partition, seconds = line.split()
        gate = environment.create_gate("Sink", [ChannelSource(int(partition), 0, producer)])
        woken = environment.signal()
        gate.listen(woken.set)
        with Watch() as memory:
            gate.request()
            while True:
                polled = gate.poll()
                if polled is None:
                    woken.wait()
                    continue
                if isinstance(polled[1], EndOfInput):
                    break
                del polled  # what is processed is not kept
                memory.look()
                if float(seconds):
                    pause.wait(float(seconds))
        gate.end(0)
        tell(str(memory.growth))


if __name__ == "__main__":
    main(*sys.argv[1:])
