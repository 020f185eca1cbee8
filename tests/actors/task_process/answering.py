"""A task's answers to checkpoints, with threads and event loop that do nothing by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flinkray.actors.task_process.task_checkpoints import TaskCheckpointResponder
from flinkray.actors.task_process.task_snapshots import own_keyed_state, read_states
from flinkray.checkpoint.handles import TaskState
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
)
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAnswer,
    DeclineCheckpoint,
)
from flinkray.state.descriptors import (
    ListStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.streaming.operators.operator import OperatorContext, Output, StreamOperator
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing.manual_clock import ManualClock

JOB = JobID(bytes(15) + b"j")
ATTEMPT = ExecutionAttemptID(
    ExecutionGraphID(bytes(16)), ExecutionVertexID(JobVertexID(bytes(16)), 0), 0
)
OPERATOR = "op"
VALUES: ValueStateDescriptor[Any] = ValueStateDescriptor("values")
LISTS: ListStateDescriptor[Any] = ListStateDescriptor("lists")
SEEN: ListStateDescriptor[Any] = ListStateDescriptor("seen")


class Stateful:
    """One operator with state of all kinds, and what it holds."""

    def __init__(self, parallelism: int = 1, subtask: int = 0) -> None:
        service = ProcessingTimeService(ManualClock())
        self.operator = StreamOperator()
        context = OperatorContext(
            "stateful",
            service,
            service.clock,
            subtask_index=subtask,
            parallelism=parallelism,
            keyed=True,
        )
        self.operator.setup(context, Output())

    def table(self, descriptor: StateDescriptor) -> Any:
        assert self.operator.keyed_state is not None
        return self.operator.keyed_state.table(descriptor)

    def put(self, key: Any, value: Any) -> None:
        self.table(VALUES).put(key, value)

    def append(self, key: Any, value: Any) -> None:
        self.table(LISTS).append(key, value)

    def remove(self, key: Any) -> None:
        self.table(VALUES).remove(key)
        self.table(LISTS).remove(key)

    def timer(self, time: int, key: Any) -> None:
        assert self.operator.keyed_state is not None
        self.operator.keyed_state.timer_queue("timers").add(time, key, None)

    def see(self, value: Any) -> None:
        self.operator.operator_state.list_state(SEEN).add(value)

    def everything(self) -> dict[str, Any]:
        assert self.operator.keyed_state is not None
        values, lists = self.table(VALUES), self.table(LISTS)
        timers = self.operator.keyed_state.timer_queue("timers")
        return {
            "values": {key: values.get(key) for key in values.places()},
            "lists": {key: list(lists.get(key)) for key in lists.places()},
            "timers": set(timers.items()),
            "seen": list(self.operator.operator_state.list_state(SEEN).get()),
        }

    def restore(self, state: TaskState | None) -> None:
        """As a task does that is not this subtask's next attempt."""
        states = read_states(state or TaskState({}), [(OPERATOR, self.operator)], lambda: None)
        self.operator.restore(states.get(OPERATOR, []))


def restored(state: TaskState | None) -> dict[str, Any]:
    """What is in a checkpoint."""
    stateful = Stateful()
    stateful.restore(state)
    return stateful.everything()


class Answering:
    """A responder around an operator."""

    def __init__(
        self, directory: Path, inline_threshold: int = 0, *, had_finished: bool = False
    ) -> None:
        self.directory = directory / JOB.hex()
        self.work: list[Callable[[], None]] = []
        """Of threads that write."""
        self.mail: list[Callable[[], None]] = []
        """Of the event loop."""
        self.reports: list[CheckpointAnswer] = []
        self.taken: list[int] = []
        self.responder = TaskCheckpointResponder(
            JOB,
            ATTEMPT,
            inline_threshold,
            self.work.append,
            self.mail.append,
            self.reports.append,
            self.taken.append,
            had_finished=had_finished,
        )
        if had_finished:
            return
        self.responder.begin(OPERATOR, [(0, 0), (0, 1), (1, 0)])
        self.stateful = Stateful()

    def barrier(self, checkpoint_id: int, latest_completed: int = 0, **kind: Any) -> Barrier:
        name = "savepoint-" if kind.get("savepoint") else "chk-"
        directory = self.directory / f"{name}{checkpoint_id}"
        return Barrier(
            checkpoint_id,
            0,
            directory=str(directory),
            latest_completed=latest_completed,
            **kind,
        )

    def capture(self, checkpoint_id: int, latest_completed: int = 0, **kind: Any) -> None:
        """As the task's thread does, when the barrier comes."""
        barrier = self.barrier(checkpoint_id, latest_completed, **kind)
        since = self.responder.base_of(OPERATOR, barrier)
        self.responder.captured(
            barrier, {OPERATOR: self.stateful.operator.capture(checkpoint_id, since)}
        )

    def write_one(self, which: int = 0) -> None:
        """A thread does one thing that it is to do."""
        self.work.pop(which)()

    def run(self) -> list[CheckpointAnswer]:
        """Until nothing is left to do; what was reported since the last time."""
        while self.work:
            self.write_one()
        self.run_mail()
        reports = list(self.reports)
        self.reports.clear()
        return reports

    def run_mail(self) -> None:
        while self.mail:
            self.mail.pop(0)()

    def acknowledged(self, checkpoint_id: int, latest_completed: int = 0, **kind: Any) -> TaskState:
        """Take a checkpoint to its end."""
        self.capture(checkpoint_id, latest_completed, **kind)
        (answer,) = self.run()
        assert isinstance(answer, AcknowledgeCheckpoint), answer
        assert answer.checkpoint_id == checkpoint_id
        assert answer.state is not None
        return answer.state

    def declined(self, checkpoint_id: int) -> DeclineCheckpoint:
        """The only report."""
        (answer,) = self.run()
        assert isinstance(answer, DeclineCheckpoint), answer
        assert answer.checkpoint_id == checkpoint_id
        return answer

    def restart(self, checkpoint_id: int, state: TaskState | None) -> None:
        """Another attempt, from a checkpoint."""
        answering = Answering(self.directory.parent, self.responder._inline_threshold)
        operators = [(OPERATOR, answering.stateful.operator)]
        if state is not None:
            states = read_states(state, operators, lambda: None)
            own = own_keyed_state(state, operators)
            answering.responder.restored(checkpoint_id, own)
            answering.stateful.operator.restore(
                states[OPERATOR], checkpoint_id if OPERATOR in own else None
            )
        self.__dict__.update(answering.__dict__)

    def files(self) -> list[str]:
        """All that there are, as they lie below the job's directory."""
        if not self.directory.exists():
            return []
        there = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.directory).parts[0] for path in there)


def parts_of(state: TaskState) -> list[Any]:
    """Of the operator's keyed state."""
    (handle,) = state.operators[OPERATOR].keyed_state
    return list(handle.parts)
