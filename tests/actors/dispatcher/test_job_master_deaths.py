"""How often the JobMasters of a job may die."""

from __future__ import annotations

import pytest

from flinkray.actors.dispatcher.managed_job import JobMasterDeaths
from flinkray.core.config import Configuration


def deaths(most: int, interval: str = "100 s") -> JobMasterDeaths:
    values = {"jobmaster.max-failovers": most, "jobmaster.failover-validity-interval": interval}
    return JobMasterDeaths(Configuration(values))


def test_job_ends_only_after_too_many_job_master_deaths_in_the_interval() -> None:
    few = deaths(2)
    for number in range(1000):
        assert few.one_more("killed", 0.0, 51.0 * number) is None
    assert few.one_more("out of memory", 0.0, 51.0 * 999 + 40) is not None
    assert few.count == 1001
    assert [entry.text for entry in few.last][-2:] == [
        "the JobMaster died: killed",
        "the JobMaster died: out of memory",
    ]
    assert len(few.last) == 16


@pytest.mark.parametrize(("most", "how_often"), [(0, "once"), (1, "2 times within 100 s")])
def test_failure_tells_number_of_deaths_last_cause_and_options(most: int, how_often: str) -> None:
    none = deaths(most)
    for _ in range(most):
        assert none.one_more("killed", 0.0, 1.0) is None
    text = none.one_more("out of memory", 0.0, 2.0)
    assert text is not None
    assert text.startswith(f"its JobMaster died {how_often}, the last time: out of memory. ")
    assert "jobmaster.max-failovers" in text
    assert "jobmaster.failover-validity-interval" in text
