"""Finds the node and the directories of a TaskExecutor's process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flinkray.actors.gateways.task_executor import NodeAddress


@dataclass(frozen=True, slots=True)
class TaskExecutorHost:
    """The node on which a TaskExecutor's process runs, and the directories that it uses."""

    node: NodeAddress
    pid: int
    session_directory: str | None
    """Ray's directory for the files of this node. None without Ray."""
    logs_directory: str | None = None
    """Ray's log directory inside the session directory. None without Ray."""
    actor_id: str = ""
    """Ray's actor id in hex. Empty without Ray."""

    @classmethod
    def find(cls, node: NodeAddress | None) -> TaskExecutorHost:
        """Return the host of this process.
        *node* None: the process is a Ray actor, and asks Ray for its node.
        """
        if node is not None:
            return cls(node, os.getpid(), None)
        import ray
        from ray._private import worker

        context = ray.get_runtime_context()
        node_ip = ray.util.get_node_ip_address()
        ray_node = worker.global_worker.node
        if ray_node is None:
            raise RuntimeError("this process is not connected to Ray")
        address = NodeAddress(context.get_node_id(), node_ip)
        return cls(
            address,
            os.getpid(),
            ray_node.get_session_dir_path(),
            ray_node.get_logs_dir_path(),
            context.get_actor_id() or "",
        )
