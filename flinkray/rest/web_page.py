"""The web page: the files of this package, and how they are served."""

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
"""Content security policy: the page uses only these files, no inline code, and no text as HTML."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the web page, with its content and content type."""

    content: bytes
    content_type: str

    @property
    def tag(self) -> str:
        """A hash of the content; browsers see by it that the file has changed."""
        return hashlib.sha256(self.content).hexdigest()[:32]


class WebPage:
    """The files of the web page, all in memory, so that no request reads from the disk."""

    def __init__(self) -> None:
        found = {
            file.name: PageFile(file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
            for file in (files(__package__) / _FOLDER).iterdir()
            if file.name.rpartition(".")[2] in _TYPES
        }
        first = found.pop(_FIRST)
        self.files = {"/": first, **{f"/{_FOLDER}/{name}": it for name, it in found.items()}}
        """The files by path."""

    def add_to(self, app: web.Application) -> None:
        for path in self.files:
            app.router.add_get(path, self._serve)
        app.on_response_prepare.append(_harden)

    async def _serve(self, request: web.Request) -> web.Response:
        """Serve a file with a tag. Browsers ask each time whether their copy is still current, so
        that no browser uses old files after an upgrade."""
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
    """Set security headers on all answers, also on JSON and errors: a browser does not guess
    another content type, does not store answers, and does not show them to other sites."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault(
        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
    )
