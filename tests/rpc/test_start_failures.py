"""What is told of processes that Ray cannot start."""

from __future__ import annotations

import pytest

from flinkray.core.errors import RemoteError
from flinkray.rpc.ray.actors import died_at_its_start
from flinkray.rpc.ray.process import failed_start
from flinkray.rpc.wire import codec

STACK = """The actor died because of an error raised in its creation task
  File "/venv/lib/python3.11/site-packages/ray/_private/function_manager.py", line 652, in load
    actor_class = pickle.loads(pickled_class)
ModuleNotFoundError: No module named 'flinkray'
"""


def test_missing_flinkray_on_a_ray_node_is_reported_in_one_line() -> None:
    told = died_at_its_start("Dispatcher", STACK)
    assert told.startswith("Dispatcher cannot be started: Ray's Python workers cannot import fl")
    assert "\n" not in told


def test_start_failure_of_a_process_is_reported_in_the_words_of_ray() -> None:
    why = STACK.replace("flinkray'", "flinkrays'")
    assert (
        died_at_its_start("Dispatcher", why) == f"the process Dispatcher died at its start: {why}"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such port"), ValueError("no such port")),
        (KeyError(2**70), RemoteError("KeyError", str(2**70))),
        (
            KeyError(("half a pair", "\ud800")),
            RemoteError("KeyError", r"('half a pair', '\ud800')"),
        ),
    ],
)
def test_any_exception_raised_at_the_start_of_a_process_is_reported_to_its_caller(
    error: Exception, told: Exception
) -> None:
    """An error that cannot be sent must not end the process before its caller reads it."""
    try:
        raise error
    except type(error) as raised:
        answer = codec.decode(failed_start(raised))
    is_started, outcome = answer
    assert (is_started, type(outcome), outcome.args) == (False, type(told), told.args)
    assert "test_any_exception_raised_at_the_start" in (codec.remote_traceback(outcome) or "")
