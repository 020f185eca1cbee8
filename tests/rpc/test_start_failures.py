"""What is told of processes that Ray cannot start."""

from __future__ import annotations

from flinkray.rpc.ray.actors import died_at_its_start

STACK = """The actor died because of an error raised in its creation task
  File "/venv/lib/python3.11/site-packages/ray/_private/function_manager.py", line 652, in load
    actor_class = pickle.loads(pickled_class)
ModuleNotFoundError: No module named 'flinkray'
"""


def test_that_flinkray_is_missing_where_ray_runs_is_said_and_not_shown_as_a_stack() -> None:
    told = died_at_its_start("Dispatcher", STACK)
    assert told.startswith("Dispatcher cannot be started: Ray's Python workers cannot import fl")
    assert "\n" not in told


def test_other_reasons_are_told_in_rays_words() -> None:
    why = STACK.replace("flinkray'", "flinkrays'")
    assert (
        died_at_its_start("Dispatcher", why) == f"the process Dispatcher died at its start: {why}"
    )
