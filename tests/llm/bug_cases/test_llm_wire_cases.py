"""Public bug reports about the wire, through the client, the agent and every dialect against the fault server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.config.settings import LLMSettings, RetrySettings
from app.config.vendors import VENDORS
from app.llm import history
from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.models import DEFAULTS
from app.llm.pool import LLMPool
from app.llm.sse import SSEDecoder
from app.llm.transport import Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.event import EventRecord, Retrying
from app.schema.message import (
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    system_message,
    tool_result_message,
    user_message,
)
from app.schema.run import RunContext
from tests.agents.rig import Mark, Note, Rig
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, call, cut_after, malformed_json, reply, status, usage
from tests.fault_server.messages import check_request as check_messages
from tests.fault_server.messages import sealed
from tests.llm.asking import BASH, ask, codes, shorts
from tests.llm.conftest import MakeLLM
from tests.llm.dialects import DIALECTS

BROKEN = '{"query": "bad query", "file_ids":[4556]</parameter>\n<parameter name="limit": 8}'
SSE_ROWS = [row for row in DIALECTS if row.name in ("chat", "responses", "messages", "gemini")]


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    folder = tmp_path / "ws"
    folder.mkdir()
    made = Rig(folder)
    yield made
    await made.close()


def said(*content: Any) -> Message:
    return assistant_message(content, provider="main", model="test-model")


def adapter_of(name: str) -> Any:
    row = next(row for row in DIALECTS if row.name == name)
    return row.adapter(FaultServer([], dialect=row.wire()), Transport(), Timeouts())


def body_of(name: str, *messages: Message | str, **options: Any) -> Any:
    return json.loads(adapter_of(name).encode(ask(*messages, **options)))


async def test_b009_half_a_call_is_dropped_whole_before_the_retry(rig: Rig, fault_server: MakeServer) -> None:
    """endolith/open-interpreter#348"""
    whole = reply("", tool_calls=[call("mark", {"text": "print(1)"})], stream_pieces=6)
    server = await fault_server([cut_after(whole, events=4, reset=True), whole, reply("Done.")])
    mark = Mark()
    result = await rig.agent(rig.served_llm(server), mark).run("Run it.", RunContext())
    assert result.answer == "Done."
    assert mark.log == ["+print(1)", "-print(1)"]


async def test_b012_a_document_without_choices_names_what_is_missing(make_llm: MakeLLM) -> None:
    """browser-use/browser-use#3899"""
    llm, _ = await make_llm([status(200, {"id": "x", "model": "m"})])
    with pytest.raises(LLMError, match="no `choices`") as caught:
        await llm.ask("hi")
    assert caught.value.code == "ENDPOINT"


async def test_b013_empty_choices_are_an_empty_reply_that_is_retried_and_counted(
    make_llm: MakeLLM, events: list[EventRecord], ctx: RunContext
) -> None:
    """FoundationAgents/OpenManus#797"""
    nothing = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}}
    llm, _ = await make_llm([status(200, nothing), reply("ok", usage=usage(7, 2), usage_at="finish")])
    assert await llm.ask("hi", ctx=ctx) == "ok"
    assert [record.event.code for record in events if isinstance(record.event, Retrying)] == ["EMPTY_RESPONSE"]
    assert ctx.ledger.usage.total_input == 5 + 7


@pytest.mark.parametrize("raw", ["", "  ", "null", '"null"'])
async def test_b016_no_arguments_in_every_spelling(raw: str, rig: Rig, fault_server: MakeServer) -> None:
    """pydantic/pydantic-ai#1512"""
    server = await fault_server([reply("", tool_calls=[call("note", raw)]), reply("Done.")])
    note = Note()
    await rig.agent(rig.served_llm(server), note).run("List.", RunContext())
    assert note.log == ["+", "-"]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DIALECTS if row.name != "polling"])
async def test_b018_b019_broken_arguments_in_the_history_poison_no_request(row: Any, fault_server: MakeServer) -> None:
    """pydantic/pydantic-ai#4431, ResearAI/DeepScientist#48: what is sent is always an object or its JSON text."""
    server = await fault_server([reply("I see.")], dialect=row.wire())
    transport = Transport()
    adapter = row.adapter(server, transport, Timeouts())
    turn = said(ToolCallBlock("c1", "bash", BROKEN), ToolCallBlock("c2", "bash", '{"a":'))
    results = [tool_result_message(name, "arguments: no JSON", is_error=True) for name in ("c1", "c2")]
    request = ask("Look.", turn, *results, tools=(BASH,))
    assert shorts([chunk async for chunk in adapter.stream(request)])[-1] == "F stop"
    await adapter.close()
    await transport.close()
    server.assert_done()


def test_b021_thinking_of_a_silent_turn_stays_with_it() -> None:
    """openai/openai-agents-python#4089"""
    silent = said(ReasoningBlock("hm", sealed("hm")))
    messages = history.prepare(
        (user_message("q1"), silent, user_message("q2"), said(TextBlock("a2")), user_message("q3"))
    )
    sent = body_of("messages", *messages)
    assert check_messages(sent) == []
    assert "hm" not in json.dumps(sent)
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]


