"""Type checkers accept the examples of the pages and infer the types of streams.

Without mypy or basedpyright (the extra ``dev``) the tests are skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.datastream.test_docs import DOCS, GUIDES, PAGES, blocks

ROOT = Path(__file__).parents[2]
EXAMPLES = [*PAGES, *GUIDES, "kafka.md", "queryable-state.md", "spark.md", "../README.md"]
WITH_FRAGMENTS = ["spark.md"]
"""Pages that also have parts of programs. A whole program begins with its imports."""
TYPED = Path(__file__).with_name("typed_streams.py")

WRONG = """
numbers.map(3)
numbers.map(lambda number: number.nonsense)
numbers.filter(lambda number: number.nonsense)
numbers.map(str.upper)
numbers.map(str).map(Double())
numbers.map(lambda number: [number]).flat_map(lambda values: values.nonsense)
words.flat_map(len)
words.process(Halve())
words.key_by(lambda word: word.nonsense)
words.key_by(len).process(OfTextKeys())
words.key_by(len).reduce(lambda one, other: len(one))
words.key_by(len).count_window(2).process(OfTime())
words.key_by(len).window(TumblingEventTimeWindows.of(5)).aggregate(Mean())
words.connect(numbers).map(Label())
AsyncDataStream.ordered_wait(words, Ask(), Time.seconds(1))
words.sink_to(NumberSink())
words.sink_to(CallbackSink(total))
words.add_sink(total)
words.write_using_output_format(NumberFormat())
taken: DataStream[str] = numbers
first: str = numbers.execute_and_collect(1)[0]
source: DataStream[str] = env.from_source(NumberSequenceSource(1, 2))
tag: OutputTag[str] = OutputTag("tag", Types.INT())
state: ValueStateDescriptor[str] = ValueStateDescriptor("state", Types.INT())
"""
BEFORE_WRONG = """
from collections.abc import Iterable, Iterator

from flinkray.datastream import (
    AggregateFunction, AsyncDataStream, AsyncFunction, CoMapFunction, DataStream,
    KeyedProcessFunction, MapFunction, OutputTag, ProcessFunction, ProcessWindowFunction,
    StreamExecutionEnvironment, Time, Types,
)
from flinkray.datastream.connectors import (
    CallbackSink, NumberSequenceSource, Sink, SinkWriter, WriterContext,
)
from flinkray.datastream.common.io import OutputFormat
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TimeWindow, TumblingEventTimeWindows

class Double(MapFunction[int, int]):
    def map(self, value: int) -> int:
        return 2 * value

class Halve(ProcessFunction[int, float]):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[float]:
        yield value / 2

class OfTextKeys(KeyedProcessFunction[str, str, str]):
    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        yield value

class OfTime(ProcessWindowFunction[str, str, int, TimeWindow]):
    def process(
        self, key: int, context: ProcessWindowFunction.Context, elements: Iterable[str]
    ) -> Iterable[str]:
        return elements

class Mean(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0
    def add(self, value: int, accumulator: int) -> int:
        return accumulator
    def get_result(self, accumulator: int) -> int:
        return accumulator
    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a

class Label(CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str:
        return str(value)
    def map2(self, value: str) -> str:
        return value

class Ask(AsyncFunction[int, int]):
    async def async_invoke(self, value: int) -> list[int]:
        return [value]

class NumberSink(Sink[int]):
    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError

class NumberFormat(OutputFormat[int]):
    def open(self, task_number: int, num_tasks: int) -> None:
        raise NotImplementedError
    def write_record(self, record: int) -> None:
        raise NotImplementedError

def total(number: int) -> None: ...

env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.from_collection([1, 2])
words = env.from_collection(["to", "be"])
"""

Findings: TypeAlias = dict[str, dict[int, str]]
"""Messages of a type checker by name of the file and number of the line."""


def _example(page: str) -> str:
    """Return the programs of a page as one module. A later program may use a name again.

    Programs of a page that import another one of its programs are in the same module.
    """
    whole = [
        block
        for block in blocks(page)
        if page not in WITH_FRAGMENTS or block.startswith(("import ", "from "))
    ]
    saved = "|".join(
        re.findall(r"`(\w+)\.py`:\n+```python$", (DOCS / page).read_text("utf-8"), re.M)
    )
    alone = [re.sub(rf"^from ({saved}) import .*\n", "", block, flags=re.M) for block in whole]
    return "\n\n".join(["# mypy: allow-redefinition", *alone])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the examples, the typed streams and the wrong programs."""
    folder = tmp_path_factory.mktemp("programs")
    for page in EXAMPLES:
        name = f"example_{Path(page).stem.replace('-', '_')}.py"
        (folder / name).write_text(_example(page), "utf-8")
    (folder / TYPED.name).write_text(TYPED.read_text("utf-8"), "utf-8")
    (folder / "wrong.py").write_text(BEFORE_WRONG + WRONG, "utf-8")
    return folder


def _mypy(programs: Path) -> Findings:
    pytest.importorskip("mypy")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--show-absolute-path"]
    files = map(str, sorted(programs.glob("*.py")))
    output = _run("mypy", *options, "--no-error-summary", "--no-pretty", *files)
    found: Findings = {}
    for path, line, message in re.findall(r"^(.+?):(\d+): error: (.*)$", output, re.M):
        found.setdefault(Path(path).name, {})[int(line)] = message
    return found


def _pyright(programs: Path) -> Findings:
    pytest.importorskip("basedpyright")
    settings = {
        "typeCheckingMode": "standard",
        "pythonVersion": "3.10",
        "extraPaths": [str(ROOT)],
        "stubPath": "stubs",
    }
    pyarrow = programs / "stubs" / "pyarrow"  # has no types, and pyright does not find its names
    pyarrow.mkdir(parents=True)
    for name in ("__init__", "compute"):
        text = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
        (pyarrow / f"{name}.pyi").write_text(text, "utf-8")
    (programs / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    options = ["--project", str(programs), "--pythonpath", sys.executable, "--outputjson"]
    output = _run("basedpyright", *options)
    found: Findings = {}
    for one in json.loads(output)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found.setdefault(Path(one["file"]).name, {})[line] = one["message"]
    return found


def _run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module", params=[_mypy, _pyright], ids=["mypy", "pyright"])
def findings(request: pytest.FixtureRequest, programs: Path) -> Findings:
    """Return what one type checker reports about all programs."""
    check: Callable[[Path], Findings] = request.param
    return check(programs)


def test_type_checkers_accept_the_examples_of_the_pages(findings: Findings) -> None:
    assert {name: lines for name, lines in findings.items() if name.startswith("example_")} == {}


def test_type_checkers_infer_the_types_of_streams(findings: Findings) -> None:
    assert findings.get(TYPED.name, {}) == {}


def test_type_checkers_refuse_each_wrong_program_and_nothing_else(findings: Findings) -> None:
    text = (BEFORE_WRONG + WRONG).splitlines()
    first = BEFORE_WRONG.count("\n") + 2
    accepted = [
        text[at - 1] for at in range(first, len(text) + 1) if at not in findings["wrong.py"]
    ]
    assert accepted == []
    assert [at for at in findings["wrong.py"] if at < first] == []
