"""The lines of a task on their way to the coordinator."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.stream_coordinator import (
    PrintedText,
    StreamCoordinatorGateway,
)
from flinkray.actors.task_process.client_output import MOST_WAITING
from flinkray.actors.task_process.printed_lines_sender import MAX_PIECE, PrintedLinesOutput
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError, RpcConnectionError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing.testing_gateway import TestingGateway

MASTER = JobMasterId(b"m" * 16)


class Surroundings:
    """A coordinator that answers some messages with errors, and none while it is *full*."""

    def __init__(self, *errors: FlinkRayError) -> None:
        network = LocalNetwork()
        self._errors = list(errors)
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.told: list[PrintedText] = []
        self.rooms = 0
        coordinator = TestingGateway(StreamCoordinatorGateway)
        coordinator.on(StreamCoordinatorGateway.printed).calling(self._printed)
        coordinator.start(LocalRpcService("coordinator", network), "streams")
        self.lines = PrintedLinesOutput(
            LocalRpcService("process", network), coordinator.address, MASTER, "task", self._room
        )

    async def _printed(self, text: PrintedText) -> None:
        self.told.append(text)
        await self.has_room.wait()
        if self._errors:
            raise self._errors.pop(0)

    def _room(self) -> None:
        self.rooms += 1

    @property
    def text(self) -> str:
        """In the order of the numbers, each once."""
        by_number = {text.number: text.data for text in self.told}
        assert list(by_number) == list(range(1, len(by_number) + 1))
        return b"".join(by_number.values()).decode()

    def write_and_flush(self, *lines: str) -> None:
        for each in lines:
            self.lines.write(each)
        self.lines.flush()


async def test_lines_are_sent_in_order_and_large_ones_in_pieces() -> None:
    around = Surroundings()
    lines = [f"{n}\n" for n in range(100)] + ["x" * 2 * MAX_PIECE + "\n", "y\n" * MAX_PIECE]
    await asyncio.to_thread(around.write_and_flush, *lines)
    assert around.lines.is_processed()
    assert around.rooms == len(around.told)
    assert around.text == "".join(lines)
    assert all(len(text.data) <= MAX_PIECE for text in around.told)
    ends = [text.data[-1:] for text in around.told if b"y" in text.data]
    assert set(ends) == {b"\n"}


async def test_message_with_printed_lines_that_was_not_answered_is_sent_again() -> None:
    around = Surroundings(RpcConnectionError("reset"), RpcConnectionError("reset"))
    await asyncio.to_thread(around.write_and_flush, "a\n")
    assert [text.number for text in around.told] == [1, 1, 1]
    assert around.text == "a\n"


async def test_task_has_no_room_for_more_lines_until_the_coordinator_has_answered() -> None:
    around = Surroundings()
    around.has_room.clear()
    around.lines.write("x" * MOST_WAITING)
    assert not around.lines.has_room()
    around.has_room.set()
    await asyncio.to_thread(around.lines.flush)
    assert around.lines.has_room()


async def test_lines_refused_by_a_replaced_coordinator_are_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    around = Surroundings(CoordinatorReplacedError("another one"))
    await asyncio.to_thread(around.write_and_flush, "a\n")
    assert around.lines.is_processed()
    assert capsys.readouterr().out == "a\n"


async def test_lines_unsent_at_the_end_of_a_task_are_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    around = Surroundings()
    around.has_room.clear()
    around.lines.write("a\n")
    around.lines.write("b\n")
    await asyncio.sleep(0)
    around.lines.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    around.lines.write("c\n")
    await asyncio.sleep(0)
    assert capsys.readouterr().out == "a\nb\nc\n"
