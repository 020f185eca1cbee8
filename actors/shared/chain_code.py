"""The code of an operator chain, in the form in which the client sends it to the tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from flinkray.core import cloud_pickle
from flinkray.state.program_classes import Classes, bring_classes
from flinkray.streaming.errors import StreamError
from flinkray.streaming.program.chain_builder import unpicklable_operator
from flinkray.streaming.program.chain_plan import ChainPlan
from flinkray.user_code import dump_function, rebuild, user_modules_by_value

BUFFER_TIMEOUTS = "buffer-timeouts"
"""Configuration key of a stream invokable: the buffer timeouts of its results.
Each is in milliseconds or OF_CLUSTER; they are separated by spaces.
"""
OF_CLUSTER = "-"
"""The program sets no buffer timeout: the cluster's execution.buffer-timeout.interval applies."""

PRINTED_LINES = "printed-lines"
"""Configuration key of a stream invokable with print sinks: TO_LOG or TO_CLIENT."""
TO_LOG = "log"
TO_CLIENT = "client"

HELD_BY = "held-by"
"""Configuration key of a source's invokable: ids of Spark vertices, separated by spaces.
These vertices take epochs of the source's records. The source is not read while these vertices are
behind.
"""
HELD_BY_LOOK_UPS = "held-by-look-ups"
"""Configuration key of a source's invokable: ids of operators, separated by spaces.
In these operators the source's records wait for a table. The source is not read while these
operators are behind.
"""


def buffer_timeouts(
    configuration: Mapping[str, str], of_cluster: float | None
) -> list[float | None]:
    """Return the buffer timeout of each result of a stream invokable, in seconds.
    None means that a batch waits until it holds enough records.

    Args:
        configuration: the configuration of the invokable.
        of_cluster: the timeout for results for which the program sets none.
    """
    return [
        of_cluster if text == OF_CLUSTER else None if text == "-1" else int(text) / 1000
        for text in configuration.get(BUFFER_TIMEOUTS, "").split()
    ]


class ChainCode:
    """A pickled chain plan. Each subtask unpickles its own copy.

    Args:
        plan: the pickled plan.
        classes: pickled classes of all chains of the job. State and records use these classes
            even in chains whose own functions do not refer to them.
    """

    _classes = b""
    """The pickled classes. Empty for a job of a flinkray version that did not send classes."""

    def __init__(self, plan: bytes, classes: bytes) -> None:
        self._plan = plan
        self._classes = classes

    def load(self) -> ChainPlan:
        """Return a new copy of the plan. Raises UserCodeError if it cannot be unpickled here."""
        plan = rebuild(self._plan)
        assert isinstance(plan, ChainPlan)
        return plan

    def __call__(self, run: Callable[[ChainPlan], None]) -> None:
        if self._classes:
            bring_classes(self._classes, rebuild)
        run(self.load())


def dump_chains(plans: Sequence[ChainPlan], job_here: str | None = None) -> list[bytes]:
    """Return the pickled code of each vertex's invokable, in the order of *plans*.

    Args:
        job_here: id of the job whose tasks will run in this process. Then user modules are not
            pickled, and operators marked ``shared`` are not pickled either: they stay stored in
            this process until :func:`forget_here`. None: the tasks run elsewhere.

    Raises:
        StreamError: an operator cannot be pickled, or belongs to the client's process although
            the tasks run elsewhere. The text names the operator and the object that it refers to.
    """
    if job_here is not None:
        plans = [_with_objects_here(plan, job_here) for plan in plans]
    by_value = user_modules_by_value if job_here is None else nullcontext
    try:
        dumped = [_dump_plan(plan, by_value) for plan in plans]
    except StreamError:
        forget_here(job_here or "")
        raise
    named = _named(kind for _, of_plan in dumped for kind in of_plan)
    with by_value():
        classes = cloud_pickle.dumps(named)
    return [dump_function(ChainCode(plan, classes)) for plan, _ in dumped]


_here: dict[str, dict[str, Any]] = {}
"""Job id -> operator id -> operator, for operators that refer to objects of this process."""


def forget_here(job_id: str) -> None:
    """Drop the operators of a job that :func:`dump_chains` has stored in this process.
    Call this at the job's end.
    """
    _here.pop(job_id, None)


def _with_objects_here(plan: ChainPlan, job_id: str) -> ChainPlan:
    operators = []
    for planned in plan.operators:
        if _lives_with_client(planned.operator):
            _here.setdefault(job_id, {})[planned.operator_id] = planned.operator
            stand_in: Any = _ObjectHere(job_id, planned.operator_id)
            planned = replace(planned, operator=stand_in)
        operators.append(planned)
    return replace(plan, operators=operators)


class _ObjectHere:
    """Takes the place of an operator in a pickled plan, so that the operator itself is not pickled.
    Unpickled in this process, it becomes a copy of the operator.
    """

    def __init__(self, job_id: str, operator_id: str) -> None:
        self._place = job_id, operator_id

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        return _object_here, self._place


def _object_here(job_id: str, operator_id: str) -> Any:
    return copy.copy(_here[job_id][operator_id])


def _named(classes: Iterable[type]) -> Classes:
    """Return the classes that values may have, by ``module:qualified name``.
    Left out are names of two different classes (for instance, a function that defines a class was
    called twice), and subclasses of flinkray's functions, sources and sinks: these are never
    values, and may refer to large objects.
    """
    named: dict[str, type | None] = {}
    for kind in classes:
        if any(base.__module__.startswith("flinkray.") for base in kind.__mro__):
            continue
        name = f"{kind.__module__}:{kind.__qualname__}"
        named[name] = kind if named.get(name, kind) is kind else None
    return {name: kind for name, kind in named.items() if kind is not None}


def _dump_plan(
    plan: ChainPlan, by_value: Callable[[], AbstractContextManager[None]]
) -> tuple[bytes, list[type]]:
    for operator in plan.operators:
        if _lives_with_client(operator.operator):
            raise StreamError(
                f"{operator.name!r} hands its records to an object in the client's process, which "
                "tasks on a cluster cannot reach: collect results with execute_and_collect(), or "
                "write them to a sink"
            )
    try:
        with by_value():
            return cloud_pickle.dumps_with_classes(plan)
    except Exception as error:
        raise _name_culprit(plan, error) from error


def _lives_with_client(operator: Any) -> bool:
    return bool(getattr(operator, "shared", False)) and not hasattr(operator, "source")


def _name_culprit(plan: ChainPlan, error: Exception) -> StreamError:
    with user_modules_by_value():
        for operator in plan.operators:
            try:
                cloud_pickle.dumps((operator.operator, operator.convert))
            except Exception as own:  # noqa: BLE001
                return unpicklable_operator(operator.name, own)
        for result in plan.results:
            try:
                cloud_pickle.dumps(result.partitioner)
            except Exception as own:  # noqa: BLE001
                return unpicklable_operator(f"the partitioning behind {plan.name}", own)
    return unpicklable_operator(plan.name, error)
