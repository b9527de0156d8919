"""Requests to wire bytes: what each message becomes, what is left out, and a prefix that never changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.chat_encode import ChatEncoder
from app.llm.adapters.corrections import Learned
from app.llm.models import facts_for
from app.schema.errors import LLMError
from app.schema.message import (
    ImageBlock,
    Message,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    assistant_message,
    system_message,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelRequest, ToolSpec
from tests.fault_server import check_request
from tests.llm.asking import BASH, PNG, READ, ask
from tests.llm.conftest import MakeAdapter

IMAGE = ImageBlock(PNG, "image/png", 1, 1)
CALL = ToolCallBlock("call_1", "bash", '{"command": "ls"}')
OTHER = ToolCallBlock("call_2", "read", '{"path":"a"}')


def said(*blocks: Any, provider: str = "main") -> Message:
    return assistant_message(blocks, provider=provider, model="m")


def encoded(request: ModelRequest, vendor: str = "openai", *dropped: str, token_field: str = "max_tokens") -> Any:
    encoder = ChatEncoder("main", quirks_of(vendor))
    return json.loads(encoder.body(request, Learned(frozenset(dropped)), token_field=token_field, temperature=True))


def wire(*messages: Message | str, vendor: str = "openai", **fields: Any) -> list[Any]:
    return encoded(ask(*messages, **fields), vendor)["messages"]


def test_z05_what_is_not_set_is_not_sent() -> None:
    assert encoded(ask("hi")) == {
        "model": "test-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_defect_14_tool_choice_needs_tools() -> None:
    assert encoded(ask("hi", tool_choice="required")).keys() == encoded(ask("hi")).keys()
    with_tools = encoded(ask("hi", tools=(BASH,), tool_choice="required"))
    assert with_tools["tool_choice"] == "required"
    assert with_tools["tools"] == [
        {
            "type": "function",
            "function": {"name": "bash", "description": "Run a command.", "parameters": BASH.parameters},
        }
    ]


@pytest.mark.parametrize("parameters", [{"type": "object", "properties": {}}, {"type": "object"}, {}])
def test_defect_29_gemini_gets_no_empty_parameters(parameters: dict[str, Any]) -> None:
    bare = ToolSpec("now", "Tell the time.", parameters)
    request = ask("hi", tools=(bare, BASH))
    with_them, without = (encoded(request, vendor)["tools"] for vendor in ("openai", "google"))
    assert with_them[0]["function"]["parameters"] == {"type": "object"} | parameters
    assert without[0]["function"] == {"name": "now", "description": "Tell the time."}
    assert with_them[1] == without[1]


def test_every_option_in_its_field() -> None:
    body = encoded(
        ask(
            "hi", temperature=0.0, max_tokens=7, stop=("a",), reasoning_effort="low", response_schema={"type": "object"}
        ),
        token_field="max_completion_tokens",
    )
    assert body["temperature"] == 0.0
    assert body["max_completion_tokens"] == 7
    assert "max_tokens" not in body
    assert body["stop"] == ["a"]
    assert body["reasoning_effort"] == "low"
    assert body["response_format"]["json_schema"] == {"name": "reply", "schema": {"type": "object"}}
    assert check_request(body) == []


def test_stop_none_and_empty_are_different() -> None:
    assert "stop" not in encoded(ask("hi", stop=None))
    assert encoded(ask("hi", stop=()))["stop"] == []


@pytest.mark.parametrize(
    ("vendor", "effort", "expected"),
    [
        ("deepseek", "off", {"thinking": {"type": "disabled"}}),
        ("deepseek", "none", {"thinking": {"type": "disabled"}}),
        ("deepseek", "max", {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        ("openrouter", "off", {"reasoning": {"enabled": False}}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("openai", "off", {"reasoning_effort": "none"}),
        ("openai", "minimal", {"reasoning_effort": "minimal"}),
    ],
)
def test_z06_effort_in_the_words_of_the_vendor(vendor: str, effort: str, expected: Any) -> None:
    body = encoded(ask("hi", reasoning_effort=effort), vendor)
    assert {key: body[key] for key in ("thinking", "reasoning", "reasoning_effort") if key in body} == expected


def test_mistral_gets_no_stream_options() -> None:
    assert "stream_options" not in encoded(ask("hi"), "mistral")


def test_z01_thinking_alone_has_text_content() -> None:
    assert wire("hi", said(ReasoningBlock("hm")), vendor="deepseek")[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
    }


def test_z02_calls_keep_the_models_own_spacing() -> None:
    odd = ToolCallBlock("a", "bash", '{ "command" :"ls" }')
    assert wire("hi", said(odd), tool_result_message("a", "x"))[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{ "command" :"ls" }'}}
        ],
    }


@pytest.mark.parametrize("raw", ["", '{"comm', "[1]", "null", "7", "[" * 100_000])
def test_arguments_that_are_no_object_are_not_sent_back(raw: str) -> None:
    call = ToolCallBlock("a", "bash", raw)
    entry = wire("hi", said(call), tool_result_message("a", "x"))[1]
    assert entry["tool_calls"][0]["function"]["arguments"] == "{}"
    assert call.arguments == raw, "the history keeps what the model wrote"


def test_z03_mixed_message_gives_its_results_first_and_then_its_text() -> None:
    mixed = user_message(
        (TextBlock("and now?"), ToolResultBlock("call_1", (TextBlock("a"),)), ToolResultBlock("call_2", ()))
    )
    entries = wire("hi", said(CALL, OTHER), mixed)
    assert [(entry["role"], entry["content"]) for entry in entries[2:]] == [
        ("tool", "a"),
        ("tool", "(no output)"),
        ("user", "and now?"),
    ]


def test_z04_empty_output_has_words() -> None:
    assert wire("hi", said(CALL), tool_result_message("call_1", ""))[2]["content"] == "(no output)"


def test_z11_unknown_blocks_are_skipped() -> None:
    blocks = (TextBlock("a"), OpaqueBlock("hologram", "{}"), IMAGE)
    assert [part["type"] for part in wire(user_message(blocks))[0]["content"]] == ["text", "image_url"]


def test_defect_28_no_empty_text_part() -> None:
    assert wire(user_message((TextBlock(""), IMAGE)))[0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    ]


def test_defect_31_a_picture_keeps_its_type_and_detail() -> None:
    low = ImageBlock(PNG, "image/webp", detail="low")
    assert wire(user_message((low,)))[0]["content"][0]["image_url"] == {
        "url": f"data:image/webp;base64,{PNG}",
        "detail": "low",
    }


def test_defect_30_pictures_of_results_follow_all_results() -> None:
    results = (
        tool_result_message("call_1", (TextBlock("shot"), IMAGE)),
        tool_result_message("call_2", (IMAGE,)),
    )
    entries = wire("hi", said(CALL, OTHER), *results, "go on")
    assert [entry["role"] for entry in entries] == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    assert entries[3]["content"] == "(see the image below)"
    assert entries[4]["content"][0]["text"] == "Image of the tool result call_1:"
    assert check_request(encoded(ask("hi", said(CALL, OTHER), *results, tools=(BASH, READ)))) == []


@pytest.mark.parametrize(("vendor", "replayed"), [("deepseek", True), ("moonshot", True), ("openai", False)])
def test_m14_thinking_goes_back_to_the_vendor_that_wants_it(vendor: str, replayed: bool) -> None:
    entries = wire("hi", said(ReasoningBlock("hm"), CALL), tool_result_message("call_1", "x"), vendor=vendor)
    assert entries[1].get("reasoning_content") == ("hm" if replayed else None)


def test_m14_thinking_of_another_route_stays_here() -> None:
    foreign = said(ReasoningBlock("secret"), TextBlock("a"), provider="other")
    assert "secret" not in json.dumps(wire("hi", foreign, vendor="deepseek"))


def test_system_text_comes_first_and_as_a_user_when_the_model_takes_no_system() -> None:
    request = ask("hi", system="be brief")
    assert encoded(request)["messages"][0] == {"role": "system", "content": "be brief"}
    assert encoded(request, "openai", "system")["messages"][0] == {"role": "user", "content": "be brief"}


def test_refused_options_are_asked_in_words() -> None:
    request = ask("hi", tools=(BASH,), tool_choice="required", response_schema={"type": "object"})
    body = encoded(request, "openai", "tool_choice", "response_format", "parallel_tool_calls")
    assert body.keys() == encoded(ask("hi", tools=(BASH,))).keys()
    assert body["messages"][-1]["content"] == (
        "Answer with a call of one of the tools.\n"
        'Answer with one JSON value that follows this JSON Schema, and nothing else: {"type":"object"}'
    )


def test_a_message_is_encoded_once_in_its_life() -> None:
    message = user_message("hi")
    encoder = ChatEncoder("main", quirks_of("openai"))
    request = ask(message)
    first = encoder.body(request, Learned(), token_field="max_tokens", temperature=True)
    kept = message.wire["chat"]
    assert encoder.body(request, Learned(), token_field="max_tokens", temperature=True) == first
    assert message.wire["chat"] is kept


def test_z08_a_request_is_the_prefix_of_its_successor() -> None:
    encoder = ChatEncoder("main", quirks_of("deepseek"))
    history = [user_message("hi"), said(ReasoningBlock("hm"), CALL), tool_result_message("call_1", (IMAGE,))]

    def body(*messages: Message, temperature: float) -> bytes:
        request = ask(*messages, system="s", tools=(BASH, READ), temperature=temperature)
        return encoder.body(request, Learned(), token_field="max_tokens", temperature=True)

    before = body(*history, temperature=0.1)
    after = body(*history, said(TextBlock("a")), user_message("b"), temperature=0.2)
    assert after.startswith(before[: before.rindex(b"]")])


@pytest.mark.parametrize(
    ("model", "field", "temperature"),
    [
        ("o3-mini", "max_completion_tokens", None),
        ("gpt-5-mini", "max_completion_tokens", None),
        ("gpt-4o", "max_tokens", 0.5),
    ],
)
def test_o08_defect_05_reasoning_models_by_metadata(
    model: str, field: str, temperature: float | None, make_adapter: MakeAdapter
) -> None:
    adapter = make_adapter("http://127.0.0.1:1/v1", vendor="openai", facts=facts_for(model))
    body = json.loads(adapter.encode(ask("hi", model=model, max_tokens=9, temperature=0.5)))
    assert (body.get("temperature"), body[field]) == (temperature, 9)


def test_small_models_are_asked_for_one_call_at_a_time(make_adapter: MakeAdapter) -> None:
    facts = replace(facts_for("gpt-4o"), parallel_tools=False)
    body = json.loads(make_adapter("http://127.0.0.1:1", vendor="openai", facts=facts).encode(ask("hi", tools=(BASH,))))
    assert body["parallel_tool_calls"] is False


# -- addresses and keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (
            "https://x.openai.azure.com",
            "https://x.openai.azure.com/openai/deployments/my%20gpt/chat/completions?api-version=V",
        ),
        (
            "https://x.openai.azure.com/openai",
            "https://x.openai.azure.com/openai/deployments/my%20gpt/chat/completions?api-version=V",
        ),
        (
            "https://x.openai.azure.com/openai/deployments/dep",
            "https://x.openai.azure.com/openai/deployments/dep/chat/completions?api-version=V",
        ),
        ("https://x.openai.azure.com/openai/v1", "https://x.openai.azure.com/openai/v1/chat/completions"),
    ],
)
def test_azure_addresses(base: str, expected: str, make_adapter: MakeAdapter) -> None:
    account = make_adapter(base, vendor="azure", azure_version="V").account
    assert account.url("chat/completions", model="my gpt") == expected


def test_query_of_a_base_address_stays_behind_the_path(make_adapter: MakeAdapter) -> None:
    account = make_adapter("https://gateway/v1?team=a").account
    assert account.url("chat/completions", model="m") == "https://gateway/v1/chat/completions?team=a"


def headers(adapter: Any) -> dict[str, str]:
    return adapter.request_headers()


def test_azure_key_goes_into_its_own_header(make_adapter: MakeAdapter) -> None:
    sent = headers(make_adapter("https://x.openai.azure.com", vendor="azure", azure_version="V"))
    assert (sent["api-key"], "Authorization" in sent) == ("sk-test", False)


def test_z13_key_is_trimmed(make_adapter: MakeAdapter) -> None:
    assert headers(make_adapter("http://x", api_key=" sk-x\n"))["Authorization"] == "Bearer sk-x"


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a b", "sk-\x07", "sk-“quoted”"])
def test_z13_key_with_foreign_characters_is_refused_without_showing_it(key: str, make_adapter: MakeAdapter) -> None:
    with pytest.raises(LLMError) as caught:
        headers(make_adapter("http://x", api_key=key))
    assert caught.value.code == "INVALID_CREDENTIAL"
    assert key[3:] not in f"{caught.value} {caught.value.hint}"


def test_a_cloud_account_needs_a_key_and_a_local_one_does_not(make_adapter: MakeAdapter) -> None:
    with pytest.raises(LLMError) as caught:
        headers(make_adapter("http://x", api_key=" ", key_hint="set OPENAI_API_KEY"))
    assert (caught.value.code, caught.value.hint) == ("MISSING_CREDENTIAL", "set OPENAI_API_KEY")
    assert "Authorization" not in headers(make_adapter("http://x", api_key="", local=True))


def test_the_key_is_in_no_repr(make_adapter: MakeAdapter) -> None:
    assert "sk-test" not in repr(make_adapter("http://x").account)


def test_system_messages_inside_a_history_never_reach_this_encoder_as_system() -> None:
    assert wire("hi", system_message("note"))[1]["role"] == "user"
