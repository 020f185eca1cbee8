"""Defines the options of clients, which are given to ``flinkray.connect``."""

from __future__ import annotations

from flinkray.core.config_option import ConfigOption, boolean, duration

CLIENT_HEARTBEAT_INTERVAL = ConfigOption(
    "client.heartbeat.interval",
    duration(),
    30.0,
    "Time between two heartbeats of a client, which keep alive the jobs that end with it. Set "
    "it for the client.",
)
CLIENT_HEARTBEAT_TIMEOUT = ConfigOption(
    "client.heartbeat.timeout",
    duration(),
    180.0,
    "A job that ends with its client is cancelled when nothing was heard from the client for "
    "this long. Must be longer than client.heartbeat.interval. Set it for the client.",
)
SHUTDOWN_ON_ATTACHED_EXIT = ConfigOption(
    "execution.shutdown-on-attached-exit",
    boolean(),
    False,
    "Whether a program that is waited for by execute() ends with its client. A program whose "
    "results are collected always does. Set it for the client or for the program's environment;"
    " the environment's value takes precedence.",
)
CLIENT_CLOSE_TIMEOUT = ConfigOption(
    "client.close-timeout",
    duration(positive=False),
    60.0,
    "How long a client that is being closed waits for the end of the jobs that end with it. "
    "Jobs that are still running then are named in its log and left alone. Set it for the "
    "client.",
)
