"""Defines the options of the REST endpoint, which are given to ``flinkray rest``."""

from __future__ import annotations

from flinkray.core.config_option import (
    ConfigOption,
    choice,
    duration,
    integer,
    locations,
    memory_size,
    optional_text,
    text,
)

REST_BIND_ADDRESS = ConfigOption(
    "rest.bind-address",
    text("the name or the address of a network interface"),
    "127.0.0.1",
    "Where the REST endpoint listens. 0.0.0.0 is every interface; serve it over TLS then "
    "(rest.ssl.certificate), because the token travels with each request. (Flink: the address of "
    "rest.address.)",
)
REST_BIND_PORT = ConfigOption(
    "rest.bind-port",
    text("a port, or a range of ports such as 8081-8090", r"\s*\d+\s*(-\s*\d+\s*)?"),
    "8081",
    "The port of the REST endpoint; of a range the first one that is free; 0 is any free one.",
)
REST_TOKEN = ConfigOption(
    "rest.token",
    optional_text("a secret of at least 16 characters", r"\S{16,}"),
    None,
    "The token that requests must carry: Authorization: Bearer <token>. When neither this nor "
    "rest.token-file is set, the endpoint creates a token, which flinkray rest-token prints. Not "
    "an option of Flink, which has no such check.",
    is_secret=True,
)
REST_TOKEN_FILE = ConfigOption(
    "rest.token-file",
    optional_text("the path of a file"),
    None,
    "A file with the token in place of rest.token, which other users of the machine can see on the "
    "command line. Line breaks around the token are left out. A file that other users can read or "
    "write is refused.",
)
REST_ANONYMOUS_ACCESS = ConfigOption(
    "rest.anonymous-access",
    choice("none", "read"),
    "none",
    "What requests without a token may do. none: they get status 401. read: they may read "
    "everything and change nothing.",
)
REST_SAVEPOINT_DIRS = ConfigOption(
    "rest.savepoint-dirs",
    locations(),
    (),
    "Directories below which savepoints may be written and deleted by REST, besides storage.dir "
    "and the directories for checkpoints and savepoints of the cluster and of its running jobs. "
    "Others are refused with status 403.",
)
REST_SSL_CERTIFICATE = ConfigOption(
    "rest.ssl.certificate",
    optional_text("the path of a file"),
    None,
    "The certificate, with its chain, by which the REST endpoint is served over TLS; a PEM file.",
)
REST_SSL_KEY = ConfigOption(
    "rest.ssl.key",
    optional_text("the path of a file"),
    None,
    "The key of rest.ssl.certificate; a PEM file.",
)
REST_MAX_CONTENT_LENGTH = ConfigOption(
    "rest.server.max-content-length",
    memory_size(),
    1 << 20,
    "The longest body of a request. (Flink: 100 MiB, as whole programs are sent to it.)",
)
REST_MAX_REQUESTS = ConfigOption(
    "rest.server.max-requests",
    integer(minimum=1),
    256,
    "How many requests are worked on at the same time; further ones are refused with status 429.",
)
REST_IDLENESS_TIMEOUT = ConfigOption(
    "rest.idleness-timeout",
    duration(),
    300.0,
    "A connection on which no request is being worked on for this long is closed, also while a "
    "request comes too slowly, or its answer is not read. (Flink: 5 min.)",
)
REST_ASYNC_STORE_DURATION = ConfigOption(
    "rest.async.store-duration",
    duration(),
    300.0,
    "How long the result of a savepoint, or of another operation that takes long, can be fetched. "
    "(Flink: 5 min.)",
)
WEB_REFRESH_INTERVAL = ConfigOption(
    "web.refresh-interval",
    duration(),
    3.0,
    "How often a page asks again, and for how long an answer of the cluster is given to others "
    "who ask the same. (Flink: 3 s.)",
)
