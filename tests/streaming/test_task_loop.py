"""How the time of a task is told."""

from __future__ import annotations

from flinkray.streaming.channels import InputGate
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.basic import MapOperator
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_loop import TaskLoop
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing.manual_clock import ManualClock


def new_loop(signal: Signal) -> TaskLoop:
    clock = ManualClock()
    service = ProcessingTimeService(clock)
    task = StreamTask("t", [("map", MapOperator(str))], InputGate(()), [], [], [], service)
    return TaskLoop(task, signal, clock, lambda: None, None)


def test_a_wait_for_results_to_be_read_is_none_for_which_the_task_works() -> None:
    signal = Signal()
    signal.set()
    answers = iter([False, True])
    loop = new_loop(signal)
    assert loop.waited() == 0.0
    loop.wait_until(lambda: next(answers))
    assert 0.0 < loop.waited() < loop.elapsed()


def test_the_time_of_a_task_that_has_ended_does_not_go_on() -> None:
    loop = new_loop(Signal())
    loop.end()
    elapsed = loop.elapsed()
    assert elapsed > 0.0
    assert loop.elapsed() == elapsed
