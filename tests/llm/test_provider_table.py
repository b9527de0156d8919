"""Every ● of the table of providers, shown: our client against a server that speaks the provider's wire."""

from __future__ import annotations

import asyncio
import json
import runpy
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.config.settings import CapabilitySettings, LLMSettings, RetrySettings
from app.config.vendors import VENDORS
from app.llm.adapters.base import FEATURES
from app.llm.client import LLM
from app.llm.pool import LLMPool
from app.schema.event import EventRecord, TextStreamed
from app.schema.message import ImageBlock, TextBlock, tool_result_message, user_message
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, call, reply, stall, usage
from tests.fault_server.openai_chat import OpenAIChat
from tests.llm.asking import BASH, PNG, READ
from tests.llm.dialects import DIALECTS

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "provider_table.py"))
ROWS = {row.api_type: row for row in SCRIPT["rows"]()}
WIRES: dict[str, Callable[[], Any]] = {row.api_type: row.wire for row in DIALECTS}
BASES = {"gemini": "/v1beta", "ollama": "", "polling": "", "converse": ""}
REAL_FILES = ("test_real_model.py", "test_embedded_real.py")
REAL = {
    "embedded": {
        "stream": "test_embedded_model_answers_streams_and_reports_usage",
        "usage": "test_embedded_model_answers_streams_and_reports_usage",
        "caching": "test_embedded_model_answers_streams_and_reports_usage",
        "cancel": "test_a_request_that_is_cancelled_frees_the_server",
    }
}
"""Shown by tests with a real model instead: feature → test."""
PICTURE = ImageBlock(PNG, "image/png", 1, 1)


async def _stream(llm: LLM, server: FaultServer) -> None:
    server.add(reply("one two three four", stream_pieces=4, between_events_s=0.005))
    events: list[EventRecord] = []
    assert await llm.ask("hi", ctx=RunContext(sink=events.append)) == "one two three four"
    shown = [record.event.text for record in events if isinstance(record.event, TextStreamed)]
    assert len(shown) > 1
    assert "".join(shown) == "one two three four"


async def _tools(llm: LLM, server: FaultServer) -> None:
    server.add(reply("", tool_calls=[call("bash", {"command": "ls"})]), reply("Two files."))
    asked = user_message("List the files.")
    first = await llm.ask_tool([asked], system="Be brief.", tools=(BASH,))
    (made,) = first.message.tool_calls
    assert (made.name, json.loads(made.arguments)) == ("bash", {"command": "ls"})
    history = [asked, first.message, tool_result_message(made.id, "a b")]
    assert (await llm.ask_tool(history, system="Be brief.", tools=(BASH,))).text == "Two files."
    assert "Run a command." in server.chats[0].body.decode(), "offered natively"


async def _parallel(llm: LLM, server: FaultServer) -> None:
    server.add(reply("", tool_calls=[call("bash", {"command": "a"}), call("read", {"path": "b"})]), reply("Both."))
    asked = user_message("Do both.")
    first = await llm.ask_tool([asked], tools=(BASH, READ))
    calls = first.message.tool_calls
    assert [(each.name, json.loads(each.arguments)) for each in calls] == [
        ("bash", {"command": "a"}),
        ("read", {"path": "b"}),
    ]
    results = [tool_result_message(each.id, each.name) for each in calls]
    assert (await llm.ask_tool([asked, first.message, *results], tools=(BASH, READ))).text == "Both."


async def _images(llm: LLM, server: FaultServer) -> None:
    server.add(reply("", tool_calls=[call("read", {"path": "a.png"})]), reply("Two dots."))
    asked = user_message((TextBlock("What is this?"), PICTURE))
    first = await llm.ask_tool([asked], tools=(READ,))
    (made,) = first.message.tool_calls
    shown = tool_result_message(made.id, (TextBlock("the other"), PICTURE))
    assert (await llm.ask_tool([asked, first.message, shown], tools=(READ,))).text == "Two dots."
    assert [request.body.count(PNG.encode()) for request in server.chats] == [1, 2]


