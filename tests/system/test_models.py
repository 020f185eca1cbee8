"""Models in Ray actors that streams call, and the pages of the docs about models and Ray Data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from flinkray.client import ClusterClient
from flinkray.datastream import (
    AsyncDataStream,
    AsyncFunction,
    Configuration,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.common import Time
from flinkray.datastream.connectors import IteratorSource
from flinkray.testing.waiting import wait_until
from tests.system.failures import FailsOnce

pytestmark = pytest.mark.ray

RECORDS = 2_000
NAMESPACE = "models"


class Doubles:
    def ask(self, value: int) -> int:
        return 2 * value


Actor: Any = ray.remote(num_cpus=0)(Doubles)


class AskHandle(AsyncFunction[int, int]):
    def __init__(self, model: Any) -> None:
        self.model = model

    async def async_invoke(self, value: int) -> list[int]:
        return [await self.model.ask.remote(value)]


class AskByName(AsyncFunction[int, int]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.model = ray.get_actor("doubles", namespace=NAMESPACE)

    async def async_invoke(self, value: int) -> list[int]:
        return [await self.model.ask.remote(value)]


@pytest.fixture
def model(ray_cluster: object) -> Iterator[Any]:
    model = Actor.options(name="doubles", namespace=NAMESPACE).remote()
    yield model
    ray.kill(model)


@pytest.mark.parametrize("way", ["by its handle", "by its name"])
def test_each_answer_of_an_actor_is_there_once_after_a_restart(
    way: str, cluster: ClusterClient, model: Any, tmp_path: Path
) -> None:
    ask = AskHandle(model) if way == "by its handle" else AskByName()
    settings = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": str(tmp_path),
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
    }
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.configure(Configuration.from_dict(settings)).set_parallelism(1)

    def numbers(_: int, offset: int) -> Iterator[int]:
        for number in range(offset + 1, RECORDS + 1):
            if number == RECORDS // 2:
                wait_until(lambda: any(tmp_path.glob("**/_metadata")), 60, "a checkpoint")
            yield number

    source = env.from_source(IteratorSource(numbers), type_info=Types.LONG())
    answers = AsyncDataStream.unordered_wait(source, ask, Time.seconds(60), 50, Types.LONG())
    found = answers.map(FailsOnce(RECORDS // 2), Types.LONG()).execute_and_collect()
    assert sorted(found) == [2 * n for n in range(1, RECORDS + 1)]


@pytest.mark.parametrize("page", ["models.md", "ray-data.md"])
def test_examples_of_each_page_run(page: str, ray_cluster: object) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "docs_page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/{page}, block {number}", "exec", dont_inherit=True), names)
