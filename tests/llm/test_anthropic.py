"""The Anthropic Messages dialect: what goes out, what comes in, thinking there and back; the official SDK proves the
server, and a llama.cpp server speaks it with a real model in `test_real_model.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.llm.adapters.anthropic import AnthropicAdapter
from app.llm.adapters.http import Account
from app.llm.adapters.messages_decode import MessagesDecoder
from app.llm.models import DEFAULTS, ModelFacts, facts_for
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.message import (
    ImageBlock,
    Message,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelRequest
from app.schema.stream import BlockAssembler, Chunk
from tests.conftest import MakeServer
from tests.fault_server import call, events, reply, status, usage
from tests.fault_server.messages import Messages, check_request, sealed
from tests.llm.asking import BASH, PNG, READ, ask, chunks_of, shorts

MODEL = "claude-sonnet-5-5"
LS = ToolCallBlock("c1", "bash", '{"command":"ls"}')
PICTURE = ImageBlock(PNG, "image/png", 1, 1)
EPHEMERAL = {"type": "ephemeral"}


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport()
    yield made
    await made.close()


def adapter(
    transport: Transport, base_url: str = "https://api.anthropic.com/v1", facts: ModelFacts = DEFAULTS
) -> AnthropicAdapter:
    account = Account("anthropic", "Anthropic", base_url, "sk-ant-test")
    return AnthropicAdapter(account, transport, route="main", facts=facts)


def body(request: ModelRequest, facts: ModelFacts = DEFAULTS) -> dict[str, Any]:
    sent = json.loads(adapter(Transport(), facts=facts).encode(request))
    assert check_request(sent) == []
    return sent


def said(*content: Any, model: str = MODEL, provider: str = "main") -> Message:
    return assistant_message(content, provider=provider, model=model)


def test_a_whole_request() -> None:
    request = ask(
        user_message((TextBlock("What is this?"), PICTURE)),
        said(TextBlock("Let me look.  "), LS, ToolCallBlock("c2", "read", "")),
        tool_result_message("c1", (TextBlock("done"), PICTURE)),
        tool_result_message("c2", "no such file", is_error=True),
        "And now?",
        system="Be brief.",
        tools=(BASH, READ),
        tool_choice="required",
        max_tokens=100,
        temperature=0.5,
        stop=("END",),
        model=MODEL,
    )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    assert body(request) == {
        "model": MODEL,
        "stream": True,
        "tools": [
            {"name": "bash", "description": "Run a command.", "input_schema": BASH.parameters},
            {"name": "read", "description": "Read a file.", "input_schema": READ.parameters},
        ],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": EPHEMERAL}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
                    {"type": "tool_use", "id": "c2", "name": "read", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "done"}, image]},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": [{"type": "text", "text": "no such file"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        "max_tokens": 100,
        "tool_choice": {"type": "any"},
        "temperature": 0.5,
        "stop_sequences": ["END"],
        "cache_control": EPHEMERAL,
    }


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "output"),
    [
        ("claude-sonnet-5-5", "high", {"type": "adaptive"}, {"effort": "high"}),
        ("claude-opus-4-6", "minimal", {"type": "adaptive"}, {"effort": "low"}),
        ("claude-opus-4-6", "off", {"type": "disabled"}, None),
        ("claude-sonnet-4-5-20250929", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-3-7-sonnet-latest", "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        ("MiniMax-M3", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-sonnet-5-5", None, None, None),
    ],
)
def test_thinking(model: str, effort: str | None, thinking: Any, output: Any) -> None:
    sent = body(ask(model=model, reasoning_effort=effort, max_tokens=20_000, temperature=0.3))
    assert (sent.get("thinking"), sent.get("output_config")) == (thinking, output)
    assert ("temperature" in sent) == (thinking is None or thinking["type"] == "disabled")


def test_a_thinking_model_is_asked_in_words_to_call() -> None:
    sent = body(ask(model=MODEL, reasoning_effort="low", tools=(BASH,), tool_choice="required"))
    assert "tool_choice" not in sent
    assert sent["messages"][-1]["content"][-1] == {"type": "text", "text": "Answer with a call of one of the tools."}


@pytest.mark.parametrize(("limit", "budget"), [(2000, 1500), (32_000, 24_000), (64_000, 32_000)])
def test_thinking_leaves_room_for_the_answer(limit: int, budget: int) -> None:
    sent = body(ask(model="claude-sonnet-4-5", reasoning_effort="xhigh", max_tokens=limit))
    assert sent["thinking"]["budget_tokens"] == budget


async def test_pages_of_models(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([], dialect=Messages())

    def page(request: Any) -> Any:
        if "after_id=a" in request.path:
            return {"data": [{"id": "b"}], "has_more": False, "last_id": "b"}
        return {"data": [{"id": "a"}], "has_more": True, "last_id": "a"}

    server.routes["/v1/models"] = page
    assert [each.id for each in await adapter(transport, server.url).list_models("main")] == ["a", "b"]


def test_no_thinking_where_it_does_not_fit() -> None:
    assert "thinking" not in body(ask(model="claude-sonnet-4-5", reasoning_effort="low", max_tokens=1000))
    foreign = said(LS, provider="other")
    asked = ask("Hi", foreign, tool_result_message("c1", "ok"), model="claude-sonnet-4-5", reasoning_effort="low")
    assert "thinking" not in body(asked), "a turn that another model began has no thinking to begin with"


def test_thinking_goes_back_byte_for_byte_to_the_model_that_thought() -> None:
    thought = ReasoningBlock("hm…\n", sealed("hm…\n"))
    hidden = OpaqueBlock(
        "redacted_thinking", '{"kind": "redacted_thinking", "type": "redacted_thinking", "data": "AAA="}'
    )

    def sent(model: str = MODEL, **source: str) -> Any:
        turn = said(thought, hidden, LS, **({"model": f"{MODEL}-20260801"} | source))
        return body(ask("Hi", turn, tool_result_message("c1", "ok"), model=model))["messages"][1]["content"]

    assert sent()[:2] == [
        {"type": "thinking", "thinking": "hm…\n", "signature": sealed("hm…\n")},
        {"type": "redacted_thinking", "data": "AAA="},
    ]
    for elsewhere in (
        sent(provider="other"),
        sent(model="claude-opus-5-5"),
        sent(model="claude-sonnet-5"),
        sent(model="MiniMax-M3"),
    ):
        assert [block["type"] for block in elsewhere] == ["tool_use"]


def test_users_in_a_row_share_a_turn_and_blank_texts_are_left_out() -> None:
    sent = body(ask("One.", " \n", "Two.", said(TextBlock("Yes."), TextBlock("  ")), "Go on"))
    assert [[block["text"] for block in turn["content"]] for turn in sent["messages"]] == [
        ["One.", "Two."],
        ["Yes."],
        ["Go on"],
    ]


@pytest.mark.parametrize("call_id", ["functions.bash:0", "call|日本", "x" * 100, "a b"])
def test_ids_are_made_legal_on_both_sides(call_id: str) -> None:
    made = ToolCallBlock(call_id, "bash", "{}")
    sent = body(ask("Hi", said(made), tool_result_message(call_id, "ok"), model=MODEL))
    assert sent["messages"][1]["content"][0]["id"] == sent["messages"][2]["content"][0]["tool_use_id"]


def test_the_output_limit_is_always_named() -> None:
    assert body(ask(model="unknown-model"))["max_tokens"] == 8192
    assert body(ask(model=MODEL), facts_for(MODEL))["max_tokens"] == 32_000


def test_the_next_request_begins_like_this_one() -> None:
    speaks = adapter(Transport())
    messages: list[Message] = [user_message("Hello"), said(TextBlock("Hi."), LS), tool_result_message("c1", "ok")]
    first = speaks.encode(ask(*messages, tools=(BASH,), system="s", model=MODEL))
    messages += [said(TextBlock("More.")), user_message("Go on")]
    second = speaks.encode(ask(*messages, tools=(BASH,), system="s", model=MODEL, max_tokens=9, tool_choice="required"))
    assert second.startswith(first.partition(b'],"max_tokens"')[0])


def decoded(*payloads: Any, done: bool = False) -> list[Chunk]:
    decoder = MessagesDecoder("Anthropic")
    chunks = [chunk for payload in payloads for chunk in decoder.feed(payload)]
    return chunks + decoder.end(done=done or decoder.done)


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def opened(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str | None, **counts: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": counts}


def test_thinking_signed_and_redacted_text_calls_and_usage() -> None:
    counts = {"input_tokens": 20, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5, "output_tokens": 1}
    chunks = decoded(
        {"type": "message_start", "message": {"model": "claude-sonnet-5-5-20260801", "usage": counts}},
        {"type": "ping"},
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="hm"),
        delta(0, type="signature_delta", signature="c2ln"),
        stop(0),
        opened(1, type="redacted_thinking", data="AAA="),
        stop(1),
        opened(2, type="text", text=""),
        delta(2, type="text_delta", text="Hello"),
        stop(2),
        opened(3, type="tool_use", id="t1", name="bash", input={}),
        delta(3, type="input_json_delta", partial_json='{"command"'),
        delta(3, type="input_json_delta", partial_json=':"ls"}'),
        stop(3),
        opened(4, type="tool_use", id="t2", name="read", input={}),
        stop(4),
        opened(5, type="tool_use", id="t3", name="bash", input={"command": "pwd"}),
        stop(5),
        ended("tool_use", output_tokens=57),
        {"type": "message_stop"},
    )
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    thought, hidden, text, *calls = assembler.blocks()
    assert thought == ReasoningBlock("hm", "c2ln")
    assert isinstance(hidden, OpaqueBlock)
    assert json.loads(hidden.raw)["data"] == "AAA="
    assert text == TextBlock("Hello")
    assert calls == [
        ToolCallBlock("t1", "bash", '{"command":"ls"}'),
        ToolCallBlock("t2", "read", "{}"),
        ToolCallBlock("t3", "bash", '{"command":"pwd"}'),
    ]
    assert shorts(chunks)[-2:] == ["U 20 80 57 0", "F tool-calls"]
    assert assembler.usage is not None
    assert assembler.usage.cache_write_tokens == 5


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ([ended("end_turn")], "F error EMPTY_RESPONSE"),
        ([opened(0, type="text", text="x"), ended("max_tokens")], "F max-tokens"),
        ([opened(0, type="text", text="x"), ended("stop_sequence")], "F stop"),
        ([ended("refusal")], "F error REFUSED"),
        ([opened(0, type="text", text="x"), ended("model_context_window_exceeded")], "F error CONTEXT_WINDOW_EXCEEDED"),
        ([opened(0, type="text", text="x"), ended("something_new")], "F error SOMETHING_NEW"),
        ([opened(0, type="text", text="x"), {"type": "message_stop"}], "F stop"),
    ],
)
def test_ends(payloads: list[dict[str, Any]], expected: str) -> None:
    assert shorts(decoded(*payloads))[-1] == expected


def test_b073_a_start_without_a_message_is_tolerated() -> None:
    """pydantic/pydantic-ai#5818: an event whose message is null comes before the normal start."""
    lines = shorts(
        decoded(
            {"type": "message_start", "message": None}, opened(0, type="text", text="Hi"), stop(0), ended("end_turn")
        )
    )
    assert lines[-1] == "F stop"


