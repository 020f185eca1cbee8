"""The server: routes, limits, and who may ask."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from flinkray.core.config import Configuration
from flinkray.core.error_text import summary_of
from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.rest_options import (
    REST_ASYNC_STORE_DURATION,
    REST_BIND_ADDRESS,
    REST_BIND_PORT,
    REST_IDLENESS_TIMEOUT,
    REST_MAX_CONTENT_LENGTH,
    REST_MAX_REQUESTS,
    REST_SSL_CERTIFICATE,
    REST_SSL_KEY,
    REST_TOKEN,
    REST_TOKEN_FILE,
    WEB_REFRESH_INTERVAL,
)
from flinkray.rest.cluster import Cluster, ClusterView
from flinkray.rest.errors import RestError, answer_of, of_cluster
from flinkray.rest.handlers import Answer, Handler, Handlers, Route
from flinkray.rest.idle_connections import IdleConnections
from flinkray.rest.json_text import JsonText, to_json
from flinkray.rest.metric_handlers import MetricHandlers
from flinkray.rest.openapi import description
from flinkray.rest.operations import Operations
from flinkray.rest.settings_handlers import SettingsHandlers
from flinkray.rest.web_page import WebPage

log = logging.getLogger(__name__)


def _is_no_fault_of_clients(record: logging.LogRecord) -> bool:
    """They have their answer, status 400: anybody could fill the log with what is no HTTP."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_log_of_aiohttp = logging.getLogger(f"{__name__}.aiohttp")
_log_of_aiohttp.addFilter(_is_no_fault_of_clients)

_VERSIONS = ("", "/v1")
"""Each path is there below all of them (RE-01)."""
_ANSWER_TIMEOUT = 10.0
"""Seconds for the cluster to answer."""
_CLOSE_TIMEOUT = 5.0
"""Seconds in which clients fetch what was done for them."""
_MINIMUM_PORT, _MAXIMUM_PORT = 0, 65535

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class RestSettings:
    """Where it is served, and to whom."""

    host: str
    ports: range
    token: str | None
    certificate: str | None
    key: str | None
    max_content_length: int
    max_requests: int
    idleness_timeout: float
    refresh_interval: float
    store_duration: float

    @classmethod
    def of(cls, configuration: Configuration) -> RestSettings:
        """
        Raises:
            ConfigurationError: a value is not acceptable.
        """
        certificate, key = (
            configuration.get(REST_SSL_CERTIFICATE),
            configuration.get(REST_SSL_KEY),
        )
        if (certificate is None) != (key is None):
            raise ConfigurationError(
                f"{REST_SSL_CERTIFICATE.key} and {REST_SSL_KEY.key} belong together"
            )
        return cls(
            configuration.get(REST_BIND_ADDRESS),
            ports_of(configuration.get(REST_BIND_PORT)),
            _token_of(configuration),
            certificate,
            key,
            configuration.get(REST_MAX_CONTENT_LENGTH),
            configuration.get(REST_MAX_REQUESTS),
            configuration.get(REST_IDLENESS_TIMEOUT),
            configuration.get(WEB_REFRESH_INTERVAL),
            configuration.get(REST_ASYNC_STORE_DURATION),
        )


def _token_of(configuration: Configuration) -> str | None:
    """
    Raises:
        ConfigurationError: two are given, or the file does not hold one.
    """
    path = configuration.get(REST_TOKEN_FILE)
    if path is None:
        return configuration.get(REST_TOKEN)
    if configuration.get(REST_TOKEN) is not None:
        raise ConfigurationError(
            f"{REST_TOKEN.key} and {REST_TOKEN_FILE.key} are two places of one token: leave one out"
        )
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
        return Configuration({REST_TOKEN.key: token}).get(REST_TOKEN)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{REST_TOKEN_FILE.key} cannot be read: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} ({REST_TOKEN_FILE.key}) has no token: {error}") from error


