"""Jobs whose failures have long texts, and many of them: they end all the same, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flinkray.scheduler.graph.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK

WIDE = "\N{GRINNING FACE}"
"""Four bytes in UTF-8."""


def failing(length: int) -> Callable[[Any], Awaitable[None]]:
    async def fails(context: Any) -> None:
        raise ValueError(WIDE * length)

    return fails


def slots(number: int) -> dict[str, str]:
    return {
        **QUICK,
        "taskmanager.numberOfTaskSlots": str(number),
        "taskmanager.slots-per-task-process": str(number),
        "taskmanager.cpu.cores": "1",
    }


@on_virtual_time
async def test_many_failures_with_long_multibyte_texts_are_reported_and_fail_the_job(
    tmp_path: Path,
) -> None:
    """Texts are cut by bytes, not by characters. Otherwise the reports would exceed a frame, and be
    repeated for ever."""
    async with MiniCluster(str(tmp_path), configuration=slots(107)) as cluster:
        builder = PythonJobBuilder("wide", restart_strategy=NoRestart())
        builder.add(failing(20_000), parallelism=107)
        result = await asyncio.wait_for(cluster.result(await cluster.submit(builder.build())), 60)
    assert result.status is JobStatus.FAILED
    assert str(result.failure).startswith(f"ValueError: {WIDE}")


@on_virtual_time
async def test_task_reports_that_exceed_a_small_frame_are_sent_in_several_messages(
    tmp_path: Path,
) -> None:
    configuration = {**slots(20), "rpc.frame-size": "64 kb"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder("wide", restart_strategy=NoRestart())
        builder.add(failing(20_000), parallelism=20)
        result = await asyncio.wait_for(cluster.result(await cluster.submit(builder.build())), 60)
    assert result.status is JobStatus.FAILED


@on_virtual_time
async def test_job_end_that_is_too_large_is_reported_with_shorter_exceptions(
    tmp_path: Path,
) -> None:
    """Without executions, the report is still too large."""
    configuration = {**slots(8), "rpc.frame-size": "64 kb"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder("wide", restart_strategy=FixedDelayRestart(5, 0.0))
        builder.add(failing(20_000), parallelism=8)
        job_id = await cluster.submit(builder.build())
        result = await asyncio.wait_for(cluster.result(job_id), 60)
        details = await cluster.details(job_id)
    assert result.status is JobStatus.FAILED
    assert str(result.failure).startswith(f"ValueError: {WIDE}")
    assert details.status is JobStatus.FAILED
    assert details.exceptions, "their texts are cut, but they are there"
