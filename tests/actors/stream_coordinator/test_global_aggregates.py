"""The coordinator makes each update of a global aggregate once."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from flinkray.actors.gateways.stream_coordinator import AggregateAnswer, AggregateUpdate
from flinkray.actors.stream_coordinator.global_aggregates import AggregateUpdates
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobMasterId,
    JobVertexID,
)
from flinkray.datastream import AggregateFunction
from flinkray.rpc import LocalRpcService
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.streaming.functions.global_aggregates import GlobalAggregateError
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.user_code import dump_function
from tests.actors.resource_cluster import GRAPH, NEXT_GRAPH, number

HERE = "coordinator#0"


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if value < 0:
            raise SystemExit("negative")
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


TOTAL = dump_function(lambda _: Total())


def attempt(attempt_number: int, graph: ExecutionGraphID = GRAPH) -> ExecutionAttemptID:
    return ExecutionAttemptID(graph, ExecutionVertexID(number(JobVertexID, 1), 0), attempt_number)


def update(n: int, value: int = 1, attempt_number: int = 0, name: str = "a") -> AggregateUpdate:
    return AggregateUpdate(
        number(JobMasterId, 1),
        attempt(attempt_number),
        n,
        None,
        name,
        pickle.dumps(value),
        TOTAL,
        "blobs",
    )


class Updates:
    """The coordinator's part."""

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self.provided: list[str | None] = []
        self.has_files = True

        async def provide(blob_server: str | None) -> None:
            self.provided.append(blob_server)
            if not self.has_files:
                raise RpcConnectionError("no blob server")

        service = LocalRpcService("coordinator", max_frame_size=max_frame_size)
        self._updates = AggregateUpdates(service, HERE, provide)

    async def answer(self, one: AggregateUpdate) -> AggregateAnswer:
        return await self._updates.update(one)

    async def result(self, one: AggregateUpdate) -> int:
        answer = await self.answer(one)
        assert answer.coordinator == HERE
        assert answer.result is not None
        return int(pickle.loads(answer.result))


@on_virtual_time
async def test_repeated_update_of_an_aggregate_is_added_once_and_gets_the_same_answer() -> None:
    """JM-16."""
    updates = Updates()
    assert [await updates.result(update(n)) for n in (1, 1, 2, 2)] == [1, 1, 2, 2]
    assert set(updates.provided) == {"blobs"}


@on_virtual_time
async def test_update_of_an_aggregate_is_added_once_the_jobs_files_can_be_fetched_again() -> None:
    updates = Updates()
    updates.has_files = False
    with pytest.raises(RpcConnectionError):
        await updates.answer(update(1))
    updates.has_files = True
    assert await updates.result(update(1)) == 1


@on_virtual_time
async def test_update_repeated_while_the_function_runs_is_added_once() -> None:
    updates = Updates()
    first, again = await asyncio.gather(updates.result(update(1)), updates.result(update(1)))
    assert (first, again) == (1, 1)
    assert await updates.result(update(2)) == 2


@on_virtual_time
async def test_late_duplicate_of_an_update_is_refused() -> None:
    updates = Updates()
    assert await updates.result(update(1)) == 1
    assert await updates.result(update(2)) == 2
    with pytest.raises(FlinkRayError, match="too late"):
        await updates.answer(update(1))
    assert await updates.result(update(1, attempt_number=1)) == 3
    with pytest.raises(FlinkRayError, match="too late"):
        await updates.answer(update(3))


@on_virtual_time
async def test_update_of_an_equally_numbered_attempt_in_another_execution_graph_is_added() -> None:
    """A rescaled job numbers its attempts from 0 again."""
    updates = Updates()
    assert await updates.result(update(1, attempt_number=1)) == 1
    rescaled = replace(update(1), attempt_id=attempt(0, NEXT_GRAPH))
    assert await updates.result(rescaled) == 2


@on_virtual_time
async def test_concurrent_updates_of_several_tasks_are_all_added() -> None:
    """JM-16."""
    updates = Updates()
    of_tasks = [
        replace(
            update(1),
            attempt_id=ExecutionAttemptID(
                GRAPH, ExecutionVertexID(number(JobVertexID, 1), subtask), 0
            ),
        )
        for subtask in range(8)
    ]
    results = await asyncio.gather(*map(updates.result, of_tasks))
    assert sorted(results) == [1, 2, 3, 4, 5, 6, 7, 8]


@on_virtual_time
async def test_update_of_a_task_that_knows_a_lost_coordinator_adds_nothing() -> None:
    updates = Updates()
    lost = replace(update(2), known="coordinator#7")
    assert await updates.answer(lost) == AggregateAnswer(HERE, None)
    assert await updates.result(replace(update(3), known=HERE)) == 1


@on_virtual_time
async def test_aggregate_function_raising_system_exit_adds_nothing_and_ends_no_process() -> None:
    updates = Updates()
    for _ in range(2):  # the repeated message gets the same answer
        with pytest.raises(GlobalAggregateError, match="SystemExit: negative"):
            await updates.answer(update(1, value=-1))
    assert await updates.result(update(2)) == 1


@on_virtual_time
async def test_update_whose_result_is_too_large_to_be_sent_adds_nothing() -> None:
    class Text(Total):
        def get_result(self, accumulator: int) -> int:
            return int(10**accumulator)

    updates = Updates(max_frame_size=4096)
    text = dump_function(lambda _: Text())
    with pytest.raises(GlobalAggregateError, match=r"cannot be sent.*rpc\.frame-size"):
        await updates.answer(replace(update(1, value=10_000), function=text))
    answer = await updates.answer(replace(update(2, value=3), function=text))
    assert answer.result is not None
    assert pickle.loads(answer.result) == 1000


@on_virtual_time
async def test_new_function_of_an_aggregate_is_used_from_its_first_update_on() -> None:
    class Doubled(Total):
        def get_result(self, accumulator: int) -> int:
            return 2 * accumulator

    updates = Updates()
    assert await updates.result(update(1)) == 1
    doubled = replace(update(2), function=dump_function(lambda _: Doubled()))
    assert await updates.result(doubled) == 4
