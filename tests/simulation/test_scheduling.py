"""Who runs when: order inside a process, chance between processes, virtual time."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from flinkray.core.ids import JobID
from flinkray.testing.simulation import (
    ForbiddenInSimulationError,
    LivelockError,
    NothingWillHappenError,
    Simulation,
    UnhandledError,
    simulate,
)


def run(program: Callable[[Simulation], object], seed: int = 0, **options: object) -> object:
    simulation = Simulation(seed, **options)  # type: ignore[arg-type]
    return simulation.run(program(simulation))  # type: ignore[arg-type]


@simulate(seeds=10)
async def test_callbacks_of_one_process_run_in_the_order_of_their_calls(
    simulation: Simulation,
) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    for number in range(20):
        loop.call_soon(seen.append, number)
    await asyncio.sleep(0)
    assert seen == list(range(20))


def test_order_of_the_steps_of_two_processes_depends_only_on_the_seed() -> None:
    async def program(simulation: Simulation) -> str:
        seen: list[str] = []

        async def steps(name: str) -> None:
            for _ in range(4):
                seen.append(name)
                await asyncio.sleep(0)

        for name in "ab":
            simulation.start(name, steps, name)
        await asyncio.sleep(1)
        return "".join(seen)

    orders = [run(program, seed) for seed in range(20)]
    assert orders == [run(program, seed) for seed in range(20)]
    assert len(set(orders)) > 5
    assert all(sorted(str(order)) == list("aaaabbbb") for order in orders)


@simulate(seeds=3)
async def test_waiting_takes_only_virtual_time(simulation: Simulation) -> None:
    begin = time.perf_counter()
    await asyncio.sleep(3000)
    assert simulation.now == 3000
    assert time.perf_counter() - begin < 10


@simulate(seeds=3)
async def test_timers_of_the_same_time_run_in_the_order_in_which_they_were_set(
    simulation: Simulation,
) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    for number in range(10):
        loop.call_at(5.0, seen.append, number)
    loop.call_at(4.0, seen.append, -1)
    cancelled = loop.call_at(4.5, seen.append, -2)
    cancelled.cancel()
    await asyncio.sleep(6)
    assert seen == [-1, *range(10)]


def test_wait_that_can_never_end_raises_an_error() -> None:
    async def program(simulation: Simulation) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingWillHappenError, match="every process waits"):
        run(program)


def test_error_about_an_endless_wait_names_the_hung_process() -> None:
    async def program(simulation: Simulation) -> None:
        done = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await asyncio.sleep(1)
            done.set_result(None)

        simulation.hang(simulation.start("worker", work))
        await done

    with pytest.raises(NothingWillHappenError, match="stopped: worker"):
        run(program)


def test_waiting_beyond_the_time_limit_raises_an_error() -> None:
    async def program(simulation: Simulation) -> None:
        for _ in count():
            await asyncio.sleep(1)

    with pytest.raises(NothingWillHappenError, match="until 100 s"):
        run(program, time_limit=100.0)


def test_endless_callbacks_without_passing_time_raise_a_livelock_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flinkray.testing.simulation.scheduler.STEPS_WITHOUT_TIME", 1000)

    async def program(simulation: Simulation) -> None:
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="1000 callbacks ran at 0 s"):
        run(program)


def test_exception_in_an_asyncio_task_that_nobody_awaits_ends_the_simulation() -> None:
    async def program(simulation: Simulation) -> None:
        async def fail() -> None:
            raise ValueError("unheard")

        simulation.start("failing", fail)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match=r"failing: .*unheard"):
        run(program)


def _sleep() -> None:
    time.sleep(0.001)


def _start_thread() -> None:
    threading.Thread(target=print).start()


def _make_socket() -> None:
    socket.socket().close()


def _start_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _submit_to_threads() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print)


@pytest.mark.parametrize(
    "forbidden", [_sleep, _start_thread, _make_socket, _start_process, _submit_to_threads]
)
def test_real_sleep_thread_socket_and_process_are_refused_with_their_line(
    forbidden: Callable[[], None],
) -> None:
    async def program(simulation: Simulation) -> None:
        forbidden()

    with pytest.raises(ForbiddenInSimulationError, match=rf"{__file__}:\d+ \({forbidden.__name__}"):
        run(program)
    forbidden()  # allowed again


def test_forbidden_call_ends_the_simulation_although_its_error_is_caught() -> None:
    async def program(simulation: Simulation) -> None:
        try:
            _sleep()
        except RuntimeError:
            await asyncio.sleep(1)

    with pytest.raises(ForbiddenInSimulationError, match=r"time\.sleep"):
        run(program)


@pytest.mark.parametrize("call", ["to_thread", "open_connection", "add_reader"])
def test_event_loop_refuses_real_threads_connections_and_readers(call: str) -> None:
    async def program(simulation: Simulation) -> None:
        if call == "to_thread":
            await asyncio.to_thread(print)
        elif call == "open_connection":
            await asyncio.open_connection("localhost", 1)
        else:
            asyncio.get_running_loop().add_reader(0, print)

    with pytest.raises(ForbiddenInSimulationError, match=r"process test: .*test_scheduling\.py"):
        run(program)


def test_thread_outside_the_simulation_cannot_call_into_a_process() -> None:
    errors: list[Exception] = []
    go, gone = threading.Event(), threading.Event()

    async def program(simulation: Simulation) -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            go.wait()
            try:
                loop.call_soon_threadsafe(print)
            except ForbiddenInSimulationError as error:
                errors.append(error)
            gone.set()

        calls.append(call)
        go.set()
        gone.wait()

    calls: list[Callable[[], None]] = []

    def other() -> None:
        go.wait()
        calls[0]()

    threading.Thread(target=other).start()
    with pytest.raises(ForbiddenInSimulationError, match="a thread calls into it"):
        run(program)
    assert len(errors) == 1


def test_ids_and_random_numbers_come_from_the_seed() -> None:
    async def program(simulation: Simulation) -> tuple[object, ...]:
        return JobID.generate(), JobID.generate(), random.random(), simulation.random.random()

    state = random.getstate()
    one, again, other = run(program, 1), run(program, 1), run(program, 2)
    assert one == again
    assert len({*one, *other}) == 8  # type: ignore[misc]
    assert random.getstate() == state
    assert JobID.generate() not in (*one, *other)  # type: ignore[misc]


@simulate(seeds=5)
async def test_blocking_work_takes_virtual_time_and_runs_in_no_other_thread(
    simulation: Simulation,
) -> None:
    service = simulation.service("client")
    assert await service.run_blocking(threading.get_ident) == threading.get_ident()
    assert simulation.now > 0
    with pytest.raises(ZeroDivisionError):
        await service.run_blocking(lambda: 1 / 0)
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(service.executor, sum, (1, 2)) == 3
    assert service.executor.submit(sum, (3, 4)).result() == 7


def test_broken_invariant_of_a_simulation_ends_the_run_at_the_same_step() -> None:
    seen: list[float] = []

    async def program(simulation: Simulation) -> None:
        def invariant() -> None:
            assert simulation.now < 5, "too late"

        simulation.always(invariant)
        while True:
            await asyncio.sleep(1)
            seen.append(simulation.now)

    with pytest.raises(AssertionError, match="too late"):
        run(program)
    assert seen == [1, 2, 3, 4]


def test_simulated_eventually_that_times_out_names_the_condition_and_the_last_value() -> None:
    async def program(simulation: Simulation) -> None:
        assert await simulation.eventually(lambda: simulation.now > 2, within=3, what="two")
        await simulation.eventually(lambda: 0, within=10, what="anything")

    with pytest.raises(AssertionError, match="not within 10 s: anything; last seen: 0"):
        run(program)
