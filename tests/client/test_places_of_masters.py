"""Where the masters of a cluster go."""

from __future__ import annotations

import pytest

from flinkray.client.ray_runtime import places_of_masters


@pytest.mark.parametrize(
    ("alive", "number", "places"),
    [
        (["a", "head", "b"], 1, ["head"]),
        (["a", "head", "b"], 3, ["head", "a", "b"]),
        (["a", "head", "b"], 4, ["head", "a", "b", "a"]),
        (["head"], 2, ["head", "head"]),
    ],
)
def test_standbys_are_on_other_nodes_where_there_are_any(
    alive: list[str], number: int, places: list[str]
) -> None:
    assert places_of_masters("head", alive, number, False) == places


def test_nobody_knows_the_head() -> None:
    assert places_of_masters(None, [], 2, False) == [None, None]


def test_masters_avoid_the_head_where_there_is_another_node() -> None:
    assert places_of_masters("head", ["a", "b", "head"], 3, True) == ["a", "b", "a"]
    assert places_of_masters("head", ["head"], 2, True) == ["head", "head"]
