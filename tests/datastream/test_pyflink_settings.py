"""Settings of PyFlink's environment and configuration."""

from __future__ import annotations

import copy
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.config import values_of
from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import ENDLESS, JOB_KEYS
from flinkray.core.program_settings import PROGRAM_KEYS
from flinkray.datastream import (
    CheckpointingMode,
    Configuration,
    EmbeddedRocksDBStateBackend,
    ExecutionConfig,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    KeyedProcessFunction,
    MemorySize,
    PredefinedOptions,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StateBackend,
    StreamExecutionEnvironment,
)
from flinkray.datastream.common import Duration, RestartStrategies, Types
from flinkray.datastream.flink_settings import _READ_WHERE_NEEDED, FLINK_SETTINGS
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.streaming.errors import StreamError


def test_checkpoint_settings_have_pyflinks_defaults(env: Any) -> None:
    """PF-20"""
    config = env.get_checkpoint_config()
    assert config.get_checkpoint_interval() == env.get_checkpoint_interval() == -1
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_timeout() == 600000
    assert config.get_min_pause_between_checkpoints() == 0
    assert config.get_max_concurrent_checkpoints() == 1
    assert config.get_tolerable_checkpoint_failure_number() == 0
    assert config.is_fail_on_checkpointing_errors()
    none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    assert config.get_externalized_checkpoint_retention() is none
    assert not config.is_externalized_checkpoints_enabled()
    assert not config.is_unaligned_checkpoints_enabled()
    assert env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_checkpoint_interval() == 1000
    assert config.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE


def test_slot_sharing_group_with_incomplete_resources_is_refused() -> None:
    """PF-21"""
    empty = SlotSharingGroup.builder("g").build()
    assert empty.get_cpu_cores() is None
    assert empty.get_task_heap_memory() is None
    assert empty.get_task_off_heap_memory() is None
    assert empty.get_managed_memory() is None
    assert empty.get_external_resources() == {}
    for half in (
        SlotSharingGroup.builder("g").set_cpu_cores(1),
        SlotSharingGroup.builder("g").set_task_heap_memory_mb(100),
        SlotSharingGroup.builder("g").set_external_resource("gpu", 1),
    ):
        with pytest.raises(ValueError, match="set both, or none"):
            half.build()
    full = SlotSharingGroup.builder("g").set_cpu_cores(1).set_task_heap_memory_mb(100)
    built = full.set_external_resource("gpu", 2).build()
    assert built.get_task_heap_memory() == MemorySize.of_mebi_bytes(100)
    assert built.get_external_resources() == {"gpu": 2}
    for amount in (math.inf, math.nan, -1, 1e300):
        with pytest.raises(ValueError, match="CPU cores must be positive and at most 1000000"):
            SlotSharingGroup.builder("g").set_cpu_cores(amount)
        with pytest.raises(ValueError, match="external resource 'gpu' must be from 0 to"):
            SlotSharingGroup.builder("g").set_external_resource("gpu", amount)


