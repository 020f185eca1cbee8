"""Options of clients, given to ``flinkray.connect``; part of the table in
:mod:`flinkray.core.options`."""

from __future__ import annotations

from flinkray.core.config_option import ConfigOption, boolean, duration

CLIENT_HEARTBEAT_INTERVAL = ConfigOption(
    "client.heartbeat.interval",
    duration(),
    30.0,
    "Time between two signs of life of a client, on behalf of the jobs that end with it. Given to "
    "the client.",
)
CLIENT_HEARTBEAT_TIMEOUT = ConfigOption(
    "client.heartbeat.timeout",
    duration(),
    180.0,
    "A job that ends with its client is cancelled when nothing was heard of the client for so "
    "long. Must be longer than client.heartbeat.interval. Given to the client.",
)
SHUTDOWN_ON_ATTACHED_EXIT = ConfigOption(
    "execution.shutdown-on-attached-exit",
    boolean(),
    False,
    "Whether a program that is waited for by execute() ends with its client, as one whose results "
    "are collected always does. Given to the client, or to the program's environment, whose value "
    "counts if there is one.",
)
CLIENT_CLOSE_TIMEOUT = ConfigOption(
    "client.close-timeout",
    duration(positive=False),
    60.0,
    "So long a client that is closed waits for the end of the jobs that end with it; those that go "
    "on are named in its log, and left. Given to the client.",
)
