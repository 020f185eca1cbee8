"""Where a TaskExecutor's process runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

import ray
from ray._private import worker

from flinkray.actors.gateways.task_executor_arguments import NodeAddress


@dataclass(frozen=True, slots=True)
class TaskExecutorHost:
    """A process on a node."""

    node: NodeAddress
    pid: int
    session_directory: str | None
    """Ray's directory for this node's files; None where there is no Ray."""
    logs_directory: str | None = None
    """In it; None where there is no Ray."""
    actor_id: str = ""
    """Ray's, hex; empty where there is no Ray."""

    @classmethod
    def find(cls, node: NodeAddress | None) -> TaskExecutorHost:
        """This process; *node* None: it is a Ray actor's, and Ray says which node it is on."""
        if node is not None:
            return cls(node, os.getpid(), None)
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
