"""Requests to Converse: turns, results, tools, thinking, marks for the cache; the strict check accepts them all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.adapters.bedrock_encode import ConverseEncoder
from app.llm.adapters.corrections import Learned
from app.llm.models import DEFAULTS, ModelFacts
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
from app.schema.request import ModelRequest, ToolSpec
from tests.fault_server.bedrock_check import check_request
from tests.llm.asking import BASH, PNG, READ, ask

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
LLAMA = "meta.llama3-1-70b-instruct-v1:0"
IMAGE = ImageBlock(PNG, "image/png", 1, 1)
SHOWN = {"image": {"format": "png", "source": {"bytes": PNG}}}
CALL = ToolCallBlock("call_1", "bash", '{"command": "ls"}')
OTHER = ToolCallBlock("call_2", "read", "not json")
POINT = {"cachePoint": {"type": "default"}}
SIGNED = {"reasoningText": {"text": "hm", "signature": "sig=="}}


def encoded(request: ModelRequest, *dropped: str, facts: ModelFacts = DEFAULTS, origin: str = "us-east-1") -> Any:
    body = json.loads(ConverseEncoder(origin).body(request, Learned(frozenset(dropped)), facts))
    assert check_request(body) == []
    return body


def turns(*messages: Message | str, model: str = LLAMA, **fields: Any) -> list[tuple[str, list[Any]]]:
    body = encoded(ask(*messages, model=model, **fields))
    return [(turn["role"], turn["content"]) for turn in body["messages"]]


def said(*blocks: Any, state: Any = None) -> Message:
    return assistant_message(blocks, provider="main", model="m", replay_state=state)


def test_the_least_request() -> None:
    assert encoded(ask("hi")) == {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}


def test_everything_a_request_may_hold() -> None:
    request = ask(
        "hi",
        system="be brief",
        tools=(BASH,),
        tool_choice="required",
        response_schema={"type": "object"},
        max_tokens=99,
        temperature=1.5,
        stop=("END",),
    )
    assert encoded(request) == {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "system": [{"text": "be brief"}],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "bash",
                        "description": "Run a command.",
                        "inputSchema": {"json": BASH.parameters},
                    }
                }
            ],
            "toolChoice": {"any": {}},
        },
        "inferenceConfig": {"maxTokens": 99, "temperature": 1.0, "stopSequences": ["END"]},
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"name": "reply", "schema": '{"type": "object"}'}},
            }
        },
    }


def test_defects_40_and_h13_parallel_calls_have_their_own_ids_and_one_turn_of_results() -> None:
    history = (
        "hi",
        said(CALL, OTHER),
        tool_result_message("call_1", "a"),
        tool_result_message("call_2", "", is_error=True),
    )
    assert turns(*history)[1:] == [
        (
            "assistant",
            [
                {"toolUse": {"toolUseId": "call_1", "name": "bash", "input": {"command": "ls"}}},
                {"toolUse": {"toolUseId": "call_2", "name": "read", "input": {}}},
            ],
        ),
        (
            "user",
            [
                {"toolResult": {"toolUseId": "call_1", "content": [{"text": "a"}]}},
                {"toolResult": {"toolUseId": "call_2", "content": [{"text": "(no output)"}]}},
            ],
        ),
    ]


def test_a_status_only_where_models_know_it() -> None:
    history = ("hi", said(CALL), tool_result_message("call_1", "a", is_error=True))
    (plain,), (rich, point) = (turns(*history, model=model)[2][1] for model in (LLAMA, CLAUDE))
    assert "status" not in plain["toolResult"]
    assert rich["toolResult"]["status"] == "error"
    assert point == POINT


def test_defects_41_and_h14_calls_in_the_history_need_a_tool_configuration() -> None:
    history = ("hi", said(CALL), tool_result_message("call_1", "a"), "thanks")
    sent = encoded(ask(*history))
    assert sent["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "bash", "inputSchema": {"json": {"type": "object"}}}}]
    }
    assert "toolConfig" not in encoded(ask("hi"))


def test_defect_41_blank_and_empty_texts_are_left_out() -> None:
    history = (
        user_message((TextBlock(" "), TextBlock("hi"))),
        said(TextBlock("\n"), CALL),
        tool_result_message("call_1", " "),
    )
    assert turns(*history) == [
        ("user", [{"text": "hi"}]),
        ("assistant", [{"toolUse": {"toolUseId": "call_1", "name": "bash", "input": {"command": "ls"}}}]),
        ("user", [{"toolResult": {"toolUseId": "call_1", "content": [{"text": "(no output)"}]}}]),
    ]


def test_neighbours_of_one_role_are_one_turn() -> None:
    assert turns("a", "b", said(TextBlock("c")), said(TextBlock("d")), "e") == [
        ("user", [{"text": "a"}, {"text": "b"}]),
        ("assistant", [{"text": "c"}, {"text": "d"}]),
        ("user", [{"text": "e"}]),
    ]


def test_a_history_that_begins_with_an_answer() -> None:
    assert turns(said(TextBlock("c")), "e")[0] == ("user", [{"text": "(The conversation goes on.)"}])


@pytest.mark.parametrize(("model", "inside"), [(CLAUDE, True), ("amazon.nova-pro-v1:0", True), (LLAMA, False)])
def test_images_of_users_and_of_tools(model: str, inside: bool) -> None:
    history = (
        user_message((TextBlock("look"), IMAGE)),
        said(CALL, OTHER),
        tool_result_message("call_1", (TextBlock("one"), IMAGE)),
        tool_result_message("call_2", "two"),
    )
    first, _, (role, blocks) = turns(*history, model=model)
    assert first == ("user", [{"text": "look"}, SHOWN])
    assert role == "user"
    blocks = [block for block in blocks if block != POINT]
    if inside:
        assert blocks[0]["toolResult"]["content"] == [{"text": "one"}, SHOWN]
        assert len(blocks) == 2
    else:
        assert blocks[0]["toolResult"]["content"] == [{"text": "one"}]
        assert blocks[2:] == [{"text": "Image of the tool result call_1:"}, SHOWN]


def test_ids_of_other_vendors_are_made_legal_alike_in_call_and_result() -> None:
    odd = "call/ü|" + "x" * 90
    _, (_, calls), (_, results) = turns("hi", said(ToolCallBlock(odd, "bash", "{}")), tool_result_message(odd, "a"))
    assert calls[0]["toolUse"]["toolUseId"] == results[0]["toolResult"]["toolUseId"]


def test_signed_thinking_goes_back_in_its_place_to_its_model_only() -> None:
    state = {"converse": "us-east-1", "model": CLAUDE, "blocks": [SIGNED, None, None]}
    turn = said(ReasoningBlock("hm", "sig=="), TextBlock("Ok"), CALL, state=state)
    history = ("hi", turn, tool_result_message("call_1", "a"))
    assert turns(*history, model=CLAUDE)[1][1][0] == {"reasoningContent": SIGNED}
    for elsewhere in (turns(*history, model=LLAMA), _turns_at("eu-west-1", history)):
        assert [next(iter(block)) for block in elsewhere[1][1]] == ["text", "toolUse"]


def _turns_at(origin: str, history: Any) -> list[tuple[str, list[Any]]]:
    body = encoded(ask(*history, model=CLAUDE), origin=origin)
    return [(turn["role"], turn["content"]) for turn in body["messages"]]


def test_unsigned_thinking_and_unknown_blocks_stay_out() -> None:
    turn = said(ReasoningBlock("hm"), OpaqueBlock("x", "{}"), TextBlock("Ok"))
    assert turns("hi", turn, "more")[1] == ("assistant", [{"text": "Ok"}])


@pytest.mark.parametrize(
    ("model", "points"),
    [
        (CLAUDE, 3),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", 3),
        ("anthropic.claude-3-haiku-20240307-v1:0", 0),
        ("anthropic.claude-v2", 0),
        ("amazon.nova-pro-v1:0", 2),
        (LLAMA, 0),
    ],
)
def test_marks_for_the_cache(model: str, points: int) -> None:
    request = ask("hi", system="be brief", tools=(BASH,), model=model)
    assert str(encoded(request)).count("cachePoint") == points
    assert "cachePoint" not in str(encoded(request, "cache"))


def test_the_prefix_up_to_the_mark_never_changes() -> None:
    encoder = ConverseEncoder("us-east-1")
    asked, turn, result = user_message("hi"), said(CALL), tool_result_message("call_1", "a")
    first = encoder.body(ask(asked, model=CLAUDE), Learned(), DEFAULTS)
    kept = dict(asked.wire)
    more = encoder.body(ask(asked, turn, result, model=CLAUDE), Learned(), DEFAULTS)
    assert more.startswith(first.partition(b',{"cachePoint"')[0])
    assert asked.wire == kept


@pytest.mark.parametrize(
    ("model", "effort", "options", "limit"),
    [
        (
            CLAUDE,
            "medium",
            {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 8192}}},
            16384,
        ),
        (
            "anthropic.claude-opus-4-20250514-v1:0",
            "low",
            {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2048}}},
            10240,
        ),
        (
            "anthropic.claude-opus-4-8",
            "max",
            {"additionalModelRequestFields": {"thinking": {"type": "adaptive"}}, "outputConfig": {"effort": "max"}},
            None,
        ),
        (
            "amazon.nova-2-lite-v1:0",
            "max",
            {"additionalModelRequestFields": {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}},
            None,
        ),
        ("openai.gpt-oss-120b-1:0", "low", {"additionalModelRequestFields": {"reasoning_effort": "low"}}, None),
        (LLAMA, "low", {"outputConfig": {"effort": "low"}}, None),
        (CLAUDE, "off", {}, None),
    ],
)  # fmt: skip
def test_efforts(model: str, effort: str, options: dict[str, Any], limit: int | None) -> None:
    sent = encoded(ask("hi", model=model, reasoning_effort=effort))
    assert {key: sent[key] for key in ("additionalModelRequestFields", "outputConfig") if key in sent} == options
    assert sent.get("inferenceConfig", {}).get("maxTokens") == limit


def test_a_thinking_budget_fits_into_the_limit_and_takes_no_temperature() -> None:
    sent = encoded(ask("hi", model=CLAUDE, reasoning_effort="high", max_tokens=3000, temperature=0.2))
    assert sent["additionalModelRequestFields"] == {"thinking": {"type": "enabled", "budget_tokens": 2999}}
    assert sent["inferenceConfig"] == {"maxTokens": 3000}


def test_no_call_now() -> None:
    assert "toolConfig" not in encoded(ask("hi", tools=(BASH,), tool_choice="none"))
    history = ("hi", said(CALL), tool_result_message("call_1", "a"))
    sent = encoded(ask(*history, tools=(BASH, READ), tool_choice="none"))
    assert len(sent["toolConfig"]["tools"]) == 2
    assert sent["messages"][-1]["content"][-1] == {"text": "Answer in words; call no tool now."}


def test_what_was_refused_is_left_out_or_said_in_words() -> None:
    request = ask(
        "hi",
        system="be brief",
        tools=(BASH,),
        tool_choice="required",
        response_schema={"type": "object"},
        temperature=0.5,
    )
    sent = encoded(request, "system", "tool_choice", "response_format", "temperature")
    assert sent.keys() == {"messages", "toolConfig"}
    assert sent["toolConfig"].keys() == {"tools"}
    first, second, words = sent["messages"][0]["content"]
    assert (first["text"], second["text"]) == ("be brief", "hi")
    assert words["text"].startswith("Answer with a call of one of the tools.\nAnswer with one JSON value")


def test_a_tool_without_words() -> None:
    bare = ToolSpec("now", "", {"type": "object", "properties": {}})
    (tool,) = encoded(ask("hi", tools=(bare,)))["toolConfig"]["tools"]
    assert "description" not in tool["toolSpec"]


def test_claude_may_not_think_in_a_turn_that_began_without_a_thought() -> None:
    state = {"converse": "us-east-1", "model": CLAUDE, "blocks": [SIGNED, None]}
    began, foreign = said(ReasoningBlock("hm", "sig=="), CALL, state=state), said(CALL)
    result = tool_result_message("call_1", "a")

    def thinks(*history: Message | str) -> bool:
        sent = encoded(ask(*history, model=CLAUDE, reasoning_effort="low"))
        return "thinking" in sent.get("additionalModelRequestFields", {})

    assert thinks("hi", began, result)
    assert not thinks("hi", foreign, result)
    assert thinks("hi", foreign, result, "and now?")
