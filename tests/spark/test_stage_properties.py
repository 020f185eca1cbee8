"""The properties of a stage, which are a pure function."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.spark.environment import JavaInstallation, RaydpArchives, SparkEnvironment
from flinkray.spark.executor_memory import MIB
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot, SparkStageDescriptor
from flinkray.spark.ray_cluster import RayContext
from flinkray.spark.raydp_host import app_master_options, raydp_properties
from flinkray.spark.stage_properties import StageProperties, stage_properties
from flinkray.spark.standalone_host import executor_launch, standalone_properties

ENVIRONMENT = SparkEnvironment(
    java=JavaInstallation(Path("/java"), "17.0.9", "PATH"),
    spark_home=Path("/spark"),
    spark_jars=(Path("/spark/jars/core.jar"), Path("/spark/jars/sql.jar")),
    raydp=RaydpArchives(
        jars=(Path("/raydp/raydp-agent.jar"), Path("/raydp/raydp.jar")),
        agent=Path("/raydp/raydp-agent.jar"),
        ray_jars=(Path("/ray/ray_dist.jar"),),
    ),
)
STANDALONE_ENVIRONMENT = replace(ENVIRONMENT, raydp=None)
RAY = RayContext("10.0.0.1:6379", "10.0.0.2", "/ray/session", "/ray/session/logs")
GROUP = "ab" * 18


def stage(
    configuration: dict[str, str] | None = None,
    profile: ResourceProfile | None = None,
    attempt: int = 3,
) -> SparkStageDescriptor:
    return SparkStageDescriptor(
        job_id=JobID(bytes(16)),
        job_name="flights",
        vertex_id=JobVertexID(bytes([1] * 16)),
        attempt_number=attempt,
        listener_address="JobMaster-0/jobmaster",
        job_master_id=JobMasterId(bytes([3] * 16)),
        graph_id=ExecutionGraphID(bytes([2] * 16)),
        worker_group=WorkerGroupId(GROUP),
        parallelism=3,
        slot_profile=profile or ResourceProfile(2.0, 4096 * MIB, {"GPU": 0.5}),
        code=b"",
        configuration=configuration or {},
        result_location="/results",
    )


def properties(
    configuration: dict[str, str] | None = None,
    profile: ResourceProfile | None = None,
    attempt: int = 3,
) -> StageProperties:
    """On RayDP."""
    described = stage(configuration, profile, attempt)
    host = raydp_properties(described, ENVIRONMENT, RAY)
    return stage_properties(described, RAY, "/python", host)


def options_of_the_app_master() -> tuple[str, ...]:
    assert ENVIRONMENT.raydp is not None
    return app_master_options(stage(), ENVIRONMENT.raydp)


def test_executor_has_cores_and_resources_of_its_slot_and_heap_minus_overhead() -> None:
    spark = properties().spark

    assert spark["spark.executor.instances"] == "3"
    assert spark["spark.executor.cores"] == "2"
    assert spark["spark.ray.raydp_spark_executor.actor.resource.cpu"] == "2"
    assert spark["spark.ray.raydp_spark_executor.actor.resource.GPU"] == "0.5"
    assert spark["spark.executor.memory"] == "3687m"
    assert spark["spark.executor.memoryOverhead"] == "409m"


def test_spark_executor_in_a_slot_of_half_a_core_runs_one_task_at_a_time() -> None:
    spark = properties(profile=ResourceProfile(0.5, 1024 * MIB)).spark

    assert spark["spark.executor.cores"] == "1"
    assert spark["spark.ray.raydp_spark_executor.actor.resource.cpu"] == "0.5"


def test_app_master_gets_the_placement_group_and_one_bundle_per_slot() -> None:
    options = options_of_the_app_master()

    assert f"-Dspark.ray.placement_group={GROUP}" in options
    assert "-Dspark.ray.bundle_indexes=0,1,2" in options


def test_each_attempt_of_a_spark_stage_has_its_own_ray_namespace() -> None:
    def namespace(attempt: int) -> str:
        [option] = [
            option
            for option in properties(attempt=attempt).driver_command
            if option.startswith("-Dray.job.namespace=")
        ]
        return option

    assert namespace(0) != namespace(1)


def test_every_jvm_of_a_stage_has_its_job_id_and_attempt_in_its_command_line() -> None:
    started = properties()
    marks = {
        f"-Dflinkray.job.id={'0' * 32}",
        "-Dflinkray.spark.attempt=01010101-02020202-3",
    }

    assert marks <= set(started.driver_command)
    assert marks <= set(options_of_the_app_master())
    assert marks <= set(shlex.split(started.spark["spark.executor.extraJavaOptions"]))
    assert started.spark["spark.executorEnv.FLINKRAY_JOB_ID"] == "0" * 32
    assert f"-Dray.job.runtime-env.env-vars.FLINKRAY_JOB_ID={'0' * 32}" in started.driver_command


def test_spark_executors_get_the_storage_permissions_by_their_environment() -> None:
    described = replace(stage(), storage_permissions="group")
    started = stage_properties(
        described, RAY, "/python", raydp_properties(described, ENVIRONMENT, RAY)
    )
    assert started.spark["spark.executorEnv.FLINKRAY_STORAGE_PERMISSIONS"] == "group"
    assert properties().spark["spark.executorEnv.FLINKRAY_STORAGE_PERMISSIONS"] == "owner"


def test_java_17_gets_its_module_options_in_driver_app_master_and_executors() -> None:
    started = properties()
    option = "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"

    assert option in started.driver_command
    assert option in options_of_the_app_master()
    assert option in started.spark["spark.executor.extraJavaOptions"].split()


def test_spark_task_counts_are_updated_at_once_unless_the_user_sets_a_period() -> None:
    key = "spark.ui.liveUpdate.period"

    assert properties().spark[key] == "0"
    assert properties(configuration={key: "1s"}).spark[key] == "1s"


def test_properties_of_the_user_override_defaults_and_extend_jvm_options() -> None:
    started = properties(
        {
            "spark.ui.enabled": "true",
            "spark.sql.shuffle.partitions": "7",
            "spark.executor.extraJavaOptions": "-Dmine=1",
            "spark.driver.memory": "2048",
            "spark.driver.extraJavaOptions": "-Dmine=2",
            "spark.jars": "/mine/a.jar,/mine/b.jar",
            "spark.pyspark.python": "/mine/python",
        }
    )

    assert started.spark["spark.ui.enabled"] == "true"
    assert started.spark["spark.sql.shuffle.partitions"] == "7"
    assert "-Dmine=1" in started.spark["spark.executor.extraJavaOptions"].split()
    assert "-Xmx2048m" in started.driver_command
    assert "-Dmine=2" in started.driver_command
    assert started.class_path.endswith("/ray/ray_dist.jar:/mine/a.jar:/mine/b.jar")
    assert started.python == "/mine/python"


def test_memory_overhead_of_the_user_decides_how_slot_memory_is_split() -> None:
    spark = properties({"spark.executor.memoryOverhead": "1g"}).spark

    assert spark["spark.executor.memory"] == "3072m"
    assert spark["spark.executor.memoryOverhead"] == "1024m"


@pytest.mark.parametrize(
    "key",
    [
        "spark.master",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.cores",
        "spark.dynamicAllocation.enabled",
        "spark.shuffle.service.enabled",
        "spark.ray.placement_group",
        "spark.ray.raydp_spark_executor.actor.resource.cpu",
        "spark.jars.packages",
    ],
)
def test_property_that_the_job_sets_itself_is_refused_and_named_in_the_error(key: str) -> None:
    with pytest.raises(ConfigurationError, match=key.replace(".", r"\.")):
        properties({key: "1"})


def test_key_that_is_no_spark_property_is_refused_and_named_in_the_error() -> None:
    with pytest.raises(ConfigurationError, match="executor_memory is no Spark property"):
        properties({"executor_memory": "1g"})


def test_env_java_home_is_accepted_and_not_passed_to_spark() -> None:
    assert "env.java.home" not in properties({"env.java.home": "/java"}).spark


SLOT = ExecutorSlot(1, 1, "actor", "node", "10.0.0.3")


def launch(configuration: dict[str, str] | None = None) -> ExecutorLaunch:
    return executor_launch(
        stage(configuration), "spark://driver:1", "app-1", "the secret", "7", SLOT
    )


def test_standalone_executor_has_the_cores_and_heap_of_its_slot() -> None:
    options = launch().java_options

    assert "-Xmx3687m" in options
    assert "-XX:ActiveProcessorCount=2" in options
    arguments = " ".join(launch().arguments)
    assert "--cores 2" in arguments
    assert "--executor-id 7" in arguments
    assert "--hostname 10.0.0.3 --bind-address 10.0.0.3" in arguments
    assert "--driver-url spark://driver:1 " in arguments


def test_standalone_executor_gets_the_secret_only_in_its_environment() -> None:
    started = launch()

    assert "the secret" in started.environment.values()
    assert "the secret" not in " ".join([*started.java_options, *started.arguments])
    assert "-Dspark.authenticate=true" in started.java_options


def test_standalone_executor_gets_its_job_id_and_the_java_options_of_the_user() -> None:
    started = launch(
        {
            "spark.executor.extraJavaOptions": "-Dmine=1",
            "spark.executor.extraClassPath": "/mine/a.jar:/mine/b.jar",
            "spark.executorEnv.MINE": "2",
            "env.java.home": "/mine/java",
        }
    )

    assert started.environment["FLINKRAY_JOB_ID"] == "0" * 32
    assert started.environment["MINE"] == "2"
    assert started.java_options[-3:-2] == ("-Dmine=1",)
    assert started.class_path == ("/mine/a.jar", "/mine/b.jar")
    assert started.java_home == "/mine/java"


def test_standalone_session_is_authenticated_and_drops_executors_at_once() -> None:
    host = standalone_properties(stage(), STANDALONE_ENVIRONMENT, "the secret")
    spark = stage_properties(stage(), RAY, "/python", host).spark

    assert spark["spark.authenticate"] == "true"
    assert spark["spark.authenticate.secret"] == "the secret"
    assert spark["spark.cores.max"] == "6"
    assert spark["spark.standalone.executorRemoveDelayOnDisconnection"] == "0s"
    assert not any(key.startswith("spark.ray.") for key in spark)
    assert host.class_path == "/spark/jars/core.jar:/spark/jars/sql.jar"


def test_web_page_of_the_spark_master_listens_on_the_loopback_address() -> None:
    host = standalone_properties(stage(), STANDALONE_ENVIRONMENT, "")

    assert host.driver_environment == {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.parametrize(
    "key", ["spark.authenticate", "spark.authenticate.secret", "spark.cores.max"]
)
def test_property_that_the_standalone_host_sets_is_refused_and_named_in_the_error(key: str) -> None:
    with pytest.raises(ConfigurationError, match=key.replace(".", r"\.")):
        standalone_properties(stage({key: "1"}), STANDALONE_ENVIRONMENT, "")


def test_spark_host_is_accepted_and_not_passed_to_spark() -> None:
    assert "spark.host" not in properties({"spark.host": "raydp"}).spark


def test_driver_jvms_on_raydp_and_standalone_start_with_their_class_data_archives() -> None:
    option = ENVIRONMENT.class_data_option
    command = properties().driver_command
    assert option in command
    variables = "-Dray.job.runtime-env.env-vars."  # Ray's worker processes have them
    assert f"{variables}FLINKRAY_CLASS_DATA_OPTION={option}" in command

    host = standalone_properties(stage(), STANDALONE_ENVIRONMENT, "")
    command = stage_properties(stage(), RAY, "/python", host).driver_command
    assert STANDALONE_ENVIRONMENT.class_data_option in command
    assert STANDALONE_ENVIRONMENT.class_data_option != option
