"""Code in tracebacks from a cluster, from the files of the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.client.code_lines import with_code_lines
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import JobExecutionError
from flinkray.core.ids import JobID
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

SCRIPT = "def f(n):\n    return 1 / n\n"


def traceback_of(script: object) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 2, in f\n'
        '  File "/nowhere/library.py", line 7, in g\n'
        "ZeroDivisionError: division by zero\n"
    )


def test_frames_in_the_traceback_of_a_failed_job_get_their_local_source_lines(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    shown = with_code_lines(traceback_of(script))
    assert shown.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 2, in f',
        "    return 1 / n",
        '  File "/nowhere/library.py", line 7, in g',
        "ZeroDivisionError: division by zero",
    ]
    assert with_code_lines(shown) == shown
    assert with_code_lines("no traceback") == "no traceback"


def test_job_error_shows_source_lines_in_its_text_and_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = traceback_of(script)
    result = JobResult(
        JobID.generate(), "a job", JobStatus.FAILED, 1.0, failure=text, failure_traceback=text
    )
    with pytest.raises(JobExecutionError) as caught:
        JobExecutionResult.of(result)
    assert "    return 1 / n\n" in str(caught.value)
    assert "    return 1 / n\n" in (caught.value.remote_traceback or "")