async def test_b024_an_answer_that_the_limit_ate_is_told_with_the_limit(make_llm: MakeLLM) -> None:
    """pydantic/pydantic-ai#3512"""
    llm, server = await make_llm([reply("", finish="length")], max_tokens=10)
    with pytest.raises(LLMError, match="output limit of 10 tokens") as caught:
        await llm.ask("hi")
    assert caught.value.code == "OUTPUT_LIMIT"
    assert len(server.chats) == 1


async def test_b024_a_call_that_the_limit_cut_never_runs(rig: Rig, fault_server: MakeServer) -> None:
    cut = reply("", tool_calls=[call("mark", '{"text": "rm -r')], finish="length")
    server = await fault_server([cut, reply("I will be brief.")])
    mark = Mark()
    result = await rig.agent(rig.served_llm(server), mark).run("Run it.", RunContext())
    assert (mark.log, result.answer) == ([], "I will be brief.")


async def test_b025_nothing_at_the_limit_is_an_error_that_names_it(make_llm: MakeLLM) -> None:
    """openai/openai-agents-python#4513"""
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": None}}
    llm, _ = await make_llm([status(200, {"choices": [choice]})])
    with pytest.raises(LLMError, match="output limit"):
        await llm.ask("hi")


async def test_b030_a_notice_between_a_call_and_its_result_waits(make_llm: MakeLLM) -> None:
    """gptme/gptme#3422"""
    llm, server = await make_llm([reply("ok")])
    turn = said(ToolCallBlock("c1", "bash", "{}"))
    between = [user_message("go"), turn, system_message("shellcheck warning"), tool_result_message("c1", "out")]
    await llm.ask_tool(between, tools=(BASH,))
    assert [entry["role"] for entry in server.chats[0].json["messages"]] == ["user", "assistant", "tool", "user"]
    assert [entry["content"] for entry in server.chats[0].json["messages"]][2:] == ["out", "shellcheck warning"]


async def test_b031_one_call_has_one_result_whatever_a_hook_adds(make_llm: MakeLLM) -> None:
    """gptme/gptme#3355"""
    llm, server = await make_llm([reply("ok")])
    turn = said(ToolCallBlock("c1", "bash", "{}"))
    messages = [
        user_message("go"),
        turn,
        tool_result_message("c1", "out"),
        tool_result_message("c1", "hook"),
        user_message("hook"),
    ]
    await llm.ask_tool(messages, tools=(BASH,))
    tools = [entry for entry in server.chats[0].json["messages"] if entry["role"] == "tool"]
    assert [(entry["tool_call_id"], entry["content"]) for entry in tools] == [("c1", "out")]


def test_b033_the_content_of_a_result_is_one_text() -> None:
    """gptme/gptme#3490"""
    result = tool_result_message("c1", (TextBlock("out"), TextBlock("err")))
    sent = body_of("chat", "go", said(ToolCallBlock("c1", "bash", "{}")), result, model="deepseek/deepseek-v4")
    assert sent["messages"][2]["content"] == "outerr"


def test_b034_beside_a_call_an_empty_text_is_never_an_item_and_nothing_where_it_is_refused() -> None:
    """gptme/gptme#1444"""
    history = ("go", said(ToolCallBlock("c1", "bash", "{}")), tool_result_message("c1", "x"))
    assert body_of("chat", *history)["messages"][1]["content"] == ""
    account = Account("zhipu", "Zhipu", "http://x", "k", quirks=quirks_of("zhipu"))
    zhipu = OpenAIChatAdapter(account, Transport(), route="main", facts=DEFAULTS)
    assert json.loads(zhipu.encode(ask(*history)))["messages"][1]["content"] is None


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DIALECTS if row.name != "polling"])
async def test_b036_a_body_cut_before_its_end_is_tried_again(row: Any, fault_server: MakeServer) -> None:
    """gptme/gptme#1226"""
    server = await fault_server(
        [cut_after(reply("one two three", stream_pieces=4), events=2), reply("whole")], dialect=row.wire()
    )
    pool = LLMPool({"main": settings_for(row.api_type, server)}, sleep=_no_wait)
    assert await pool.get("main").ask("hi") == "whole"
    await pool.close()


async def test_b040_an_invented_name_is_made_legal_in_what_is_sent(rig: Rig, fault_server: MakeServer) -> None:
    """pydantic/pydantic-ai#4713"""
    name = "search.evidence invalid"
    server = await fault_server([reply("", tool_calls=[call(name)]), reply("Sorry.")])
    agent = rig.agent(rig.served_llm(server))
    await agent.run("Search.", RunContext())
    assistant, tool = server.chats[1].json["messages"][-2:]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", assistant["tool_calls"][0]["function"]["name"])
    assert "search.evidence invalid" in tool["content"]
    assert [made.name for message in agent.memory.messages for made in message.tool_calls] == [name]


