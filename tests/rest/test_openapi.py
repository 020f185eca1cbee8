"""The endpoint's description of itself."""

from __future__ import annotations

import re

from flinkray.rest import openapi
from tests.rest.http import Asker


def test_openapi_description_has_exactly_the_operations_that_are_served(ask: Asker) -> None:
    paths = ask.get("/openapi.json")["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert served == set(openapi._OPERATIONS)
    for method, path in served:
        answer = ask(method, re.sub(r"\{\w+\}", "none", path)) if method == "GET" else None
        assert answer is None or answer.status in (200, 400, 404), (path, answer)


def test_openapi_description_lists_every_path_parameter_in_order(ask: Asker) -> None:
    for path, methods in ask.get("/v1/openapi.json")["paths"].items():
        for operation in methods.values():
            places = [it["name"] for it in operation["parameters"] if it["in"] == "path"]
            assert places == re.findall(r"\{(\w+)\}", path)
            assert operation["summary"]


def test_error_response_has_the_schema_in_the_openapi_description(ask: Asker) -> None:
    description = ask.get("/openapi.json")
    operation = description["paths"]["/jobs/{job}"]["get"]
    answer = ask("GET", "/jobs/none")
    described = operation["responses"][str(answer.status)]["$ref"].rpartition("/")[2]
    response = description["components"]["responses"][described]
    schema = response["content"]["application/json"]["schema"]
    assert set(answer.body) == set(schema["required"])


def test_client_heartbeat_with_a_malformed_timestamp_is_answered_with_400(ask: Asker) -> None:
    path = f"/jobs/{'0' * 32}/clientHeartbeat"
    assert ask("PATCH", path, {"expiredTimestamp": "soon"}).status == 400
    assert ask("PATCH", path, {"expiredTimestamp": 1_800_000_000_000}).status == 202
