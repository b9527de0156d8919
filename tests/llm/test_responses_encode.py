"""Requests to the Responses API: items, what goes back of the model's thinking and where to, addresses, corrections."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.config.settings import LLMSettings
from app.llm.adapters.corrections import Learned
from app.llm.adapters.http import Account
from app.llm.adapters.responses import ResponsesAdapter
from app.llm.adapters.responses_encode import ResponsesEncoder
from app.llm.failures import classify
from app.llm.models import DEFAULTS, ModelFacts, facts_for
from app.llm.pool import LLMPool
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.event import EventRecord
from app.schema.message import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    assistant_message,
    create_message,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelRequest
from app.schema.run import RunContext
from app.schema.stream import Finish
from tests.conftest import MakeServer
from tests.fault_server import Behaviour, Request, call, prefix_violations, reply, status, usage
from tests.fault_server.responses import Responses, sealed
from tests.fault_server.responses_check import check_request
from tests.llm.asking import BASH, PNG, READ, ask, chunks_of, codes
from tests.llm.conftest import MakeLLM

ORIGIN = "https://api.openai.com/v1"
IMAGE = ImageBlock(PNG, "image/png", 1, 1)
SHOWN = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
CALL = ToolCallBlock("call_1", "bash", '{"command": "ls"}')
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("hm")}
THINKER = facts_for("gpt-5")


def encoded(
    request: ModelRequest, *dropped: str, facts: ModelFacts = DEFAULTS, of_openai: bool = True, origin: str = ORIGIN
) -> Any:
    body = json.loads(ResponsesEncoder(origin, of_openai=of_openai).body(request, Learned(frozenset(dropped)), facts))
    assert check_request(body) == []
    return body


def items(*messages: Message | str, **options: Any) -> list[Any]:
    return encoded(ask(*messages), **options)["input"]


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def thinking(*blocks: Any, kept: list[Any], origin: str = ORIGIN) -> Message:
    return assistant_message(blocks, provider="main", model="m", replay_state={"responses": origin, "blocks": kept})


def test_the_least_request() -> None:
    assert encoded(ask("hi"), facts=facts_for("gpt-4o")) == {
        "model": "test-model",
        "stream": True,
        "store": False,
        "input": [user(text("hi"))],
    }


def test_everything_a_request_may_hold() -> None:
    request = ask(
        "hi",
        system="be brief",
        tools=(BASH,),
        tool_choice="required",
        response_schema={"type": "object"},
        max_tokens=4,
        temperature=0.5,
        reasoning_effort="off",
    )
    assert encoded(request) == {
        "model": "test-model",
        "stream": True,
        "store": False,
        "instructions": "be brief",
        "tools": [
            {
                "type": "function",
                "name": "bash",
                "description": "Run a command.",
                "parameters": BASH.parameters,
                "strict": False,
            }
        ],
        "input": [user(text("hi"))],
        "tool_choice": "required",
        "max_output_tokens": 16,
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema", "name": "reply", "schema": {"type": "object"}}},
        "reasoning": {"effort": "none"},
        "include": ["reasoning.encrypted_content"],
    }


def test_a_model_that_thinks_is_asked_for_its_thinking() -> None:
    sent = encoded(ask("hi", reasoning_effort="high", temperature=0.5), facts=THINKER)
    assert sent["reasoning"] == {"effort": "high", "summary": "auto"}
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert "temperature" not in sent


@pytest.mark.parametrize(
    ("option", "member"),
    [("temperature", "temperature"), ("include", "include"), ("parallel_tool_calls", "parallel_tool_calls")],
)
def test_what_was_refused_is_left_out(option: str, member: str) -> None:
    request = ask("hi", temperature=0.5, tools=(BASH,))
    facts = ModelFacts(parallel_tools=False)
    assert member in encoded(request, facts=facts)
    assert member not in encoded(request, option, facts=facts)


def test_refused_words_are_said_to_the_model() -> None:
    request = ask("hi", system="be brief", tools=(BASH,), tool_choice="required")
    sent = encoded(request, "system", "tool_choice")
    assert "instructions" not in sent
    wanted = "Answer with a call of one of the tools."
    assert sent["input"] == [user(text("be brief")), user(text("hi")), user(text(wanted))]


def test_z12_stop_sequences_cannot_be_said() -> None:
    with pytest.raises(LLMError) as caught:
        encoded(ask("hi", stop=("END",)))
    assert caught.value.code == "UNSUPPORTED_OPTION"


def test_a_turn_with_parallel_calls() -> None:
    other = ToolCallBlock("call_2", "read", "not json")
    turn = assistant_message((TextBlock("Both."), CALL, other), provider="x", model="y")
    assert items("hi", turn, tool_result_message("call_1", "a"), tool_result_message("call_2", ""))[1:] == [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
        {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call", "call_id": "call_2", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a"},
        {"type": "function_call_output", "call_id": "call_2", "output": "(no output)"},
    ]


def test_images_of_users_and_of_tools() -> None:
    turn = assistant_message((CALL,), provider="x", model="y")
    result = tool_result_message("call_1", (TextBlock("a picture"), IMAGE))
    asked = user_message((TextBlock("look"), IMAGE))
    inside = items(asked, turn, result)
    assert inside[0] == user(text("look"), SHOWN)
    assert inside[2] == {"type": "function_call_output", "call_id": "call_1", "output": [text("a picture"), SHOWN]}
    elsewhere = items(asked, turn, result, of_openai=False)
    assert elsewhere[2:] == [
        {"type": "function_call_output", "call_id": "call_1", "output": "a picture"},
        user(text("Image of the tool result call_1:"), SHOWN),
    ]


def test_pictures_wait_until_all_outputs_of_a_turn_are_out() -> None:
    turn = assistant_message((CALL, ToolCallBlock("call_2", "read", "{}")), provider="x", model="y")
    results = (tool_result_message("call_1", (IMAGE,)), tool_result_message("call_2", "b"))
    kinds = [item["type"] for item in items("hi", turn, *results, of_openai=False)]
    assert kinds == ["message", "function_call", "function_call", "function_call_output", "function_call_output",
                     "message"]  # fmt: skip


def test_words_beside_a_result_come_after_it() -> None:
    turn = assistant_message((CALL,), provider="x", model="y")
    result = (ToolResultBlock("call_1", (TextBlock("a"),)), TextBlock("and now?"))
    assert items("hi", turn, create_message("user", result, ToolSource("call_1")))[2:] == [
        {"type": "function_call_output", "call_id": "call_1", "output": "a"},
        user(text("and now?")),
    ]


def test_thinking_goes_back_whole_and_in_its_place() -> None:
    later = THOUGHT | {"id": "rs_2", "summary": [{"type": "summary_text", "text": "so"}]}
    turn = thinking(
        ReasoningBlock(""),
        TextBlock("First"),
        ReasoningBlock("so"),
        CALL,
        kept=[THOUGHT, {"phase": "commentary"}, later, None],
    )
    sent = items("hi", turn, tool_result_message("call_1", "a"))
    part = {"type": "output_text", "text": "First"}
    assert sent[1:4] == [
        THOUGHT,
        {"type": "message", "role": "assistant", "content": [part], "phase": "commentary"},
        later,
    ]
    assert sent[4]["type"] == "function_call"


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(thinking(ReasoningBlock("x"), CALL, kept=[THOUGHT, None], origin="https://other/v1"), id="other"),
        pytest.param(thinking(ReasoningBlock("x"), CALL, kept=[THOUGHT]), id="of other length"),
        pytest.param(thinking(ReasoningBlock("x"), CALL, kept=[None, None]), id="none kept"),
        pytest.param(assistant_message((ReasoningBlock("x"), CALL), provider="main", model="m"), id="no state"),
        pytest.param(
            assistant_message((ReasoningBlock("x"), CALL), provider="m", model="m", replay_state="odd"), id="odd"
        ),
    ],
)
def test_thinking_that_is_not_this_servers_stays_out(turn: Message) -> None:
    kinds = [item["type"] for item in items("hi", turn, tool_result_message("call_1", "a"))]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_thinking_that_led_to_nothing_stays_out() -> None:
    cut = thinking(TextBlock("So"), ReasoningBlock("x"), kept=[None, THOUGHT])
    assert [item["type"] for item in items("hi", cut, "go on")] == ["message", "message", "message"]


def test_a_message_is_encoded_once() -> None:
    encoder = ResponsesEncoder(ORIGIN, of_openai=True)
    asked, turn = user_message("hi"), assistant_message((CALL,), provider="x", model="y")
    first = encoder.body(ask(asked, turn, tools=(BASH, READ)), Learned(), DEFAULTS)
    kept = dict(asked.wire)
    more = ask(asked, turn, tool_result_message("call_1", "a"), tools=(BASH, READ))
    assert encoder.body(more, Learned(), DEFAULTS).startswith(first.partition(b"]," + b'"include"')[0])
    assert asked.wire == kept


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"base_url": "", "api_type": "openai_responses"}, "https://api.openai.com/v1/responses"),
        ({"base_url": "https://gate.example.org/v1"}, "https://gate.example.org/v1/responses"),
        ({"base_url": "https://x.openai.azure.com"}, "https://x.openai.azure.com/openai/v1/responses"),
        ({"base_url": "https://x.openai.azure.com/openai/v1"}, "https://x.openai.azure.com/openai/v1/responses"),
        (
            {"base_url": "https://x.openai.azure.com/openai/deployments/d", "api_version": "preview"},
            "https://x.openai.azure.com/openai/v1/responses",
        ),
        (
            {"base_url": "https://x.openai.azure.com", "api_version": "2025-04-01-preview"},
            "https://x.openai.azure.com/openai/responses?api-version=2025-04-01-preview",
        ),
    ],
)
async def test_addresses(settings: dict[str, str], url: str) -> None:
    options: Any = {"name": "main", "model": "gpt-5", "api_key": "k", "api_type": "openai_responses"} | settings
    pool = LLMPool({"main": LLMSettings(**options)})
    pool.get("main")
    adapter = pool.service.adapter("main")
    assert isinstance(adapter, ResponsesAdapter)
    assert adapter.request_url(ask()) == url
    named = "api-key" if "azure" in url else "Authorization"
    assert named in adapter.request_headers()
    await pool.close()


async def test_a_whole_turn_and_thinking_that_comes_back(make_llm: MakeLLM) -> None:
    asked = call("bash", {"command": "ls"}, id="c1")
    script = [reply("Listing.", reasoning="A list is wanted.", tool_calls=[asked]), reply("a.txt", reasoning="Done.")]
    llm, server = await make_llm(script, server={"dialect": Responses()}, api_type="openai_responses", model="gpt-5")
    question = user_message("list")
    first = await llm.ask_tool([question], tools=(BASH,))
    last = await llm.ask_tool([question, first.message, tool_result_message("c1", "a.txt")], tools=(BASH,))
    assert (first.message.reasoning, first.text, last.text) == ("A list is wanted.", "Listing.", "a.txt")
    thought, said, made, output = server.chats[1].json["input"][1:]
    assert thought["encrypted_content"] == sealed("A list is wanted.")
    assert thought["id"] == f"rs_{server.chats[0].number}"
    assert (said["phase"], made["call_id"], output["call_id"]) == ("commentary", "c1", "c1")
    assert prefix_violations(server.chats, member="input") == []


async def test_an_account_that_cannot_read_old_thinking_gets_it_no_more(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    refusal = "The encrypted content for item rs_1 could not be verified."

    def answer(request: Request) -> Behaviour:
        if any(item["type"] == "reasoning" for item in request.json["input"]):
            return status(400, message=refusal)
        return reply("fine", reasoning="hm")

    llm, server = await make_llm(answer, server={"dialect": Responses()}, api_type="openai_responses", model="gpt-5")
    first = await llm.ask_tool("hi", ctx=ctx)
    again = await llm.ask_tool([user_message("hi"), first.message, user_message("more")], ctx=ctx)
    assert (again.text, len(server.chats)) == ("fine", 3)
    assert codes(events) == ["OPTION_DROPPED"]


def test_summaries_of_an_unverified_organisation() -> None:
    account = Account("openai", "OpenAI", ORIGIN, "sk-test")
    adapter = ResponsesAdapter(account, Transport(), route="main", facts=THINKER)
    request = ask(reasoning_effort="low")
    words = b'{"error": {"message": "Your organization must be verified to generate reasoning summaries."}}'
    refusal = classify(400, words)
    assert json.loads(adapter.encode(request))["reasoning"] == {"effort": "low", "summary": "auto"}
    told = adapter.correct(refusal, request)
    assert told == "test-model: no summary of the model's thinking is to be had with this account"
    assert json.loads(adapter.encode(request))["reasoning"] == {"effort": "low"}
    assert adapter.correct(refusal, request) is None


async def test_a_server_that_calls_a_cut_reply_complete(fault_server: MakeServer) -> None:
    server = await fault_server([reply("Once upon a time", usage=usage(5, 20))], dialect=Responses())
    transport = Transport()
    adapter = ResponsesAdapter(Account("local", "x", server.url, "k"), transport, route="main", facts=DEFAULTS)
    *_, finish = await chunks_of(adapter, ask(max_tokens=20))
    assert finish == Finish("max-tokens", model="test-model", replay_state=getattr(finish, "replay_state", None))
    await transport.close()
