"""What readers are told by a source's host is kept outside first, where it can be."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flinkray.actors.gateways.stream_coordinator import ReaderProgress
from flinkray.actors.stream_coordinator.source_host import SourceHost
from flinkray.core.clock import Clock
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import LocalRpcService, RpcEndpoint
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sources.coordinator import END_OF_SPLITS
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from flinkray.streaming.sources.source_progress import SourceProgress, read_enumerator_state
from flinkray.testing.virtual_time import on_virtual_time


class Enumerator(FixedSplitsEnumerator[str]):
    def __init__(self, context: EnumeratorContext[str], *, can_be_stored: bool) -> None:
        super().__init__(context, ["a", "b", "c"])
        self._can_be_stored = can_be_stored

    def snapshot_state(self, checkpoint_id: int) -> Any:
        if not self._can_be_stored:
            raise ValueError("it has no state that could be stored")
        return super().snapshot_state(checkpoint_id)


class Letters(Source[Any, str]):
    def __init__(self, *, can_be_stored: bool) -> None:
        self._can_be_stored = can_be_stored

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[str], clock: Clock
    ) -> SplitEnumerator[str]:
        return Enumerator(context, can_be_stored=self._can_be_stored)

    def create_reader(self, context: ReaderContext) -> SourceReader[str]:
        raise NotImplementedError


class Keeper:
    """Whoever is told; answers when it may."""

    def __init__(self, *, has_room: bool = True) -> None:
        self.told: list[SourceProgress | None] = []
        self.is_told = asyncio.Event()
        self.may_answer = asyncio.Event()
        self._has_room = has_room

    async def keep(self, progress: SourceProgress | None) -> bool:
        self.told.append(progress)
        self.is_told.set()
        await self.may_answer.wait()
        return progress is None or self._has_room


def fail(error: FlinkRayError) -> None:
    raise error


def host(
    keeper: Keeper, *, can_be_stored: bool = True, progress: SourceProgress | None = None
) -> SourceHost:
    endpoint = RpcEndpoint(LocalRpcService("coordinator"), "streams")
    endpoint.start()

    async def load(_: str | None) -> Source[Any]:
        return Letters(can_be_stored=can_be_stored)

    load_source: Callable[[str | None], Awaitable[Source[Any]]] = load
    return SourceHost(endpoint, "letters", load_source, fail, keeper.keep, progress=progress)


def asks(requests: int, position: int = 0, attempt: int = 0) -> ReaderProgress:
    return ReaderProgress(
        JobMasterId(b"m" * 16), JobVertexID(b"v" * 16), 0, attempt, 1, requests, position, None
    )


def letters(events: tuple[bytes, ...]) -> list[str]:
    return [pickle.loads(event) for event in events if event != END_OF_SPLITS]


async def test_readers_get_splits_only_after_the_job_master_has_saved_the_assignment() -> None:
    keeper = Keeper()
    source = host(keeper)
    asked = asyncio.ensure_future(source.exchange(asks(1)))
    await keeper.is_told.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asked.done()
    keeper.may_answer.set()
    assert letters(await asked) == ["a"]
    kept = keeper.told[-1]
    assert kept is not None
    (reader,) = kept.readers
    assert letters(reader.events) == ["a"]
    await source.close()


@pytest.mark.parametrize(
    ("can_be_stored", "has_room"), [(False, True), (True, False)], ids=["not stored", "too large"]
)
async def test_unsaveable_split_assignment_is_reported_once_and_readers_still_get_splits(
    can_be_stored: bool, has_room: bool
) -> None:
    keeper = Keeper(has_room=has_room)
    keeper.may_answer.set()
    source = host(keeper, can_be_stored=can_be_stored)
    assert letters(await source.exchange(asks(1))) == ["a"]
    assert letters(await source.exchange(asks(2, 1))) == ["b"]
    await source.kept()
    assert keeper.told.count(None) == 1
    tried = len(keeper.told)
    assert letters(await source.exchange(asks(3, 2))) == ["c"]
    await source.kept()
    assert len(keeper.told) == tried

    source.keep_again()
    await source.kept()
    assert keeper.told[tried:] == [None], "the next JobMaster is to know that nobody knows"
    await source.close()


async def test_whole_split_assignment_is_saved_again_on_request_even_during_a_save() -> None:
    keeper = Keeper()
    source = host(keeper)
    asked = asyncio.ensure_future(source.exchange(asks(1)))
    await keeper.is_told.wait()
    source.keep_again()
    keeper.may_answer.set()
    await asked
    await source.kept()
    before = len(keeper.told)
    assert before >= 2
    source.keep_again()
    await source.kept()
    assert len(keeper.told) == before + 1
    assert keeper.told[-1] == keeper.told[-2]
    await source.close()


async def one_that_owes_splits(keeper: Keeper) -> SourceHost:
    """It goes on from another one, whose reader has a split, and is restarted."""
    keeper.may_answer.set()
    first = host(keeper)
    assert letters(await first.exchange(asks(1))) == ["a"]
    await first.close()
    source = host(keeper, progress=keeper.told[-1])
    await source.reset_subtask(0, 1, 0)
    return source


@on_virtual_time
async def test_checkpoint_of_a_source_waits_for_a_reader_whose_splits_must_be_returned() -> None:
    """Otherwise the checkpoint would have neither the split nor a reader that has read the split
    (seed 20442)."""
    source = await one_that_owes_splits(Keeper())
    cut = asyncio.ensure_future(source.snapshot(1))
    await asyncio.sleep(1)
    assert not cut.done()
    exchange = asyncio.ensure_future(source.exchange(asks(0, attempt=1)))
    state = await cut
    assert state is not None
    assert sorted(read_enumerator_state(state)) == ["a", "b", "c"]
    assert await source.events_before(asks(0, attempt=1), 1) == ()
    exchange.cancel()
    await source.close()


@on_virtual_time
async def test_source_checkpoint_fails_when_the_reader_that_must_return_splits_never_asks() -> None:
    source = await one_that_owes_splits(Keeper())
    with pytest.raises(OperatorError, match="cannot go back"):
        await source.snapshot(1)
    await source.close()


@on_virtual_time
async def test_source_checkpoint_does_not_wait_for_a_reader_without_splits_to_return() -> None:
    """A task that had finished in the checkpoint is restarted, and never asks: each checkpoint
    failed without its cut (seed 11)."""
    keeper = Keeper()
    keeper.may_answer.set()
    first = host(keeper)
    assert letters(await first.exchange(asks(1))) == ["a"]
    await first.snapshot(1)
    await first.checkpoint_completed(1)
    await first.kept()
    await first.close()
    source = host(keeper, progress=keeper.told[-1])
    await source.reset_subtask(0, 1, 1)
    before = asyncio.get_running_loop().time()
    assert await source.snapshot(2) is not None
    assert asyncio.get_running_loop().time() == before
    await source.close()


async def one_that_goes_on(keeper: Keeper, *, has_cut: bool = False) -> SourceHost:
    """From one whose keeper may have died with what it was told last: that reader 0 has a split."""
    before = Keeper()
    before.may_answer.set()
    first = host(before)
    assert letters(await first.exchange(asks(1))) == ["a"]
    if has_cut:
        await first.snapshot(1)
        await first.kept()
    await first.close()
    return host(keeper, progress=before.told[-1])


@pytest.mark.parametrize("asked", ["for splits", "before a cut"])
async def test_restored_split_assignment_reaches_readers_once_it_is_saved_again(
    asked: str,
) -> None:
    """Only the JobMaster that started this coordinator knew of the assignment: the next JobMaster
    would have given the split to another reader, too (seed 51928)."""
    keeper = Keeper()
    source = await one_that_goes_on(keeper, has_cut=asked == "before a cut")
    is_cut = asked == "before a cut"
    call = source.events_before(asks(1), 1) if is_cut else source.exchange(asks(1))
    answer = asyncio.ensure_future(call)
    await keeper.is_told.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not answer.done()
    keeper.may_answer.set()
    assert letters(await answer) == ["a"]
    kept = keeper.told[0]
    assert kept is not None
    assert kept.parallelism == 1
    assert letters(kept.readers[0].events) == ["a"]
    await source.close()


async def test_restored_split_assignment_that_cannot_be_saved_is_reported_and_still_used() -> None:
    keeper = Keeper(has_room=False)
    keeper.may_answer.set()
    source = await one_that_goes_on(keeper, has_cut=True)
    assert letters(await source.events_before(asks(1), 1)) == ["a"]
    assert keeper.told[-1] is None
    await source.close()