async def test_b043_ids_that_start_anew_each_turn_are_two_calls(rig: Rig, fault_server: MakeServer) -> None:
    """vllm-project/vllm#50295"""
    turns = [reply("", tool_calls=[call("note", {"text": text}, id="list_dir:0")]) for text in (".", "/")]
    server = await fault_server([*turns, reply("Done.")])
    note = Note()
    await rig.agent(rig.served_llm(server), note).run("List.", RunContext())
    assert note.log == ["+.", "-.", "+/", "-/"]
    sent = server.chats[2].json["messages"]
    made = [each["id"] for entry in sent for each in entry.get("tool_calls", ())]
    assert [entry["tool_call_id"] for entry in sent if entry["role"] == "tool"] == made
    assert len(set(made)) == 2


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in SSE_ROWS])
@pytest.mark.parametrize("ping", ["data: : keepalive", "data: : OPENROUTER PROCESSING", "data:", "data: "])
async def test_b045_keep_alives_as_data_are_left_out(row: Any, ping: str, fault_server: MakeServer) -> None:
    """anomalyco/opencode#50871"""
    server = await fault_server([reply("Hello", pings=2, ping=ping)], dialect=row.wire())
    transport = Transport()
    chunks = [chunk async for chunk in row.adapter(server, transport, Timeouts()).stream(ask())]
    assert "E0 Hello" in shorts(chunks)
    await transport.close()


async def test_b045_other_invalid_data_still_fails(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([malformed_json(payload="keepalive", after=1)], retry=RetrySettings(max_retries=0))
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "MALFORMED_RESPONSE"


def test_b046_a_comment_and_a_blank_line_are_no_event() -> None:
    """openai/openai-python#2722"""
    found = SSEDecoder().feed(b'id: 1\ndata: {"a":1}\n\n: ping\n\ndata: {"b":2}\n\n')
    assert [event.data for event in found] == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_b048_every_split_gives_the_same_events(end: bytes, size: int) -> None:
    """openai/openai-agents-python#4215"""
    body = end.join((b'data: {"a":"\xf0\x9f\x91\x8d"}', b"", b"event: x", b"data: one", b"data: two", b"", b""))
    decoder = SSEDecoder()
    found = [event for at in range(0, len(body), size) for event in decoder.feed(body[at : at + size])]
    events = [(event.event, event.data) for event in [*found, *decoder.flush()]]
    assert events == [("", b'{"a":"\xf0\x9f\x91\x8d"}'), ("x", b"one\ntwo")]


async def test_b052_without_usage_a_request_still_counts(make_llm: MakeLLM, ctx: RunContext) -> None:
    """openai/openai-agents-python#4290"""
    llm, _ = await make_llm([reply("Hello", usage_at="absent")])
    await llm.ask("hi", ctx=ctx)
    assert ctx.ledger.requests == 1
    assert ctx.ledger.usage.estimated
    assert ctx.ledger.usage.total_input > 0
    assert ctx.ledger.usage.output_tokens > 0


async def test_b060_a_message_with_nothing_in_it_is_left_out_and_told(
    make_llm: MakeLLM, events: list[EventRecord], ctx: RunContext
) -> None:
    """FoundationAgents/OpenManus#635"""
    llm, server = await make_llm([reply("ok")])
    await llm.ask([user_message("one"), said(), user_message("two")], ctx=ctx)
    assert [entry["content"] for entry in server.chats[0].json["messages"]] == ["one", "two"]
    assert "HISTORY_REPAIRED" in codes(events)


@pytest.mark.parametrize(
    "api_type", [name for name in (*VENDORS, "openai_responses") if name not in ("test", "embedded", "local")]
)
async def test_b061_every_provider_is_asked_for_the_configured_model(api_type: str) -> None:
    """Fosowl/agenticSeek#530"""
    base_url = "https://gateway.example.com/v1"
    settings = LLMSettings(
        name="main", model="my-model-7", api_type=api_type, base_url=base_url, api_key=SecretStr("k")
    )
    pool = LLMPool({"main": settings})
    adapter = pool.service.adapter(pool.get("main").name)
    assert isinstance(adapter, HTTPAdapter)
    request = ask(model="my-model-7")
    said_where = adapter.request_url(request) + adapter.encode(request).decode()
    # The polling protocol names the model in a request of its own (`test_polling_server.py`).
    assert "my-model-7" in said_where or api_type == "server"
    await pool.close()


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DIALECTS])
def test_b064_what_is_not_set_is_not_sent(row: Any) -> None:
    """simular-ai/Agent-S#135"""
    sent = adapter_of(row.name).encode(ask("hi", system="s", tools=(BASH,)))
    assert b":null" not in sent
    assert b"temperature" not in sent
    assert DEFAULTS.temperature, "the model takes one"


def settings_for(api_type: str, server: FaultServer) -> LLMSettings:
    paths = {"google": "/v1beta", "ollama": "", "aws": ""}
    return LLMSettings(
        name="main",
        model="test-model",
        api_type=api_type,
        base_url=server.root + paths.get(api_type, "/v1"),
        api_key=SecretStr("sk-test"),
    )


async def _no_wait(seconds: float) -> None:
    pass
