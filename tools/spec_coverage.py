"""Keep docs/spec-coverage.md true: which test shows which acceptance case.

The page holds the list of cases. For each, the last column names the test files in whose docstrings
the case's id stands, or, where none does, says ``planned: <area>`` or ``not applicable: <why>``.
That text is written by hand and kept; file names are found here.

    python tools/spec_coverage.py            # exit 1 and say what is out of date
    python tools/spec_coverage.py --write    # bring the page up to date
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "spec-coverage.md"
TESTS = ROOT / "tests"

CASE_ID = re.compile(
    r"\b(?:RPC|FEN|REG|HB|HA|SP|SM|RM|TM|JM|DI|EG|EX|FO|CP|SA|OS|KS|QS|ST|WI|E2E)-\d{2}\b"
)
ROW = re.compile(r"^\| (?P<id>[A-Z0-9]+-\d{2}) \| (?P<title>[^|]+) \| (?P<where>[^|]*) \|$")
REASON = re.compile(r"^(planned|not applicable): \S.*")


class PageError(Exception):
    """The page, or a docstring, says something that only a person can put right."""


def cited_cases(tests: Path) -> dict[str, list[str]]:
    """Case id -> the test files that cite it in a docstring, relative to *tests*' parent."""
    cited: dict[str, set[str]] = defaultdict(set)
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for case in CASE_ID.findall(ast.get_docstring(node) or ""):
                    cited[case].add(path.relative_to(tests.parent).as_posix())
    return {case: sorted(paths) for case, paths in cited.items()}


def render(page: str, cited: dict[str, list[str]]) -> str:
    """The page with its last column brought up to date.

    Raises:
        PageError: a case is listed twice, cited but not listed, or has neither test nor reason.
    """
    lines, listed, problems = [], Counter[str](), []
    for line in page.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        case, where = row["id"], row["where"]
        listed[case] += 1
        if case in cited:
            where = ", ".join(f"[{path}](../{path})" for path in cited[case])
        elif not REASON.match(where):
            problems.append(
                f"{case} is cited in no test's docstring: cite it, or write 'planned: <area>' "
                "or 'not applicable: <why>' into its row"
            )
        lines.append(f"| {case} | {row['title']} | {where} |")
    problems += [f"{case} is listed {n} times" for case, n in listed.items() if n > 1]
    problems += [
        f"{case} is cited in {', '.join(paths)} and is no known case"
        for case, paths in sorted(cited.items())
        if case not in listed
    ]
    if problems:
        raise PageError("\n".join(problems))
    return "\n".join(_with_counts(lines)) + "\n"


def _with_counts(lines: list[str]) -> list[str]:
    rows = [row for row in map(ROW.match, lines) if row]
    reasons = Counter(reason[1] for row in rows if (reason := REASON.match(row["where"])))
    summary = (
        f"{len(rows)} cases: {len(rows) - reasons.total()} tested, {reasons['planned']} planned, "
        f"{reasons['not applicable']} not applicable."
    )
    return [summary if re.match(r"^\d+ cases: ", line) else line for line in lines]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="bring the page up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    try:
        current = render(page, cited_cases(TESTS))
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    if current == page:
        return 0
    if not options.write:
        print("docs/spec-coverage.md is out of date: make coverage-page", file=sys.stderr)
        return 1
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
