"""Asking an endpoint, as any client would."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Response:
    """*body*: the JSON that was sent; None of an empty one, and of what is none."""

    status: int
    headers: dict[str, str]
    body: Any
    raw: bytes

    @property
    def error(self) -> str:
        """The first of the texts that an error has."""
        return str(self.body["errors"][0])


TOKEN = "0123456789abcdef"
"""Of the endpoints of tests, unless they say otherwise."""


class Asker:
    """Of an endpoint at a URL; each request has a connection of its own.

    Args:
        token: which requests show that have no header Authorization; None: none.
    """

    def __init__(self, url: str, token: str | None = TOKEN) -> None:
        self.place = urlsplit(url).netloc
        self._token = token

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        connection = http.client.HTTPConnection(self.place, timeout=150)
        try:
            sent = raw if body is None else json.dumps(body).encode()
            shown = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
            connection.request(method, path, sent, {**shown, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            is_json = headers.get("content-type", "").startswith("application/json")
            body = json.loads(text) if text and is_json else None
            return Response(response.status, headers, body, text)
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON of a path that is there."""
        response = self("GET", path)
        assert response.status == 200, response
        return response.body
