"""A mock of the OpenAI wire that others wrote: it serves, breaks, and judges our client from the outside."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from app.config.settings import LLMSettings, RetrySettings
from app.llm.client import LLM
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.event import EventRecord, Retrying
from app.schema.message import tool_result_message, user_message
from app.schema.run import RunContext
from tests.llm.asking import BASH, READ

pytest.importorskip("llmock")

SERVE = """
import sys
from llmock.testing import LLMockServer
with LLMockServer() as server:
    print(server.base_url("openai"), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
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
    def __init__(self, base_url: str) -> None:
        self._root = base_url.removesuffix("/v1") + "/_llmock"
        self._call("POST", "/reset")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._root + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)

    async def plan(self, *behaviours: dict[str, Any]) -> None:
        await asyncio.to_thread(self._call, "POST", "/scenario", {"behaviors": behaviours})

    async def verdict(self) -> Any:
        return await asyncio.to_thread(self._call, "GET", "/verdict")


@pytest.fixture
def mock(base_url: str) -> Mock:
    return Mock(base_url)


@pytest.fixture
async def llm(base_url: str) -> AsyncIterator[LLM]:
    retry = RetrySettings(initial_delay_s=0.02, max_delay_s=0.2)
    settings = LLMSettings(name="main", model="gpt-4o", base_url=base_url, api_key="sk-test", retry=retry)  # type: ignore[arg-type]
    pool = LLMPool({"main": settings})
    yield pool.get("main")
    await pool.close()


def retried(events: list[EventRecord]) -> list[str]:
    return [record.event.code for record in events if isinstance(record.event, Retrying)]


async def passed(mock: Mock) -> bool:
    verdict = await mock.verdict()
    assert verdict["findings"] == []
    return verdict["passed"]


async def test_text_with_usage(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "reply", "text": "Hello there"})
    got = await llm.ask_tool("hi", system="be brief")
    assert (got.text, got.finish.reason, got.usage.estimated) == ("Hello there", "stop", False)
    assert got.usage.output_tokens > 0
    assert await passed(mock)


async def test_streamed_tools_and_the_turn_after_them(llm: LLM, mock: Mock) -> None:
    asked = user_message("run a command")
    got = await llm.ask_tool([asked], tools=(BASH, READ))
    (made,) = got.message.tool_calls
    assert (made.name, list(json.loads(made.arguments)), got.finish.reason) == ("bash", ["command"], "tool-calls")
    assert got.usage.total_input > 0
    assert not got.usage.estimated
    last = await llm.ask_tool([asked, got.message, tool_result_message(made.id, "a.txt")], tools=(BASH, READ))
    assert (last.message.tool_calls, last.finish.reason) == ((), "stop")
    assert last.text
    assert await passed(mock)


async def test_retry_after_is_waited(llm: LLM, mock: Mock, ctx: RunContext, events: list[EventRecord]) -> None:
    await mock.plan({"type": "fail", "status": 429, "retry_after": 0.3}, {"type": "reply", "text": "ok"})
    assert await llm.ask("hi", ctx=ctx) == "ok"
    assert retried(events) == ["RATE_LIMIT"]
    assert await passed(mock)


@pytest.mark.parametrize(
    ("kind", "code"), [("truncate", "STREAM_CLOSED"), ("disconnect", "STREAM_CLOSED")], ids=["truncate", "disconnect"]
)
async def test_cut_streams_are_never_accepted(
    kind: str, code: str, llm: LLM, mock: Mock, ctx: RunContext, events: list[EventRecord]
) -> None:
    await mock.plan(
        {"type": "stream_fault", "kind": kind, "after_chunks": 3},
        {"type": "reply", "text": "a text of several words that is long enough", "times": 2},
    )
    assert await llm.ask("hi", ctx=ctx) == "a text of several words that is long enough"
    assert retried(events) == [code]
    assert await passed(mock)


async def test_malformed_event_ends_the_call(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "stream_fault", "kind": "malformed", "after_chunks": 1})
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(("status", "code"), [(401, "AUTH"), (404, "HTTP_404"), (400, "INVALID_REQUEST")])
async def test_errors_that_stay_are_not_retried(status: int, code: str, llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "fail", "status": status})
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == code
    assert await passed(mock)


async def test_server_errors_are_retried_with_growing_waits(
    llm: LLM, mock: Mock, ctx: RunContext, events: list[EventRecord]
) -> None:
    await mock.plan({"type": "fail", "status": 500, "times": 3}, {"type": "reply", "text": "ok"})
    assert await llm.ask("hi", ctx=ctx) == "ok"
    assert retried(events) == ["SERVER"] * 3
    assert (await mock.verdict())["passed"]


async def test_broken_calls_reach_the_agent_as_they_are(llm: LLM, mock: Mock) -> None:
    await mock.plan({"type": "tool_fault", "kind": "malformed_arguments"})
    got = await llm.ask_tool("run a command", tools=(BASH,))
    with pytest.raises(ValueError, match=r".+"):
        json.loads(got.message.tool_calls[0].arguments)
