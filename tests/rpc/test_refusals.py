"""What strangers and peers bring into the log is bounded."""

from __future__ import annotations

import logging

import pytest

from flinkray.rpc import LocalRpcService
from flinkray.rpc.wire.listener import MAX_LINES, PERIOD, RefusalLog
from flinkray.testing import ManualClock
from flinkray.testing.virtual_time import on_virtual_time

logger = logging.getLogger(__name__)


def test_many_refusals_are_logged_as_a_few_lines_and_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log = RefusalLog(logger, clock.monotonic)
    for _ in range(3):
        for number in range(1000):
            log.refused("refused a peer", f"number {number}")
        clock.advance(PERIOD)
    log.refused("refused a peer", "the last one")
    counted = f"{1000 - MAX_LINES} more refusals are not told one by one"
    lines = [f"refused a peer: number {number}" for number in range(MAX_LINES)]
    assert caplog.messages == [*lines, counted] * 3 + ["refused a peer: the last one"]
    log.tell_rest()
    assert len(caplog.messages) == 3 * (MAX_LINES + 1) + 1


def test_number_of_refusals_that_were_not_logged_is_logged_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RefusalLog(logger, ManualClock().monotonic)
    for _ in range(MAX_LINES + 2):
        log.refused("refused a peer", "x")
    log.tell_rest()
    assert caplog.messages[-1] == "2 more refusals are not told one by one"


@on_virtual_time
async def test_a_service_counts_all_refused_frames_and_logs_a_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService("host")
    for _ in range(10_000):
        service.refuse_frame("an unknown peer", "handshake: it makes no sense")
    await service.close()
    assert service.refused_frames == 10_000
    assert len(caplog.messages) == MAX_LINES + 1


@pytest.mark.parametrize(("length", "end"), [(300, ""), (301, " …"), (100_000, " …")])
def test_reason_of_a_refusal_above_300_characters_is_cut_in_the_log(
    caplog: pytest.LogCaptureFixture, length: int, end: str
) -> None:
    RefusalLog(logger, ManualClock().monotonic).refused("refused a peer", "x" * length)
    assert caplog.messages == [f"refused a peer: {'x' * 300}{end}"]
