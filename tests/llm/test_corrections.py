"""Options that a server refuses: left out from then on, learned with one extra request, announced once."""

from __future__ import annotations

from typing import Any

import pytest

from app.llm.client import LLM
from app.schema.errors import LLMError
from app.schema.event import EventRecord, Notice
from app.schema.message import ImageBlock, TextBlock, user_message
from app.schema.run import RunContext
from tests.fault_server import Behaviour, Request, call, reply, status
from tests.llm.asking import BASH, PNG
from tests.llm.conftest import MakeLLM


def notices(events: list[EventRecord], code: str) -> list[str]:
    return [record.event.message for record in events if isinstance(record.event, Notice) and record.event.code == code]


def refusing(key: str, message: str, code: int = 400, answer: Behaviour | None = None) -> Any:
    """A server that refuses every request with this top-level key."""

    def respond(request: Request) -> Behaviour:
        if key in request.json:
            return status(code, message=message)
        return answer or reply("fine")

    return respond


REFUSALS = [
    pytest.param(
        {"temperature": 0.5},
        "temperature",
        "Unsupported value: 'temperature' does not support 0.5. Only the default (1) value is supported.",
        "test-model: the model takes no temperature; it is left out from now on",
        id="temperature",
    ),
    pytest.param(
        {"max_tokens": 99},
        "max_tokens",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "test-model wants max_completion_tokens instead of max_tokens",
        id="max_tokens",
    ),
    pytest.param(
        {"max_tokens": 99, "base_url_vendor": "groq"},
        "max_completion_tokens",
        "[{'loc': ('body', 'max_completion_tokens'), 'msg': 'Extra inputs are not permitted'}]",
        "test-model wants max_tokens instead of max_completion_tokens",
        id="max_completion_tokens",
    ),
    pytest.param(
        {},
        "stream_options",
        "Unrecognized request argument supplied: stream_options",
        "test-model: the server does not report usage in streams; token counts are estimates",
        id="stream_options",
    ),
    pytest.param(
        {"reasoning_effort": "high"},
        "reasoning_effort",
        "Unsupported parameter: 'reasoning_effort' is not supported with this model.",
        "test-model: the model takes no reasoning effort; it is left out from now on",
        id="reasoning_effort",
    ),
]


@pytest.mark.parametrize(("settings", "key", "message", "notice"), REFUSALS)
async def test_m18_refused_option_is_learned_and_announced_once(
    settings: dict[str, Any],
    key: str,
    message: str,
    notice: str,
    make_llm: MakeLLM,
    ctx: RunContext,
    events: list[EventRecord],
    waits: list[float],
) -> None:
    vendor = settings.pop("base_url_vendor", None)
    llm, server = await make_llm(refusing(key, message), **settings, **({"api_type": vendor} if vendor else {}))
    for _ in range(3):
        assert await llm.ask("hi", ctx=ctx) == "fine"
    assert [key in request.json for request in server.chats] == [True, False, False, False]
    assert notices(events, "OPTION_DROPPED") == [notice]
    assert waits == [], "a correction is no retry"
    if key.startswith("max_"):
        assert {
            request.json.get("max_tokens", request.json.get("max_completion_tokens")) for request in server.chats
        } == {99}


