"""The RPC gateways of the processes, and the messages of their methods."""

from flinkray.actors.gateways.dispatcher import DispatcherGateway
from flinkray.actors.gateways.job_master import JobMasterGateway
from flinkray.actors.gateways.resource_manager import ResourceManagerGateway
from flinkray.actors.gateways.slot_pool import SlotPoolGateway
from flinkray.actors.gateways.task_executor import TaskExecutorGateway

__all__ = [
    "DispatcherGateway",
    "JobMasterGateway",
    "ResourceManagerGateway",
    "SlotPoolGateway",
    "TaskExecutorGateway",
    "job_processes",
    "kv_states",
    "messages",
    "models",
    "savepoint_disposal",
    "slot_pool",
    "snapshots",
    "stream_coordinator",
    "task_errors",
    "task_executor",
    "task_process",
    "task_reports",
]
