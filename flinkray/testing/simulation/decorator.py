"""Defines ``@simulate``, which makes one pytest item that runs a scenario with many seeds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from flinkray.testing.simulation.faults import Faults
from flinkray.testing.simulation.simulation import Simulation

Scenario = Callable[..., Coroutine[Any, Any, None]]


def simulate(
    *, seeds: int = 100, faults: Faults | None = None, **options: Any
) -> Callable[[Scenario], Callable[..., None]]:
    """Convert ``async def test(simulation: Simulation, …)`` to a pytest test that runs many seeds.

    The seeds 0 to *seeds* - 1 run in :class:`Simulation` objects with *faults* and *options*; other
    parameters are fixtures, shared by all seeds. A failure shows the seed, the end of its story and
    the command that replays it. ``pytest --seeds N`` runs N seeds, ``--first-seed S`` begins at S
    and ``--seed S`` runs only seed S.

    Raises TypeError: not ``async``, or without *simulation*; ValueError: *seeds* is below 1.
    """
    if seeds < 1:
        raise ValueError(f"at least one seed is needed, got {seeds}")

    import pytest  # users of the other modules of this package may not have pytest

    from flinkray.testing import pytest_plugin
    from flinkray.testing.simulation.seed_runner import run_seeds

    def decorate(scenario: Scenario) -> Callable[..., None]:
        def test(request: pytest.FixtureRequest, **fixtures: Any) -> None:
            __tracebackhide__ = True
            config = request.config
            try:
                run = run_seeds(
                    request.node,
                    pytest_plugin.seed_choice(config).seeds(seeds),
                    lambda seed: Simulation(seed, faults=faults, **options),
                    lambda simulation: scenario(simulation=simulation, **fixtures),
                    lambda line: pytest_plugin.show_progress(config, line),
                    keep_going=config.getoption("--keep-going", False),
                )
            except BaseException as error:
                pytest_plugin.write_report(config, error.seeds_run)  # type: ignore[attr-defined]
                raise
            pytest_plugin.write_report(config, run)

        if not inspect.iscoroutinefunction(scenario):
            raise TypeError(f"{scenario.__qualname__}: a scenario is an `async def`")
        functools.update_wrapper(test, scenario)
        del test.__wrapped__  # type: ignore[attr-defined]
        signature = inspect.signature(scenario)
        if "simulation" not in signature.parameters:
            raise TypeError(f"{scenario.__qualname__}: a scenario takes a parameter `simulation`")
        keep = [
            inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY),
            *(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for name, parameter in signature.parameters.items()
                if name not in ("simulation", "request")
            ),
        ]
        test.__signature__ = signature.replace(parameters=keep, return_annotation=None)  # type: ignore[attr-defined]
        marked: Callable[..., None] = pytest.mark.simulation(test)
        return marked

    return decorate
