"""What clients send, looked at before anything is done with it (RE-03, RE-08)."""

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
"""Seconds that a client has for what it sends."""


def job_id(request: web.Request) -> JobID:
    """Raises RestError: the path has none."""
    return job_id_of(request.match_info["job"])


def job_id_of(text: str) -> JobID:
    """Raises RestError: it is none."""
    return _id(JobID, "job id", text)


def vertex_id(request: web.Request) -> JobVertexID:
    """Raises RestError: the path has none."""
    return vertex_id_of(request.match_info["vertex"])


def vertex_id_of(text: str) -> JobVertexID:
    """Raises RestError: it is none."""
    return _id(JobVertexID, "vertex id", text)


def trigger_id(request: web.Request) -> TriggerID:
    """Raises RestError: the path has none."""
    return _id(TriggerID, "trigger id", request.match_info["trigger"])


def _id(kind: type[Id], what: str, text: str) -> Id:
    try:
        return kind.from_hex(text)
    except ValueError:
        digits = 2 * AbstractID.SIZE
        raise bad_request(f"{text!r} is no {what}: it has {digits} hexadecimal digits") from None


def number(request: web.Request, place: str) -> int:
    """A number that the path has.  Raises RestError: it has none."""
    return number_of(place, request.match_info[place])


def number_asked(request: web.Request, name: str, default: int) -> int:
    """A number that the query may have.  Raises RestError: it is none, or negative."""
    text = request.query.get(name)
    return default if text is None else number_of(name, text)


def number_of(name: str, text: str) -> int:
    """Raises RestError: the text is none, or a negative one."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request(f"{name} is to be a number, not {text!r}")
    return int(text)


class Body:
    """The JSON object that a client has sent, of which each field has its type."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    async def of(cls, request: web.Request) -> Body:
        """An empty one if the client has sent nothing.

        Raises:
            RestError: it is no JSON object, or comes too slowly.
        """
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
        """The value of the first of these fields that is there.  Raises RestError: it is no text,
        or has half of a surrogate pair, which cannot be sent on."""
        name = next((name for name in names if name in self), None)
        if name is None:
            return None
        text = self._of_type(str, "a text", name)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise bad_request(f"{name} is to be a text, and {text!r} has half of a surrogate pair")
        return text

    def flag(self, name: str) -> bool:
        """False, if there is no such field.  Raises RestError: it is neither true nor false."""
        return name in self and self._of_type(bool, "true or false", name)

    def number(self, name: str, largest: int = _LARGEST) -> int | None:
        """None, if there is no such field.  Raises RestError: it is no number up to *largest*."""
        if name not in self:
            return None
        value = self._fields[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # to JSON, 1.0 is one
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not -largest <= value <= largest
        ):
            raise bad_request(f"{name} is to be a whole number, not {value!r}")
        return value

    def part(self, name: str) -> Body:
        """A field that is an object.  Raises RestError: it is none, or not there."""
        if name not in self:
            raise bad_request(f"{name} is missing")
        return Body(self._of_type(dict, "an object", name))

    def parts(self) -> dict[str, Body]:
        """All fields, which are objects.  Raises RestError: one is none."""
        return {name: self.part(name) for name in self._fields}

    def trigger_id(self) -> TriggerID:
        """The client's, or one of ours.  Raises RestError: it is none."""
        text = self.text("triggerId")
        return TriggerID.generate() if text is None else _id(TriggerID, "trigger id", text)

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _of_type(self, kind: type[T], what: str, name: str) -> T:
        value = self._fields[name]
        if not isinstance(value, kind):
            raise bad_request(f"{name} is to be {what}, not {value!r}")
        return value
