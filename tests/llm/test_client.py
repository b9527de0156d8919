"""`LLM`: the three ways to ask, over real sockets: what is sent, shown and read."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from app.config.settings import CapabilitySettings
from app.schema.errors import LLMError
from app.schema.event import EventRecord, ModelReplied, Retrying
from app.schema.message import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.run import RunContext
from app.schema.usage import Usage
from tests import fault_server as wire
from tests.fault_server import (
    Behaviour,
    Request,
    call,
    prefix_violations,
    reply,
    stall,
    status,
    usage,
)
from tests.llm.asking import BASH, PNG, READ, codes
from tests.llm.conftest import MakeLLM

# -- asking -----------------------------------------------------------------------------------------------------------


async def test_text(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    llm, server = await make_llm([reply("Hello 你好", usage=usage(20, 3, cached=5))], temperature=0.5, max_tokens=99)
    assert await llm.ask("hi", system="be brief", ctx=ctx) == "Hello 你好"
    body = server.chats[0].json
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == ("test-model", 0.5, 99, True)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    replied = next(record.event for record in events if isinstance(record.event, ModelReplied))
    assert (replied.text, replied.finish, replied.usage) == ("Hello 你好", "stop", Usage(15, 3, 5))


async def test_o03_m17_streamed_parallel_calls(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    calls = [call("bash", '{ "command": "ls" }', id="a"), call("read", {"path": "x"}, id="b")]
    llm, _ = await make_llm([reply("I look", tool_calls=calls, odd="interleave", stream_pieces=3)])
    got = await llm.ask_tool("hi", tools=(BASH, READ), ctx=ctx)
    assert got.message.content == (
        TextBlock("I look"),
        ToolCallBlock("a", "bash", '{ "command": "ls" }'),
        ToolCallBlock("b", "read", '{"path": "x"}'),
    )
    assert (got.finish.reason, got.attempts, got.text) == ("tool-calls", 1, "I look")
    replied = next(record.event for record in events if isinstance(record.event, ModelReplied))
    assert replied.tool_calls == got.message.tool_calls


async def test_deltas_are_events_and_nothing_is_printed(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord], capfd: pytest.CaptureFixture[str]
) -> None:
    """Defect 25."""
    llm, _ = await make_llm([reply(reasoning="hmm", stream_pieces=("Hel", "lo"))])
    await llm.ask("hi", ctx=ctx)
    shown = [
        (record.event.type, record.event.text, record.event.attempt)
        for record in events
        if "delta" in record.event.type
    ]  # type: ignore[union-attr]
    assert shown == [("reasoning_delta", "hmm", 1), ("text_delta", "Hel", 1), ("text_delta", "lo", 1)]
    assert capfd.readouterr() == ("", "")


async def test_hint_rides_at_the_tail_of_one_request(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a"), reply("b")])
    messages = [user_message("hi")]
    await llm.ask_tool(messages, tools=(BASH,), hint="think first")
    await llm.ask_tool(messages, tools=(BASH,))
    sent = [[message["content"] for message in request.json["messages"]] for request in server.chats]
    assert sent == [["hi", "think first"], ["hi"]]
    assert len(messages) == 1


async def test_defect_14_no_tools_no_tool_fields(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a")])
    await llm.ask_tool("hi", tool_choice="required")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & server.chats[0].json.keys()


async def test_images_go_to_the_last_user_message(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a dot"), reply("a dot")])
    image = ImageBlock(PNG, "image/png", 1, 1)
    asked = [user_message("what is it?"), assistant_message("which?", provider="p", model="m")]
    assert await llm.ask_with_images(asked, [image]) == "a dot"
    assert [type(message["content"]).__name__ for message in server.chats[0].json["messages"]] == ["list", "str"]
    assert asked[0].content == (TextBlock("what is it?"),), "the caller's message is as it was"
    await llm.ask_with_images((), [image])
    assert server.chats[1].json["messages"][0]["content"][0]["type"] == "image_url"


async def test_o05_z09_image_for_a_blind_model_is_refused_before_any_request(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([], capabilities=CapabilitySettings(images=False), api_key="")
    with pytest.raises(LLMError) as caught:
        await llm.ask_with_images("what?", [ImageBlock(PNG, "image/png")])
    assert (caught.value.code, server.requests) == ("UNSUPPORTED_CONTENT", [])


async def test_unknown_model_is_announced_once(make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]) -> None:
    llm, _ = await make_llm([reply("a"), reply("b")])
    await llm.ask("hi", ctx=ctx)
    await llm.ask("hi", ctx=ctx)
    assert codes(events) == ["MODEL_UNKNOWN_FACTS"]


async def test_temperature_of_a_thinking_model_is_left_out_with_a_notice(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, server = await make_llm([reply("a"), reply("b")], model="o3-mini", temperature=0.5)
    await llm.ask("hi", ctx=ctx)
    await llm.ask("hi", ctx=ctx)
    assert "temperature" not in server.chats[0].json
    assert codes(events) == ["OPTION_DROPPED"]


@pytest.mark.parametrize(("effort", "asked"), [("high", 1), ("hihg", 0), ("HIGH", 0)])
async def test_r13_efforts_nobody_has_are_refused_before_any_request(
    effort: str, asked: int, make_llm: MakeLLM
) -> None:
    llm, server = await make_llm([reply("a")] * asked, reasoning_effort=effort)
    if asked:
        assert await llm.ask("hi") == "a"
    else:
        with pytest.raises(LLMError, match="has no reasoning effort") as caught:
            await llm.ask("hi")
        assert "medium" in caught.value.hint
    assert len(server.chats) == asked


async def test_r13_effort_for_a_model_that_does_not_think(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([], reasoning_effort="high", capabilities=CapabilitySettings(reasoning=False))
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (caught.value.code, caught.value.hint) == ("UNSUPPORTED_REASONING_EFFORT", "remove reasoning_effort")
    assert server.chats == []


# -- endings ----------------------------------------------------------------------------------------------------------

EMPTY = [
    pytest.param(reply(""), id="nothing"),
    pytest.param(reply(None), id="null"),
    pytest.param(reply("  \n"), id="blanks"),
    pytest.param(reply("", reasoning="hm"), id="thinking alone"),
    pytest.param(reply("<think>never closed"), id="M15 unclosed think tag"),
    pytest.param(wire.events({"choices": []}), id="no choices"),
]


@pytest.mark.parametrize("empty", EMPTY)
async def test_o04_m12_defect_33_empty_answers_are_retried_and_then_an_error(
    empty: Behaviour, make_llm: MakeLLM, waits: list[float]
) -> None:
    llm, server = await make_llm([empty, reply("fine"), *[empty] * 6])
    assert await llm.ask("hi") == "fine"
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (caught.value.code, len(server.chats), len(waits)) == ("EMPTY_RESPONSE", 8, 6)


async def test_thinking_alone_with_tools_is_a_reply_for_the_agent(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply("", reasoning="hm")])
    got = await llm.ask_tool("hi", tools=(BASH,))
    assert got.message.content == (ReasoningBlock("hm"),)


async def test_defect_32_cut_reply_says_so_and_has_no_calls(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    cut = reply("half", tool_calls=[call("bash", '{"comm')], finish="length")
    llm, _ = await make_llm([cut, reply("half a text", finish="length"), reply("", reasoning="hm", finish="length")])
    got = await llm.ask_tool("hi", tools=(BASH,), ctx=ctx)
    assert (got.finish.reason, got.message.content) == ("max-tokens", (TextBlock("half"),))
    assert await llm.ask("hi", ctx=ctx) == "half a text"
    assert codes(events)[-1] == "OUTPUT_LIMIT"
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi", ctx=ctx)
    assert caught.value.code == "OUTPUT_LIMIT"


async def test_h20_reply_without_room_is_an_overflow(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply("", finish="length", usage=usage(1990, 0))], context_window=2000)
    with pytest.raises(LLMError) as caught:
        await llm.ask_tool("hi", tools=(BASH,))
    assert caught.value.code == "CONTEXT_WINDOW_EXCEEDED"


async def test_h19_input_beyond_the_window_the_user_named_is_an_overflow(make_llm: MakeLLM) -> None:
    said, _ = await make_llm([reply("a", usage=usage(2001, 1))], context_window=2000, name="said")
    with pytest.raises(LLMError) as caught:
        await said.ask("hi")
    assert caught.value.code == "CONTEXT_WINDOW_EXCEEDED"
    table, _ = await make_llm([reply("a", usage=usage(9001, 1))], model="gpt-4", name="table")
    assert await table.ask("hi") == "a", "a good reply is not thrown away because a table is old"


@pytest.mark.parametrize(
    ("finish", "code"),
    [("content_filter", "CONTENT_FILTER"), ("model_context_window_exceeded", "CONTEXT_WINDOW_EXCEEDED")],
)
async def test_failed_finishes_have_a_hint_where_there_is_one(finish: str, code: str, make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a", finish=finish)])
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (caught.value.code, len(server.chats)) == (code, 1)


async def test_defect_19_think_tags_are_thinking(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply("<think>a\nb</think>\n\nThe answer", stream_pieces=3)])
    got = await llm.ask_tool("hi", tools=(BASH,))
    assert got.message.content == (ReasoningBlock("a\nb"), TextBlock("The answer"))


# -- histories --------------------------------------------------------------------------------------------------------


async def test_h2_broken_history_is_repaired_with_a_notice(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, server = await make_llm([reply("fine")])
    history = [
        user_message("hi"),
        assistant_message((ToolCallBlock("a", "bash", "{}"),), provider="main", model="m"),
        user_message("go on"),
    ]
    assert await llm.ask(history, ctx=ctx) == "fine"
    assert [message["role"] for message in server.chats[0].json["messages"]] == ["user", "assistant", "tool", "user"]
    assert "HISTORY_REPAIRED" in codes(events)


async def test_h10_defect_04_picture_for_a_blind_model_becomes_a_note_with_one_notice(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, server = await make_llm([reply("a"), reply("b")], model="deepseek-chat")
    picture = user_message((TextBlock("look"), ImageBlock(PNG, "image/png", 3, 2)))
    broken = assistant_message((ToolCallBlock("a", "bash", "{}"),), provider="main", model="m")
    await llm.ask([picture], ctx=ctx)
    await llm.ask([picture, broken], ctx=ctx)
    assert "image/png, 3x2 pixels" in server.chats[0].json["messages"][0]["content"]
    assert codes(events) == ["IMAGES_REPLACED", "HISTORY_REPAIRED"]


async def test_h9_defects_30_31_png_of_a_tool_for_a_seeing_model(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a dot")])
    history = [
        user_message("look"),
        assistant_message((ToolCallBlock("a", "bash", "{}"),), provider="main", model="m"),
        tool_result_message("a", (TextBlock("done"), ImageBlock(PNG, "image/png", 1, 1))),
    ]
    await llm.ask(history)
    last = server.chats[0].json["messages"][-1]
    assert last["role"] == "user"
    assert last["content"][-1]["image_url"]["url"].startswith("data:image/png;base64,")


async def test_m14_defect_18_thinking_goes_back_where_it_is_wanted(make_llm: MakeLLM) -> None:
    for vendor, replayed in (("deepseek", "hm"), ("openai", None)):
        calls = [call("bash", {"command": "ls"}, id="a")]
        llm, server = await make_llm(
            [reply(reasoning="hm", tool_calls=calls), reply("done")],
            server={"accept_reasoning": replayed is not None},
            api_type=vendor,
            name=vendor,
            model="some-model",
        )
        asked = user_message("hi")
        got = await llm.ask_tool([asked], tools=(BASH,))
        await llm.ask_tool([asked, got.message, tool_result_message("a", "x")], tools=(BASH,))
        assert server.chats[1].json["messages"][1].get("reasoning_content") == (
            replayed if vendor == "deepseek" else None
        )


async def test_l18_prefix_is_stable_over_thirty_requests(make_llm: MakeLLM) -> None:
    def respond(request: Request) -> Behaviour:
        if request.number == 7:
            return status(503)
        return reply("I go on", reasoning="hm", tool_calls=[call("bash", {"command": f"echo {request.number}"})])

    llm, server = await make_llm(respond, api_type="deepseek", server={"accept_reasoning": True}, temperature=0.2)
    history: list[Message] = [user_message("count")]
    for turn in itertools.count():
        if len(server.chats) >= 30:
            break
        got = await llm.ask_tool(
            history, system="You count.", tools=(BASH, READ), hint=f"turn {turn}", tool_choice="required"
        )
        image = (ImageBlock(PNG, "image/png", 1, 1),) if turn % 10 == 4 else ()
        results = [tool_result_message(each.id, (TextBlock("ok"), *image)) for each in got.message.tool_calls]
        history += [got.message, *results]
    assert prefix_violations(server.chats, tail_messages=1) == []
    assert server.chats[6].body == server.chats[7].body, "a retry sends the same bytes"


async def test_cancel_ends_the_request_at_once(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([stall(events=2)])
    work = asyncio.create_task(llm.ask("hi"))
    await server.until(lambda it: len(it.chats) == 1)
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await server.until(lambda it: it.disconnects == 1)


# -- tool calls from text ---------------------------------------------------------------------------------------------

CALL_TEXT = '{"name": "bash", "arguments": {"command": "ls"}}'


@pytest.mark.parametrize("text", [CALL_TEXT, f"```json\n{CALL_TEXT}\n```", f"<tool_call>{CALL_TEXT}</tool_call>"])
async def test_m11_defect_17_call_written_as_text_is_a_call(
    text: str, make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, _ = await make_llm([reply(text)])
    got = await llm.ask_tool("hi", tools=(BASH,), ctx=ctx)
    assert [(each.name, each.arguments) for each in got.message.tool_calls] == [("bash", '{"command":"ls"}')]
    replied = next(record.event for record in events if isinstance(record.event, ModelReplied))
    assert (replied.text, len(replied.tool_calls)) == ("", 1)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (f"Use {CALL_TEXT} for it", {}),
        ('{"name": "unknown", "arguments": {}}', {}),
        (CALL_TEXT, {"tools": "native"}),
    ],
)
async def test_m11_other_texts_stay_texts(text: str, settings: dict[str, Any], make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply(text)], **settings)
    got = await llm.ask_tool("hi", tools=(BASH,))
    assert (got.text, got.message.tool_calls) == (text, ())


async def test_defect_16_text_mode_for_models_without_native_calls(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply(CALL_TEXT), reply('{"answer": "done"}')], tools="text")
    asked = user_message("hi")
    got = await llm.ask_tool([asked], system="Be good.", tools=(BASH,), hint="now")
    (made,) = got.message.tool_calls
    assert (made.name, made.arguments) == ("bash", '{"command":"ls"}')
    last = await llm.ask_tool(
        [asked, got.message, tool_result_message(made.id, "a.txt")], system="Be good.", tools=(BASH,)
    )
    assert last.text == "done"
    first, second = (request.json for request in server.chats)
    assert "tools" not in first
    assert first["messages"][0]["content"].startswith("Be good.\n\n# Tools")
    assert first["response_format"]["type"] == "json_schema"
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert "a.txt" in second["messages"][-1]["content"]


async def test_text_mode_without_schemas(make_llm: MakeLLM) -> None:
    blind = CapabilitySettings(json_schema=False)
    llm, server = await make_llm(
        [reply(f"<think>hm</think>{CALL_TEXT}"), reply("done")], tools="text", capabilities=blind
    )
    got = await llm.ask_tool("hi", tools=(BASH,))
    assert [type(block) for block in got.message.content] == [ReasoningBlock, ToolCallBlock]
    assert (await llm.ask_tool("hi", tools=(BASH,))).text == "done"
    assert "response_format" not in server.chats[0].json


async def test_bad_call_format_of_the_server_is_asked_again_in_text(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord], waits: list[float]
) -> None:
    broken = status(500, message="The model produced output that does not match the expected peg-native format")
    llm, server = await make_llm([broken, reply(CALL_TEXT)])
    got = await llm.ask_tool("hi", tools=(BASH,), ctx=ctx)
    assert [each.name for each in got.message.tool_calls] == ["bash"]
    assert ["tools" in request.json for request in server.chats] == [True, False]
    assert ("INVALID_TOOL_CALL" in codes(events), waits) == (True, [])


async def test_bad_call_format_stands_in_native_mode(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([status(400, message="tool_use_failed")], tools="native")
    with pytest.raises(LLMError) as caught:
        await llm.ask_tool("hi", tools=(BASH,))
    assert (caught.value.code, len(server.chats)) == ("INVALID_TOOL_CALL", 1)


async def test_defect_26_calls_arrive_as_they_stream(make_llm: MakeLLM, ctx: RunContext) -> None:
    llm, server = await make_llm([reply(tool_calls=[call("bash", {"command": "x" * 2000})], stream_pieces=1)])
    got = await llm.ask_tool("hi", tools=(BASH,), ctx=ctx)
    assert server.chats[0].json["stream"] is True
    assert len(got.message.tool_calls[0].arguments) == 2000 + len('{"command": ""}')


async def test_attempt_numbers_of_retries_and_deltas_agree(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    refused = status(400, message="Unrecognized request argument supplied: stream_options")
    llm, _ = await make_llm([refused, status(503), reply("a")])
    got = await llm.ask_tool("hi", ctx=ctx)
    told = [record.event.attempt for record in events if isinstance(record.event, Retrying)]
    shown = [record.event.attempt for record in events if record.event.type == "text_delta"]  # type: ignore[union-attr]
    assert (told, shown, got.attempts, ctx.ledger.requests) == ([3], [3], 3, 3)
