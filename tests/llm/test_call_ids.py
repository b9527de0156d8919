"""Ids of calls and counts of tools as vendors allow them, and stop sequences where they are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.llm.adapters.wire import mistral_id, short_id
from app.llm.transport import Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.event import EventRecord
from app.schema.message import Message, ModelSource, TextBlock, ToolCallBlock, ToolResultBlock, ToolSource, user_message
from app.schema.request import ToolSpec
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import Behaviour, Request, reply, status
from tests.llm.asking import BASH, ask, chunks_of, codes
from tests.llm.conftest import MakeAdapter, MakeLLM
from tests.llm.dialects import DIALECTS, DialectRow

LONG = "call_" + "x" * 80
SAME_BEGINNING = f"{LONG}y"


def turn(*ids: str) -> tuple[Message, ...]:
    calls = tuple(ToolCallBlock(each, "bash", '{"command":"ls"}') for each in ids)
    results = (
        Message(f"r{n}", "user", (ToolResultBlock(each, (TextBlock("ok"),)),), ToolSource(each))
        for n, each in enumerate(ids)
    )
    return user_message("hi"), Message("a", "assistant", calls, ModelSource("other", "m")), *results


async def sent_ids(vendor: str, ids: tuple[str, ...], fault_server: MakeServer, make_adapter: MakeAdapter) -> list[str]:
    server = await fault_server([reply("ok"), reply("ok")])
    adapter = make_adapter(server.url, vendor=vendor)
    history = turn(*ids)
    await chunks_of(adapter, ask(*history, tools=(BASH,)))
    await chunks_of(adapter, ask(*history, tools=(BASH,)))
    first, second = (request.json["messages"] for request in server.chats)
    assert first == second, "the mapping is stable"
    calls = [call["id"] for call in first[1]["tool_calls"]]
    assert [entry["tool_call_id"] for entry in first[2:]] == calls, "call and result alike"
    return calls


async def test_mistral_gets_nine_letters_or_digits(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    found = await sent_ids(
        "mistral", ("call_1_0", LONG, SAME_BEGINNING, "abc123XYZ", "日本"), fault_server, make_adapter
    )
    assert [bool(re.fullmatch("[a-zA-Z0-9]{9}", each)) for each in found] == [True] * 5
    assert len(set(found)) == 5
    assert found[3] == "abc123XYZ"


async def test_openai_gets_at_most_64_characters(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    found = await sent_ids("openai", ("functions.bash:0", LONG, SAME_BEGINNING), fault_server, make_adapter)
    assert found[0] == "functions.bash:0"
    assert max(map(len, found)) <= 64
    assert len(set(found)) == 3


async def test_one_history_at_two_vendors(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    history = turn("call_1_0")
    shown: list[str] = []
    for vendor in ("openai", "mistral", "openai"):
        server = await fault_server([reply("ok")])
        await chunks_of(make_adapter(server.url, vendor=vendor), ask(*history, tools=(BASH,)))
        shown.append(server.chats[0].json["messages"][2]["tool_call_id"])
    assert shown == ["call_1_0", mistral_id("call_1_0"), "call_1_0"]


def test_ids_of_lone_surrogates() -> None:
    assert len(mistral_id("\ud800")) == 9
    assert short_id("\ud800" * 70).isascii()


@pytest.mark.parametrize(("vendor", "offered"), [("openai", 128), ("groq", 130)])
async def test_tools_above_the_accounts_number_are_left_out(
    vendor: str, offered: int, make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    tools = tuple(ToolSpec(f"t{n}", "x", {"type": "object", "properties": {}}) for n in range(130))
    llm, server = await make_llm([reply("ok")], api_type=vendor)
    llm.vendor = vendor
    await llm.ask_tool("hi", tools=tools, ctx=ctx)
    assert [each["function"]["name"] for each in server.chats[0].json["tools"]] == [f"t{n}" for n in range(offered)]
    assert codes(events).count("TOOL_LEFT_OUT") == 130 - offered


STOP = {
    "chat": "stop",
    "messages": "stop_sequences",
    "gemini": "stopSequences",
    "ollama": "stop",
    "bedrock": "stopSequences",
}


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DIALECTS if row.name in STOP])
async def test_b063_a_refused_stop_is_left_out_once_for_all(row: DialectRow, fault_server: MakeServer) -> None:
    key = STOP[row.name].encode()

    def respond(request: Request) -> Behaviour:
        if b'"%s":' % key in request.body:
            return status(400, message=f"Unsupported parameter: '{STOP[row.name]}' is not supported with this model.")
        return reply("fine")

    server = await fault_server(respond, dialect=row.wire())
    transport = Transport()
    adapter = row.adapter(server, transport, Timeouts())
    request = ask("hi", stop=("END",))
    said: list[Any] = []
    for _ in range(2):
        try:
            await chunks_of(adapter, request)
        except LLMError as error:
            said.append(adapter.correct(error, request))
            await chunks_of(adapter, request)
    assert said == ["test-model: the model takes no stop sequences; they are left out from now on"]
    assert len(server.chats) == 3
    await adapter.close()
    await transport.close()
