"""Defines the options that a job may set for itself; its values override those of its cluster.

Part of the table in :mod:`flinkray.core.options`.
"""

from __future__ import annotations

from typing import Any

from flinkray.core.config_option import (
    ConfigOption,
    boolean,
    choice,
    duration,
    integer,
    memory_size,
    name_of,
    number,
    optional_choice,
    optional_location,
    optional_text,
)

ENDLESS = 2**31 - 1
"""Flink's largest integer, which Flink uses for "no limit"."""

CHECKPOINTING_INTERVAL = ConfigOption(
    "execution.checkpointing.interval",
    duration(positive=False),
    0.0,
    "Time between two checkpoints of a streaming job. 0: none are taken. The option also decides "
    "whether a job is restarted by default.",
)
CHECKPOINTING_MODE = ConfigOption(
    "execution.checkpointing.mode",
    name_of("EXACTLY_ONCE", "AT_LEAST_ONCE"),
    "EXACTLY_ONCE",
    "Whether each record has its effect on state exactly once after a restart, or at least once, "
    "which does not hold up records while a checkpoint is taken.",
)
CHECKPOINTING_TIMEOUT = ConfigOption(
    "execution.checkpointing.timeout",
    duration(),
    600.0,
    "A checkpoint that is not complete after this time is given up.",
)
CHECKPOINTING_MIN_PAUSE = ConfigOption(
    "execution.checkpointing.min-pause",
    duration(positive=False),
    0.0,
    "The least time from the end of a checkpoint to the beginning of the next.",
)
CHECKPOINTING_MAX_CONCURRENT = ConfigOption(
    "execution.checkpointing.max-concurrent-checkpoints",
    integer(minimum=1),
    1,
    "How many checkpoints may be under way at the same time.",
)
CHECKPOINTING_NUM_RETAINED = ConfigOption(
    "execution.checkpointing.num-retained",
    integer(minimum=1),
    1,
    "How many complete checkpoints of a job are kept.",
    ("state.checkpoints.num-retained",),
)
CHECKPOINTING_TOLERABLE_FAILURES = ConfigOption(
    "execution.checkpointing.tolerable-failed-checkpoints",
    integer(minimum=-1),
    0,
    "So many checkpoints in a row may fail before the job does. -1: any number.",
)
CHECKPOINTING_RETENTION = ConfigOption(
    "execution.checkpointing.externalized-checkpoint-retention",
    name_of("DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"),
    "NO_EXTERNALIZED_CHECKPOINTS",
    "What becomes of the checkpoints of a job that has ended. DELETE_ON_CANCELLATION: those of a "
    "job that failed stay. RETAIN_ON_CANCELLATION: those of a cancelled job stay, too. "
    "NO_EXTERNALIZED_CHECKPOINTS: none stay.",
)
CHECKPOINTING_UNALIGNED = ConfigOption(
    "execution.checkpointing.unaligned.enabled",
    boolean(),
    False,
    "Whether the barriers of checkpoints overtake records, which become part of the checkpoint.",
    ("execution.checkpointing.unaligned",),
)
CHECKPOINTING_ALIGNED_TIMEOUT = ConfigOption(
    "execution.checkpointing.aligned-checkpoint-timeout",
    duration(positive=False),
    0.0,
    "Unaligned checkpoints begin as aligned ones, and have this much time for it. 0: they begin "
    "unaligned.",
    ("execution.checkpointing.alignment-timeout",),
)
CHECKPOINTING_AFTER_TASKS_FINISH = ConfigOption(
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
    boolean(),
    True,
    "Whether checkpoints are still taken when some tasks have come to the end of their input.",
    ("execution.checkpointing.checkpoints-after-tasks-finish",),
)
CHECKPOINTING_INCREMENTAL = ConfigOption(
    "execution.checkpointing.incremental",
    boolean(),
    True,
    "Whether a checkpoint holds what has changed since the one before, and refers to that for the "
    "rest. (Flink: false.)",
    ("state.backend.incremental",),
)
CHECKPOINTING_DIR = ConfigOption(
    "execution.checkpointing.dir",
    optional_location(),
    None,
    "Where checkpoints are stored, in a subdirectory for each job. Every node must be able to "
    "reach it. When not set: the directory checkpoints in the cluster's directory below "
    "storage.dir.",
    ("state.checkpoints.dir",),
)
SAVEPOINT_DIR = ConfigOption(
    "execution.checkpointing.savepoint-dir",
    optional_location(),
    None,
    "Where savepoints are stored that are told no other place.",
    ("state.savepoints.dir",),
)
STATE_RECOVERY_PATH = ConfigOption(
    "execution.state-recovery.path",
    optional_location(),
    None,
    "The savepoint, or retained checkpoint, that a streaming job starts from. Once the job has "
    "taken a checkpoint of its own, it goes on from that. Only what a job sets for itself counts.",
    ("execution.savepoint.path",),
)
STATE_RECOVERY_IGNORE_UNCLAIMED = ConfigOption(
    "execution.state-recovery.ignore-unclaimed-state",
    boolean(),
    False,
    "Whether a job may start from a savepoint that has state of operators which the job does not "
    "have. That state is then dropped. Only what a job sets for itself counts.",
    ("execution.savepoint.ignore-unclaimed-state",),
)
STATE_RECOVERY_CLAIM_MODE = ConfigOption(
    "execution.state-recovery.claim-mode",
    name_of("NO_CLAIM"),
    "NO_CLAIM",
    "Whose the savepoint is that a job starts from. NO_CLAIM: its user's; the job does not delete "
    "it, and needs it until its own first checkpoint is complete, which is written whole. Flink's "
    "modes CLAIM and LEGACY are refused.",
    ("execution.savepoint-restore-mode",),
)
CHECKPOINTING_INLINE_THRESHOLD = ConfigOption(
    "execution.checkpointing.data-inline-threshold",
    memory_size(minimum=0, maximum=2**20),
    20 * 2**10,
    "State of fewer bytes is stored with the metadata of its checkpoint, and has no file.",
    ("state.storage.fs.memory-threshold",),
)
STATE_BACKEND = ConfigOption(
    "state.backend.type",
    choice("hashmap", "rocksdb"),
    "hashmap",
    "Where keyed state is kept while a streaming job runs. hashmap: in memory. rocksdb: on a local "
    "disk, with a cache, for state that is larger than memory; needs the extra "
    "flinkray[rocksdb] where tasks run. Checkpoints and savepoints of one are restored by the "
    "other.",
    ("state.backend",),
)
ROCKSDB_LOCALDIR = ConfigOption(
    "state.backend.rocksdb.localdir",
    optional_text("a directory, or several that are separated by commas"),
    None,
    "Where the state of tasks is kept that is on the disk, in a folder for each, which goes with "
    "its task. Subtasks take turns with several directories. When not set: the temporary "
    "directory of the machine.",
)
ROCKSDB_MEMORY = ConfigOption(
    "state.backend.rocksdb.memory.fixed-per-slot",
    memory_size(minimum=2**20),
    128 * 2**20,
    "What RocksDB may use in a task process, for blocks that were read and tables that are being "
    "filled, of all its tasks together. (Flink: not set, managed memory.)",
)
ROCKSDB_WRITE_BUFFER_RATIO = ConfigOption(
    "state.backend.rocksdb.memory.write-buffer-ratio",
    number(minimum=0, maximum=1),
    0.5,
    "How much of that tables may use that are being filled.",
)
ROCKSDB_DECODED = ConfigOption(
    "state.backend.rocksdb.memory.decoded-values",
    memory_size(minimum=2**14),
    64 * 2**20,
    "About how much each subtask of an operator may use for values that are kept decoded, and for "
    "changes that are not written yet.",
)
MAX_WAITING_EPOCHS = ConfigOption(
    "execution.spark.max-waiting-epochs",
    integer(minimum=1),
    16,
    "With so many epochs of a stream that Spark has not taken yet (to_spark, through_spark), the "
    "sources of that stream are not read until there are fewer. Checkpoints are taken meanwhile; "
    "an epoch is what has come to the sink between two of them, if anything has.",
)
MAX_WAITING_RECORDS = ConfigOption(
    "execution.spark.max-waiting-records",
    integer(minimum=1),
    100_000,
    "With so many records that wait in one subtask of a look-up for the end of its table "
    "(look_up), the sources of the stream are not read until the table has ended.",
)
SCHEDULER = ConfigOption(
    "jobmanager.scheduler",
    name_of("DEFAULT", "ADAPTIVE"),
    "DEFAULT",
    "With how many subtasks a streaming job runs. DEFAULT: with its parallelism, or not at all. "
    "ADAPTIVE: the job is elastic, and its parallelism is an upper bound; it runs with the slots "
    "that there are, and goes on from its latest checkpoint with more or fewer of them. Only what "
    "a job sets for itself counts.",
)
RESTART_STRATEGY = ConfigOption(
    "restart-strategy.type",
    optional_choice(
        "none",
        "fixed-delay",
        "failure-rate",
        "exponential-delay",
        off="none",
        disable="none",
        fixeddelay="fixed-delay",
        failurerate="failure-rate",
        exponentialdelay="exponential-delay",
    ),
    None,
    "What happens after a task has failed. When not set: exponential-delay for jobs with "
    "checkpoints (execution.checkpointing.interval), none for others.",
)
RESTART_FIXED_DELAY_ATTEMPTS = ConfigOption(
    "restart-strategy.fixed-delay.attempts",
    integer(minimum=0),
    1,
    "How often a job is restarted before it fails.",
)
RESTART_FIXED_DELAY_DELAY = ConfigOption(
    "restart-strategy.fixed-delay.delay",
    duration(positive=False),
    1.0,
    "Pause before a restart.",
)
RESTART_FAILURE_RATE_MAX_FAILURES = ConfigOption(
    "restart-strategy.failure-rate.max-failures-per-interval",
    integer(minimum=1),
    1,
    "A job fails when it has more failures than this in one interval.",
)
RESTART_FAILURE_RATE_INTERVAL = ConfigOption(
    "restart-strategy.failure-rate.failure-rate-interval",
    duration(),
    60.0,
    "The interval over which failures are counted.",
)
RESTART_FAILURE_RATE_DELAY = ConfigOption(
    "restart-strategy.failure-rate.delay",
    duration(positive=False),
    1.0,
    "Pause before a restart.",
)
RESTART_EXPONENTIAL_INITIAL_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.initial-backoff",
    duration(),
    1.0,
    "Pause before the first restart.",
)
RESTART_EXPONENTIAL_MAX_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.max-backoff",
    duration(),
    60.0,
    "The longest pause before a restart. Must be at least "
    "restart-strategy.exponential-delay.initial-backoff.",
)
RESTART_EXPONENTIAL_MULTIPLIER = ConfigOption(
    "restart-strategy.exponential-delay.backoff-multiplier",
    number(minimum=1),
    1.5,
    "The factor by which the pause grows from failure to failure.",
)
RESTART_EXPONENTIAL_RESET_THRESHOLD = ConfigOption(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    duration(positive=False),
    3600.0,
    "When a job has run for this long without a failure, the pause is the initial one again, "
    "and the attempts are counted anew.",
)
RESTART_EXPONENTIAL_JITTER = ConfigOption(
    "restart-strategy.exponential-delay.jitter-factor",
    number(minimum=0, maximum=1),
    0.1,
    "The fraction by which the pause is made longer or shorter at random, so that jobs do not "
    "restart at the same moment.",
)
RESTART_EXPONENTIAL_ATTEMPTS = ConfigOption(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    integer(minimum=0),
    ENDLESS,
    "How often a job is restarted before it fails, unless the pause was reset in between.",
)
RESTART_ATTEMPTS_WITH_SAME_ERROR = ConfigOption(
    "restart-strategy.attempts-with-same-error",
    integer(minimum=0),
    3,
    "When so many attempts have ended with the same error of the program, and without a "
    "completed checkpoint between them, the job fails, if its strategy sets no bound of its own. "
    "Such errors are a TypeError, KeyError, ValueError, ImportError, FileNotFoundError, "
    "PermissionError and others that a program makes by itself, in the same line, and what Spark "
    "or a database say of it; lost connections, time limits and other classes are not. 0: "
    "there is no limit. (Flink has none.)",
)
RESTART_PATIENCE_WITH_FILES = ConfigOption(
    "restart-strategy.patience-with-files",
    duration(positive=False),
    30.0,
    "If the error is about a file or folder that is missing, closed to the user or not complete, "
    "the job fails only when such attempts have gone on for at least this time: the folder may not "
    "be mounted yet, or the file still be written.",
)
TASK_CANCELLATION_INTERVAL = ConfigOption(
    "task.cancellation.interval",
    duration(),
    1.0,
    "A Python task that is cancelled and does not end is interrupted after this time, and again"
    " each time it has passed. (Flink: 30 s.)",
)
TASK_CANCELLATION_TIMEOUT = ConfigOption(
    "task.cancellation.timeout",
    duration(),
    30.0,
    "When a Python task has not ended this long after it was cancelled, its process is killed "
    "and replaced, and all other tasks in that process fail. (Flink: 180 s, and its TaskManager"
    " ends.)",
)

JOB_OPTIONS: dict[str, ConfigOption[Any]] = {
    option.key: option for option in globals().copy().values() if isinstance(option, ConfigOption)
}
"""All options that a job may set for itself, by key."""

JOB_KEYS = frozenset(
    key for option in JOB_OPTIONS.values() for key in (option.key, *option.aliases)
)
"""The keys of all options that a job may set for itself, and their aliases."""