async def test_m19_defect_15_required_tool_choice_falls_back_to_words(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    answer = reply(tool_calls=[call("bash", {"command": "ls"})])
    llm, server = await make_llm(refusing("tool_choice", "tool_choice is not supported", 422, answer))
    for _ in range(2):
        got = await llm.ask_tool("extract", tools=(BASH,), tool_choice="required", ctx=ctx)
        assert [each.name for each in got.message.tool_calls] == ["bash"]
    assert ["tool_choice" in request.json for request in server.chats] == [True, False, False]
    for request in server.chats[1:]:
        assert request.json["messages"][-1]["content"] == "Answer with a call of one of the tools."
    assert len(notices(events, "OPTION_DROPPED")) == 1


async def test_refused_schema_is_asked_in_words(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    answer = reply('{"a": 1}')
    llm, server = await make_llm(refusing("response_format", "response_format: unknown field", answer=answer))
    assert await llm.ask("hi", response_schema={"type": "object"}, ctx=ctx) == '{"a": 1}'
    assert '{"type":"object"}' in server.chats[1].json["messages"][-1]["content"]
    assert len(notices(events, "OPTION_DROPPED")) == 1


async def test_system_role_becomes_user_text(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    def respond(request: Request) -> Behaviour:
        if request.json["messages"][0]["role"] == "system":
            return status(400, message="Developer instruction is not enabled for models/gemma-3-27b-it")
        return reply("fine")

    llm, server = await make_llm(respond)
    assert await llm.ask("hi", system="be brief", ctx=ctx) == "fine"
    assert server.chats[1].json["messages"] == [
        {"role": "user", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert len(notices(events, "OPTION_DROPPED")) == 1


async def test_several_refusals_in_a_row(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    def respond(request: Request) -> Behaviour:
        for key in ("stream_options", "temperature", "max_tokens"):
            if key in request.json:
                return status(
                    400, message=f"Unsupported parameter: '{key}' is not supported. Use max_completion_tokens."
                )
        return reply("fine")

    llm, server = await make_llm(respond, temperature=0.1, max_tokens=5)
    assert await llm.ask("hi", ctx=ctx) == "fine"
    assert len(server.chats) == 4
    assert len(notices(events, "OPTION_DROPPED")) == 3


async def test_a_refusal_of_what_was_not_sent_stands(make_llm: MakeLLM, ctx: RunContext) -> None:
    llm, server = await make_llm(lambda _: status(400, message="temperature is not supported"))
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi", ctx=ctx)
    assert (caught.value.code, len(server.chats)) == ("INVALID_REQUEST", 1)


async def test_two_token_fields_refused_do_not_go_round_for_ever(make_llm: MakeLLM) -> None:
    def respond(request: Request) -> Behaviour:
        key = "max_tokens" if "max_tokens" in request.json else "max_completion_tokens"
        return status(400, message=f"Unsupported parameter: '{key}' is not supported with this model.")

    llm, server = await make_llm(respond, max_tokens=5)
    with pytest.raises(LLMError):
        await llm.ask("hi")
    assert len(server.chats) == 2


async def test_blindness_is_learned_and_the_picture_becomes_a_note(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    def respond(request: Request) -> Behaviour:
        if b"image_url" in request.body:
            return status(404, message="No endpoints found that support image input")
        return reply("fine")

    llm, server = await make_llm(respond)
    picture = user_message((TextBlock("what is it?"), ImageBlock(PNG, "image/png", 3, 2)))
    assert await llm.ask([picture], ctx=ctx) == "fine"
    assert await llm.ask([picture], ctx=ctx) == "fine"
    assert [b"image_url" in request.body for request in server.chats] == [True, False, False]
    note = "[image left out: image/png, 3x2 pixels; this model cannot see images]"
    assert server.chats[1].json["messages"][0]["content"] == f"what is it?{note}"
    assert len(notices(events, "IMAGES_REPLACED")) == 1


async def test_a_question_about_an_image_is_not_answered_without_it(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([status(400, message="This model does not support images")])
    with pytest.raises(LLMError) as caught:
        await llm.ask_with_images("what is it?", [ImageBlock(PNG, "image/png")])
    assert (caught.value.code, len(server.chats)) == ("UNSUPPORTED_CONTENT", 1)


async def test_another_client_has_to_learn_for_itself(make_llm: MakeLLM) -> None:
    respond = refusing("temperature", "'temperature' is not supported with this model")
    one, server_one = await make_llm(respond, temperature=0.5, name="one")
    two, server_two = await make_llm(respond, temperature=0.5, name="two")
    for llm in (one, two):
        assert isinstance(llm, LLM)
        assert await llm.ask("hi") == "fine"
    assert (len(server_one.chats), len(server_two.chats)) == (2, 2)
