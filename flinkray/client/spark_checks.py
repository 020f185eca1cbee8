"""Checks Spark stages when they are submitted.

Without the checks a stage's driver would find the errors, only when the job has its slots.
"""

from __future__ import annotations

from collections.abc import Mapping

from flinkray.core.resources import ResourceProfile
from flinkray.spark.environment import JAVA_HOME_OPTION
from flinkray.spark.session import refuse_owned, split_memory


def check_spark_stage(profile: ResourceProfile, properties: Mapping[str, str]) -> None:
    """Check the slots and properties of a Spark stage.

    Raises:
        ConfigurationError: a property cannot be set for a stage, or no executor fits into a slot of
            *profile*.
    """
    refuse_owned({key: value for key, value in properties.items() if key != JAVA_HOME_OPTION})
    split_memory(profile, properties.get("spark.executor.memoryOverhead"))
