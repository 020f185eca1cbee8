"""Calls user code without blocking or ending the process's event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flinkray.core.recurring_errors import outlook_of
from flinkray.rpc import RpcService
from flinkray.rpc.wire import codec
from flinkray.streaming.operator_errors import OperatorError, operator_error

T = TypeVar("T")


def as_it_travels(error: BaseException) -> Exception:
    """Return the error as another process would receive it: without objects of user code."""
    seen = codec.decode(codec.encode_error(error))
    assert isinstance(seen, Exception)
    return seen


def described(error: BaseException, name: str) -> OperatorError:
    """Return an OperatorError for *error*, which user code beside the tasks has raised. *name* says
    which code. Call this in the thread of the user code."""
    told = operator_error(error, name)
    # determined now: methods of its class may do anything when they are called later
    told.outlook = outlook_of(error)
    return told


async def call_user_code(
    rpc_service: RpcService,
    function: Callable[[], T],
    failure: Callable[[BaseException], Exception] = as_it_travels,
) -> T:
    """Call *function* in a thread and return its result.

    Raises:
        Exception: the result of *failure* for the error that *function* raised. *failure* runs in
            that thread, because the error may be one that would end an event loop, or its text
            may run user code.
    """

    def work() -> tuple[T | None, Exception | None]:
        try:
            return function(), None
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
            return None, failure(error)

    result, error = await rpc_service.run_blocking(work)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
