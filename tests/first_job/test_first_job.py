"""docs/first-job.md does what a newcomer is told that it does."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import pytest

from flinkray.client.cli import execute
from flinkray.testing import wait_until
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.first_job.newcomers_machine import NewcomersMachine
from tests.first_job.page import Reader, Type, Write, steps
from tests.own_namespaces import missing

NOT_OF_THE_JOB = ("python3 -m venv", ". env", "pip", "ray", "flinkray cluster", "flinkray --vers")
"""How commands begin that install and start what is there already."""


def check_counts(folder: Path) -> None:
    """Each word has every count once, whatever run has written it."""
    found = defaultdict(list)
    for file in folder.glob("part-*"):
        for word, count in map(str.split, file.read_text("utf-8").replace(",", " ").splitlines()):
            found[word].append(int(count))
    assert set(found) == {"to", "be", "or", "not"}
    for counts in found.values():
        assert sorted(counts) == list(range(1, len(counts) + 1))


class Shell:
    """In which ``flinkray`` is a call in this process."""

    def __init__(self, cluster: ThreadedCluster, output: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._output = output

    def type_in(self, command: str) -> str:
        if command.startswith(NOT_OF_THE_JOB):
            return ""
        if not command.startswith("flinkray "):
            line = ["bash", "-c", command]
            return subprocess.run(line, capture_output=True, text=True, timeout=30).stdout
        arguments = shlex.split(command)[1:]
        code = execute(arguments, connect=lambda *_: nullcontext(self._cluster.client))
        shown = self._output.readouterr()
        assert code == 0, f"{command}:\n{shown.out}\n{shown.err}"
        return shown.err + shown.out


def test_the_commands_for_jobs_on_the_page_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that install flinkray or start a cluster are skipped: the cluster runs in this
    process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    with threaded_cluster(str(tmp_path / "cluster")) as cluster:
        reader = Reader(Shell(cluster, capsys).type_in)
        followed = 0
        for step in steps():
            if isinstance(step, Write):
                Path(step.file).write_text(step.text, "utf-8")
            elif not step.commands[0].startswith(NOT_OF_THE_JOB):
                reader.follow(step, timeout=60)
                followed += 1
    assert followed == 15
    check_counts(tmp_path / "counts")


@pytest.mark.parametrize(
    ("page", "printed", "is_so"),
    [
        ("to 1\nto 3\n", "to 1\nto 2\nto 3\n", True),
        ("to 1\nto 4\n", "to 1\nto 2\nto 3\n", False),
        ("to 3\nto 1\n", "to 1\nto 2\nto 3\n", False),
        ("0\n", "17\n", False),
        ("17 completed\n", "0 completed\n", False),
        ("to,1374\n", "to,  8\n", False),
        ("to,1374\n", "to,81\n", True),
        ("a  b ...\n...\n", "a b c\n", True),
        ("a b ...\n", "a c\n", False),
        (f"{'ab' * 16} {'cd' * 16}\n", f"{'01' * 16} {'02' * 16}\n", True),
        ("/home/me/s/savepoint-abcdef-0123456789ab", "/x/s/savepoint-123456-0123456789ab", True),
    ],
)
def test_output_that_differs_from_the_page_is_found_unless_it_differs_in_each_run(
    page: str, printed: str, is_so: bool
) -> None:
    """Large numbers, ids, folders and column widths may differ between two runs."""
    reader = Reader(lambda _: printed)
    step = Type(("cat",), page)
    if is_so:
        reader.follow(step, timeout=1)
    else:
        with pytest.raises(AssertionError, match="and not"):
            reader.follow(step, timeout=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_newcomer_can_follow_the_page_on_an_empty_machine_and_no_process_is_left() -> None:
    """Types every command of the page, from `python3 -m venv` to `ray stop`."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"the page needs a machine of its own: {reason}")
    place = Path(tempfile.mkdtemp(prefix="first-job-"))  # short: sockets lie below it
    try:
        with NewcomersMachine(place) as machine:
            reader = Reader(machine.type_in)
            for step in steps():
                if isinstance(step, Write):
                    (machine.work / step.file).write_text(step.text, "utf-8")
                else:
                    reader.follow(step, timeout=240)
            # Ray's dashboard has a process that ends when it notices that the others have.
            wait_until(lambda: not machine.processes(), 150, "the end of all processes")
            check_counts(machine.work / "counts")
    finally:
        shutil.rmtree(place)
