"""What the flights demo shows of the pipeline's result: a table for the terminal and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from flights import LATE_MINUTES
from matplotlib.figure import Figure

MIN_DEPARTURES = 30
"""What has fewer departures in the year says little and is left out."""

COLD, HOT = "#2f6f8f", "#c8553d"


def worst_per_carrier(statistics: pd.DataFrame) -> pd.DataFrame:
    """The route and hour with the highest mean delay of each carrier, worst carrier first.

    Those with fewer than `MIN_DEPARTURES` are left out, and with them carriers that have no other.
    """
    order = {"delay_mean": False, "departed": False, "origin": True, "dest": True, "hour": True}
    busy = statistics[statistics["departed"] >= MIN_DEPARTURES]
    ranked = busy.sort_values(list(order), ascending=list(order.values()))
    worst: pd.DataFrame = ranked.drop_duplicates("carrier").reset_index(drop=True)
    return worst


def mean_delay_by_carrier_and_hour(statistics: pd.DataFrame) -> pd.DataFrame:
    """Mean delay in minutes over all routes: carriers down, hours across, both in order.

    NaN where fewer than `MIN_DEPARTURES` left.
    """
    totals = statistics.assign(delay_sum=statistics["delay_mean"] * statistics["departed"])
    sums = totals.groupby(["carrier", "hour"])[["delay_sum", "departed"]].sum()
    sums = sums[sums["departed"] >= MIN_DEPARTURES]
    means = (sums["delay_sum"] / sums["departed"]).unstack().sort_index()
    in_order: pd.DataFrame = means.reindex(columns=sorted(means.columns))
    return in_order


def text_table(statistics: pd.DataFrame) -> str:
    """Each carrier's worst route and hour, 93 columns wide."""
    lines = [
        f"{'carrier':<26} {'route':<9} {'hour':>5} {'flights':>7} {'mean':>6} {'p95':>5} "
        f"{'late':>5} {'canc.':>6} {'wind':>5} {'plane':>6}",
        f"{'':<26} {'':<9} {'':>5} {'':>7} {'min':>6} {'min':>5} {'':>5} {'':>6} {'mph':>5} "
        f"{'years':>6}",
    ]
    lines += [
        f"{_name(row)[:26]:<26} {row['origin']}-{row['dest']:<5} {row['hour']:>2}:00 "
        f"{row['flights']:>7} {row['delay_mean']:>6.1f} {row['delay_p95']:>5.0f} "
        f"{row['late_share']:>5.0%} {row['cancelled_share']:>6.1%} "
        f"{_number(row['wind_speed_mean'])} {_number(row['plane_age_mean'], 6)}"
        for row in worst_per_carrier(statistics).to_dict("records")
    ]
    return "\n".join(lines)


def summary(statistics: pd.DataFrame) -> str:
    """The year in one line."""
    flights, departed, late, cancelled = (
        int(statistics[name].sum()) for name in ("flights", "departed", "late", "cancelled")
    )
    mean = (statistics["delay_mean"] * statistics["departed"]).sum() / departed
    return (
        f"{flights:,} flights, {departed:,} departed {mean:.1f} min late on average, "
        f"{late / departed:.1%} by more than {LATE_MINUTES} min; {cancelled:,} were cancelled"
    )


def plot(statistics: pd.DataFrame, path: Path) -> None:
    """Write a PNG: mean delay by carrier and hour, and the worst route and hour per carrier."""
    by_hour = mean_delay_by_carrier_and_hour(statistics)
    names = {row["carrier"]: row for row in statistics.to_dict("records")}
    worst = worst_per_carrier(statistics)

    # Without pyplot there is no window, no display and nothing to close.
    figure = Figure(figsize=(15, 6.5), layout="constrained")
    heat, bars = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(f"Departures from New York in 2013: {summary(statistics)}", fontsize=11)

    image = heat.imshow(by_hour.to_numpy(), aspect="auto", cmap="YlOrRd", vmin=0, vmax=40)
    heat.set_xticks(range(by_hour.shape[1]), [str(hour) for hour in by_hour.columns])
    heat.set_yticks(range(by_hour.shape[0]), [_name(names[c]) for c in by_hour.index])
    heat.set_xlabel(f"scheduled hour (hours with fewer than {MIN_DEPARTURES} departures left out)")
    heat.set_title("Mean departure delay by carrier and hour")
    figure.colorbar(image, ax=heat, label="minutes (darkest: 40 and more)", shrink=0.8)

    places = range(len(worst))
    bars.barh(places, worst["delay_p95"], color=COLD, alpha=0.35, label="95th percentile")
    bars.barh(places, worst["delay_mean"], color=HOT, label="mean")
    labels = worst["carrier"] + "  " + worst["origin"] + "-" + worst["dest"]
    bars.set_yticks(places, [f"{a}  {b}:00" for a, b in zip(labels, worst["hour"], strict=True)])
    bars.invert_yaxis()
    bars.set_xlabel("departure delay, minutes")
    bars.set_title("Each carrier's worst route and hour")
    bars.legend(loc="lower right")
    bars.spines[["top", "right"]].set_visible(False)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _name(row: Mapping[Any, Any]) -> str:
    """*Endeavor Air* for *Endeavor Air Inc.*; the code for an airline without a name."""
    name = row["carrier_name"]
    if not isinstance(name, str):
        return str(row["carrier"])
    for ending in (" Inc.", " Corporation", " Co."):
        name = name.removesuffix(ending)
    return name


def _number(value: float, width: int = 5) -> str:
    return f"{'-':>{width}}" if pd.isna(value) else f"{value:>{width}.1f}"
