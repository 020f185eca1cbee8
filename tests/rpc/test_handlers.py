"""How handlers run: in order, each with a task and a context of its own for all it can see."""

from __future__ import annotations

import asyncio
import gc
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from flinkray.rpc import LocalRpcService, RpcEndpoint, RpcGateway
from flinkray.rpc.mailbox import HandlerQueue
from flinkray.testing.virtual_time import on_virtual_time

variable: ContextVar[str] = ContextVar("variable", default="untouched")


class WorkGateway(RpcGateway):
    """Does what it is told."""

    @abstractmethod
    async def work(self, name: str, seconds: float | None) -> str: ...

    @abstractmethod
    async def cancel_itself(self) -> str: ...


class Work(RpcEndpoint, WorkGateway):
    """Keeps what its handlers see of their tasks and contexts."""

    def __init__(self, service: LocalRpcService) -> None:
        super().__init__(service, "work")
        self.story: list[str] = []
        self.tasks: dict[str, asyncio.Task[object] | None] = {}
        self.seen: dict[str, list[str]] = {}

    async def work(self, name: str, seconds: float | None) -> str:
        self.tasks[name] = asyncio.current_task()
        seen = self.seen[name] = [variable.get()]
        variable.set(name)
        self.story.append(f"{name} begins")
        if seconds is not None:
            await asyncio.sleep(seconds)
            await asyncio.sleep(0)
        assert asyncio.current_task() is self.tasks[name]
        seen.append(variable.get())
        self.story.append(f"{name} ends")
        return name

    async def cancel_itself(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "cancelled"


async def started(service: LocalRpcService) -> tuple[Work, WorkGateway]:
    endpoint = Work(service)
    endpoint.start()
    return endpoint, await service.connect(endpoint.address, WorkGateway)


@on_virtual_time
async def test_each_handler_runs_in_its_own_context_and_waits_in_its_own_task() -> None:
    service = LocalRpcService()
    endpoint, gateway = await started(service)
    names = {"a": None, "b": 1.0, "c": None, "d": 1.0}
    variable.set("the caller's")
    await asyncio.gather(*(gateway.work(name, time) for name, time in names.items()))
    assert endpoint.seen == {name: ["untouched", name] for name in names}
    assert endpoint.tasks["b"] is not endpoint.tasks["d"]
    assert None not in endpoint.tasks.values()
    assert asyncio.current_task() not in endpoint.tasks.values()
    await service.close()


@on_virtual_time
async def test_handler_that_cancels_its_own_task_and_returns_affects_no_other() -> None:
    service = LocalRpcService()
    _, gateway = await started(service)
    first, second, third = await asyncio.gather(
        gateway.work("a", None), gateway.cancel_itself(), gateway.work("b", 1.0)
    )
    assert (first, second, third) == ("a", "cancelled", "b")
    await service.close()


class ScriptedCall:
    """A call whose handler does one thing, without waiting; notes what becomes of it."""

    coroutine: Coroutine[Any, Any, Any]  # none: it never waits

    def __init__(self, begin: Callable[[], object], *, is_over: bool = False) -> None:
        self._begin = begin
        self.is_over = is_over
        self.story: list[str] = []

    def is_held(self) -> None:
        self.story.append("held")

    def begin(self) -> object:
        self.story.append("begins")
        raise StopIteration(self._begin())

    def waits(self, task: asyncio.Task[None]) -> None:
        self.story.append("waits")

    def succeeded(self, result: object) -> None:
        self.story.append(f"succeeded with {result}")

    def failed(self, error: BaseException) -> None:
        self.story.append(f"failed with {type(error).__name__}")

    def cancelled(self) -> bool:
        self.story.append("cancelled")
        return True

    def abandoned(self) -> None:
        self.story.append("abandoned")


@on_virtual_time
async def test_calls_waiting_when_their_queue_closes_are_abandoned() -> None:
    queue = HandlerQueue(asyncio.get_running_loop())
    closing, waiting = ScriptedCall(queue.close), ScriptedCall(int)
    queue.post(closing)
    queue.post(waiting)
    queue.open()
    await asyncio.sleep(1)
    further = ScriptedCall(int)
    queue.post(further)
    await asyncio.sleep(1)
    assert closing.story == ["held", "begins", "succeeded with None"]
    assert waiting.story == ["held", "abandoned"]
    assert further.story == ["abandoned"]
    assert queue.tasks == []


@on_virtual_time
async def test_queued_call_whose_caller_has_given_up_is_never_handled() -> None:
    queue = HandlerQueue(asyncio.get_running_loop())
    over, next_one = ScriptedCall(int, is_over=True), ScriptedCall(int)
    queue.post(over)
    queue.post(next_one)
    queue.open()
    await asyncio.sleep(1)
    assert over.story == ["held"]
    assert next_one.story == ["held", "begins", "succeeded with 0"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_in_a_handler_reaches_its_caller_and_the_event_loop(
    end: type[BaseException], waits: bool
) -> None:
    story: list[str] = []

    def ends() -> None:
        raise end

    async def handled() -> None:
        nonlocal story
        call = WaitingCall(ends) if waits else ScriptedCall(ends)
        story = call.story
        queue = HandlerQueue(asyncio.get_running_loop())
        queue.open()
        queue.post(call)
        (task,) = queue.tasks
        await asyncio.sleep(0)
        if isinstance(call, WaitingCall):
            call.may_go_on.set()
        await asyncio.wait({task})

    with pytest.raises(end):
        asyncio.run(handled())
    assert story == ["begins", *["waits"] * waits, f"failed with {end.__name__}"]


@on_virtual_time
async def test_generator_exit_raised_in_a_handler_cancels_its_call() -> None:
    def ends() -> None:
        raise GeneratorExit

    queue = HandlerQueue(asyncio.get_running_loop())
    queue.open()
    call = ScriptedCall(ends)
    queue.post(call)
    (task,) = queue.tasks
    await asyncio.wait({task})
    assert isinstance(task.exception(), GeneratorExit)
    assert call.story == ["begins", "cancelled"]


class WaitingCall(ScriptedCall):
    """A call whose handler waits for :attr:`may_go_on` before it does its thing."""

    def __init__(self, then: Callable[[], object], *, is_told_of_its_end: bool = True) -> None:
        super().__init__(then)
        self.may_go_on = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._is_told = is_told_of_its_end

    def begin(self) -> object:
        self.story.append("begins")
        self.coroutine = self._handler()
        return self.coroutine.send(None)

    async def _handler(self) -> object:
        await self.may_go_on.wait()
        return self._begin()

    def waits(self, task: asyncio.Task[None]) -> None:
        super().waits(task)
        self.task = task

    def cancelled(self) -> bool:
        super().cancelled()
        return self._is_told


@on_virtual_time
async def test_error_of_a_handler_reaches_only_its_caller() -> None:
    """asyncio must not report a task whose exception was never retrieved."""

    def fails() -> None:
        raise OSError("disk full")

    queue = HandlerQueue(asyncio.get_running_loop())
    queue.open()
    calls = [ScriptedCall(fails), WaitingCall(fails), ScriptedCall(int)]
    for call in calls:
        queue.post(call)
    await asyncio.sleep(1)
    (task,) = queue.tasks
    assert isinstance(calls[1], WaitingCall)
    assert calls[1].task is task
    calls[1].may_go_on.set()
    await asyncio.sleep(1)
    assert [call.story for call in calls] == [
        ["begins", "failed with OSError"],
        ["begins", "waits", "failed with OSError"],
        ["begins", "succeeded with 0"],
    ]
    assert task.exception() is None
    assert queue.tasks == []


@pytest.mark.parametrize("is_told", [False, True])
@on_virtual_time
async def test_cancelled_handler_cancels_its_task_unless_the_caller_has_its_answer(
    is_told: bool,
) -> None:
    queue = HandlerQueue(asyncio.get_running_loop())
    queue.open()
    call = WaitingCall(int, is_told_of_its_end=is_told)
    queue.post(call)
    await asyncio.sleep(1)
    (task,) = queue.tasks
    task.cancel()
    await asyncio.sleep(1)
    assert call.story == ["begins", "waits", "cancelled"]
    assert task.cancelled() is not is_told


def test_handler_of_a_closed_loop_is_cancelled_when_the_loop_is_freed() -> None:
    async def begin() -> list[str]:
        queue, call = HandlerQueue(loop), WaitingCall(int)
        queue.open()
        queue.post(call)
        await asyncio.sleep(0)
        return call.story

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it complains of the task that it leaves
    story = loop.run_until_complete(begin())
    assert story == ["begins", "waits"]
    loop.close()
    gc.collect()
    assert story == ["begins", "waits", "cancelled"]


@on_virtual_time
async def test_one_task_runs_all_handlers_that_do_not_wait_and_ends_with_the_last() -> None:
    queue = HandlerQueue(asyncio.get_running_loop())
    calls = [ScriptedCall(int) for _ in range(3)]
    queue.open()
    assert queue.tasks == []
    queue.post(calls[0])
    queue.post(calls[1])
    queue.open()
    (task,) = queue.tasks
    await asyncio.sleep(1)
    assert task.done()
    assert queue.tasks == []
    queue.post(calls[2])
    await asyncio.sleep(1)
    assert [call.story[-1] for call in calls] == ["succeeded with 0"] * 3


@on_virtual_time
async def test_calls_waiting_for_a_queue_to_open_are_abandoned_once_when_it_closes() -> None:
    queue = HandlerQueue(asyncio.get_running_loop())
    calls = [ScriptedCall(int) for _ in range(2)]
    for call in calls:
        queue.post(call)
    queue.close()
    queue.abandon_waiting()
    queue.open()
    await asyncio.sleep(1)
    assert [call.story for call in calls] == [["held", "abandoned"]] * 2
    assert queue.tasks == []
