"""Labels for reviews, by a language model behind any OpenAI-compatible server.

    python examples/llm_enrichment.py reviews.jsonl labels --server http://127.0.0.1:8000/v1 \
        --model NAME [--tokens-per-minute 60000] [--concurrency 16]

``reviews.jsonl`` has a review per line, ``{"id": 1, "text": "..."}``. The folder ``labels`` gets
each of them once, with its label, also if the job restarts in between. Requests that were under way
are sent again then.

Each subtask keeps to its part of a budget of tokens per minute. A server that is too busy says so
(status 429) and when to ask again. The variable ``OPENAI_API_KEY`` is sent, if it is set.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

import aiohttp

from flinkray.datastream import (
    AsyncDataStream,
    AsyncFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import Time
from flinkray.datastream.connectors import FileSink, FileSource

PROMPT = "Is this review positive, negative or mixed? Answer with this one word.\n\n{text}"
MOST_TOKENS = 4
"""Longest answer."""
CHARACTERS_PER_TOKEN = 3
"""Fewer than in most texts, so that a request is hardly ever longer than was reserved."""
BUSY = 429


class TokenBudget:
    """Tokens that may be used: *per_minute*, of which unused ones are kept for a minute."""

    def __init__(self, per_minute: float) -> None:
        self._most = per_minute
        self._left = per_minute
        self._since = asyncio.get_running_loop().time()
        self._turn = asyncio.Lock()

    async def take(self, tokens: int) -> None:
        """Wait until so many tokens may be used. Who asks first gets them first."""
        async with self._turn:
            await asyncio.sleep(max(0.0, (tokens - self._now_left()) * 60 / self._most))
            self._left = self._now_left() - tokens

    def give_back(self, tokens: int) -> None:
        """Return tokens that were taken and not used. A negative number takes more."""
        self._left = min(self._most, self._now_left() + tokens)

    def _now_left(self) -> float:
        now = asyncio.get_running_loop().time()
        left = min(self._most, self._left + (now - self._since) * self._most / 60)
        self._left, self._since = left, now
        return left


class Label(AsyncFunction[str, str]):
    """Line of a review -> the same with a label."""

    def __init__(self, server: str, model: str, tokens_per_minute: float) -> None:
        self._url = f"{server.rstrip('/')}/chat/completions"
        self._model = model
        self._tokens_per_minute = tokens_per_minute

    async def open(self, runtime_context: RuntimeContext) -> None:
        subtasks = runtime_context.get_number_of_parallel_subtasks()
        self._budget = TokenBudget(self._tokens_per_minute / subtasks)
        key = os.environ.get("OPENAI_API_KEY")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else None, raise_for_status=False
        )

    async def close(self) -> None:
        await self._session.close()

    async def async_invoke(self, value: str) -> list[str]:
        review = json.loads(value)
        answer = await self._ask(PROMPT.format(text=review["text"]))
        return [json.dumps({**review, "label": answer.strip().strip(".").lower()})]

    async def _ask(self, prompt: str) -> str:
        request = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MOST_TOKENS,
            "temperature": 0,
        }
        reserved = len(prompt) // CHARACTERS_PER_TOKEN + MOST_TOKENS
        while True:
            await self._budget.take(reserved)
            async with self._session.post(self._url, json=request) as response:
                if response.status == BUSY:
                    self._budget.give_back(reserved)
                    await asyncio.sleep(float(response.headers.get("Retry-After", "1")))
                    continue
                response.raise_for_status()
                answer = await response.json()
            self._budget.give_back(reserved - answer["usage"]["total_tokens"])
            return str(answer["choices"][0]["message"]["content"])


def build(
    env: StreamExecutionEnvironment,
    reviews: str,
    labels: str,
    label: Label,
    *,
    concurrency: int = 16,
) -> None:
    """Add the program to *env*. Each subtask has at most *concurrency* requests under way."""
    source: FileSource[str] = FileSource(reviews)
    lines = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "reviews", Types.STRING()
    ).filter(bool)
    labelled = AsyncDataStream.unordered_wait(
        lines, label, Time.seconds(600), concurrency, Types.STRING()
    )
    labelled.sink_to(FileSink(labels))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reviews", help="file with a review per line, as JSON")
    parser.add_argument("labels", help="folder for the results")
    parser.add_argument("--server", required=True, help="URL up to and including /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens-per-minute", type=float, default=60_000.0, help="(60,000)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests of a subtask (16)")
    chosen = parser.parse_args(arguments)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(10_000)
    label = Label(chosen.server, chosen.model, chosen.tokens_per_minute)
    build(env, chosen.reviews, chosen.labels, label, concurrency=chosen.concurrency)
    env.execute("llm enrichment")
    print(f"labelled: {chosen.labels}")


if __name__ == "__main__":
    main()
