"""Waiting for what another process does: what is told when it does not."""

from __future__ import annotations

import traceback

import pytest

from flinkray.core.errors import RpcConnectionError
from flinkray.testing import eventually


async def test_failed_eventually_shows_the_last_error_and_has_it_as_its_cause() -> None:
    async def refused() -> bool:
        raise RpcConnectionError("nobody listens")

    with pytest.raises(AssertionError) as caught:
        await eventually(refused, 0.0, "an answer")
    error = caught.value
    assert str(error) == ("waited 0 s for an answer; last seen: RpcConnectionError: nobody listens")
    assert isinstance(error.__cause__, RpcConnectionError)
    assert "refused" in "".join(traceback.format_exception(error.__cause__))


async def test_failed_eventually_without_an_error_shows_the_last_value_and_has_no_cause() -> None:
    with pytest.raises(AssertionError, match=r"waited 0 s for rows; last seen: \[\]") as caught:
        await eventually(list, 0.0, "rows")
    assert caught.value.__cause__ is None


def test_traceback_of_a_failed_eventually_has_no_frames_of_the_polling(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from flinkray.testing import eventually

        def test_it():
            asyncio.run(eventually(lambda: 0, 0.0, "one"))
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-W", "ignore")
    shown = result.stdout.str()
    assert "waited 0 s for one; last seen: 0" in shown
    assert "def ask_again" not in shown
