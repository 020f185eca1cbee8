"""Calls of user code in processes whose own loop must go on, whatever the code does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flinkray.rpc import RpcService
from flinkray.rpc.wire import codec

T = TypeVar("T")


def as_it_travels(error: BaseException) -> Exception:
    """What others would see of it: nothing of the user's is in it, and it can be sent."""
    seen = codec.decode(codec.encode_error(error))
    assert isinstance(seen, Exception)
    return seen


async def call_user_code(
    rpc_service: RpcService,
    function: Callable[[], T],
    failure: Callable[[BaseException], Exception] = as_it_travels,
) -> T:
    """Call it in a thread.

    Raises:
        Exception: what *failure* has made of what it raised, in that thread: be it something that
            would end an event loop, or that does more than it should when it is asked for its text.
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