def test_b037_usage_of_the_last_event_counts() -> None:
    """gptme/gptme#2720: the count in `message_delta`, after the call's block has stopped, is the reply's."""
    chunks = decoded(
        opened(0, type="tool_use", id="t", name="bash", input={}), stop(0), ended("tool_use", output_tokens=57)
    )
    assert shorts(chunks)[-2:] == ["U 0 0 57 0", "F tool-calls"]


def test_a_stream_without_a_reason_is_no_reply() -> None:
    with pytest.raises(LLMError) as caught:
        decoded(opened(0, type="text", text="Hel"))
    assert caught.value.code == "STREAM_CLOSED"


async def test_a_paused_turn_goes_on_as_one_reply(fault_server: MakeServer, transport: Transport) -> None:
    paused = reply("First, ", finish="pause_turn", usage=usage(10, 3))
    server = await fault_server([paused, reply("then second.", usage=usage(20, 4))], dialect=Messages())
    lines = shorts(await chunks_of(adapter(transport, server.url), ask(model=MODEL)))
    assert [line for line in lines if line[0] in "EUF"] == ["E0 First, ", "E1 then second.", "U 30 0 7 0", "F stop"]
    assert server.chats[1].json["messages"][-1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "First,"}],
    }


async def test_a_server_that_pauses_for_ever_is_given_up(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server(lambda request: reply("x", finish="pause_turn"), dialect=Messages())
    with pytest.raises(LLMError, match="paused its turn 5 times"):
        await chunks_of(adapter(transport, server.url), ask(model=MODEL))
    assert len(server.chats) == 5


async def test_signed_turns_against_a_server_that_checks_them(fault_server: MakeServer, transport: Transport) -> None:
    turn = reply("", reasoning="I will list.", tool_calls=[call("bash", {"command": "ls"})])
    server = await fault_server([turn, reply("Done.")], dialect=Messages())
    speaks = adapter(transport, server.url)
    assembler = BlockAssembler()
    request = ask("List.", model=MODEL, reasoning_effort="low", tools=(BASH,))
    for chunk in await chunks_of(speaks, request):
        assembler.add(chunk)
    made = said(*assembler.blocks())
    history = (user_message("List."), made, tool_result_message(made.tool_calls[0].id, "a.txt"))
    assert shorts(await chunks_of(speaks, ask(*history, model=MODEL, tools=(BASH,))))[-1] == "F stop"
    headers = server.chats[1].headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-ant-test", "2023-06-01")


async def test_a_server_without_cache_marks_is_learned(fault_server: MakeServer, transport: Transport) -> None:
    refusal = status(400, message="cache_control: Extra inputs are not permitted")
    server = await fault_server([refusal], dialect=Messages())
    speaks = adapter(transport, server.url)
    request = ask("Hi", model=MODEL, system="Be brief.")
    with pytest.raises(LLMError) as caught:
        await chunks_of(speaks, request)
    assert speaks.correct(caught.value, request)
    assert b"cache_control" not in speaks.encode(request)


async def test_overload_in_the_stream(fault_server: MakeServer, transport: Transport) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server = await fault_server([events(overloaded)], dialect=Messages())
    with pytest.raises(LLMError) as caught:
        await chunks_of(adapter(transport, server.url), ask(model=MODEL))
    assert caught.value.code == "SERVER"


def test_keys_of_those_who_imitate() -> None:
    assert "Authorization" not in adapter(Transport()).request_headers()
    headers = adapter(Transport(), "https://api.minimax.io/anthropic/v1").request_headers()
    assert (headers["x-api-key"], headers["Authorization"]) == ("sk-ant-test", "Bearer sk-ant-test")


async def test_the_official_sdk_reads_our_server(fault_server: MakeServer) -> None:
    import anthropic

    turn = reply(
        "Hello there",
        reasoning="hm",
        tool_calls=[call("bash", {"command": "ls"}, id="toolu_1"), call("read", {})],
        usage=usage(100, 12, cached=80, reasoning=5),
    )
    server = await fault_server([turn, turn, status(529, message="busy")], dialect=Messages())
    client = anthropic.AsyncAnthropic(api_key="sk-ant-test", base_url=server.root, max_retries=0)
    tools: Any = [{"name": "bash", "description": "Run a command.", "input_schema": BASH.parameters}]
    asked: Any = {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    async with client.messages.stream(**asked, tools=tools) as stream:
        streamed = await stream.get_final_message()
    whole = await client.messages.create(**asked, tools=tools)
    for message in (streamed, whole):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert (message.content[0].signature, message.content[1].text) == (sealed("hm"), "Hello there")  # type: ignore[union-attr]
        assert (message.content[2].id, message.content[2].input) == ("toolu_1", {"command": "ls"})  # type: ignore[union-attr]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (20, 80)
        assert message.usage.output_tokens == 12
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.messages.create(**asked)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")  # type: ignore[attr-defined]
    await client.close()


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}]}, "Input should be 'user'"),
        ({"messages": [{"role": "user", "content": []}]}, "at least one block"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}, "non-whitespace"),
        ({"tool_choice": {"type": "any"}}, "while providing tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "budget_tokens"),
        ({"n": 2}, "Extra inputs"),
    ],
)
def test_what_a_strict_server_refuses(spoilt: dict[str, Any], words: str) -> None:
    plain = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    found = check_request(plain | spoilt)
    assert any(words in problem for problem in found), found
