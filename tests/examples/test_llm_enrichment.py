"""Labels of reviews by a language model: each once, and within a budget of tokens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm_enrichment
import pytest
from aiohttp import web
from llm_enrichment import Label, TokenBudget, build

from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.testing import on_virtual_time

TOKENS = 30
"""What the server says that a request has used."""


class Server:
    """A server of OpenAI's interface, which is busy at first for each review, and fails once."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.fails_at: str | None = None
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app)
        self._loop.run_until_complete(self._start())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}/v1"
        self._started.set()

    async def _complete(self, request: web.Request) -> web.Response:
        (message,) = (await request.json())["messages"]
        review = message["content"].rpartition("\n")[2]
        self.asked[review] += 1
        if self.asked[review] == 1:
            return web.Response(status=llm_enrichment.BUSY, headers={"Retry-After": "0.01"})
        if review == self.fails_at:
            self.fails_at = None
            return web.Response(status=500)
        label = "Positive." if "good" in review else "negative"
        answer: dict[str, Any] = {
            "choices": [{"message": {"role": "assistant", "content": label}}],
            "usage": {"total_tokens": TOKENS},
        }
        return web.json_response(answer)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_each_review_gets_its_label_once_although_the_server_is_busy_and_fails(
    server: Server, tmp_path: Path
) -> None:
    """The failure makes the job restart from its last checkpoint, or from its beginning."""
    reviews = [{"id": n, "text": f"{'good' if n % 3 else 'bad'} film {n}"} for n in range(60)]
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(json.dumps(review) + "\n" for review in reviews))
    server.fails_at = "good film 40"
    env = StreamExecutionEnvironment.get_execution_environment()
    settings = {
        "execution.checkpointing.interval": "20 ms",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    env.configure(Configuration.from_dict(settings)).set_parallelism(1)
    build(env, str(file), str(tmp_path / "labels"), Label(server.url, "small", 1e6), concurrency=8)
    env.execute()

    lines = [
        line
        for path in (tmp_path / "labels").iterdir()
        if not path.name.startswith(".")
        for line in path.read_text().splitlines()
    ]
    labelled = sorted(map(json.loads, lines), key=lambda review: review["id"])
    labels = ["positive" if number % 3 else "negative" for number in range(60)]
    wanted = [{**review, "label": label} for review, label in zip(reviews, labels, strict=True)]
    assert labelled == wanted


@on_virtual_time
async def test_requests_wait_until_the_budget_has_their_tokens() -> None:
    now = asyncio.get_running_loop().time
    begin = now()
    budget = TokenBudget(600)  # ten a second
    await budget.take(600)
    assert now() == begin
    first = asyncio.ensure_future(budget.take(50))
    second = asyncio.ensure_future(budget.take(10))
    await first
    assert now() == pytest.approx(begin + 5)
    await second
    assert now() == pytest.approx(begin + 6)
    budget.give_back(30)
    await budget.take(30)
    assert now() == pytest.approx(begin + 6)
