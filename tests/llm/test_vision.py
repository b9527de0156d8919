"""Pictures on their way to a model: made to fit, described by `[llm.vision]`, replaced by a note; never in silence."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from app.config.settings import CapabilitySettings, LLMSettings
from app.llm import vision
from app.llm.pool import LLMPool
from app.schema.event import EventRecord, Notice, TextStreamed
from app.schema.message import (
    ImageBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server.behaviours import reply, status
from tests.llm.asking import PNG

SMALL = ImageBlock(PNG, "image/png", 1, 1)


def blind(url: str, **more: Any) -> LLMSettings:
    options = {"model": "blind", "capabilities": CapabilitySettings(images=False)} | more
    return LLMSettings(name="main", base_url=url, api_key="sk-test", **options)


def seeing(url: str) -> LLMSettings:
    return LLMSettings(name="vision", model="gpt-4o", base_url=url, api_key="sk-test")


def told(events: list[EventRecord]) -> list[tuple[str, str]]:
    notices = [record.event for record in events if isinstance(record.event, Notice)]
    return [(notice.code, notice.message) for notice in notices if notice.code.startswith("IMAGE")]


def contents(body: Any) -> list[Any]:
    return [message["content"] for message in body["messages"]]


async def test_defect_2_the_vision_model_describes_a_picture_once(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext, events: list[EventRecord]
) -> None:
    main, helper = await fault_server([reply("Blue."), reply("Blue.")]), await fault_server([reply("A blue square.")])
    llm = make_pool(main=blind(main.url), vision=seeing(helper.url)).get("main")
    history = (user_message((TextBlock("Which colour?"), SMALL)),)
    for _ in range(2):
        assert await llm.ask(history, ctx=ctx) == "Blue."
    assert len(helper.chats) == 1, "described once"
    asked = helper.chats[0].json["messages"][-1]["content"]
    assert asked[0] == {"type": "text", "text": vision.QUESTION}
    assert asked[1]["image_url"]["url"].startswith("data:image/png;base64,")
    words = "[image, 1 x 1 pixels, as gpt-4o describes it]\nA blue square.\n[end of the image]"
    bodies = [request.json for request in main.chats]
    assert bodies[0]["messages"] == bodies[1]["messages"]
    assert words in str(contents(bodies[0])).encode().decode("unicode_escape")
    assert told(events) == [
        ("IMAGE_DESCRIBED", "gpt-4o described a picture (1 x 1 pixels) for a model that cannot see")
    ]
    shown = "".join(record.event.text for record in events if isinstance(record.event, TextStreamed))
    assert shown == "Blue.Blue.", "the description is not shown as the answer"
    assert ctx.ledger.requests == 3, "and it is paid for"


async def test_a_picture_in_a_tool_result_is_described_too(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext
) -> None:
    main, helper = await fault_server([reply("Blue.")]), await fault_server([reply("A blue square.")])
    llm = make_pool(main=blind(main.url), vision=seeing(helper.url)).get("main")
    history = (
        user_message("Which colour?"),
        assistant_message((ToolCallBlock("c1", "look", "{}"),), provider="p", model="m"),
        tool_result_message("c1", (TextBlock("the screen:"), SMALL)),
    )
    await llm.ask(history, ctx=ctx)
    assert "A blue square." in str(main.chats[0].json["messages"][-1])
    assert "base64" not in str(main.chats[0].json)


async def test_a_vision_model_that_fails_leaves_a_note_and_a_notice(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext, events: list[EventRecord]
) -> None:
    main, helper = await fault_server([reply("No idea.")] * 2), await fault_server([status(401, message="bad key")])
    llm = make_pool(main=blind(main.url), vision=seeing(helper.url)).get("main")
    history = (user_message((TextBlock("Which colour?"), SMALL)),)
    for _ in range(2):
        await llm.ask(history, ctx=ctx)
    assert len(helper.chats) == 1
    assert "image left out" in str(main.chats[0].json["messages"][-1])
    codes = [code for code, _ in told(events)]
    assert codes == ["IMAGE_DESCRIBED", "IMAGES_REPLACED"]
    assert "could not describe a picture (1 x 1 pixels)" in told(events)[0][1]


async def test_without_a_vision_model_a_note_stands_in_place(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext, events: list[EventRecord]
) -> None:
    main = await fault_server([reply("No idea.")])
    llm = make_pool(main=blind(main.url)).get("main")
    await llm.ask((user_message((TextBlock("Which colour?"), SMALL)),), ctx=ctx)
    assert "image left out" in str(main.chats[0].json["messages"][-1])
    assert [code for code, _ in told(events)] == ["IMAGES_REPLACED"]


async def test_a_large_picture_reaches_the_model_in_the_size_it_takes(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (4000, 1000), "blue").save(out, "PNG")
    large = ImageBlock(base64.b64encode(out.getvalue()).decode(), "image/png", 4000, 1000)
    main = await fault_server([reply("Blue.")] * 2)
    llm = make_pool(main=LLMSettings(name="main", model="gpt-4o", base_url=main.url, api_key="sk-test")).get("main")
    history = (user_message((TextBlock("Which colour?"), large)),)
    for _ in range(2):
        await llm.ask(history, ctx=ctx)
    first, second = (request.json["messages"] for request in main.chats)
    assert first == second
    url = first[-1]["content"][1]["image_url"]["url"]
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        assert image.size == (2048, 512)


def test_z10_the_oldest_pictures_give_way_to_the_request_limit(ctx: RunContext, events: list[EventRecord]) -> None:
    history = tuple(user_message((TextBlock(str(number)), ImageBlock("x" * 30, "image/png"))) for number in range(5))
    assert vision._within(history, 150, ctx) is history
    kept = vision._within(history, 100, ctx)
    assert [vision.TOO_MANY in message.content for message in kept] == [True, True, True, True, False]
    assert told(events) == [
        ("IMAGES_REPLACED", "older pictures are left out: together they are too large for a request")
    ]
    longer = (*history, user_message("more"))
    again = vision._within(longer, 100, ctx)
    assert again[:5] == kept
    assert [id(message) for message in again[:4]] == [id(message) for message in kept[:4]]


@pytest.mark.parametrize("configured", [True, False])
async def test_the_vision_model_itself_has_no_helper(make_pool: Callable[..., LLMPool], configured: bool) -> None:
    settings = {"main": blind("https://m.example.com/v1")}
    if configured:
        settings["vision"] = seeing("https://v.example.com/v1").model_copy(
            update={"capabilities": CapabilitySettings(images=False)}
        )
    pool = make_pool(**settings)
    assert pool.get("main").eyes.helper() is None
