"""Quix Streams or Bytewax on the program of ``benchmarks/kafka.py``; one worker in this process.

Started with the interpreter of an environment that does not contain flinkray. The arguments: name
of the project, brokers, the topic to read, the topic to write, how many messages to read, the
milliseconds between two commits, and the most bytes of an answer of the broker. Prints a line of
JSON: seconds of processor time and of the clock from the first message to the last one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

WINDOW = timedelta(seconds=1)


class Seen:
    """Notes when the first and the last message come. *most*: bytes of a broker's answer."""

    def __init__(self, count: int, most: int) -> None:
        self.properties = {"receive.message.max.bytes": most}
        self._left = self._count = count
        self._begun = self._ended = (0.0, 0.0)

    def one(self) -> None:
        if self._left == self._count:
            self._begun = time.process_time(), time.time()
        self._left -= 1
        if self._left == 0:
            self._ended = time.process_time(), time.time()

    def show(self) -> None:
        if self._left:
            sys.exit(f"{self._left} messages of {self._count} were not read")
        processor, clock = (b - a for a, b in zip(self._begun, self._ended, strict=True))
        print(json.dumps({"processor": processor, "clock": clock}), flush=True)


def quix(seen: Seen, brokers: str, topic: str, target: str, commits: float, folder: str) -> None:
    from quixstreams import Application

    app = Application(
        brokers,
        consumer_group=f"quix-{target}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=commits,
        consumer_extra_config=seen.properties,
        state_dir=folder,
        loglevel="WARNING",
    )

    def first(visit: Any) -> Any:
        seen.one()
        return {"count": 1, "amount": visit["amount"]}

    def add(total: Any, visit: Any) -> Any:
        seen.one()
        return {"count": total["count"] + 1, "amount": total["amount"] + visit["amount"]}

    visits = app.dataframe(app.topic(topic, value_deserializer="json"))
    windows = visits.tumbling_window(WINDOW).reduce(add, first).final()
    windows.to_topic(app.topic(target, value_serializer="json"))
    app.run(timeout=10, collect=False)  # ends when no message has come for so many seconds


def bytewax(seen: Seen, brokers: str, topic: str, target: str, commits: float, folder: str) -> None:
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax._bytewax import init_db_dir
    from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig
    from bytewax.testing import run_main

    def parsed(message: Any) -> Any:
        seen.one()
        visit = json.loads(message.value)
        return visit["user"], visit

    def time_of(visit: Any) -> datetime:
        return datetime.fromtimestamp(visit["time"] / 1000, timezone.utc)

    def result(pair: Any) -> Any:
        user, (window, (count, amount)) = pair
        value = {"user": user, "window": window, "count": count, "amount": amount}
        return KafkaSinkMessage(user.encode(), json.dumps(value).encode())

    flow = Dataflow("visits")
    source = KafkaSource([brokers], [topic], tail=False, add_config=seen.properties)
    messages = op.input("in", flow, source)
    windows = win.fold_window(
        "window",
        op.map("parse", messages, parsed),
        win.EventClock(time_of, timedelta(0)),
        win.TumblingWindower(length=WINDOW, align_to=datetime(2023, 1, 1, tzinfo=timezone.utc)),
        lambda: (0, 0),
        lambda total, visit: (total[0] + 1, total[1] + visit["amount"]),
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    )
    op.output("out", op.map("result", windows.down, result), KafkaSink([brokers], target))
    init_db_dir(Path(folder), 1)
    run_main(
        flow,
        epoch_interval=timedelta(seconds=commits),
        recovery_config=RecoveryConfig(Path(folder)),
    )


PROGRAMS: dict[str, Callable[..., None]] = {"Quix Streams": quix, "Bytewax": bytewax}


def main() -> None:
    name, brokers, topic, target, count, commits, most = sys.argv[1:]
    seen = Seen(int(count), int(most))
    with tempfile.TemporaryDirectory() as folder:
        PROGRAMS[name](seen, brokers, topic, target, int(commits) / 1000, folder)
    seen.show()


if __name__ == "__main__":
    main()
