"""Implements leader election and stores on ZooKeeper, with kazoo."""

from flinkray.ha.zookeeper.client import ZooKeeperClient, ZooKeeperError
from flinkray.ha.zookeeper.services import ZooKeeperHaServices

__all__ = ["ZooKeeperClient", "ZooKeeperError", "ZooKeeperHaServices"]
