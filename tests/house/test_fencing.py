"""Each call to a leader, and each that a leader makes, says which leader it is of.

A gateway method is fenced by its endpoint's token, as those of every FencedRpcGateway are.  That
refuses who follows a past leader.  It does not refuse a past leader that calls: so each method that
leaders call takes their id, and its handler refuses those of the past.  What takes no id stands
below, with the reason.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import flinkray
from flinkray.core.ids import FencingToken
from flinkray.rpc import FencedRpcGateway, RpcEndpoint, RpcGateway
from flinkray.rpc.gateway import gateway_methods

FROM_CLIENTS = "clients call it, which lead nothing; they follow the endpoint's leader session"
FROM_OPERATORS = "who runs the cluster calls it; they follow the endpoint's leader session"
FROM_TASK_EXECUTORS = (
    "TaskExecutors call it, which lead nothing; they follow the endpoint's leader session"
)
OWN = "only the JobMaster calls it that has started the endpoint, whose token is its JobMasterId"
READS = "it changes nothing"

EXCEPTIONS: dict[str, str] = {
    **{
        f"DispatcherGateway.{name}": FROM_CLIENTS
        for name in (
            "submit_job",
            "cancel_job",
            "resize_job",
            "take_snapshot",
            "dispose_savepoint",
            "heartbeat_from_client",
            "shut_down_cluster",
        )
    },
    **{
        f"DispatcherGateway.{name}": READS
        for name in (
            "list_jobs",
            "list_models",
            "request_source_coordinator",
            "request_job_status",
            "request_job_progress",
            "request_job_exceptions",
            "request_job_details",
            "request_job_settings",
            "request_savepoint_directories",
            "request_job_result",
            "request_cluster_numbers",
            "request_cluster_overview",
            "request_kv_state_location",
        )
    },
    "DispatcherGateway.ensure_spark_session": "one that is there already is told, not begun: a "
    "JobMaster of the past begins none that its successor would not have begun",
    "DispatcherGateway.ensure_model": "as a Spark session: the task of a job that has ended begins "
    "none",
    "DispatcherGateway.find_replicas": "a question, which tasks repeat",
    "ModelReplicaGateway.infer": "callers are tasks of any job; replicas of a past attempt are not "
    "found by their id any more",
    **{
        f"SparkSessionGateway.{name}": "guests are of any job, and known by their processes, which "
        "are watched"
        for name in ("await_open", "attach", "leave")
    },
    **{
        f"JobMasterGateway.{name}": FROM_TASK_EXECUTORS
        for name in (
            "register_task_executor",
            "fail_slot",
            "tasks_reported",
            "disconnect_task_executor",
            "heartbeat_from_task_executor",
        )
    },
    **{
        f"JobMasterGateway.{name}": READS
        for name in (
            "request_partition_state",
            "request_job_status",
            "request_job_overview",
            "request_job_progress",
            "request_job_exceptions",
            "request_job_details",
            "request_savepoint_in_use",
            "request_max_parallelism",
            "request_source_coordinator",
        )
    },
    **{
        f"KvStateRegistryGateway.{name}": FROM_TASK_EXECUTORS
        for name in ("notify_kv_states_registered", "notify_kv_states_unregistered")
    },
    "KvStateLocationOracle.request_kv_state_location": READS,
    "KvStateServerGateway.query_kv_state": READS,
    "JobMasterGateway.slots_changed": (
        "its own SlotPool calls it, which has its token; the pool's number tells a past pool"
    ),
    "CoordinatorListenerGateway.confirm_leadership": READS,
    "CoordinatorListenerGateway.coordinator_told": (
        "operator coordinators call it, which lead nothing; the number tells an attempt of the past"
    ),
    **{
        f"ResourceManagerGateway.{name}": FROM_TASK_EXECUTORS
        for name in (
            "register_task_executor",
            "send_slot_report",
            "notify_slot_available",
            "disconnect_task_executor",
            "heartbeat_from_task_executor",
        )
    },
    "ResourceManagerGateway.block_nodes": FROM_OPERATORS,
    "ResourceManagerGateway.unblock_node": FROM_OPERATORS,
    **{
        f"ResourceManagerGateway.{name}": READS
        for name in (
            "request_blocked_nodes",
            "request_cluster_numbers",
            "request_resource_overview",
        )
    },
    **{
        f"SlotPoolGateway.{name}": OWN
        for name in (
            "request_heartbeat",
            "disconnect_resource_manager",
            "set_resource_requirements",
            "restore_slots",
            "expect_slots",
            "keep",
            "request_slots",
            "cancel_slot_requests",
            "return_slots",
            "notify_not_enough_resources",
            "set_job_restarting",
            "register_task_executors",
            "release_task_executor",
            "let_go",
            "offer_slots",
            "fail_allocation",
            "close_pool",
        )
    },
    **{
        f"SparkExecutorsGateway.{name}": (
            "the name of the driver's process has the execution graph and the attempt of the task "
            "in it"
        )
        for name in ("launch_executor", "executor_started", "executor_ended")
    },
    "TaskProcessListenerGateway.tasks_reported": (
        "its own task processes call it; the process's name tells those of the past"
    ),
    "TaskProcessListenerGateway.find_partitions": READS,
    "TaskProcessListenerGateway.find_channels": READS,
    **{
        f"TaskProcessListenerGateway.{name}": (
            "it is handed on to the JobMaster, which knows the execution graph in the ids"
        )
        for name in (
            "request_partition_state",
            "notify_kv_states_registered",
            "notify_kv_states_unregistered",
        )
    },
    **{
        f"TaskProcessGateway.{name}": (
            "only its TaskExecutor calls it, which has looked whose order it is"
        )
        for name in (
            "cancel_tasks",
            "fail_task",
            "order_checkpoint",
            "free_slot",
            "release_partitions",
            "forget_job",
        )
    },
    "TaskProcessGateway.request_io_metrics": READS,
    "TaskProcessGateway.data_address": READS,
    "TaskProcessGateway.host": READS,
    "TaskProcessGateway.request_heartbeat": READS,
    "TaskProcessGateway.read_partition": "tasks read it, under ids with the execution graph's",
    "StreamCoordinatorGateway.find_results": READS,
    "StreamCoordinatorGateway.read_printed": "a client calls it, which follows the job's JobMaster",
    "BlobServerGateway.put": "blobs are named by the hash of what is in them",
    "BlobServerGateway.get": READS,
    **{
        f"BlobServerGateway.{name}": "only the Dispatcher in whose process it is calls it"
        for name in ("retain", "release", "delete")
    },
    "PrestartedGateway.take_over": "the process has no role yet, and is asked once",
    "PrestartedGateway.waits_for_role": READS,
}


def shipped_gateways() -> Iterator[type[RpcGateway]]:
    """All of the package, but for those of flinkray.testing."""
    for module in pkgutil.walk_packages(flinkray.__path__, "flinkray."):
        if not module.name.startswith("flinkray.testing") and "__main__" not in module.name:
            importlib.import_module(module.name)
    waiting: list[type[RpcGateway]] = [RpcGateway]
    while waiting:
        for gateway in waiting.pop().__subclasses__():
            waiting.append(gateway)
            is_ours = gateway.__module__.startswith("flinkray.")
            is_testing = gateway.__module__.startswith("flinkray.testing")
            if is_ours and not is_testing and not issubclass(gateway, RpcEndpoint):
                yield gateway


def takes_a_leader_id(method: typing.Callable[..., object]) -> bool:
    """As an argument, or in a message that is one."""
    hints = typing.get_type_hints(method)
    hints.pop("return", None)
    return any(map(_is_leader_id, hints.values()))


def _is_leader_id(hint: object, depth: int = 1) -> bool:
    if isinstance(hint, types.UnionType):
        return all(_is_leader_id(one) for one in hint.__args__)
    if not isinstance(hint, type):
        return False
    if depth and is_dataclass(hint):
        own = typing.get_type_hints(hint)
        return any(_is_leader_id(own[field.name], depth - 1) for field in fields(hint))
    return issubclass(hint, FencingToken)


def unfenced_methods() -> set[str]:
    """Those that take no leader id, each under the gateway that declares it."""
    return {
        method.full_name
        for gateway in shipped_gateways()
        for name, method in gateway_methods(gateway).items()
        if not takes_a_leader_id(getattr(gateway, name))
    }


def test_each_gateway_method_takes_a_leader_id_unless_listed_as_not_fenced() -> None:
    assert unfenced_methods() - EXCEPTIONS.keys() == set(), (
        "give it the id of the leader that calls it, and refuse those of the past; or say in "
        "EXCEPTIONS why it needs none"
    )
    assert EXCEPTIONS.keys() - unfenced_methods() == set(), "it needs no exception (any more)"


def test_gateways_of_leaders_are_fenced_with_the_token_of_the_leader() -> None:
    fenced = {g.__name__ for g in shipped_gateways() if issubclass(g, FencedRpcGateway)}
    assert fenced == {
        "FencedRpcGateway",
        "DispatcherGateway",
        "JobMasterGateway",
        "ResourceManagerGateway",
        "SlotPoolGateway",
        "CoordinatorListenerGateway",
    }
