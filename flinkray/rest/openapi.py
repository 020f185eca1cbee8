"""Describes the endpoint in OpenAPI 3, for clients that read such descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flinkray.core.version import VERSION
from flinkray.rest.metrics_json import AGGREGATIONS

_PLACE = re.compile(r"\{(\w+)\}")
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_PLACES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "job": ("Of the job.", _ID),
    "vertex": ("Of the vertex.", _ID),
    "trigger": ("Of the request that has begun the operation.", _ID),
    "checkpoint": ("Of the checkpoint.", _NUMBER),
    "subtask": ("Of the subtask, from 0.", _NUMBER),
    "executor": ("Name of the TaskExecutor.", _TEXT),
}


def _listed(one: str) -> dict[str, Any]:
    """Return the schema of a list of texts, separated by commas, each of which matches *one*."""
    return {"type": "string", "pattern": f"^(({one})(,({one}))*)?$"}


_QUERIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mode": ("What is to become of the job.", {"type": "string", "enum": ["cancel", "stop"]}),
    "maxExceptions": ("The most that are listed.", _NUMBER),
    "failureLabelFilter": ("Labels, of which no exception has any.", _TEXT),
    "get": ("Names of metrics, between commas; without it, all names are listed.", _TEXT),
    "agg": ("How values of several are made one.", _listed("|".join(sorted(AGGREGATIONS)))),
    "subtasks": ("Numbers and ranges.", _listed(r"\d{1,9}(-\d{1,9})?")),
    "jobs": ("Ids of jobs.", _listed("[0-9a-f]{32}")),
}


def _object(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object with these fields, each of which may be missing or null."""
    null = {"type": "null"}
    return {
        "type": "object",
        "properties": {name: {"anyOf": [schema, null]} for name, schema in fields.items()},
    }


