"""Ten providers as others imitate them: our adapters against `llmock`, and its verdict on each of them as a client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from app.config.settings import LLMSettings, RetrySettings
from app.llm.client import LLM
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.event import EventRecord, Retrying
from app.schema.message import tool_result_message, user_message
from app.schema.run import RunContext
from tests.llm.asking import BASH, READ

SERVE = """
import sys
from llmock.testing import LLMockServer
with LLMockServer() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""

PROVIDERS = {
    "openai": ("/v1", "openai", "gpt-4o"),
    "openai responses": ("/v1", "openai_responses", "gpt-4o"),
    "anthropic": ("/anthropic/v1", "anthropic", "claude-sonnet-4-5"),
    "gemini": ("/gemini/v1beta", "google", "gemini-2.5-flash"),
    "mistral": ("/mistral/v1", "mistral", "mistral-large-latest"),
    "groq": ("/groq/openai/v1", "groq", "openai/gpt-oss-120b"),
    "together": ("/together/v1", "together", "openai/gpt-oss-120b"),
    "perplexity": ("/perplexity/v1", "openai", "sonar"),
    "ai21": ("/ai21/v1", "openai", "jamba-large"),
    "xai": ("/xai/v1", "xai", "grok-4"),
}
"""provider → (its place at llmock, our `api_type`, a model)"""


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """The address of a mock in a process of its own, which ends with its standard input."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


class Mock:
    """llmock's own controls."""

    def __init__(self, root: str) -> None:
        self._root = f"{root}/_llmock"

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        def send() -> Any:
            data = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(self._root + path, data, {"content-type": "application/json"}, method=method)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.load(answer)

        return await asyncio.to_thread(send)

    async def plan(self, *behaviours: dict[str, Any]) -> None:
        await self.call("POST", "/reset")
        if behaviours:
            await self.call("POST", "/scenario", {"behaviors": behaviours})

    async def assert_passed(self) -> None:
        verdict = await self.call("GET", "/verdict")
        assert (verdict["findings"], verdict["passed"]) == ([], True)


@pytest.fixture
def mock(root: str) -> Mock:
    return Mock(root)


@pytest.fixture(params=PROVIDERS)
async def llm(request: pytest.FixtureRequest, root: str) -> AsyncIterator[LLM]:
    path, api_type, model = PROVIDERS[request.param]
    settings = LLMSettings(
        name="main",
        model=model,
        api_type=api_type,
        base_url=f"{root}{path}",
        api_key=SecretStr("sk-test"),
        retry=RetrySettings(initial_delay_s=0.05, max_delay_s=0.2),
    )
    pool = LLMPool({"main": settings})
    # A server on this machine is asked about itself before the first request; that is no part of a plan.
    await pool.get("main").ask("hi")
    yield pool.get("main")
    await pool.close()


def retried(events: list[EventRecord]) -> list[str]:
    return [record.event.code for record in events if isinstance(record.event, Retrying)]


async def test_text_with_usage(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "reply", "text": "Hello there"})
    got = await llm.ask_tool("hi", system="be brief")
    assert (got.text, got.finish.reason) == ("Hello there", "stop")
    assert got.usage.output_tokens > 0
    await mock.assert_passed()


async def test_a_call_and_the_turn_after_it(llm: LLM, mock: Mock) -> None:
    await mock.plan()
    asked = user_message("run a command")
    got = await llm.ask_tool([asked], tools=(BASH, READ))
    (made,) = got.message.tool_calls
    assert (made.name, list(json.loads(made.arguments)), got.finish.reason) == ("bash", ["command"], "tool-calls")
    last = await llm.ask_tool([asked, got.message, tool_result_message(made.id, "a.txt")], tools=(BASH, READ))
    assert (last.message.tool_calls, last.finish.reason) == ((), "stop")
    await mock.assert_passed()


async def test_limits_and_faults_are_waited_out(
    llm: LLM, mock: Mock, ctx: RunContext, events: list[EventRecord]
) -> None:
    await mock.plan(
        {"type": "fail", "status": 429, "retry_after": 0.05},
        {"type": "fail", "status": 500},
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 3},
        {"type": "reply", "text": "a text of several words that is long enough", "times": 2},
    )
    assert await llm.ask("hi", ctx=ctx) == "a text of several words that is long enough"
    assert retried(events) == ["RATE_LIMIT", "SERVER", "STREAM_CLOSED"]
    await mock.assert_passed()


@pytest.mark.parametrize(("status", "code"), [(401, "AUTH"), (400, "INVALID_REQUEST")])
async def test_errors_that_stay_are_not_retried(status: int, code: str, llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "fail", "status": status})
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == code
    await mock.assert_passed()


async def test_malformed_event_ends_the_call(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "stream_fault", "kind": "malformed", "after_chunks": 1})
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "MALFORMED_RESPONSE"


async def test_a_dropped_connection_is_never_taken_for_an_end(
    llm: LLM, mock: Mock, ctx: RunContext, events: list[EventRecord]
) -> None:
    await mock.plan(
        {"type": "stream_fault", "kind": "disconnect", "after_chunks": 3},
        {"type": "reply", "text": "a text of several words that is long enough", "times": 2},
    )
    assert await llm.ask("hi", ctx=ctx) == "a text of several words that is long enough"
    assert retried(events) == ["STREAM_CLOSED"]
    await mock.assert_passed()


async def test_broken_calls_reach_the_agent_as_they_are(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "tool_fault", "kind": "malformed_arguments"})
    got = await llm.ask_tool("run a command", tools=(BASH,))
    arguments = got.message.tool_calls[0].arguments
    if llm.vendor == "google":
        # Its wire carries arguments as an object, which cannot be broken.
        assert isinstance(json.loads(arguments), dict)
        return
    with pytest.raises(ValueError, match=r".+"):
        json.loads(arguments)
