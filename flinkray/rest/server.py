"""The HTTP server: routes, limits and access control."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from flinkray.core.config import ReadableConfig
from flinkray.core.error_text import summary_of
from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.rest_options import (
    REST_ANONYMOUS_ACCESS,
    REST_ASYNC_STORE_DURATION,
    REST_BIND_ADDRESS,
    REST_BIND_PORT,
    REST_IDLENESS_TIMEOUT,
    REST_MAX_CONTENT_LENGTH,
    REST_MAX_REQUESTS,
    REST_SAVEPOINT_DIRS,
    REST_SSL_CERTIFICATE,
    REST_SSL_KEY,
    WEB_REFRESH_INTERVAL,
)
from flinkray.rest.cluster import Cluster, ClusterView
from flinkray.rest.errors import RestError, answer_of, of_cluster
from flinkray.rest.handlers import CHANGING_GETS, Answer, Handler, Handlers, Route
from flinkray.rest.json_values import JsonText, to_json
from flinkray.rest.metric_handlers import MetricHandlers
from flinkray.rest.openapi import description
from flinkray.rest.operations import Operations
from flinkray.rest.savepoint_roots import SavepointRoots
from flinkray.rest.settings_handlers import SettingsHandlers
from flinkray.rest.token import check_key_file, given_token
from flinkray.rest.web_page import WebPage

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)


def _is_no_fault_of_clients(record: logging.LogRecord) -> bool:
    """Log filter that drops the records of errors that a client caused by sending invalid HTTP.
    Such a client gets status 400; if its errors were logged, anybody could fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_log_of_aiohttp = logging.getLogger(f"{__name__}.aiohttp")
_log_of_aiohttp.addFilter(_is_no_fault_of_clients)

_VERSIONS = ("", "/v1")
"""The path prefixes; each path exists below all of them (RE-01)."""
_ANSWER_TIMEOUT = 10.0
"""Seconds that the cluster has to answer."""
_CLOSE_TIMEOUT = 5.0
"""Seconds that clients have to fetch results when the server closes."""
_STEPS_OF_A_NEW_CONNECTION = 3
"""Steps of the event loop from accepting a connection until aiohttp knows the connection."""
_BACKLOG = 128
"""Connections that the system accepts before the server does."""
_MINIMUM_PORT, _MAXIMUM_PORT = 0, 65535

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class RestSettings:
    """The settings of the REST endpoint: its address, its limits and its access control."""

    host: str
    ports: range
    token: str | None
    """The token that clients must send; None: the endpoint is read-only, for everybody."""
    anonymous_may_read: bool
    """Whether requests without the token may read."""
    savepoint_dirs: tuple[str, ...]
    certificate: str | None
    key: str | None
    max_content_length: int
    max_requests: int
    idleness_timeout: float
    refresh_interval: float
    store_duration: float

    @classmethod
    def of(cls, configuration: ReadableConfig) -> RestSettings:
        """Read the settings from a configuration. Raises ConfigurationError: a value is not
        acceptable. No token is created."""
        certificate, key = (
            configuration.get(REST_SSL_CERTIFICATE),
            configuration.get(REST_SSL_KEY),
        )
        if (certificate is None) != (key is None):
            raise ConfigurationError(
                f"{REST_SSL_CERTIFICATE.key} and {REST_SSL_KEY.key} belong together"
            )
        if key is not None:
            check_key_file(key)
        return cls(
            configuration.get(REST_BIND_ADDRESS),
            ports_of(configuration.get(REST_BIND_PORT)),
            given_token(configuration),
            configuration.get(REST_ANONYMOUS_ACCESS) == "read",
            configuration.get(REST_SAVEPOINT_DIRS),
            certificate,
            key,
            configuration.get(REST_MAX_CONTENT_LENGTH),
            configuration.get(REST_MAX_REQUESTS),
            configuration.get(REST_IDLENESS_TIMEOUT),
            configuration.get(WEB_REFRESH_INTERVAL),
            configuration.get(REST_ASYNC_STORE_DURATION),
        )


