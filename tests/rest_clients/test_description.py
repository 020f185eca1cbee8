"""Whatever fits the endpoint's own description, and what does not, is answered as it says: requests
that schemathesis makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.rest.http import TOKEN, Asker
from tests.rest_clients.conftest import Clients

CONFIGURATION = """\
[checks]
# PATCH /jobs/overview is that of the job "overview", which is no id: 400
unsupported_method.enabled = false
allow_header_conformance.enabled = false

[[operations]]
include-name = "DELETE /cluster"
enabled = false

[[operations]]
include-name = "POST /jobs"  # there is nothing that is accepted
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "PUT /jobs/{job}/resource-requirements"  # a schema compares no two bounds
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /savepoint-disposal"  # nor does it know what file systems there are
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /jobs/{job}/savepoints"
checks.positive_data_acceptance.enabled = false

[parameters]
"""


def assert_holds(
    clients: Clients, ask: Asker, folder: Path, places: Mapping[str, str], *arguments: str
) -> None:
    """*places*: what is in paths, where that is not made up."""
    lines = [f'"path.{name}" = {value}' for name, value in places.items()]
    (folder / "schemathesis.toml").write_text(CONFIGURATION + "\n".join(lines) + "\n")
    program = str(clients.place / "bin" / "schemathesis")
    url = f"http://{ask.place}"
    token = ("--header", f"Authorization: Bearer {TOKEN}")
    options = ("--seed", "1", "--generation-database", "none", "--no-color")
    code, shown = clients.run(
        folder, program, "run", f"{url}/openapi.json", "--url", url, *token, *options, *arguments
    )
    assert code == 0, shown


def test_all_rest_paths_answer_for_a_running_job_as_openapi_json_describes(
    clients: Clients, ask: Asker, job: str, vertex: str, executor: str, tmp_path: Path
) -> None:
    places = {
        "job": f'"{job}"',
        "vertex": f'"{vertex}"',
        "executor": f'"{executor}"',
        "subtask": "0",
    }
    # What ends the job, and what writes where it is told, is in the other test, of no job.
    ending = ("/jobs/{job}/stop", "/jobs/{job}/yarn-cancel", "/jobs/{job}/savepoints")
    left_out = [text for path in ending for text in ("--exclude-path", path)]
    assert_holds(
        clients,
        ask,
        tmp_path,
        places,
        *left_out,
        *("--exclude-method", "PATCH", "--max-examples", "25"),
    )
    assert ask.get(f"/jobs/{job}/status") == {"status": "RUNNING"}


def test_all_rest_paths_answer_to_random_parameters_as_openapi_json_describes(
    clients: Clients, ask: Asker, tmp_path: Path
) -> None:
    assert_holds(clients, ask, tmp_path, {}, "--max-examples", "25")
