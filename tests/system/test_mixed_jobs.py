"""Jobs of Spark and Python stages that read each other's results, on a real cluster."""

from __future__ import annotations

import pandas as pd
import pytest
from flights import package_data
from flights_mixed import HEADWIND, mixed_job

from flinkray.client import ClusterClient
from tests.system.observer import assert_leaves_no_traces

pytestmark = [pytest.mark.ray, pytest.mark.spark]


def expected() -> pd.DataFrame:
    """By another way: pandas, from the raw package data."""
    data = package_data()
    flights = pd.read_csv(data / "flights.csv.zip").dropna(subset=["dep_delay"])
    weather = pd.read_csv(data / "weather.csv")
    joined = flights.merge(
        weather[["origin", "time_hour", "wind_speed"]], on=["origin", "time_hour"], how="left"
    )
    joined["score"] = joined["dep_delay"] - HEADWIND * joined["wind_speed"].fillna(0)
    by_carrier = joined.groupby("carrier")["score"].agg(["size", "mean"]).reset_index()
    renamed: pd.DataFrame = by_carrier.rename(columns={"size": "flights", "mean": "score"})
    return renamed


def test_flights_go_through_spark_python_and_spark(client: ClusterClient) -> None:
    handle = client.submit(mixed_job())
    result = handle.result(timeout=240).to_pandas().sort_values("carrier", ignore_index=True)
    wanted = expected()
    assert result["carrier"].tolist() == wanted["carrier"].tolist()
    assert result["flights"].tolist() == wanted["flights"].tolist()
    assert result["score"].tolist() == pytest.approx(wanted["score"].tolist())
    assert_leaves_no_traces(handle.job_id)
