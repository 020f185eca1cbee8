"""Defines the options of leader election and of standby masters."""

from __future__ import annotations

from flinkray.core.config_option import (
    ConfigOption,
    boolean,
    choice,
    duration,
    integer,
    optional_text,
    text,
)

HIGH_AVAILABILITY_TYPE = ConfigOption(
    "high-availability.type",
    choice("standalone", "zookeeper"),
    "standalone",
    "What decides who leads. standalone: Ray, which keeps one process of each master and restarts "
    "it where it died. zookeeper: elections on ZooKeeper, which also fences the stores.",
)
HIGH_AVAILABILITY_CLUSTER_ID = ConfigOption(
    "high-availability.cluster-id",
    optional_text(
        "letters, digits, '.', '_' or '-', not '.' or '..'", r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}"
    ),
    None,
    "Name of the cluster's znode below high-availability.zookeeper.path.root. No two clusters may "
    "have the same. When not set: cluster.id.",
)
ZOOKEEPER_QUORUM = ConfigOption(
    "high-availability.zookeeper.quorum",
    optional_text(
        "host:port, and further ones after commas",
        r"[^\s,:/]+(:[0-9]{1,5})?(,[^\s,:/]+(:[0-9]{1,5})?)*",
    ),
    None,
    "Servers of ZooKeeper. Every node must be able to reach them.",
)
ZOOKEEPER_ROOT = ConfigOption(
    "high-availability.zookeeper.path.root",
    text("the path of a znode", r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+"),
    "/flinkray",
    "Below it each cluster has a znode of its own. (Flink: /flink.)",
)
ZOOKEEPER_SESSION_TIMEOUT = ConfigOption(
    "high-availability.zookeeper.client.session-timeout",
    duration(),
    10.0,
    "A leader that ZooKeeper has not heard for this long leads no more. ZooKeeper may choose "
    "another time within its own limits. (Flink: 60 s.)",
)
ZOOKEEPER_TOLERATES_BREAKS = ConfigOption(
    "high-availability.zookeeper.client.tolerate-suspended-connections",
    boolean(),
    True,
    "Whether a leader goes on while its connection to ZooKeeper is broken, for as long as its "
    "session may live. What it stores meanwhile waits. false: it gives up at once. (Flink: false. "
    "Here what leaders store is fenced by ZooKeeper itself.)",
)
ZOOKEEPER_CONNECTION_TIMEOUT = ConfigOption(
    "high-availability.zookeeper.client.connection-timeout",
    duration(),
    15.0,
    "How long clients, and the start of a cluster, wait for ZooKeeper.",
)
STANDBY_MASTERS = ConfigOption(
    "cluster.standby-masters",
    integer(minimum=0),
    0,
    "How many further Dispatchers and ResourceManagers wait to take over from the leader, on other "
    "nodes where there are any. Needs high-availability.type zookeeper.",
)