def ports_of(text: str) -> range:
    """Return the ports in *text*: ``8081``, or ``8081-8090``, of which the first free one is used;
    0 means any port. Raises ConfigurationError: *text* has neither form."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    numbers = [first, last] if dash else [first, first]
    if all(number.isascii() and number.isdigit() and len(number) <= 5 for number in numbers):
        lowest, highest = map(int, numbers)
        if _MINIMUM_PORT <= lowest <= highest <= _MAXIMUM_PORT:
            return range(lowest, highest + 1)
    raise ConfigurationError(
        f"{REST_BIND_PORT.key} is to be a port, or a range such as 8081-8090, not {text!r}"
    )


class RestServer:
    """Serves the REST endpoint of one cluster. Use it on one event loop."""

    def __init__(
        self, cluster: Cluster, settings: RestSettings, now: Callable[[], float] = time.time
    ) -> None:
        """Create the server, not started.
        *now* returns seconds since the epoch, by the cluster's clocks.
        """
        self._settings = settings
        self._view = ClusterView(cluster, settings.refresh_interval, _ANSWER_TIMEOUT)
        self._operations = Operations(settings.store_duration)
        handlers = Handlers(
            self._view,
            self._operations,
            SavepointRoots(self._view, settings.savepoint_dirs),
            settings.refresh_interval,
            now,
        )
        of_settings, of_metrics = SettingsHandlers(self._view), MetricHandlers(self._view, now)
        routes = [*of_settings.routes(), *of_metrics.routes(), *handlers.routes()]
        routes.append(_self_description(routes))
        self._idle = IdleConnections(settings.idleness_timeout)
        self._app = application(routes, settings)
        self._app.middlewares.insert(0, self._idle)
        self._runner = web.AppRunner(
            self._app, access_log=None, handle_signals=False, logger=_log_of_aiohttp
        )
        self._listener: asyncio.Server | None = None
        self._address: str | None = None

    @property
    def url(self) -> str:
        """The URL of the endpoint, once the server has been started."""
        assert self._address is not None
        return self._address

    async def start(self) -> None:
        """Start to serve. Raises ConfigurationError: no port is free, or the certificate cannot be
        used."""
        settings = self._settings
        context = _ssl_context(settings)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._listener = await self._bind(server, context)
        self._idle.watch(lambda: server.connections)
        host, port = self._listener.sockets[0].getsockname()[:2]
        scheme = "http" if context is None else "https"
        self._address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if context is None and not _is_loopback(host):
            log.warning(
                "%s can be reached from other machines, and the token travels there as plain text: "
                "set %s and %s",
                self._address,
                REST_SSL_CERTIFICATE.key,
                REST_SSL_KEY.key,
            )

    async def _bind(self, server: web.Server, context: ssl.SSLContext | None) -> asyncio.Server:
        host, ports = self._settings.host, self._settings.ports
        loop = asyncio.get_running_loop()
        for port in ports:
            try:
                return await loop.create_server(server, host, port, ssl=context, backlog=_BACKLOG)
            except (OSError, UnicodeError) as error:  # UnicodeError: no host can have that name
                if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                    continue
                raise ConfigurationError(
                    f"the REST endpoint cannot be at {host}:{port} ({REST_BIND_ADDRESS.key}): "
                    f"{error}"
                ) from error
        taken = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
        raise ConfigurationError(
            f"no port is free for the REST endpoint at {host} ({REST_BIND_PORT.key}: {taken}); "
            "give another one, or a range such as 8081-8090"
        )

    async def close(self) -> None:
        """Stop serving, after clients have fetched the results of their operations and open
        requests were answered. Operations that still run continue in the cluster."""
        await self._operations.close(_CLOSE_TIMEOUT)
        self._idle.close()
        if self._listener is not None:
            await _stop_listening(self._listener)
        await self._runner.cleanup()
        self._view.close()


async def _stop_listening(listener: asyncio.Server) -> None:
    """Accept no more connections. Those that were just accepted are set up first: otherwise asyncio
    3.11 leaves their sockets open, and their clients wait for an answer."""
    loop = asyncio.get_running_loop()
    for listening in listener.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_STEPS_OF_A_NEW_CONNECTION):
        await asyncio.sleep(0)
    listener.close()


def application(routes: Iterable[Route], settings: RestSettings) -> web.Application:
    """Return the web application with the routes, the limits and the web page. Raises RuntimeError:
    a route has two handlers (RE-09)."""
    page = WebPage()
    door = _Door(settings, page.files)
    app = web.Application(
        client_max_size=settings.max_content_length,
        middlewares=[_errors_as_json, _Limit(settings.max_requests), door],
    )
    known: set[tuple[str, str]] = set()
    for method, path, handler in routes:
        if (method, path) in known:
            raise RuntimeError(f"two handlers are for {method} {path}")
        known.add((method, path))
        for version in _VERSIONS:
            app.router.add_route(method, version + path, _served(handler))
    page.add_to(app)
    return app


def _self_description(routes: Iterable[Route]) -> Route:
    path = "/openapi.json"
    document = description([("GET", path), *((method, path) for method, path, _ in routes)])

    async def describe(request: web.Request) -> Answer:
        return Answer(document)

    return "GET", path, describe


def _served(handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        answer = await handler(request)
        body = answer.body
        text = body.text if isinstance(body, JsonText) else to_json(body)
        return web.json_response(text=text, status=answer.status)

    return serve


@web.middleware
async def _errors_as_json(request: web.Request, handler: Next) -> web.StreamResponse:
    """Answer all errors as JSON, also errors of aiohttp (RE-02)."""
    try:
        return await handler(request)
    except RestError as error:
        return answer_of(error, to_json)
    except FlinkRayError as error:
        return answer_of(of_cluster(error), to_json)
    except web.HTTPNotFound:
        return answer_of(RestError(404, f"Not found: {request.rel_url}"), to_json)
    except web.HTTPException as error:
        answer = answer_of(RestError(error.status, error.reason), to_json)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception as error:  # a client reads JSON, whatever is wrong here
        log.exception("%s %s cannot be answered", request.method, request.path)
        return answer_of(RestError(500, summary_of(error)), to_json)


class _Limit:
    __middleware_version__ = 1

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0

    async def __call__(self, request: web.Request, handler: Next) -> web.StreamResponse:
        if self._open >= self._most:
            raise RestError(429, f"{self._most} requests are being worked on; try again later")
        self._open += 1
        try:
            return await handler(request)
        finally:
            self._open -= 1


class _Door:
    """Middleware that refuses requests without the token. Everybody may send requests that only
    read, if the settings say so or if the endpoint has no token. Everybody gets the files of the
    web page, because the page asks its user for the token."""

    __middleware_version__ = 1

    def __init__(self, settings: RestSettings, page: Container[str]) -> None:
        """Create the middleware. *page* holds the paths of the web page's files."""
        self._token = None if settings.token is None else settings.token.encode()
        self._anonymous_may_read = settings.anonymous_may_read or settings.token is None
        self._host = settings.host.lower()  # as urlsplit does with hosts
        self._page = page

    async def __call__(self, request: web.Request, handler: Next) -> web.StreamResponse:
        if self._has_token(request):
            return await handler(request)
        is_page = request.path in self._page
        if not is_page and not (self._anonymous_may_read and _only_reads(request)):
            answer = answer_of(RestError(401, self._why_not()), to_json)
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if self._anonymous_may_read:
            self._check_site(request, is_page)
        return await handler(request)

    def _why_not(self) -> str:
        if self._token is None:
            return "this endpoint has no token, and so it is read-only"
        return (
            "the request must carry Authorization: Bearer <token>; flinkray rest-token prints the "
            "token to the user who runs the endpoint"
        )

    def _has_token(self, request: web.Request) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        sent = token.strip().encode("utf-8", "surrogateescape")
        if self._token is None or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, self._token)

    def _check_site(self, request: web.Request, is_page: bool) -> None:
        """Refuse a request that a page of another site has caused in a user's browser.

        Such a request names the other site in Origin; for images and links, which have no Origin,
        Sec-Fetch-Site says so; if the other site's name resolves to this endpoint, Host has that
        name. A link to our page is allowed.
        """
        host = _host_of(f"//{request.host}")
        origin = request.headers.get("Origin")
        if origin is not None and _host_of(origin) != host:
            raise RestError(403, f"a page of {origin} may not ask here")
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not is_page:
            raise RestError(403, "a page of another site may not ask here")
        if not (_is_address(host) or host in ("localhost", self._host)):
            raise RestError(
                403,
                f"{host!r} is not where this is: ask by its address, or show the token",
            )