def ports_of(text: str) -> range:
    """``8081``, or ``8081-8090`` of which the first free one is taken; 0: any.

    Raises:
        ConfigurationError: it is none of these.
    """
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
    """Serves one cluster.  Use on one event loop."""

    def __init__(
        self, cluster: Cluster, settings: RestSettings, now: Callable[[], float] = time.time
    ) -> None:
        """*now*: seconds since the epoch, by the cluster's clocks."""
        self._settings = settings
        self._view = ClusterView(cluster, settings.refresh_interval, _ANSWER_TIMEOUT)
        self._operations = Operations(settings.store_duration)
        handlers = Handlers(self._view, self._operations, settings.refresh_interval, now)
        of_settings, of_metrics = SettingsHandlers(self._view), MetricHandlers(self._view, now)
        routes = [*of_settings.routes(), *of_metrics.routes(), *handlers.routes()]
        routes.append(_self_description(routes))
        self._idle = IdleConnections(settings.idleness_timeout)
        self._app = application(routes, settings)
        self._app.middlewares.insert(0, self._idle)
        self._runner = web.AppRunner(
            self._app, access_log=None, handle_signals=False, logger=_log_of_aiohttp
        )
        self._address: str | None = None

    @property
    def url(self) -> str:
        """Where it is served, once it has been started."""
        assert self._address is not None
        return self._address

    async def start(self) -> None:
        """
        Raises:
            ConfigurationError: no port is free, or the certificate cannot be used.
        """
        settings = self._settings
        context = _ssl_context(settings)
        await self._runner.setup()
        await self._bind(context)
        server = self._runner.server
        assert server is not None
        self._idle.watch(lambda: server.connections)
        host, port = self._runner.addresses[0][:2]
        scheme = "http" if context is None else "https"
        self._address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if settings.token is None and not _is_loopback(host):
            log.warning(
                "%s can be reached from other machines, and whoever reaches it can cancel jobs: "
                "set %s",
                self._address,
                REST_TOKEN_FILE.key,
            )

    async def _bind(self, context: ssl.SSLContext | None) -> None:
        host, ports = self._settings.host, self._settings.ports
        for port in ports:
            site = web.TCPSite(self._runner, host, port, ssl_context=context)
            try:
                await site.start()
            except (OSError, UnicodeError) as error:  # the latter of names that no host can have
                if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                    continue
                raise ConfigurationError(
                    f"the REST endpoint cannot be at {host}:{port} ({REST_BIND_ADDRESS.key}): "
                    f"{error}"
                ) from error
            return
        taken = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
        raise ConfigurationError(
            f"no port is free for the REST endpoint at {host} ({REST_BIND_PORT.key}: {taken}); "
            "give another one, or a range such as 8081-8090"
        )

    async def close(self) -> None:
        """What was done for clients is fetched by them, what is being answered is answered, and
        what the cluster does goes on."""
        await self._operations.close(_CLOSE_TIMEOUT)
        self._idle.close()
        await self._runner.cleanup()
        self._view.close()


def application(routes: Iterable[Route], settings: RestSettings) -> web.Application:
    """
    Raises:
        RuntimeError: two handlers are for one route (RE-09).
    """
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
    """All of them, also those of aiohttp (RE-02)."""
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
    """Of requests that are worked on at the same time."""

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
    """Who may ask: who has the token, and no page of another site in a user's browser.  Our own
    page asks its user for the token, so whoever reaches the endpoint gets the page's files."""

    __middleware_version__ = 1

    def __init__(self, settings: RestSettings, page: Container[str]) -> None:
        """*page*: the paths of its files."""
        self._token = None if settings.token is None else settings.token.encode()
        self._host = settings.host.lower()  # as that of a URL is
        self._page = page

    async def __call__(self, request: web.Request, handler: Next) -> web.StreamResponse:
        is_page = request.path in self._page
        if self._token is None:
            self._check_site(request, is_page)
        elif not (is_page or self._has_token(request)):
            answer = answer_of(
                RestError(401, "the request must carry Authorization: Bearer <token>"), to_json
            )
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return await handler(request)

    def _has_token(self, request: web.Request) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        sent = token.strip().encode("utf-8", "surrogateescape")
        assert self._token is not None
        return kind.lower() == "bearer" and hmac.compare_digest(sent, self._token)

    def _check_site(self, request: web.Request, is_page: bool) -> None:
        """A page of another site can have a browser send requests here.  It says so in Origin; of
        pictures and links, which have none, in Sec-Fetch-Site; or its name leads here, and then
        that is in Host.  A link to our page is none of its requests."""
        host = _host_of(f"//{request.host}")
        origin = request.headers.get("Origin")
        if origin is not None and _host_of(origin) != host:
            raise RestError(403, f"a page of {origin} may not ask here")
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not is_page:
            raise RestError(403, "a page of another site may not ask here")
        if not (_is_address(host) or host in ("localhost", self._host)):
            raise RestError(
                403,
                f"{host!r} is not where this is: ask by its address, or set {REST_TOKEN_FILE.key}",
            )


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
    except OSError as error:  # also what ssl itself raises
        raise ConfigurationError(
            f"the REST endpoint cannot be served with {REST_SSL_CERTIFICATE.key} "
            f"{settings.certificate} and {REST_SSL_KEY.key} {settings.key}: {error}"
        ) from error
    return context
