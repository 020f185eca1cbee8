"""The hooks of a coordinator: what fails a checkpoint, and what a restore waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import (
    ReaderProgress,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
)
from flinkray.actors.stream_coordinator import master_hooks
from flinkray.actors.stream_coordinator.endpoint import StreamCoordinator
from flinkray.actors.stream_coordinator.master_hooks import HostedMasterHooks
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.rpc import LocalRpcService, RpcEndpoint
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sources.generated import DataGeneratorSource
from flinkray.streaming.sources.master_hook import (
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
)
from flinkray.streaming.sources.source import FixedSplitsEnumerator, Source
from flinkray.testing import TestingGateway
from tests.actors.resource_cluster import number


class Scripted(MasterTriggerRestoreHook[Any]):
    """Answers a trigger with *answer*, or raises it, once it may."""

    def __init__(self, answer: Any = None, identifier: str = "h") -> None:
        self.answer = answer
        self.identifier = identifier
        self.calls: list[Any] = []
        self.is_called = threading.Event()
        self.may_return = threading.Event()
        self.may_return.set()

    def get_identifier(self) -> str:
        return self.identifier

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        self.calls.append(("trigger", checkpoint_id, timestamp))
        self.is_called.set()
        self.may_return.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        self.calls.append(("restore", checkpoint_id, checkpoint_data))

    def reset(self) -> None:
        self.calls.append("reset")

    def close(self) -> None:
        self.calls.append("close")
        if isinstance(self.answer, Exception):
            raise self.answer


class Hooked(DataGeneratorSource, WithMasterCheckpointHook[Any]):
    def __init__(self, hook: Scripted) -> None:
        super().__init__(lambda n: n, 1)
        self._hook = hook

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[Any]:
        self._hook.calls.append("create")
        return self._hook


class Hosted:
    """A coordinator with these hooks. *disk_is_full*: no source can be loaded."""

    def __init__(
        self, *hooks: Scripted, is_allowed: bool = False, disk_is_full: bool = False
    ) -> None:
        self.service = LocalRpcService("coordinator")
        self.endpoint = RpcEndpoint(self.service, "streams")
        self.endpoint.start()
        self.failed: asyncio.Future[FlinkRayError] = self.service.loop.create_future()

        async def load(hook: Scripted) -> Source[Any]:
            if disk_is_full:
                raise OSError("no space left on device")
            return Hooked(hook)

        self.hooks = HostedMasterHooks(
            self.endpoint,
            number(JobID, 1),
            [("numbers", partial(load, hook)) for hook in hooks],
            self.failed.set_result,
            allow_non_restored_state=is_allowed,
        )

    async def taken(self, checkpoint_id: int = 1) -> tuple[MasterState, ...]:
        self.hooks.trigger(checkpoint_id, 1_000)
        return await self.hooks.states(checkpoint_id)


def to_checkpoint(
    checkpoint_id: int, *states: MasterState, restores: int = 1
) -> RestoredCoordinators:
    return RestoredCoordinators(restores, checkpoint_id, (), states)


@contextmanager
def held(hook: Scripted) -> Iterator[None]:
    """Its call of trigger_checkpoint does not return."""
    hook.may_return.clear()
    try:
        yield
    finally:
        hook.may_return.set()


async def test_hook_is_created_at_its_first_use_and_restored_to_the_last_of_two_restores() -> None:
    """CP-30."""
    hook = Scripted({"page": 3})
    hosted = Hosted(hook)
    hosted.hooks.restore(to_checkpoint(0))
    assert hook.calls == []
    (state,) = await hosted.taken(1)
    hosted.hooks.restore(to_checkpoint(1, state, restores=2))
    hosted.hooks.restore(to_checkpoint(2, state, restores=3))
    for _ in range(2):
        await hosted.hooks.ready()
    await hosted.hooks.close()
    assert hook.calls == [
        "create",
        "reset",
        ("trigger", 1, 1_000),
        ("restore", 2, {"page": 3}),
        "close",
    ]
    await hosted.service.close()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (ValueError("no room"), OperatorError, "no room"),
        (threading.Lock(), OperatorError, "cannot be stored|cannot pickle"),
        (bytes(4_000_000), StreamError, "at most"),
    ],
    ids=["it fails", "its state cannot be stored", "its state is too large"],
)
async def test_failing_hook_or_state_that_cannot_be_stored_fails_only_the_checkpoint(
    answer: Any, error: type[Exception], text: str
) -> None:
    """CP-31."""
    hook = Scripted(answer)
    hosted = Hosted(hook)
    with pytest.raises(error, match=text):
        await hosted.taken(1)
    hook.answer = None
    assert await hosted.taken(2) == ()
    assert not hosted.failed.done()
    await hosted.service.close()


async def test_failed_future_of_a_hook_fails_the_checkpoint() -> None:
    """CP-31."""
    failed: Future[str] = Future()
    failed.set_exception(ValueError("no room"))
    hosted = Hosted(Scripted(failed))
    with pytest.raises(OperatorError, match="no room"):
        await hosted.taken()
    await hosted.service.close()


async def test_pending_future_of_a_hook_is_cancelled_when_the_checkpoint_is_over() -> None:
    """CP-15."""
    pending: Future[str] = Future()
    is_cancelled = threading.Event()
    pending.add_done_callback(lambda _: is_cancelled.set())
    hook = Scripted(pending)
    hosted = Hosted(hook)
    hosted.hooks.trigger(1, 1_000)
    states = asyncio.ensure_future(hosted.hooks.states(1))
    await hosted.service.run_blocking(hook.is_called.wait)
    hosted.hooks.checkpoint_over(1)
    for asked in (states, hosted.hooks.states(1)):
        with pytest.raises(UnavailableError, match="checkpoint 1 is over"):
            await asked
    await hosted.service.run_blocking(is_cancelled.wait)
    assert pending.cancelled()
    await hosted.service.close()


@pytest.mark.parametrize("answer", [ValueError("no room"), None], ids=["it fails", "it is late"])
async def test_future_of_a_hook_is_cancelled_if_the_next_hook_fails_or_is_late(answer: Any) -> None:
    """CP-15, CP-31."""
    pending: Future[str] = Future()
    is_cancelled = threading.Event()
    pending.add_done_callback(lambda _: is_cancelled.set())
    second = Scripted(answer, "i")
    hosted = Hosted(Scripted(pending), second, Scripted(None, "j"))
    with held(second):
        hosted.hooks.trigger(1, 1_000)
        await hosted.service.run_blocking(second.is_called.wait)
        if answer is None:
            hosted.hooks.checkpoint_over(1)
    assert await hosted.service.run_blocking(partial(is_cancelled.wait, 30))
    await hosted.service.close()


async def test_state_is_stored_as_it_was_when_the_hook_returned_it() -> None:
    """CP-30: while the next hook still works, the first one changes the object."""
    first, second = Scripted([1]), Scripted(None, "i")
    hosted = Hosted(first, second)
    with held(second):
        taken = asyncio.ensure_future(hosted.taken(1))
        await hosted.service.run_blocking(second.is_called.wait)
        first.answer.append(2)
    hosted.hooks.restore(to_checkpoint(1, *await taken))
    await hosted.hooks.ready()
    assert first.calls[-1] == ("restore", 1, [1])
    await hosted.service.close()


async def test_hook_is_reset_at_a_start_without_a_checkpoint() -> None:
    """CP-30: an earlier JobMaster may have died, together with its coordinator."""
    hook = Scripted()
    hosted = Hosted(hook)
    await hosted.hooks.ready()
    assert hook.calls == ["create", "reset"]
    await hosted.service.close()


async def test_lack_of_disk_space_for_the_source_of_a_master_hook_fails_the_job() -> None:
    hosted = Hosted(Scripted(), disk_is_full=True)
    waiting = asyncio.ensure_future(hosted.hooks.ready())
    either: list[asyncio.Future[Any]] = [hosted.failed, waiting]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    assert "no space left on device" in str(hosted.failed.result())
    waiting.cancel()
    await hosted.service.close()


async def test_hook_call_that_does_not_return_fails_the_job_at_the_next_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master_hooks, "_LONGEST_WAIT", 0.05)
    hook = Scripted()
    hosted = Hosted(hook)
    with held(hook):
        hosted.hooks.trigger(1, 1_000)
        await hosted.service.run_blocking(hook.is_called.wait)
        hosted.hooks.restore(to_checkpoint(0))
        waiting = asyncio.ensure_future(hosted.hooks.ready())
        error = await hosted.failed
        assert "has not returned" in str(error)
        assert not waiting.done()
        await hosted.hooks.close()
    waiting.cancel()
    await hosted.service.close()
    assert hook.calls == ["create", "reset", ("trigger", 1, 1_000)]


@pytest.mark.parametrize("hooks", [(), (Scripted(),)], ids=["no hook", "another hook"])
@pytest.mark.parametrize("is_allowed", [False, True])
async def test_checkpoint_state_of_a_missing_hook_is_refused_unless_configured_as_allowed(
    is_allowed: bool, hooks: tuple[Scripted, ...]
) -> None:
    """CP-30."""
    hosted = Hosted(*hooks, is_allowed=is_allowed)
    hosted.hooks.restore(to_checkpoint(3, MasterState("gone", b"x")))
    if is_allowed:
        await hosted.hooks.ready()
        assert all(hook.calls[-1] == ("restore", 3, None) for hook in hooks)
    else:
        waiting = asyncio.ensure_future(hosted.hooks.ready())
        error = await hosted.failed
        assert isinstance(error, StateRestoreError)
        assert "'gone'" in str(error)
        waiting.cancel()
    await hosted.service.close()


async def test_hook_that_fails_to_close_does_not_keep_the_coordinator_from_ending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Scripted(ValueError("the book is stuck"))
    hosted = Hosted(hook)
    await hosted.hooks.ready()
    await hosted.hooks.close()
    assert hook.calls == ["create", "reset", "close"]
    assert "the book is stuck" in caplog.text
    await hosted.service.close()


class Stuck(FixedSplitsEnumerator[Any]):
    def close(self) -> None:
        raise ValueError("the door is stuck")


class Closing(MasterTriggerRestoreHook[None]):
    """Notes in a file that it is closed."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def get_identifier(self) -> str:
        return "h"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> None:
        return None

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: None) -> None:
        raise AssertionError

    def close(self) -> None:
        self._note.touch()


