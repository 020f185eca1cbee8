"""``flinkray query``: how keys are read, and what it shows of states."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flinkray.client import cli_query
from flinkray.client.cli import execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.state.immutable_states import immutable_state
from tests.client.scripted_cluster import job_graph

CONTENTS = {(1, "a"): math.nan, True: b"x", None: {2}, "text": (1, 2.5), 3: -math.inf}


class States:
    """In place of a QueryableStateClient: of every key the same."""

    asked: tuple[Any, ...]

    def __init__(self, client: ClusterClient) -> None:
        pass

    def get_kv_states(self, job_id: object, name: str, keys: tuple[Any, ...]) -> list[Any]:
        States.asked = keys
        return [immutable_state("map", CONTENTS, None) for _ in keys]


def test_query_with_json_writes_values_that_json_cannot_express_as_python_text(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of a map that are not text, and NaN, are written as Python writes them. NaN, Infinity
    and values that begin with a minus are accepted as keys."""
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    monkeypatch.setattr(cli_query, "QueryableStateClient", States)
    job = client.submit(job_graph())

    line = ["query", str(job.job_id), "map", "--json", "--", "NaN", "Infinity", "-5", "[1, 2]"]
    assert execute(line, connect=lambda *_: client) == 0

    assert States.asked == ("NaN", "Infinity", -5, (1, 2))
    first, _, third, fourth = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert first["value"] == {
        "(1, 'a')": "nan",
        "true": "b'x'",
        "null": "{2}",
        "text": [1, 2.5],
        "3": "-inf",
    }
    assert (first["key"], third["key"], fourth["key"]) == ("NaN", -5, [1, 2])
