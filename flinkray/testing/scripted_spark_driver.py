"""Defines a Spark driver that follows a script instead of running Spark.

For tests of the control plane on a local or simulated RPC service. The job's code is the script:
a JSON list of attempts, each a list of steps. The last attempt's steps also serve all later
attempts.

=====================  =========================================================================
``register``           all executors are registered
``lose <i>``           executor i is gone, the others are registered
``progress <n>``       n tasks are done
``read``               all rows are read that the stage reads (of their column ``row``, texts)
``row <text>``         the function has this row, too
``finish``             the user's function has returned its rows; they are written if other stages
                       read them
``fail <text>``        the user's function has raised
``pause <s>``          s seconds pass
``wait``               nothing more happens until the driver is stopped
=====================  =========================================================================

A stage that takes the epochs of a stream has no script: its function gets an Arrow table in place
of a DataFrame, and returns an Arrow table if a stream reads the stage.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.core.ids import JobMasterId
from flinkray.file_results import (
    Epoch,
    FileResultLostError,
    PublishedBatches,
    ResultDirectory,
    ResultWriter,
    read_batches,
    share_of,
)
from flinkray.rpc import RpcService
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
)
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark.epochs import EpochHandOver, EpochTaker, WritesItself, handed_over_before
from flinkray.spark.gateway import (
    SparkStageDescriptor,
)
from flinkray.spark.inputs import missing_of
from flinkray.spark.job_master_reports import LedDriver, job_master_of
from flinkray.spark.micro_batches import EpochsToBatches, gone_through_before
from flinkray.spark.result import input_failure, system_failure, user_failure
from flinkray.spark.stage_code import fetch_code
from flinkray.user_code import load_function

SCRIPTED_SPARK_DRIVER = "flinkray.testing.scripted_spark_driver:create_scripted_spark_driver"

ROWS = pa.schema([("row", pa.string())])
"""The columns of the rows that scripts read and write."""


def script(*attempts: Sequence[str]) -> bytes:
    """Return the code of a job of scripted drivers: a script with the steps of its first, second, …
    attempt."""
    return json.dumps(attempts).encode()


async def create_scripted_spark_driver(
    rpc_service: RpcService, descriptor: SparkStageDescriptor
) -> ScriptedSparkDriver:
    """Create a scripted driver. Tests configure this factory instead of the factory of the real
    driver."""
    code = await fetch_code(rpc_service, descriptor)
    await job_master_of(rpc_service, descriptor)
    return ScriptedSparkDriver(rpc_service, descriptor, code)


class ScriptedSparkDriver(LedDriver):
    """A Spark driver for tests: follows a script, or calls the stage's function with Arrow
    tables.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        descriptor: SparkStageDescriptor,
        code: bytes,
    ) -> None:
        super().__init__(rpc_service, descriptor)
        self._code = code
        self._descriptor = descriptor
        self._rpc_service = rpc_service
        self._rows: list[str] = []

    async def on_start(self) -> None:
        await self._leader.follow_first()
        self.create_task(self._follow())

    async def stop(self, job_master_id: JobMasterId) -> None:
        self._leader.refuse_others(job_master_id)
        self.close()

    async def _follow(self) -> None:
        try:
            if self._descriptor.epochs_location is None:
                await self._follow_script()
            else:
                await self._hand_epochs_over(self._descriptor.epochs_location)
        except (FileResultLostError, OSError) as error:
            self._tell(await self._rpc_service.run_blocking(self._failure, error))

    async def _hand_epochs_over(self, location: str) -> None:
        stopping = threading.Event()
        self._leader.tell_executors(self._executors())
        work = self._rpc_service.run_blocking(self._hand_over, location, stopping)
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([working])
        finally:
            stopping.set()
        error = working.exception()
        self._tell(working.result() if error is None else user_failure(error))

    def _hand_over(self, location: str, stopping: threading.Event) -> SparkResult:
        stage = self._descriptor
        execution, published = stage.stream_execution, stage.published_location
        taker: EpochTaker = WritesItself()
        if published is None:
            result = handed_over_before(location, execution)
        else:
            result = gone_through_before(location, published, execution)
            taker = _TablesToBatches(published, execution, stopping)
        if result is not None:
            return result
        hand_over = EpochHandOver(location, execution, taker)
        return hand_over.run(_table, load_function(self._code), stopping)

    def _read(self) -> list[str]:
        inputs = self._descriptor.inputs
        directories = [ResultDirectory(at) for one in inputs for at in one.directories]
        return [
            str(row)
            for batch in read_batches(share_of(directories, 0, 1))
            for row in batch.column("row").to_pylist()
        ]

    def _write(self) -> None:
        writer = ResultWriter(ResultDirectory(self._descriptor.result_location), ROWS)
        writer.write(pa.RecordBatch.from_pydict({"row": self._rows}, schema=ROWS))
        writer.finish()

    def _failure(self, error: Exception) -> CoordinatorFailure:
        missing = missing_of(self._descriptor.inputs)
        if missing:
            return input_failure(error, missing)
        return system_failure(type(error).__name__, str(error), error)

    async def _follow_script(self) -> None:
        attempts = json.loads(self._code)
        steps: list[str] = attempts[min(self._descriptor.attempt_number, len(attempts) - 1)]
        for step in steps:
            verb, _, argument = step.partition(" ")
            if verb == "register":
                self._leader.tell_executors(self._executors())
            elif verb == "lose":
                self._leader.tell_executors(self._executors(without=int(argument)))
            elif verb == "progress":
                self._tell(SparkProgress(completed_tasks=int(argument)))
            elif verb == "read":
                self._rows += await self._rpc_service.run_blocking(self._read)
            elif verb == "row":
                self._rows.append(argument)
            elif verb == "finish":
                if self._descriptor.is_result_read:
                    await self._rpc_service.run_blocking(self._write)
                rows = len(self._rows) if self._rows else None
                self._tell(SparkResult(location=None, num_rows=rows, schema_json=None))
            elif verb == "fail":
                text = argument
                self._tell(
                    CoordinatorFailure("ValueError", text, "Traceback …", is_user_error=True)
                )
            elif verb == "pause":
                await asyncio.sleep(float(argument))
            elif verb != "wait":
                raise ValueError(f"no such step in the script: {step!r}")

    def _tell(self, event: CoordinatorEvent) -> None:
        self._leader.tell(event)

    def _executors(self, without: int | None = None) -> tuple[SparkExecutorInfo, ...]:
        return tuple(
            SparkExecutorInfo(
                subtask_index=index,
                executor_id=str(index),
                actor_id=f"{index:032x}",
                node_id="node",
                pid=1000 + index,
                bundle_index=index,
            )
            for index in range(self._descriptor.parallelism)
            if index != without
        )


class _TablesToBatches(EpochsToBatches):
    """Publishes the results of a function that returns an Arrow table, instead of a DataFrame, for
    each epoch."""

    def take(self, returned: object, epoch: Epoch) -> None:
        assert isinstance(returned, pa.Table)
        batches = PublishedBatches(self.location)
        batches.begin(str(returned.schema))
        self.wait_for_room()
        written = batches.write(0, returned.schema, returned.to_batches())
        self.publish((written,) if written.rows else (), epoch)


def _table(*paths: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in paths)
