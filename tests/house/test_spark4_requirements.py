"""What an environment with Spark 4 installs follows from flinkray's own requirements."""

from __future__ import annotations

from importlib import metadata

from tools.spark4_requirements import requirements


def test_spark4_requirements_drop_raydp_replace_spark_and_expand_extras() -> None:
    required = [
        "raydp==1.6.5",
        "pyspark<=3.5.7,>=3.5.5",
        "ray[default]<3",
        'kazoo>=2; extra == "zookeeper"',
        'kafka>=1; extra == "kafka"',
        'pytest>=8; extra == "test"',
        'flinkray[zookeeper]; extra == "test"',
        'other; extra == "test" and sys_platform == "nowhere"',
    ]

    assert requirements(required, "test") == [
        "kazoo>=2",
        "pyspark>=4.0,<=4.3.0",
        "pytest>=8",
        "ray[default]<3",
    ]


def test_requirements_of_flinkray_for_spark4_have_no_raydp() -> None:
    found = requirements(metadata.requires("flinkray") or (), "test")

    assert not any(text.startswith("raydp") for text in found)
    assert any(text.startswith("msgpack") for text in found)
    assert any(text.startswith("hypothesis") for text in found)
