"""One real model through the product: text, streaming, usage, schema mode, cancel; embedded and by `base_url`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.config.settings import LLMSettings
from app.llm.client import LLM
from app.llm.downloads import DownloadHooks, consent_given
from app.llm.embedded.catalog import MODELS
from app.llm.embedded.fetch import ensure_model
from app.llm.embedded.server import EmbeddedServer
from app.llm.pool import LLMPool
from app.schema.event import EventRecord, TextStreamed
from app.schema.message import user_message
from app.schema.request import ToolSpec
from app.schema.run import RunContext

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.real_model

ROW = MODELS["smollm2-135m"]
CACHE = Path("~/.cache/dragoman-tests").expanduser()
"""The 98 MB model is fetched once a machine, by the product's own means."""

WEATHER = ToolSpec(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture
async def models(home: Path) -> None:
    """The test's own runtime folder, with the cached model in it."""
    await ensure_model(ROW, CACHE, consent=consent_given, progress=lambda _: None)
    home.mkdir()
    (home / "models").symlink_to(CACHE / "models")


@asynccontextmanager
async def embedded_llm(**more: object) -> AsyncIterator[LLM]:
    settings = LLMSettings(api_type="embedded", model=ROW.name, **{"max_tokens": 24, **more})  # type: ignore[arg-type]
    pool = LLMPool({"default": settings}, downloads=DownloadHooks(consent=consent_given))
    try:
        yield pool.get()
    finally:
        await pool.close()


async def test_embedded_model_answers_streams_and_reports_usage(
    models: None, ctx: RunContext, events: list[EventRecord]
) -> None:
    async with embedded_llm() as llm:
        assert llm.describe == {"config": "default", "provider": "embedded", "model": ROW.name, "local": True}
        text = await llm.ask("What is the capital of France?", ctx=ctx)
        again = await llm.ask("What is the capital of France?", ctx=ctx)
    assert text.strip()
    assert again == text, "the same question at temperature 0"
    pieces = [record.event.text for record in events if isinstance(record.event, TextStreamed)]
    assert len(pieces) > 4
    assert "".join(pieces) == text + again
    usage = ctx.ledger.usage
    assert not usage.estimated
    assert usage.total_input > 20
    assert usage.output_tokens >= 10
    assert usage.cache_read_tokens > 10, "the second time the prompt comes from the server's cache"
    assert ctx.ledger.requests == 2
    assert ctx.ledger.cost_usd == 0


async def test_embedded_model_without_native_tools_calls_by_schema(models: None, ctx: RunContext) -> None:
    async with embedded_llm(max_tokens=80) as llm:
        assert llm.text_tools
        reply = await llm.ask_tool(
            "What is the weather in Paris? Use the tool.", tools=(WEATHER,), tool_choice="required", ctx=ctx
        )
    (call,) = reply.message.tool_calls
    assert call.name == "weather"
    assert list(json.loads(call.arguments)) == ["city"]


async def test_a_schema_constrains_the_answer(models: None) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    async with embedded_llm() as llm:
        answer = json.loads(await llm.ask("Say blue.", response_schema=schema))
    assert answer in ({"colour": "red"}, {"colour": "green"})


async def test_an_outside_server_by_base_url_and_cancel_frees_it(models: None) -> None:
    server = EmbeddedServer(CACHE / "models" / ROW.file, ROW, context=2048)
    base_url = await server.start()
    settings = LLMSettings(model=ROW.name, base_url=base_url, api_key=server.api_key, max_tokens=2000, temperature=0)  # type: ignore[arg-type]
    pool = LLMPool({"default": settings})
    first_text = asyncio.Event()

    def watch(record: EventRecord) -> None:
        if isinstance(record.event, TextStreamed):
            first_text.set()

    try:
        long_story = asyncio.create_task(pool.get().ask("Tell a very long story.", ctx=RunContext(sink=watch)))
        await asyncio.wait_for(first_text.wait(), 30)
        long_story.cancel()
        cancelled = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await long_story
        assert time.monotonic() - cancelled < 0.5
        short = LLMSettings(name="short", model=ROW.name, base_url=base_url, api_key=server.api_key, max_tokens=8)  # type: ignore[arg-type]
        # One slot: this is only answered once the cancelled request has let go of it.
        assert await asyncio.wait_for(pool.get("short", short).ask("Say hello."), 20)
    finally:
        await pool.close()
        await server.close()


@pytest.mark.parametrize("api_type", ["openai_responses", "anthropic"])
async def test_llama_cpp_speaks_other_dialects(api_type: str, models: None) -> None:
    server = EmbeddedServer(CACHE / "models" / ROW.file, ROW, context=2048)
    base_url = await server.start()
    options = {"api_type": api_type, "model": ROW.name, "base_url": base_url, "api_key": server.api_key}
    pool = LLMPool({"default": LLMSettings(max_tokens=16, temperature=0, **options)})  # type: ignore[arg-type]
    try:
        asked = [user_message("Write a long story.")]
        first = await pool.get().ask_tool(asked, system="Be brief.")
        asked += [first.message, user_message("Go on.")]
        again = await pool.get().ask_tool(asked, system="Be brief.")
    finally:
        await pool.close()
        await server.close()
    assert first.finish.reason == again.finish.reason == "max-tokens"
    assert len(first.text) > 20
    assert first.usage.output_tokens == 16
    assert again.usage.cache_read_tokens > 10, "the second request begins with the bytes of the first"