class StuckNumbers(DataGeneratorSource, WithMasterCheckpointHook[None]):
    def __init__(self, note: Path) -> None:
        super().__init__(lambda n: n, 1)
        self._note = note

    def create_enumerator(self, context: Any, clock: Any) -> Stuck:
        return Stuck(context, [])

    def create_master_trigger_restore_hook(self) -> Closing:
        return Closing(self._note)


async def test_hook_is_closed_although_an_enumerator_cannot_be_closed(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment().set_parallelism(1)
    numbers = StuckNumbers(tmp_path / "closed")
    env.from_source(numbers, WatermarkStrategy.no_watermarks(), "numbers").print()
    reader, *_ = env._job(env.get_stream_graph()).vertices
    code, master_id = reader.invokable.code, number(JobMasterId, 1)
    assert isinstance(code, bytes)
    service = LocalRpcService("coordinator")
    master = (
        TestingGateway(JobMasterGateway, master_id)
        .on(JobMasterGateway.request_job_status)
        .returning(JobStatus.RUNNING)
        .on(JobMasterGateway.keep_part)
        .returning(None)
        .start(service, "jobmaster")
    )
    operator = reader.operators[0].operator_id
    arguments = StreamCoordinatorArguments(
        "cluster",
        number(JobID, 1),
        master_id,
        master_id,
        CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0),
        master.address,
        (VertexCode(reader.vertex_id, operator, "numbers", code, has_hook=True),),
        storage_dir=str(tmp_path),
    )
    endpoint = StreamCoordinator(service, arguments)
    endpoint.start()
    coordinator = endpoint.get_self_gateway(StreamCoordinatorGateway)
    await coordinator.exchange(ReaderProgress(master_id, reader.vertex_id, 0, 0, 1, 1, 0, None, 0))
    await coordinator.snapshot(master_id, 1, 0, str(tmp_path))
    assert await coordinator.master_states(master_id, 1) == ()
    with pytest.raises(OperatorError, match="the door is stuck"):
        await coordinator.stop(master_id)
    assert (tmp_path / "closed").exists()
    with pytest.raises(OperatorError, match="the door is stuck"):
        await service.close()
