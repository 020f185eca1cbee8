"""The code of a chain of operators, as it travels from the client to the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle  # not Ray's copy: records in channels use this one, and classes must be the same

from flinkray.core import cloud_pickle
from flinkray.spark.user_code import dump_function, rebuild, user_modules_by_value
from flinkray.streaming.errors import StreamError
from flinkray.streaming.program.chain_builder import unpicklable_operator
from flinkray.streaming.program.chain_plan import ChainPlan

BUFFER_TIMEOUTS = "buffer-timeouts"
"""In the configuration of a stream invokable: of each result, in milliseconds, between spaces."""

PRINTED_LINES = "printed-lines"
"""In the configuration of a stream invokable with print sinks: TO_LOG or TO_CLIENT."""
TO_LOG = "log"
TO_CLIENT = "client"

EPOCHS_OF = "epochs-of"
"""In the configuration of a stream invokable with committers of epochs: the Spark vertices that
take those, by their ids between spaces."""
BATCHES_OF = "batches-of"
"""Likewise, of one with a source of micro-batches: the Spark vertex that publishes those."""

_UNPICKLABLE = (TypeError, AttributeError, pickle.PicklingError, RecursionError)


class ChainCode:
    """A pickled plan: each subtask unpickles one of its own."""

    def __init__(self, plan: bytes) -> None:
        self._plan = plan

    def load(self) -> ChainPlan:
        """A new copy.

        Raises:
            UserCodeError: it cannot be rebuilt here.
        """
        plan = rebuild(self._plan)
        assert isinstance(plan, ChainPlan)
        return plan

    def __call__(self, run: Callable[[ChainPlan], None]) -> None:
        run(self.load())


def dump_chain(plan: ChainPlan) -> bytes:
    """What a vertex's invokable holds.

    Raises:
        StreamError: some operator cannot be sent; the text names it and what it refers to.
    """
    for operator in plan.operators:
        if _lives_with_client(operator.operator):
            raise StreamError(
                f"{operator.name!r} hands its records to an object in the client's process, which "
                "tasks on a cluster cannot reach: collect results with execute_and_collect(), or "
                "write them to a sink"
            )
    try:
        with user_modules_by_value(cloudpickle):
            payload: bytes = cloud_pickle.dumps(plan)
    except _UNPICKLABLE as error:
        raise _name_culprit(plan, error) from error
    return dump_function(ChainCode(payload))


def _lives_with_client(operator: Any) -> bool:
    return bool(getattr(operator, "shared", False)) and not hasattr(operator, "source")


def _name_culprit(plan: ChainPlan, error: BaseException) -> StreamError:
    with user_modules_by_value(cloudpickle):
        for operator in plan.operators:
            try:
                cloud_pickle.dumps((operator.operator, operator.convert))
            except _UNPICKLABLE as own:
                return unpicklable_operator(operator.name, own)
        for result in plan.results:
            try:
                cloud_pickle.dumps(result.partitioner)
            except _UNPICKLABLE as own:
                return unpicklable_operator(f"the partitioning behind {plan.name}", own)
    return unpicklable_operator(plan.name, error)
