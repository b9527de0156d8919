"""Gemini's own dialect: what goes out, what comes in, signatures there and back; the official SDK proves the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.llm.adapters.gemini import GeminiAdapter
from app.llm.adapters.gemini_decode import GeminiDecoder
from app.llm.adapters.gemini_encode import STAND_IN
from app.llm.adapters.http import Account
from app.llm.models import DEFAULTS, ModelFacts, facts_for
from app.llm.transport import Transport
from app.schema.errors import LLMError
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
from app.schema.request import ModelRequest, ToolSpec
from app.schema.stream import BlockAssembler, Chunk
from tests.conftest import MakeServer
from tests.fault_server import call, reply, status, usage
from tests.fault_server.gemini import Gemini, check_request, sealed
from tests.llm.asking import BASH, PNG, ask, chunks_of, shorts

BASE = "https://generativelanguage.googleapis.com/v1beta"
LS = ToolCallBlock("c1", "bash", '{"command":"ls"}')
NOW = ToolSpec("now", "Tell the time.", {"type": "object", "properties": {}})
PICTURE = ImageBlock(PNG, "image/png", 1, 1)


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport()
    yield made
    await made.close()


def adapter(transport: Transport, base_url: str = BASE, facts: ModelFacts = DEFAULTS) -> GeminiAdapter:
    account = Account("google", "Google Gemini", base_url, "AIza-test")
    return GeminiAdapter(account, transport, route="main", facts=facts)


def body(request: ModelRequest, facts: ModelFacts = DEFAULTS) -> dict[str, Any]:
    return json.loads(adapter(Transport(), facts=facts).encode(request))


def said(*content: Any, state: Any = None) -> Message:
    return assistant_message(content, provider="main", model="gemini", replay_state=state)


def test_a_whole_request() -> None:
    request = ask(
        "Hello",
        said(TextBlock("Let me look."), LS, ToolCallBlock("c2", "now", "")),
        tool_result_message("c1", "a.txt"),
        tool_result_message("c2", "no clock", is_error=True),
        "And now?",
        system="Be brief.",
        tools=(BASH, NOW),
        tool_choice="required",
        model="gemini-2.5-flash",
        max_tokens=100,
        temperature=0.5,
        stop=("END",),
    )
    assert body(request) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "bash", "description": "Run a command.", "parametersJsonSchema": BASH.parameters},
                    {"name": "now", "description": "Tell the time."},
                ]
            }
        ],
        "contents": [
            {"role": "user", "parts": [{"text": "Hello"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Let me look."},
                    {"functionCall": {"id": "c1", "name": "bash", "args": {"command": "ls"}}},
                    {"functionCall": {"id": "c2", "name": "now", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "bash", "response": {"output": "a.txt"}}},
                    {"functionResponse": {"id": "c2", "name": "now", "response": {"error": "no clock"}}},
                ],
            },
            {"role": "user", "parts": [{"text": "And now?"}]},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {"maxOutputTokens": 100, "temperature": 0.5, "stopSequences": ["END"]},
    }
    assert check_request(body(request)) == []


def test_images_of_results_wait_until_all_results_are_out() -> None:
    shot = (TextBlock("done"), PICTURE)
    request = ask(
        user_message((TextBlock("What is this?"), PICTURE)),
        said(LS, ToolCallBlock("c2", "bash", "{}")),
        tool_result_message("c1", shot),
        tool_result_message("c2", "ok"),
    )
    sent = body(request)
    assert sent["contents"][0]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": PNG}}
    assert [next(iter(part)) for part in sent["contents"][2]["parts"]] == ["functionResponse", "functionResponse"]
    assert sent["contents"][3]["parts"] == [
        {"text": "Image of the tool result c1:"},
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
    ]
    assert check_request(sent) == []


def test_users_in_a_row_share_a_content_and_thinking_stays_home() -> None:
    sent = body(ask("One.", "Two.", said(ReasoningBlock("hm"), TextBlock("Three.")), "Four."))
    assert sent["contents"] == [
        {"role": "user", "parts": [{"text": "One."}, {"text": "Two."}]},
        {"role": "model", "parts": [{"text": "Three."}]},
        {"role": "user", "parts": [{"text": "Four."}]},
    ]


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-2.5-flash", "off", {"includeThoughts": True, "thinkingBudget": 0}),
        ("gemini-2.5-flash", "high", {"includeThoughts": True, "thinkingBudget": 24_576}),
        ("gemini-2.5-pro", "off", {"includeThoughts": True, "thinkingBudget": 128}),
        ("gemini-3-pro-preview", "off", {"includeThoughts": True, "thinkingLevel": "low"}),
        ("gemini-3-pro-preview", "low", {"includeThoughts": True, "thinkingLevel": "low"}),
        ("gemini-3.8-flash", "none", {"includeThoughts": True, "thinkingLevel": "minimal"}),
        ("gemini-3.8-flash", None, {"includeThoughts": True}),
        ("gemini-2.0-flash", None, None),
    ],
)
def test_thinking(model: str, effort: str | None, expected: dict[str, Any] | None) -> None:
    sent = body(ask(model=model, reasoning_effort=effort), facts_for(model))
    assert sent.get("generationConfig", {}).get("thinkingConfig") == expected


def test_a_schema_of_the_reply() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert body(ask(response_schema=schema))["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


def test_the_next_request_begins_like_this_one() -> None:
    messages: list[Message] = [user_message("Hello"), said(TextBlock("Hi."), LS)]
    encoder = adapter(Transport())
    first = encoder.encode(ask(*messages, tool_result_message("c1", "ok"), tools=(BASH,), system="s"))
    messages += [tool_result_message("c1", "ok"), said(TextBlock("More.")), user_message("Go on")]
    second = encoder.encode(ask(*messages, tools=(BASH,), system="s", max_tokens=9))
    assert second.startswith(first.removesuffix(b"]}"))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"gemini": BASE, "blocks": [None, "c2ln"]}, "c2ln"),
        ({"gemini": "https://elsewhere", "blocks": [None, "c2ln"]}, STAND_IN),
        ({"gemini": BASE, "blocks": ["c2ln"]}, STAND_IN),
        (None, STAND_IN),
    ],
)
def test_signatures_go_home_and_nowhere_else(state: Any, expected: str) -> None:
    parts = body(
        ask("Hi", said(TextBlock("x"), LS, state=state), tool_result_message("c1", "ok"), model="gemini-3-pro")
    )
    assert parts["contents"][1]["parts"][1]["thoughtSignature"] == expected


def test_older_models_get_no_stand_in() -> None:
    sent = body(ask("Hi", said(LS), tool_result_message("c1", "ok"), model="gemini-2.5-pro"))
    assert sent["contents"][1]["parts"] == [{"functionCall": {"id": "c1", "name": "bash", "args": {"command": "ls"}}}]


def decoded(*payloads: Any) -> list[Chunk]:
    decoder = GeminiDecoder("Gemini", BASE)
    return [chunk for payload in payloads for chunk in decoder.feed(payload)] + decoder.end(done=False)


def candidate(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [row | ({"finishReason": finish} if finish else {})], **more}


def test_thoughts_text_calls_and_usage() -> None:
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 80,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 5,
    }
    chunks = decoded(
        candidate({"text": "hm", "thought": True}),
        candidate({"text": "Hel"}),
        candidate({"text": "lo"}),
        candidate({"functionCall": {"id": "x", "name": "bash", "args": {"command": "ls"}}, "thoughtSignature": "c2ln"}),
        candidate(
            {"functionCall": {"name": "now"}}, finish="STOP", usageMetadata=counts, modelVersion="gemini-3-pro-002"
        ),
    )
    assert [line for line in shorts(chunks) if line[0] in "EUF"][:3] == [
        "E0 hm",
        "E1 Hello",
        'E2 x bash {"command":"ls"}',
    ]
    assert shorts(chunks)[-2:] == ["U 20 80 12 5", "F tool-calls"]
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    assert assembler.replay_state == {"gemini": BASE, "blocks": [None, None, "c2ln", None]}
    minted = assembler.blocks()[3]
    assert isinstance(minted, ToolCallBlock)
    assert minted.id.startswith("call-")


def test_a_signature_in_an_empty_text_belongs_to_the_text_before_it() -> None:
    chunks = decoded(candidate({"text": "Done."}), candidate({"text": "", "thoughtSignature": "c2ln"}, finish="STOP"))
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    assert assembler.blocks() == (TextBlock("Done."),)
    assert assembler.replay_state == {"gemini": BASE, "blocks": ["c2ln"]}


def test_signed_and_unsigned_texts_go_back_apart() -> None:
    chunks = decoded(
        candidate({"text": "One", "thoughtSignature": "czE="}),
        candidate({"text": " two"}),
        candidate({"text": " three", "thoughtSignature": "czI="}, finish="STOP"),
    )
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    assert assembler.replay_state == {"gemini": BASE, "blocks": ["czE=", "czI="]}
    message = said(*assembler.blocks(), state=assembler.replay_state)
    assert message.text == "One two three"
    assert body(ask("Count.", message, "Go on", model="gemini-3-pro"))["contents"][1]["parts"] == [
        {"text": "One", "thoughtSignature": "czE="},
        {"text": " two three", "thoughtSignature": "czI="},
    ]


@pytest.mark.parametrize("model", ["gemini-flash-latest", "gemini-flash-lite-latest", "gemini-3.8-flash"])
def test_newest_models_want_a_stand_in(model: str) -> None:
    sent = body(ask("Hi", said(LS), tool_result_message("c1", "ok"), model=model))
    assert sent["contents"][1]["parts"][0]["thoughtSignature"] == STAND_IN


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (candidate(finish="STOP"), "F error EMPTY_RESPONSE"),
        (candidate({"text": "", "thoughtSignature": "c2ln"}, finish="STOP"), "F error EMPTY_RESPONSE"),
        (candidate(finish="IMAGE_RECITATION"), "F error CONTENT_FILTER"),
        (candidate({"text": "x"}, finish="MAX_TOKENS"), "F max-tokens"),
        (candidate(finish="SAFETY"), "F error CONTENT_FILTER"),
        (candidate(finish="RECITATION"), "F error CONTENT_FILTER"),
        (candidate(finish="PROHIBITED_CONTENT"), "F error CONTENT_FILTER"),
        (candidate(finish="MALFORMED_FUNCTION_CALL"), "F error INVALID_TOOL_CALL"),
        (candidate(finish="UNEXPECTED_TOOL_CALL"), "F error INVALID_TOOL_CALL"),
        (candidate(finish="OTHER"), "F error SERVER"),
        (candidate(finish="SOMETHING_NEW"), "F error SOMETHING_NEW"),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "F error CONTENT_FILTER"),
        ({"promptFeedback": {"blockReason": "OTHER"}, "candidates": []}, "F error CONTENT_FILTER"),
    ],
)
def test_ends(payload: dict[str, Any], expected: str) -> None:
    assert shorts(decoded(payload))[-1] == expected


def test_a_stream_without_a_reason_is_no_reply() -> None:
    with pytest.raises(LLMError) as caught:
        decoded(candidate({"text": "Hel"}))
    assert caught.value.code == "STREAM_CLOSED"


def test_a_list_of_responses_is_one_reply() -> None:
    decoder = GeminiDecoder("Gemini", BASE)
    chunks = decoder.complete_body([candidate({"text": "Hel"}), candidate({"text": "lo"}, finish="STOP")])
    assert "E0 Hello" in shorts(chunks)


async def test_signed_turns_against_a_server_that_demands_them(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server(
        [reply("", tool_calls=[call("bash", {"command": "ls"})]), reply("Done.")], dialect=Gemini(signs=True)
    )
    speaks = adapter(transport, f"{server.root}/v1beta")
    assembler = BlockAssembler()
    for chunk in await chunks_of(speaks, ask("List.", model="gemini-3-pro", tools=(BASH,))):
        assembler.add(chunk)
    state = assembler.replay_state
    assert state == {"gemini": f"{server.root}/v1beta", "blocks": [sealed("bash")]}
    (made,) = assembler.blocks()
    assert isinstance(made, ToolCallBlock)
    history = (user_message("List."), said(made, state=state), tool_result_message(made.id, "a.txt"))
    lines = shorts(await chunks_of(speaks, ask(*history, model="gemini-3-pro", tools=(BASH,))))
    assert lines[-1] == "F stop"
    assert server.chats[1].path == "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
    assert server.chats[1].headers["x-goog-api-key"] == "AIza-test"
    assert "AIza" not in server.chats[1].path


async def test_models_without_those_that_write_no_text(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([], dialect=Gemini(), models=("gemini-3-pro", "gemini-3.8-flash"))
    listed = await adapter(transport, f"{server.root}/v1beta").list_models("main")
    assert [(each.id, each.context_window, each.max_output_tokens) for each in listed] == [
        ("gemini-3-pro", 1_048_576, 65_536),
        ("gemini-3.8-flash", 1_048_576, 65_536),
    ]


async def test_pages_of_models(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([], dialect=Gemini())
    methods = ["generateContent"]

    def page(request: Any) -> Any:
        if "pageToken=two" in request.path:
            return {"models": [{"name": "models/b", "supportedGenerationMethods": methods}]}
        return {"models": [{"name": "models/a", "supportedGenerationMethods": methods}], "nextPageToken": "two"}

    server.routes["/v1beta/models"] = page
    assert [each.id for each in await adapter(transport, f"{server.root}/v1beta").list_models("main")] == ["a", "b"]


async def test_refused_thinking_is_left_out(fault_server: MakeServer, transport: Transport) -> None:
    message = (
        "Unable to submit request because thinking is not supported by this model. (thinking_config, reasoning_effort)"
    )
    server = await fault_server([status(400, message=message)], dialect=Gemini())
    speaks = adapter(transport, f"{server.root}/v1beta", facts_for("gemini-2.5-flash"))
    request = ask(model="gemini-2.5-flash", reasoning_effort="low")
    with pytest.raises(LLMError) as caught:
        await chunks_of(speaks, request)
    assert speaks.correct(caught.value, request)
    assert "generationConfig" not in json.loads(speaks.encode(request))
    assert speaks.correct(caught.value, request) is None


def test_vertex_takes_a_bearer_token() -> None:
    place = "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"
    speaks = adapter(Transport(), place)
    assert speaks.request_headers()["Authorization"] == "Bearer AIza-test"
    assert speaks.request_url(ask(model="gemini-3-pro")) == f"{place}/models/gemini-3-pro:streamGenerateContent?alt=sse"


async def test_the_official_sdk_reads_our_server(fault_server: MakeServer) -> None:
    from google import genai
    from google.genai import types

    server = await fault_server(
        [
            reply(
                "Hello there",
                reasoning="hm",
                tool_calls=[call("bash", {"command": "ls"}, id="c1")],
                usage=usage(100, 12, cached=80, reasoning=5),
            ),
            status(429, message="slow down"),
        ],
        dialect=Gemini(),
    )
    client = genai.Client(
        api_key="AIza-test", http_options=types.HttpOptions(base_url=server.root, api_version="v1beta")
    )
    declared = types.FunctionDeclaration(
        name="bash", description="Run a command.", parameters_json_schema=BASH.parameters
    )
    config = types.GenerateContentConfig(
        system_instruction="Be brief.", tools=[types.Tool(function_declarations=[declared])], max_output_tokens=50
    )
    texts: list[str] = []
    calls: list[Any] = []
    last: Any = None
    async for chunk in await client.aio.models.generate_content_stream(
        model="gemini-2.5-flash", contents="hi", config=config
    ):
        last = chunk
        for part in chunk.candidates[0].content.parts or []:
            if part.text and not part.thought:
                texts.append(part.text)
            if part.function_call:
                calls.append((part.function_call.id, part.function_call.name, part.function_call.args))
    assert ("".join(texts), calls) == ("Hello there", [("c1", "bash", {"command": "ls"})])
    counts = last.usage_metadata
    assert (counts.prompt_token_count, counts.cached_content_token_count) == (100, 80)
    assert (counts.candidates_token_count, counts.thoughts_token_count) == (7, 5)
    assert last.candidates[0].finish_reason == types.FinishReason.STOP
    with pytest.raises(genai.errors.ClientError) as caught:
        await client.aio.models.generate_content(model="gemini-2.5-flash", contents="hi")
    assert (caught.value.code, caught.value.status, caught.value.message) == (429, "RESOURCE_EXHAUSTED", "slow down")
    await client.aio.aclose()


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"contents": []}, "contents is not specified"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "valid role"),
        ({"contents": [{"role": "user", "parts": []}]}, "parts must not be empty"),
        ({"contents": [{"role": "user", "parts": [{"text": ""}]}]}, "must have a text parameter"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}}}]}]}, "not answered"),
        (
            {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {}}}]}]},
            "number of function response parts",
        ),
        ({"toolConfig": {}}, "without function_declarations"),
        ({"stream": True}, 'Unknown name "stream"'),
        ({"generationConfig": {"max_tokens": 1}}, "generation_config"),
    ],
)
def test_what_a_strict_server_refuses(spoilt: dict[str, Any], words: str) -> None:
    found = check_request({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]} | spoilt)
    assert any(words in problem for problem in found), found


async def test_an_error_list_is_read(fault_server: MakeServer, transport: Transport) -> None:
    """The endpoint wraps errors of streamed requests into a list."""
    error = [{"error": {"code": 429, "message": "Resource has been exhausted", "status": "RESOURCE_EXHAUSTED"}}]
    server = await fault_server([status(429, error)], dialect=Gemini())
    with pytest.raises(LLMError) as caught:
        await chunks_of(adapter(transport, f"{server.root}/v1beta"), ask())
    assert caught.value.code == "RATE_LIMIT"
    assert "Resource has been exhausted" in caught.value.message
