"""Checks the requests of clients before they are handled (RE-03, RE-08)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from aiohttp import web

from flinkray.core.ids import AbstractID, JobID, JobVertexID, TriggerID
from flinkray.rest.errors import RestError, bad_request
from flinkray.rpc.time_limit import within

T = TypeVar("T")
Id = TypeVar("Id", bound=AbstractID)

_LARGEST = (1 << 31) - 1
LARGEST_LONG = (1 << 63) - 1
_BODY_TIMEOUT = 10.0
"""Seconds that a client has to send the body."""


def job_id(request: web.Request) -> JobID:
    """Return the job id in the path. Raises RestError: the path has no valid id."""
    return job_id_of(request.match_info["job"])


def job_id_of(text: str) -> JobID:
    """Return a job id. Raises RestError: *text* is not a job id."""
    return _id(JobID, "job id", text)


def vertex_id(request: web.Request) -> JobVertexID:
    """Return the vertex id in the path. Raises RestError: the path has no valid id."""
    return vertex_id_of(request.match_info["vertex"])


def vertex_id_of(text: str) -> JobVertexID:
    """Return a vertex id. Raises RestError: *text* is not a vertex id."""
    return _id(JobVertexID, "vertex id", text)


def trigger_id(request: web.Request) -> TriggerID:
    """Return the trigger id in the path. Raises RestError: the path has no valid id."""
    return _id(TriggerID, "trigger id", request.match_info["trigger"])


def _id(kind: type[Id], what: str, text: str) -> Id:
    try:
        return kind.from_hex(text)
    except ValueError:
        digits = 2 * AbstractID.SIZE
        raise bad_request(f"{text!r} is no {what}: it has {digits} hexadecimal digits") from None


def number(request: web.Request, place: str) -> int:
    """Return the number in the path of a request, at the route's placeholder ``{place}``. Raises
    RestError: it is not a number, or negative."""
    return number_of(place, request.match_info[place])


def number_asked(request: web.Request, name: str, default: int) -> int:
    """Return the number in the query parameter *name*, or *default* if it is missing. Raises
    RestError: it is not a number, or negative."""
    text = request.query.get(name)
    return default if text is None else number_of(name, text)


def number_of(name: str, text: str) -> int:
    """Return the number in *text*; *name* is for the error. Raises RestError: it is not a number,
    or negative."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request(f"{name} is to be a number, not {text!r}")
    return int(text)


class Body:
    """The JSON object in a request's body, with typed access to its fields."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    async def of(cls, request: web.Request) -> Body:
        """Return the body of a request, without fields if the client has sent none. Raises
        RestError: the body is not a JSON object, or comes too slowly."""
        if request.content_type.startswith("multipart/"):
            raise bad_request("no files can be uploaded here")
        try:
            sent = await within(_BODY_TIMEOUT, request.read())
        except asyncio.TimeoutError:
            raise RestError(408, f"the request did not come within {_BODY_TIMEOUT:g} s") from None
        if not sent.strip():
            return cls({})
        try:
            fields = json.loads(sent)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the request's body is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise bad_request("the request's body is to be a JSON object")
        return cls(fields)

    def text(self, *names: str) -> str | None:
        """Return the first of the fields *names* that is present. None: none is. Raises RestError:
        the field is no text, or has half of a surrogate pair."""
        name = next((name for name in names if name in self), None)
        if name is None:
            return None
        text = self._of_type(str, "a text", name)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise bad_request(f"{name} is to be a text, and {text!r} has half of a surrogate pair")
        return text

    def flag(self, name: str) -> bool:
        """Return a boolean field; False if it is missing. Raises RestError: it is no boolean."""
        return name in self and self._of_type(bool, "true or false", name)

    def number(self, name: str, largest: int = _LARGEST) -> int | None:
        """Return a whole number. None: the field is missing. Raises RestError: the field is no
        whole number between -*largest* and *largest*."""
        if name not in self:
            return None
        value = self._fields[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # in JSON, 1.0 is an integer
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not -largest <= value <= largest
        ):
            raise bad_request(f"{name} is to be a whole number, not {value!r}")
        return value

    def part(self, name: str) -> Body:
        """Return a field that is an object. Raises RestError: it is no object, or missing."""
        if name not in self:
            raise bad_request(f"{name} is missing")
        return Body(self._of_type(dict, "an object", name))

    def parts(self) -> dict[str, Body]:
        """Return all fields, each of which must be an object. Raises RestError: a field is no
        object."""
        return {name: self.part(name) for name in self._fields}

    def trigger_id(self) -> TriggerID:
        """Return the id that the client has chosen for its operation, or a new one. Raises
        RestError: it is invalid."""
        text = self.text("triggerId")
        return TriggerID.generate() if text is None else _id(TriggerID, "trigger id", text)

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _of_type(self, kind: type[T], what: str, name: str) -> T:
        value = self._fields[name]
        if not isinstance(value, kind):
            raise bad_request(f"{name} is to be {what}, not {value!r}")
        return value
