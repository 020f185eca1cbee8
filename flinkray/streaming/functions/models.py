"""Models of ``DataStream.infer``: the function that users implement, and what a replica does with
it.

A replica is a process that keeps a model loaded and answers requests. A request is a batch of
records as bytes in Arrow's format; so is the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from flinkray.core.errors import FlinkRayError
from flinkray.core.resources import ResourceProfile
from flinkray.user_code import dump_function, load_function

RESULT = "result"
"""Name of the column for the results of a model that returns an array."""


@dataclass(frozen=True)
class ModelContext:
    """What a replica tells its model in ``open``."""

    name: str
    """Name of the model."""
    replica: int = 0
    """Number of the replica, from 0. The number passes on when a replica is replaced."""
    devices: tuple[str, ...] = ()
    """Ids of the accelerators of the replica's slot. In CUDA's programs the first of them is
    ``cuda:0``."""


class ModelFunction(ABC):
    """A model that its replicas load once, and that gets batches of records.

    >>> class Length(ModelFunction):
    ...     def infer(self, batch):
    ...         return pa.compute.utf8_length(batch["text"])
    """

    def open(self, context: ModelContext) -> None:
        """Load the model. Called once in each replica, before the first batch."""
        return

    @abstractmethod
    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Array:
        """Return one row for each row of *batch*, in the same order.

        An exception concerns one of the records: the batch is divided until the record is found.
        """

    def close(self) -> None:
        """Called when the replica ends, unless its process dies."""
        return


class ModelError(FlinkRayError):
    """Raised when a model has failed for a batch of records. The text is that of the model's
    exception, followed by its traceback."""


class ModelUnavailableError(FlinkRayError):
    """Raised when no replica has answered a request: it took too long, or its process died."""

    retryable = True


class ModelFailedError(FlinkRayError):
    """Raised when the replicas of a model have failed for good. A new attempt starts others."""

    retryable = True
    is_counted = True


class ModelResultError(FlinkRayError):
    """Raised when a model returns something else than one row per record."""


@dataclass(frozen=True)
class ModelDescriptor:
    """A model with the number and the size of its replicas, as ``infer`` describes them."""

    name: str
    """Name for users: that of the ModelFunction's class, or that under which jobs share it."""
    code: bytes
    """Pickled function that returns the ModelFunction."""
    fewest: int
    most: int
    profile: ResourceProfile
    """Resources of the slot of each replica."""
    is_shared: bool = False

    @classmethod
    def of(
        cls,
        model: ModelFunction,
        fewest: int,
        most: int,
        profile: ResourceProfile,
        shared: str | None,
    ) -> ModelDescriptor:
        """Describe *model*. Raises UserCodeError: the model cannot be pickled."""
        code = dump_function(partial(_itself, model))
        name = type(model).__name__ if shared is None else shared
        return cls(name, code, fewest, most, profile, shared is not None)

    def load(self) -> ModelFunction:
        """Return a new copy of the model. Raises UserCodeError: a module is missing here."""
        model: ModelFunction = load_function(self.code)()
        return model

    def hosted(self) -> bytes:
        """Return the pickled function of a replica, which takes the function that runs a model."""
        return dump_function(partial(_host, self))


def _itself(model: ModelFunction) -> ModelFunction:
    return model


def _host(descriptor: ModelDescriptor, run: Callable[[ModelFunction], None]) -> None:
    run(descriptor.load())