def _only_reads(request: web.Request) -> bool:
    """Return whether a request only reads, by its HTTP method. False for unknown methods."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical.removeprefix("/v1")
    return request.method in ("GET", "HEAD") and path not in CHANGING_GETS


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _ssl_context(settings: RestSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # ssl errors are OSErrors, too
        raise ConfigurationError(
            f"the REST endpoint cannot be served with {REST_SSL_CERTIFICATE.key} "
            f"{settings.certificate} and {REST_SSL_KEY.key} {settings.key}: {error}"
        ) from error
    return context


_LOOKS = 4
"""How many times connections are checked within the idle timeout."""


class IdleConnections:
    """Closes connections on which no request was being handled for the time of the idle timeout,
    whatever the client does: it may send nothing, send the head of a request byte by byte, or not
    read its answer. A middleware, so that it sees the requests. Use it on one event loop."""

    __middleware_version__ = 1

    def __init__(self, most_idle: float) -> None:
        """Create the middleware. *most_idle* is the idle timeout in seconds."""
        self._most_idle = most_idle
        self._since: dict[RequestHandler, float] = {}
        """The time at which each checked connection became idle, by the loop's clock."""
        self._busy: set[RequestHandler] = set()
        self._next_look: asyncio.TimerHandle | None = None

    async def __call__(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = request.protocol
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            self._busy.discard(connection)
            self._since[connection] = asyncio.get_running_loop().time()

    def watch(self, connections: Callable[[], Iterable[RequestHandler]]) -> None:
        """Check all open connections at intervals, and close idle ones, until :meth:`close`.
        *connections* returns the connections that are open now."""
        loop = asyncio.get_running_loop()
        self._look(connections(), loop.time())
        delay = self._most_idle / _LOOKS
        self._next_look = loop.call_later(delay, self.watch, connections)

    def _look(self, connections: Iterable[RequestHandler], now: float) -> None:
        self._since = {
            connection: now if connection in self._busy else self._since.get(connection, now)
            for connection in connections
        }
        for connection, since in self._since.items():
            if now - since >= self._most_idle and connection.transport is not None:
                connection.transport.abort()  # close would wait until all is read

    def close(self) -> None:
        """Stop checking. Idempotent."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
