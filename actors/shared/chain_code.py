"""The code of a chain of operators, as it travels from the client to the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cloudpickle  # not Ray's copy: records in channels use this one, and classes must be the same

from flinkray.core import cloud_pickle
from flinkray.spark.user_code import dump_function, rebuild, user_modules_by_value
from flinkray.state.program_classes import Classes, bring_classes
from flinkray.streaming.errors import StreamError
from flinkray.streaming.program.chain_builder import unpicklable_operator
from flinkray.streaming.program.chain_plan import ChainPlan

BUFFER_TIMEOUTS = "buffer-timeouts"
"""In the configuration of a stream invokable: of each result, in milliseconds or OF_CLUSTER,
between spaces."""
OF_CLUSTER = "-"
"""The program sets none: execution.buffer-timeout.interval of the cluster holds."""

PRINTED_LINES = "printed-lines"
"""In the configuration of a stream invokable with print sinks: TO_LOG or TO_CLIENT."""
TO_LOG = "log"
TO_CLIENT = "client"

HELD_BY = "held-by"
"""In the configuration of a stream invokable with a source: the Spark vertices that take epochs of
what is read there, by their ids between spaces.  While they are behind, it is not read."""
HELD_BY_LOOK_UPS = "held-by-look-ups"
"""Likewise, the ids of operators where records wait for a table."""


def buffer_timeouts(
    configuration: Mapping[str, str], of_cluster: float | None
) -> list[float | None]:
    """Of each result of a stream invokable, in seconds; None: batches wait until there are enough
    records.

    Args:
        configuration: the invokable's.
        of_cluster: where the program sets none.
    """
    return [
        of_cluster if text == OF_CLUSTER else None if text == "-1" else int(text) / 1000
        for text in configuration.get(BUFFER_TIMEOUTS, "").split()
    ]


class ChainCode:
    """A pickled plan: each subtask unpickles one of its own.

    Args:
        classes: pickled, of all chains of the job: state and records have them, too, where the
            functions of this chain do not.
    """

    _classes = b""
    """Of a job that was submitted by a version that sent none."""

    def __init__(self, plan: bytes, classes: bytes) -> None:
        self._plan = plan
        self._classes = classes

    def load(self) -> ChainPlan:
        """A new copy.

        Raises:
            UserCodeError: it cannot be rebuilt here.
        """
        plan = rebuild(self._plan)
        assert isinstance(plan, ChainPlan)
        return plan

    def __call__(self, run: Callable[[ChainPlan], None]) -> None:
        if self._classes:
            bring_classes(self._classes, rebuild)
        run(self.load())


def dump_chains(plans: Sequence[ChainPlan]) -> list[bytes]:
    """What the invokables of a job's vertices hold.

    Raises:
        StreamError: some operator cannot be sent; the text names it and what it refers to.
    """
    dumped = [_dump_plan(plan) for plan in plans]
    named = _named(kind for _, of_plan in dumped for kind in of_plan)
    with user_modules_by_value(cloudpickle):
        classes = cloud_pickle.dumps(named)
    return [dump_function(ChainCode(plan, classes)) for plan, _ in dumped]


def _named(classes: Iterable[type]) -> Classes:
    """Without those that are called as another one is: of a function that has run twice.  Those of
    functions, sources and sinks are no values, and may refer to large ones."""
    named: dict[str, type | None] = {}
    for kind in classes:
        if any(base.__module__.startswith("flinkray.") for base in kind.__mro__):
            continue
        name = f"{kind.__module__}:{kind.__qualname__}"
        named[name] = kind if named.get(name, kind) is kind else None
    return {name: kind for name, kind in named.items() if kind is not None}


def _dump_plan(plan: ChainPlan) -> tuple[bytes, list[type]]:
    for operator in plan.operators:
        if _lives_with_client(operator.operator):
            raise StreamError(
                f"{operator.name!r} hands its records to an object in the client's process, which "
                "tasks on a cluster cannot reach: collect results with execute_and_collect(), or "
                "write them to a sink"
            )
    try:
        with user_modules_by_value(cloudpickle):
            return cloud_pickle.dumps_with_classes(plan)
    except Exception as error:
        raise _name_culprit(plan, error) from error


def _lives_with_client(operator: Any) -> bool:
    return bool(getattr(operator, "shared", False)) and not hasattr(operator, "source")


def _name_culprit(plan: ChainPlan, error: Exception) -> StreamError:
    with user_modules_by_value(cloudpickle):
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