_LOCATION = {
    "type": "string",
    "description": "An absolute path or a URI.",
    "pattern": "^(/|[A-Za-z][A-Za-z0-9+.-]*:)",
}
_FORMAT = {"type": "string", "enum": ["CANONICAL"]}
_BOUND = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_BODIES: Mapping[str, dict[str, Any]] = {
    "checkpoint": _object(
        {"checkpointType": {"type": "string", "enum": ["CONFIGURED"]}, "triggerId": _ID}
    ),
    "savepoint": _object(
        {
            "target-directory": _LOCATION,
            "cancel-job": {"type": "boolean", "enum": [False]},
            "formatType": _FORMAT,
            "triggerId": _ID,
        }
    ),
    "stop": _object(
        {"targetDirectory": _LOCATION, "drain": _FLAG, "formatType": _FORMAT, "triggerId": _ID}
    ),
    "disposal": {
        "type": "object",
        "properties": {"savepoint-path": _LOCATION},
        "required": ["savepoint-path"],
    },
    "heartbeat": _object(
        {"expiredTimestamp": {"type": "integer", "minimum": 1 - 2**63, "maximum": 2**63 - 1}}
    ),
    "requirements": {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[0-9a-f]{32}$"},
        "additionalProperties": {
            "type": "object",
            "properties": {
                "parallelism": {
                    "type": "object",
                    "properties": {"lowerBound": _BOUND, "upperBound": _BOUND},
                    "required": ["upperBound"],
                }
            },
            "required": ["parallelism"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class _Operation:
    summary: str
    query: tuple[str, ...] = ()
    body: str | None = None
    """The name of the request body in ``_BODIES``; None: the request has none."""
    status: int = 200
    answer: str = "object"


_JOB = "/jobs/{job}"
_VERTEX = f"{_JOB}/vertices/{{vertex}}"
_OPERATIONS: Mapping[tuple[str, str], _Operation] = {
    ("GET", "/openapi.json"): _Operation("This description."),
    ("GET", "/config"): _Operation("Version, time zone and what a dashboard may do."),
    ("GET", "/overview"): _Operation("Numbers of TaskExecutors, slots and jobs."),
    ("DELETE", "/cluster"): _Operation("End the cluster."),
    ("GET", "/jobs"): _Operation("Ids and states of all jobs."),
    ("POST", "/jobs"): _Operation("Refused: no job graph of Flink's can run here.", status=400),
    ("GET", "/jobs/overview"): _Operation("All jobs, with the states of their tasks."),
    ("GET", "/jobs/metrics"): _Operation(
        "Metrics of several jobs.", ("get", "agg", "jobs"), answer="array"
    ),
    ("GET", _JOB): _Operation("A job: times, vertices, plan."),
    ("PATCH", _JOB): _Operation("Cancel the job.", ("mode",), status=202),
    ("GET", f"{_JOB}/yarn-cancel"): _Operation("Cancel the job.", ("mode",), status=202),
    ("GET", f"{_JOB}/status"): _Operation("Its state now."),
    ("GET", f"{_JOB}/execution-result"): _Operation("How it has ended, if it has."),
    ("GET", f"{_JOB}/plan"): _Operation("Its graph."),
    ("GET", f"{_JOB}/config"): _Operation("How it is run."),
    ("GET", f"{_JOB}/exceptions"): _Operation(
        "Its failures.", ("maxExceptions", "failureLabelFilter")
    ),
    ("GET", f"{_JOB}/accumulators"): _Operation("It has none."),
    ("GET", f"{_JOB}/metrics"): _Operation("Metrics of the job.", ("get",), answer="array"),
    ("GET", f"{_JOB}/progress"): _Operation("Restarts, why it waits, warnings, Spark stages."),
    ("GET", f"{_JOB}/resource-requirements"): _Operation("How many subtasks vertices may have."),
    ("PUT", f"{_JOB}/resource-requirements"): _Operation(
        "Change that of an elastic job.", body="requirements"
    ),
    ("PATCH", f"{_JOB}/clientHeartbeat"): _Operation(
        "The client is alive with which the job ends.", body="heartbeat", status=202
    ),
    ("GET", f"{_JOB}/checkpoints"): _Operation("Its checkpoints."),
    ("GET", f"{_JOB}/checkpoints/config"): _Operation("How they are taken."),
    ("GET", f"{_JOB}/checkpoints/details/{{checkpoint}}"): _Operation("One of them."),
    ("POST", f"{_JOB}/checkpoints"): _Operation(
        "Take a checkpoint.", body="checkpoint", status=202
    ),
    ("GET", f"{_JOB}/checkpoints/{{trigger}}"): _Operation("What has become of that."),
    ("POST", f"{_JOB}/savepoints"): _Operation("Take a savepoint.", body="savepoint", status=202),
    ("GET", f"{_JOB}/savepoints/{{trigger}}"): _Operation("What has become of that."),
    ("POST", f"{_JOB}/stop"): _Operation("Stop it with a savepoint.", body="stop", status=202),
    ("GET", _VERTEX): _Operation("A vertex, and its subtasks."),
    ("GET", f"{_VERTEX}/subtasktimes"): _Operation("Times of its subtasks."),
    ("GET", f"{_VERTEX}/taskmanagers"): _Operation("Where they run."),
    ("GET", f"{_VERTEX}/attempts"): _Operation("Their attempts."),
    ("GET", f"{_VERTEX}/subtasks/{{subtask}}"): _Operation("A subtask."),
    ("GET", f"{_VERTEX}/metrics"): _Operation("Metrics of a vertex.", ("get",), answer="array"),
    ("GET", f"{_VERTEX}/watermarks"): _Operation("Watermarks of its subtasks.", answer="array"),
    ("GET", f"{_VERTEX}/backpressure"): _Operation("Back-pressure of its subtasks."),
    ("GET", f"{_VERTEX}/subtasks/metrics"): _Operation(
        "Metrics of its subtasks, together.", ("get", "agg", "subtasks"), answer="array"
    ),
    ("GET", f"{_VERTEX}/subtasks/{{subtask}}/metrics"): _Operation(
        "Metrics of a subtask.", ("get",), answer="array"
    ),
    ("POST", "/savepoint-disposal"): _Operation("Delete a savepoint.", body="disposal"),
    ("GET", "/savepoint-disposal/{trigger}"): _Operation("What has become of that."),
    ("GET", "/jobmanager/metrics"): _Operation("Metrics of the cluster.", ("get",), answer="array"),
    ("GET", "/taskmanagers"): _Operation("All TaskExecutors."),
    ("GET", "/taskmanagers/metrics"): _Operation("None.", ("get", "agg"), answer="array"),
    ("GET", "/taskmanagers/{executor}"): _Operation("A TaskExecutor, and its slots."),
    ("GET", "/taskmanagers/{executor}/metrics"): _Operation("None.", ("get",), answer="array"),
    ("GET", "/taskmanagers/{executor}/tasks"): _Operation("What runs in its slots."),
}

_REFUSALS: Mapping[int, str] = {
    308: "Another request does that.",
    400: "The request is not acceptable.",
    401: "The request carries no token, or another one.",
    403: "A page of another site asks, or savepoints may not be written or deleted there.",
    404: "There is none of that.",
    408: "The request comes too slowly, or the cluster answers too slowly.",
    409: "The job's state does not allow that.",
    413: "The request is too large.",
    429: "Too many requests are being worked on.",
    503: "No Dispatcher leads at the moment.",
}
_ERROR = {
    "description": "Why not.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"errors": {"type": "array", "items": _TEXT, "minItems": 1}},
                "required": ["errors"],
            }
        }
    },
}


def description(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the OpenAPI description of the endpoint. *routes*: methods and paths, all of which
    must have an entry in ``_OPERATIONS``."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _described(path, _OPERATIONS[method, path])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flinkray: a cluster over HTTP",
            "description": "In the shape of Flink's REST API, version 1.",
            "version": VERSION,
        },
        "servers": [{"url": "/"}, {"url": "/v1"}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {**_ERROR, "description": text} for status, text in _REFUSALS.items()
            },
        },
        "security": [{"token": []}],
    }


def _described(path: str, operation: _Operation) -> dict[str, Any]:
    parameters = [
        _parameter("path", name, *_PLACES[name], is_required=True) for name in _PLACE.findall(path)
    ]
    parameters += [_parameter("query", name, *_QUERIES[name]) for name in operation.query]
    responses: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS
    }
    if operation.status not in _REFUSALS:
        schema = {"type": operation.answer}
        content = {"application/json": {"schema": schema}}
        responses[str(operation.status)] = {"description": "Done.", "content": content}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if operation.body is not None:
        body = _BODIES[operation.body]
        described["requestBody"] = {
            "content": {"application/json": {"schema": body}},
            "required": "required" in body or "minProperties" in body,
        }
    return described


def _parameter(
    place: str, name: str, text: str, schema: Mapping[str, Any], *, is_required: bool = False
) -> dict[str, Any]:
    return {
        "in": place,
        "name": name,
        "description": text,
        "required": is_required,
        "schema": schema,
    }
