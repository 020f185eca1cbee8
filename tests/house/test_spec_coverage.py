"""docs/spec-coverage.md lists every acceptance case, and says truly where each is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.spec_coverage import PAGE, ROW, TESTS, PageError, cited_cases, render

CASES = 355
"""How many cases there are. One that does not apply is explained in the page, not left out."""

SMALL_PAGE = """# Cases

2 cases: 0 tested, 2 planned, 0 not applicable.

| Case | What it shows | Where |
|---|---|---|
| RPC-01 | a self gateway | planned: actor framework |
| CP-02 | a checkpoint | not applicable: no state |
"""


def test_spec_coverage_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page, cited_cases(TESTS)), "run: make coverage-page"


def test_spec_coverage_page_lists_every_case_once() -> None:
    rows = [ROW.match(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    listed = [row["id"] for row in rows if row]
    assert len(listed) == len(set(listed)) == CASES


def test_every_row_of_a_spec_table_is_read_as_a_case() -> None:
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| Case ")
    ]
    assert [line for line in rows if not ROW.match(line)] == []


def test_case_cited_by_tests_lists_their_files_and_other_cases_keep_their_reason() -> None:
    page = render(SMALL_PAGE, {"RPC-01": ["tests/a/test_a.py", "tests/b/test_b.py"]})
    assert (
        "| RPC-01 | a self gateway | [tests/a/test_a.py](../tests/a/test_a.py), "
        "[tests/b/test_b.py](../tests/b/test_b.py) |" in page
    )
    assert "| CP-02 | a checkpoint | not applicable: no state |" in page
    assert "2 cases: 1 tested, 0 planned, 1 not applicable." in page
    assert render(page, {"RPC-01": ["tests/a/test_a.py", "tests/b/test_b.py"]}) == page


def test_spec_case_that_lost_its_test_must_be_explained() -> None:
    page = render(SMALL_PAGE, {"RPC-01": ["tests/a/test_a.py"]})
    with pytest.raises(PageError, match="RPC-01 is cited in no test's docstring"):
        render(page, {})


def test_unknown_spec_case_is_refused_with_the_file_that_cites_it() -> None:
    with pytest.raises(PageError, match=r"RPC-99 is cited in tests/a/test_a\.py and is no known"):
        render(SMALL_PAGE, {"RPC-99": ["tests/a/test_a.py"]})


def test_spec_case_listed_twice_is_refused() -> None:
    twice = SMALL_PAGE + "| RPC-01 | again | planned: actor framework |\n"
    with pytest.raises(PageError, match="RPC-01 is listed 2 times"):
        render(twice, {})


def test_spec_case_ids_are_found_only_in_docstrings(tmp_path: Path) -> None:
    test = tmp_path / "tests" / "rpc" / "test_a.py"
    test.parent.mkdir(parents=True)
    test.write_text(
        '"""About RPC-01."""\n'
        'async def test_it() -> None:\n    """HB-02, HB-03: two."""\n    x = "CP-02"  # CP-03\n',
        encoding="utf-8",
    )
    where = ["tests/rpc/test_a.py"]
    assert cited_cases(tmp_path / "tests") == {"RPC-01": where, "HB-02": where, "HB-03": where}
