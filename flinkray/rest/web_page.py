"""The web page: files of this package, and how they are sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from aiohttp import web

_FOLDER = "web"
_FIRST = "index.html"
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""By the end of a file's name."""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Only these files, nothing inline, and no text that becomes HTML or a script."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class PageFile:
    """One of them."""

    content: bytes
    content_type: str

    @property
    def tag(self) -> str:
        """Another one for other content."""
        return hashlib.sha256(self.content).hexdigest()[:32]


class WebPage:
    """Its files, which it has in memory: no path that is asked for leads to the disk."""

    def __init__(self) -> None:
        found = {
            file.name: PageFile(file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
            for file in (files(__package__) / _FOLDER).iterdir()
            if file.name.rpartition(".")[2] in _TYPES
        }
        first = found.pop(_FIRST)
        self.files = {"/": first, **{f"/{_FOLDER}/{name}": it for name, it in found.items()}}
        """By path."""

    def add_to(self, app: web.Application) -> None:
        for path in self.files:
            app.router.add_get(path, self._serve)
        app.on_response_prepare.append(_harden)

    async def _serve(self, request: web.Request) -> web.Response:
        """Browsers ask each time whether a file is still what they have: after an upgrade none has
        old ones."""
        file = self.files[request.path]
        known = request.if_none_match or ()
        is_known = any(tag.value in (file.tag, "*") for tag in known)
        answer = web.Response(status=304) if is_known else web.Response(body=file.content)
        if not is_known:
            answer.content_type, answer.charset = file.content_type, "utf-8"
        answer.etag = file.tag
        answer.headers["Cache-Control"] = "no-cache"
        answer.headers["Content-Security-Policy"] = _POLICY
        return answer


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    """Of all answers, also JSON and errors: a browser takes them for nothing else, keeps none of
    what they tell, and gives none to other sites."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault(
        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
    )
