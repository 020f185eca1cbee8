"""What tasks print waits for the client, in bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.stream_coordinator import PrintedPart, PrintedText
from flinkray.actors.stream_coordinator.printed_lines_store import (
    END_PATIENCE,
    MOST_KEPT,
    MOST_READ,
    PATIENCE,
    PrintedLines,
)
from flinkray.core.ids import JobMasterId
from flinkray.rpc import LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time

MASTER = JobMasterId(b"m" * 16)
FIRST = "coordinator#0"

QUARTER = MOST_KEPT // 4
"""Four such texts fill it."""


def lines_of(attempt_number: int = 0) -> PrintedLines:
    return PrintedLines(LocalRpcService("coordinator"), f"coordinator#{attempt_number}")


def text(number: int, task: str = "task", size: int = QUARTER) -> PrintedText:
    line = f"{task} {number} ".encode()
    return PrintedText(MASTER, task, number, line + b"x" * (size - len(line) - 1) + b"\n")


def numbers(*parts: PrintedPart) -> list[int]:
    return [int(data.split()[1]) for part in parts for data in part.texts]


def seconds() -> float:
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_printed_text_that_a_task_sends_twice_is_stored_once() -> None:
    lines = lines_of()
    for number in (1, 2, 2, 1, 3):
        await lines.add(text(number, size=20))
    part = await lines.read(None, 0)
    assert numbers(part) == [1, 2, 3]
    assert not part.is_end


@on_virtual_time
async def test_printed_lines_can_be_read_again_until_a_later_position_is_read() -> None:
    lines = lines_of()
    await lines.add(text(1, size=20))
    first = await lines.read(None, 0)
    await lines.add(text(2, size=20))
    again = await lines.read(FIRST, 0)
    assert (numbers(first), numbers(again)) == ([1], [1, 2])
    assert numbers(await lines.read(FIRST, first.position)) == [2]


@on_virtual_time
async def test_read_position_from_another_coordinator_starts_reading_at_the_first_line() -> None:
    lines = lines_of(1)
    await lines.add(text(1, size=20))
    assert numbers(await lines.read(FIRST, 7)) == [1]


@on_virtual_time
async def test_tasks_wait_for_a_client_that_reads_and_no_line_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = lines_of()
    tasks = [
        asyncio.ensure_future(lines.add(text(number, task)))
        for number in range(1, 6)
        for task in ("one", "two")
    ]
    got: list[int] = []
    known: str | None = None
    position = 0
    for _ in range(10):
        await asyncio.sleep(PATIENCE / 2)
        assert not all(task.done() for task in tasks) or got
        part = await lines.read(known, position)
        known, position = part.coordinator, part.position
        got += numbers(part)
        if len(got) == 10:
            break
    assert got == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    await lines.read(known, position)
    await asyncio.gather(*tasks)
    assert capsys.readouterr().out == ""


@on_virtual_time
async def test_newest_unread_lines_are_kept_and_the_rest_is_counted_and_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = lines_of()
    for number in range(1, 101):
        await lines.add(text(number))
    assert seconds() == pytest.approx(PATIENCE)  # waited for once
    part = await lines.read(None, 0)
    assert numbers(part) == [97, 98, 99, 100]
    assert part.left_out == 96
    logged = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert logged == list(range(1, 97))


@on_virtual_time
async def test_lines_that_a_slow_client_has_read_are_not_counted_as_left_out() -> None:
    lines = lines_of()
    for number in range(1, 4):
        await lines.add(text(number))
    given = await lines.read(None, 0)
    for number in range(4, 9):
        await lines.add(text(number))
    part = await lines.read(FIRST, given.position)
    assert numbers(given, part) == [1, 2, 3, 5, 6, 7, 8]
    assert part.left_out == 1


@on_virtual_time
async def test_answer_with_printed_lines_does_not_exceed_the_message_limit() -> None:
    lines = lines_of()
    tasks = [asyncio.ensure_future(lines.add(text(1, f"task{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    part = await lines.read(None, 0)
    assert sum(map(len, part.texts)) == MOST_READ
    rest = await lines.read(FIRST, part.position)
    assert len(numbers(part, rest)) == 16
    for task in tasks:
        task.cancel()


@on_virtual_time
async def test_end_of_a_job_waits_until_the_client_has_read_all_lines() -> None:
    lines = lines_of()
    await lines.add(text(1))
    end = asyncio.ensure_future(lines.end())
    await asyncio.sleep(END_PATIENCE / 2)
    assert not end.done()
    part = await lines.read(None, 0)
    assert numbers(part) == [1]
    assert part.is_end
    assert (await lines.read(FIRST, part.position)).is_end
    await end
    assert seconds() == pytest.approx(END_PATIENCE / 2)


@on_virtual_time
async def test_client_that_waits_for_more_printed_lines_is_told_of_the_end_of_the_job() -> None:
    lines = lines_of()
    waiting = asyncio.ensure_future(lines.read(None, 0))
    await asyncio.sleep(1)
    await lines.end()
    part = await waiting
    assert part.is_end
    assert part.texts == ()
    assert seconds() == pytest.approx(1)


@on_virtual_time
async def test_job_end_without_a_client_logs_the_unread_printed_lines_after_a_short_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = lines_of()
    await lines.add(text(1, size=20))
    await lines.end()
    assert seconds() == pytest.approx(END_PATIENCE)
    assert capsys.readouterr().out.startswith("task 1 ")
    await lines.add(text(2, size=20))
    assert capsys.readouterr().out.startswith("task 2 ")


@on_virtual_time
async def test_end_of_a_job_without_printed_lines_does_not_wait() -> None:
    await lines_of().end()
    assert seconds() == 0