def test_environment_is_configured_by_the_option_names_of_flink(env: Any) -> None:
    """PF-21"""
    assert env.is_changelog_state_backend_enabled() is None
    env.enable_changelog_state_backend(True)
    assert env.is_changelog_state_backend_enabled() is True
    env.configure(Configuration().set_string("execution.buffer-timeout", "1 min"))
    assert env.get_buffer_timeout() == 60000
    other = Configuration().set_integer("parallelism.default", 7)
    other.set_string("pipeline.auto-watermark-interval", "300 ms")
    other.set_string("execution.runtime-mode", "BATCH")
    configured = StreamExecutionEnvironment.get_execution_environment(other)
    assert configured.get_parallelism() == 7
    assert configured.get_config().get_auto_watermark_interval() == 300


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    "enable",
    [
        lambda env: env.enable_checkpointing(1000),
        lambda env: env.get_checkpoint_config().set_checkpoint_interval(1000),
        lambda env: env.configure(
            Configuration().set_string("execution.checkpointing.interval", "1 s")
        ),
    ],
)
def test_program_with_its_own_clock_warns_that_it_takes_no_checkpoints(
    enable: Any, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    enable(env)
    assert warnings_of(caplog) == []
    env.from_collection([1]).print()
    env.execute()
    assert warnings_of(caplog) == [
        "The setting execution.checkpointing.interval has no effect: a program of one process in "
        "batch mode, or with a clock of its own, takes no checkpoints."
    ]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            lambda env: env.set_state_backend(StateBackend()),
            "The state backend <flinkray.datastream.state_backend.StateBackend object",
        ),
        (
            lambda env: env.enable_changelog_state_backend(True),
            "The changelog state backend is enabled and has no effect",
        ),
        (
            lambda env: env.set_python_requirements(__file__),
            "set_python_requirements has no effect in one process, and clusters refuse it: install "
            "the packages with pip in the Python that runs functions, which is this one or",
        ),
        (
            lambda env: env.configure(
                Configuration().set_string("python.requirements", f"{__file__}#/")
            ),
            "set_python_requirements has no effect in one process, and clusters refuse it: install "
            "the packages with pip in the Python that runs functions, which is this one or",
        ),
        (
            lambda env: env.configure(Configuration().set_string("python.executable", "python3")),
            "set_python_executable has no effect in one process, and clusters refuse it: functions",
        ),
    ],
)
def test_setting_without_effect_warns_when_it_is_set(
    setting: Any, told: str, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    setting(env)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("execution.checkpointing.storage", "jobmanager", "checkpoints do not follow it yet."),
        (
            "taskmanager.numberOfTaskSlots",
            "4",
            "it is set for a cluster or its client (docs/configuration.md), not for a program.",
        ),
        (
            "pipeline.max-paralelism",
            "4",
            "it is not known; the nearest is pipeline.max-parallelism.",
        ),
        ("of.my.own", "4", "it is not known."),
    ],
)
def test_setting_without_effect_that_is_set_twice_warns_once(
    key: str, value: str, told: str, env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration().set_string(key, value)
    env.configure(configuration)
    env.configure(configuration)
    assert warnings_of(caplog) == [f"The setting {key} has no effect: {told}"]


def test_no_restart_strategy_in_one_process_gives_no_warning(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_collection([1]).print()
    env.execute()
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("interval", [0, -1, 9])
def test_checkpoint_interval_below_ten_milliseconds_is_refused(interval: int) -> None:
    expected = f"a checkpoint interval in milliseconds must be at least 10, got {interval}"
    with pytest.raises(ValueError, match=expected):
        StreamExecutionEnvironment().enable_checkpointing(interval)


def test_settings_with_an_effect_give_no_warning(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration().set_string("pipeline.name", "named")
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("execution.sorted-inputs.memory", "1mb")
    configuration.set_string("execution.shutdown-on-attached-exit", "true")
    configuration.set_string("pipeline.operator-chaining.enabled", "False")
    configuration.set_string("pipeline.object-reuse", "true")
    env.configure(configuration)
    assert warnings_of(caplog) == []
    assert not env.is_chaining_enabled()
    assert env.get_config().is_object_reuse_enabled()


@pytest.mark.parametrize(("number", "tolerated"), [("0", 0), ("7", 7), ("-1", ENDLESS)])
def test_tolerated_checkpoint_failures_are_a_number_or_unlimited(
    number: str, tolerated: int, env: Any
) -> None:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.tolerable-failed-checkpoints", number)
    checkpoints = env.configure(configuration).get_checkpoint_config()
    assert checkpoints.get_tolerable_checkpoint_failure_number() == tolerated
    with pytest.raises(ValueError, match="a number of failures must be at least 0, got -2"):
        checkpoints.set_tolerable_checkpoint_failure_number(-2)


def test_checkpoint_settings_can_be_read_back(env: Any) -> None:
    configuration = Configuration().set_string("execution.checkpointing.timeout", "1 min")
    configuration.set_string("execution.checkpointing.mode", "at-least-once")
    configuration.set_string("execution.checkpointing.min-pause", "2 s")
    configuration.set_string("execution.checkpointing.max-concurrent-checkpoints", "3")
    configuration.set_string("execution.checkpointing.tolerable-failed-checkpoints", "4")
    configuration.set_string(
        "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION"
    )
    configuration.set_string("execution.checkpointing.unaligned.enabled", "true")
    configuration.set_string("execution.checkpointing.unaligned.forced", "true")
    configuration.set_string("execution.checkpointing.aligned-checkpoint-timeout", "5 s")
    configuration.set_string("execution.checkpointing.dir", "file:///checkpoints")
    configuration.set_string("execution.checkpointing.savepoint-dir", "file:///savepoints")
    checkpoints = env.configure(configuration).get_checkpoint_config()
    assert checkpoints.get_checkpointing_mode().name == "AT_LEAST_ONCE"
    assert checkpoints.get_checkpoint_timeout() == 60_000
    assert checkpoints.get_min_pause_between_checkpoints() == 2000
    assert checkpoints.get_max_concurrent_checkpoints() == 3
    assert checkpoints.get_tolerable_checkpoint_failure_number() == 4
    assert checkpoints.is_externalized_checkpoints_enabled()
    assert checkpoints.is_unaligned_checkpoints_enabled()
    assert checkpoints.is_force_unaligned_checkpoints()
    assert checkpoints.get_alignment_timeout() == Duration.of_seconds(5)
    assert checkpoints.get_checkpoint_storage() is not None
    assert env.get_default_savepoint_directory() == "file:///savepoints"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("pipeline.operator-chaining", "no", "it must be true or false"),
        ("execution.runtime-mode", "fast", "it must be one of STREAMING, BATCH, AUTOMATIC"),
        ("parallelism.default", "many", "invalid literal"),
        ("parallelism.default", "0", "parallelism must be at least 1, got 0"),
        ("execution.buffer-timeout", "soon", "soon"),
    ],
)
def test_invalid_value_of_a_setting_is_refused_with_its_key(
    key: str, value: str, told: str, env: Any
) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        env.configure(Configuration().set_string(key, value))
    assert key in str(caught.value)


def test_in_memory_state_backend_is_accepted_and_unknown_backends_are_refused(
    env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert env.get_state_backend() is None
    backend = HashMapStateBackend()
    assert env.set_state_backend(backend).get_state_backend() is backend
    env.configure(Configuration().set_string("state.backend.type", "hashmap"))
    env.enable_changelog_state_backend(False)
    assert warnings_of(caplog) == []
    with pytest.raises(TypeError, match="a StateBackend is needed, got 'rocksdb'"):
        env.set_state_backend("rocksdb")
    with pytest.raises(ConfigurationError, match="must be one of hashmap, rocksdb, got 'tape'"):
        env.configure(Configuration().set_string("state.backend.type", "tape"))


@pytest.mark.parametrize(
    "choose",
    [
        lambda env, path: env.set_state_backend(on_disk(path)),
        lambda env, path: env.configure(
            Configuration()
            .set_string("state.backend.type", "rocksdb")
            .set_string("state.backend.rocksdb.localdir", path)
        ),
    ],
)
def test_state_of_a_program_with_a_disk_backend_is_on_the_disk(
    choose: Any, env: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    choose(env, str(tmp_path))

    class Count(KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: Any) -> None:
            self.number = context.get_state(ValueStateDescriptor("number", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            number = (self.number.value() or 0) + 1
            self.number.update(number)
            folders = {path.name[:14] for path in tmp_path.iterdir()}
            yield value, number, folders

    keyed = env.from_collection(["a", "b", "a"]).key_by(lambda value: value)
    found = sorted(keyed.process(Count()).execute_and_collect())
    assert found == [(key, n, {"flinkray-state"}) for key, n in (("a", 1), ("a", 2), ("b", 1))]
    assert warnings_of(caplog) == []
    assert list(tmp_path.iterdir()) == [], "it goes with the task"


def on_disk(path: str) -> EmbeddedRocksDBStateBackend:
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(path)
    return backend


def test_rocksdb_settings_are_checked_and_can_be_read_back() -> None:
    backend = EmbeddedRocksDBStateBackend()
    assert not backend.is_incremental_checkpoints_enabled()
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    assert backend.get_number_of_transfer_threads() == 4
    backend.set_number_of_transfer_threads(8)
    assert backend.get_number_of_transfer_threads() == 8
    with pytest.raises(ValueError, match="at least 1, got 0"):
        backend.set_number_of_transfer_threads(0)
    for path, wrong in (("s3://a/b", "of another file system"), ("a/b", "relative")):
        with pytest.raises(ValueError, match=wrong):
            backend.set_db_storage_paths("/data", path)
    assert backend.get_db_storage_paths() == []
    with pytest.raises(ConfigurationError, match="there is no JVM"):
        backend.set_options("org.example.Factory")


def test_file_url_of_checkpoint_storage_is_normalized() -> None:
    """PF-21"""
    storage = FileSystemCheckpointStorage("file:///var/checkpoints/")
    assert storage.get_checkpoint_path() == "file:///var/checkpoints"
    assert storage.get_min_file_size_threshold() == 20480


def test_latency_tracking_interval_other_than_zero_is_refused() -> None:
    config = ExecutionConfig()
    with pytest.raises(ConfigurationError, match=r"^set_\w+.*: .*leave it out, .*flinkray info"):
        config.set_latency_tracking_interval(100)
    assert config.set_latency_tracking_interval(0).get_latency_tracking_interval() == 0


def test_cancellation_times_set_in_a_program_are_sent_with_its_job(env: Any) -> None:
    config = env.get_config()
    unset = (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout())
    assert unset == (1000, 30_000)
    env.configure(Configuration().set_string("task.cancellation.interval", "5 s"))
    config.set_task_cancellation_timeout(4000)
    times = (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout())
    assert times == (5000, 4000)
    env.from_collection([1]).print()
    settings = env._job(env.get_stream_graph()).configuration
    assert settings == {
        "task.cancellation.interval": "5 s",
        "task.cancellation.timeout": "4 s",
    }
    for setter in (config.set_task_cancellation_interval, config.set_task_cancellation_timeout):
        with pytest.raises(ValueError, match="a time must be positive, got 0 ms"):
            setter(0)


def test_checkpoint_settings_set_in_a_program_are_sent_with_its_job(env: Any) -> None:
    """Only settings that were set are sent, so that the options of the cluster apply to the
    rest."""
    env.configure(
        Configuration.from_dict(
            {
                "execution.checkpointing.min-pause": "500",
                "execution.checkpointing.alignment-timeout": "3 s",
                "state.checkpoints.num-retained": "5",
                "state.checkpoints.dir": "/first",
            }
        )
    )
    config = env.enable_checkpointing(2000, CheckpointingMode.EXACTLY_ONCE).get_checkpoint_config()
    config.set_checkpoint_timeout(4000).set_max_concurrent_checkpoints(2)
    config.set_fail_on_checkpointing_errors(False).enable_unaligned_checkpoints()
    retention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    config.set_externalized_checkpoint_retention(retention)
    config.set_checkpoint_storage(FileSystemCheckpointStorage("/second", 100))
    env.set_default_savepoint_directory("/savepoints")
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING).from_collection([1]).print()
    job = env._job(env.get_stream_graph())
    assert job.checkpoints == CheckpointConfiguration(
        2.0,
        4.0,
        0.5,
        max_concurrent=2,
        max_retained=5,
        tolerable_failures=ENDLESS,
        retention=CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        is_unaligned=True,
        alignment_timeout=3.0,
    )
    prefix = "execution.checkpointing."
    assert len(job.configuration) == 13
    assert job.configuration[f"{prefix}dir"] == "/second"
    assert job.configuration[f"{prefix}savepoint-dir"] == "/savepoints"
    assert job.configuration[f"{prefix}data-inline-threshold"] == "100b"
    assert f"{prefix}incremental" not in job.configuration
    config.set_checkpoint_storage_dir("/third")
    assert f"{prefix}data-inline-threshold" not in config.job_settings()  # that of the option
    config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert not {f"{prefix}dir", f"{prefix}data-inline-threshold"} & {*config.job_settings()}


def test_operator_without_a_uid_is_refused_when_uids_are_not_generated(env: Any) -> None:
    env.configure(Configuration().set_string("pipeline.auto-generate-uids", "false"))
    doubled = env.from_collection([1]).uid("one").map(lambda v: 2 * v).name("double")
    with pytest.raises(StreamError, match=r"^double has no uid.*uid\("):
        env.get_execution_plan()
    assert list(doubled.set_uid_hash("0" * 32).execute_and_collect()) == [2]


def test_accumulator_results_are_empty(env: Any) -> None:
    env.from_collection([1]).print()
    client = env.execute_async()
    result = client.get_job_execution_result().result()
    assert (result.get_all_accumulator_results(), result.get_accumulator_result("a")) == ({}, None)
    assert client.get_accumulators().result() == {}


def test_command_line_accepts_the_settings_that_only_programs_have() -> None:
    settings = {*FLINK_SETTINGS, *_READ_WHERE_NEEDED}
    assert settings - JOB_KEYS == PROGRAM_KEYS


def test_documentation_lists_the_settings_that_only_programs_have() -> None:
    page = (Path(__file__).parents[2] / "docs/datastream.md").read_text("utf-8")
    section = page.partition("## Settings by name")[2].partition("\n## ")[0]
    assert {key for key in PROGRAM_KEYS if f"`{key}`" not in section} == set()


def test_option_set_as_text_is_read_as_number_or_boolean() -> None:
    config = Configuration.from_dict({"a": "7", "b": "TRUE", "c": "0.5"})
    config.set_bytearray("d", bytearray(b"\x00\xff"))
    assert (config.get_integer("a", 0), config.get_float("a", 0.0)) == (7, 7.0)
    assert (config.get_boolean("b", False), config.get_float("c", 0.0)) == (True, 0.5)
    assert config.get_bytearray("d", bytearray()) == bytearray(b"\x00\xff")
    assert config.get_integer("none", 3) == 3
    assert config.key_set() == {"a", "b", "c", "d"}
    told = {"before": "kept"}
    Configuration().add_all(config, "in.").add_all_to_dict(told)
    texts = {"in.a": "7", "in.b": "TRUE", "in.c": "0.5"}
    assert told == {"before": "kept", **texts, "in.d": bytearray(b"\x00\xff")}


def test_options_copied_into_a_dictionary_keep_their_types() -> None:
    config = Configuration().set_integer("a", 7).set_boolean("b", True).set_float("c", 0.5)
    told: dict[str, Any] = {}
    config.set_string("d", "9").add_all_to_dict(told)
    assert told == {"a": 7, "b": True, "c": 0.5, "d": "9"}
    assert {key: type(value) for key, value in told.items()}["b"] is bool
    assert str(config) == "{a=7, b=true, c=0.5, d=9}"


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda config: config.get_integer("key", 0), "key must be a whole number, got 'maybe'"),
        (lambda config: config.get_boolean("key", True), "key must be true or false, got 'maybe'"),
        (lambda config: config.get_float("key", 0.0), "key must be a number, got 'maybe'"),
        (
            lambda config: config.get_bytearray("key", bytearray()),
            "key must be bytes in Base64, got 'maybe'",
        ),
    ],
)
def test_option_whose_text_does_not_fit_the_requested_type_is_refused_and_named(
    read: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read(Configuration().set_string("key", "maybe"))


def test_list_option_is_parsed_from_semicolons_or_yaml() -> None:
    parse = Configuration.parse_list_value
    assert parse("- a\n- b") == parse("[a, 'b']") == parse("a; b;") == ["a", "b"]
    assert parse("") == parse(None) == []


@pytest.mark.parametrize("value", [None, ["a:1", "b:2"], {"a": 1}, object()])
def test_option_value_that_is_no_text_or_number_is_refused_and_named_in_the_error(
    value: Any,
) -> None:
    """``os.environ.get`` returns None for a variable that is not set."""
    told = r"the value of storage\.dir is a text, a"
    with pytest.raises(ConfigurationError, match=told):
        Configuration({"storage.dir": value})
    with pytest.raises(ConfigurationError, match=told):
        Configuration().set_string("storage.dir", value)
    with pytest.raises(ConfigurationError, match=told):
        Configuration.from_dict({"storage.dir": value})


def test_configuration_stores_a_timedelta_as_a_duration_and_its_copy_is_independent() -> None:
    written = Configuration({"heartbeat.timeout": timedelta(minutes=1)})
    assert written.to_dict() == {"heartbeat.timeout": "60 s"}
    copied = copy.copy(written)
    copied.set_string("heartbeat.timeout", "5 s")
    assert written.get_string("heartbeat.timeout", "") == "60 s"
    assert values_of(written) == {"heartbeat.timeout": "60 s"}
    with pytest.raises(ConfigurationError, match="a configuration is a flinkray"):
        values_of("abc")  # type: ignore[arg-type]