async def _reasoning(llm: LLM, server: FaultServer) -> None:
    server.add(reply("42.", reasoning="6 times 7"))
    got = await llm.ask_tool("What is it?")
    assert (got.message.reasoning, got.text) == ("6 times 7", "42.")


async def _usage(llm: LLM, server: FaultServer) -> None:
    server.add(reply("Hello", usage=usage(100, 12), usage_at="finish"))
    counted = (await llm.ask_tool("hi")).usage
    assert (counted.total_input, counted.output_tokens, counted.estimated) == (100, 12, False)


async def _caching(llm: LLM, server: FaultServer) -> None:
    server.add(reply("Hello", usage=usage(100, 12, cached=80), usage_at="finish"), reply("Again"))
    asked = user_message("hi")
    first = await llm.ask_tool([asked], system="Be brief.", tools=(BASH,))
    assert (first.usage.input_tokens, first.usage.cache_read_tokens) == (20, 80)
    await llm.ask_tool([asked, first.message, user_message("more")], system="Be brief.", tools=(BASH,))
    one, two = (request.body for request in server.chats)
    same = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    assert same > one.index(b"hi"), "the second request begins with the bytes of the first, past its last message"


async def _cancel(llm: LLM, server: FaultServer) -> None:
    server.add(stall(reply("one two three four", stream_pieces=4), events=3))
    task = asyncio.create_task(llm.ask("hi"))
    await server.until(lambda server: len(server.chats) == 1)
    await asyncio.sleep(0.02)
    began = time.monotonic()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.until(lambda server: server.disconnects == 1)
    assert time.monotonic() - began < 0.5


CHECKS: dict[str, Callable[[LLM, FaultServer], Awaitable[None]]] = {
    "stream": _stream,
    "tools": _tools,
    "parallel": _parallel,
    "images": _images,
    "reasoning": _reasoning,
    "usage": _usage,
    "caching": _caching,
    "cancel": _cancel,
}
SERVED = [row for row in ROWS.values() if row.api_type not in REAL]
CELLS = [(row, feature) for row in SERVED for feature in FEATURES if feature in row.features]


@pytest.mark.parametrize(
    ("row", "feature"), [pytest.param(row, feature, id=f"{row.api_type}-{feature}") for row, feature in CELLS]
)
async def test_cell(row: Any, feature: str, fault_server: MakeServer) -> None:
    wire = OpenAIChat(accept_reasoning=True) if row.dialect == "chat" else _wire(row.dialect)()
    server = await fault_server([], dialect=wire)
    settings = LLMSettings(
        name="main",
        model=(VENDORS[row.api_type].default_model if row.api_type in VENDORS else "") or "test-model",
        api_type=row.api_type,
        base_url=server.root + BASES.get(row.dialect, "" if row.api_type == "azure" else "/v1"),
        api_key=SecretStr("sk-test"),
        retry=RetrySettings(max_retries=0),
        tools="native" if "tools" in row.features else "auto",
        capabilities=CapabilitySettings(images=True, tools=True, parallel_tools=True),
    )
    pool = LLMPool({"main": settings})
    await CHECKS[feature](pool.get("main"), server)
    await pool.close()
    server.assert_done()


def _wire(dialect: str) -> Callable[[], Any]:
    known = {"responses": "openai_responses", "messages": "anthropic", "converse": "aws", "gemini": "google"}
    return WIRES[{**known, "polling": "server"}.get(dialect, dialect)]


def test_every_feature_has_a_check_and_every_provider_a_row() -> None:
    assert CHECKS.keys() == FEATURES.keys()
    assert ROWS.keys() - {"openai_responses"} == VENDORS.keys() - {"test", "local"}


def test_what_is_shown_with_a_real_model_stands_there() -> None:
    sources = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in REAL_FILES]
    for api_type, shown in REAL.items():
        assert ROWS[api_type].features == shown.keys()
        assert all(any(f"def {test}(" in source for source in sources) for test in shown.values())


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    assert page == SCRIPT["with_table"](page), "write it anew: python -m scripts.provider_table"
