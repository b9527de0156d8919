"""The fault server speaks the Responses wire: the official SDK is its client; and what its request check refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest

from tests.conftest import MakeServer
from tests.fault_server import Script, call, in_band_error, reply, status, usage
from tests.fault_server.responses import Responses, sealed
from tests.fault_server.responses_check import check_request

Start = Callable[..., Awaitable[openai.AsyncOpenAI]]
TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}
TEXT = "你好, world 🙂"
HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


@pytest.fixture
async def sdk(fault_server: MakeServer) -> AsyncIterator[Start]:
    clients: list[openai.AsyncOpenAI] = []

    async def start(script: Script) -> openai.AsyncOpenAI:
        server = await fault_server(script, dialect=Responses())
        clients.append(openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


async def test_the_sdk_reads_a_whole_response(sdk: Start) -> None:
    counts = usage(100, 20, cached=60, reasoning=7)
    client = await sdk(reply(TEXT, tool_calls=[call("bash", {"a": 1}, id="c1")], reasoning="hm", usage=counts))
    got = await client.responses.create(
        model="m", input=[HI], tools=[TOOL], store=False, include=["reasoning.encrypted_content"]
    )  # type: ignore[call-overload]
    thought, message, made = got.output
    assert (thought.type, thought.summary[0].text, thought.encrypted_content) == ("reasoning", "hm", sealed("hm"))
    assert (got.output_text, message.phase) == (TEXT, "commentary")
    assert (made.name, made.arguments, made.call_id) == ("bash", '{"a": 1}', "c1")
    assert (got.usage.input_tokens, got.usage.input_tokens_details.cached_tokens) == (100, 60)
    assert (got.usage.output_tokens, got.usage.output_tokens_details.reasoning_tokens) == (20, 7)


async def test_the_sdk_reads_a_stream(sdk: Start) -> None:
    client = await sdk(reply(TEXT, tool_calls=[call("bash", {"a": 1})], reasoning="hm", stream_pieces=2))
    async with client.responses.stream(model="m", input=[HI], tools=[TOOL]) as stream:  # type: ignore[list-item]
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_text.delta") == 6
    assert kinds.count("response.function_call_arguments.delta") == 4
    assert (final.status, final.output_text, final.output[2].arguments) == ("completed", TEXT, '{"a": 1}')  # type: ignore[union-attr]


async def test_the_sdk_reads_ends_and_errors(sdk: Start) -> None:
    client = await sdk(
        [
            reply("Once", finish="length"),
            reply("", refusal="I will not."),
            status(429, message="slow down"),
            in_band_error(code=429, message="slow down", after=3),
        ]
    )
    ask: Any = {"model": "m", "input": [HI]}
    cut = await client.responses.create(**ask)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    refused = await client.responses.create(**ask)
    assert refused.output[0].content[0].refusal == "I will not."
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(**ask)
    *_, last = [event async for event in await client.responses.create(**ask, stream=True)]
    assert (last.type, last.code, last.message) == ("error", "rate_limit_exceeded", "slow down")


def body(*items: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"model": "m", "input": [HI, *items], **options}


CALL = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "ok"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("x")}


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (body(THOUGHT, CALL, OUTPUT, tools=[TOOL], store=False), ""),
        (body(OUTPUT), "No tool call found for function call output with call_id c."),
        (body(CALL), "No tool output found for function call c."),
        (body(THOUGHT), "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        (body(THOUGHT, HI), "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        (body(THOUGHT | {"encrypted_content": "x"}, CALL, OUTPUT), "the encrypted content could not be verified"),
        (body(THOUGHT | {"status": None}, CALL, OUTPUT), "status is null"),
        (body(CALL | {"arguments": "{"}, OUTPUT), "arguments are not the text of a JSON object: '{'"),
        (body(max_output_tokens=15), "expected a value >= 16, got 15"),
        (body(tools=[{"type": "function", "function": {"name": "bash"}}]), "missing required parameter name"),
        (body(tools=[TOOL | {"strict": None}]), "a strict schema needs additionalProperties false"),
        (body(tool_choice="required"), "tool_choice without tools"),
        (body(messages=[]), "unknown key messages"),
        (body(include=["thoughts"]), "include: unknown value thoughts"),
        (body(reasoning={"effort": "off"}), "reasoning.effort: unknown value off"),
        (body({"role": "user", "content": [{"type": "output_text", "text": "x"}]}), "not a part for this role"),
        (body({"role": "assistant", "content": [{"type": "output_text", "text": ""}]}), "an empty text"),
        ({"model": "m", "input": []}, "input: a non-empty list of objects is wanted"),
    ],
)
def test_what_a_strict_server_refuses(sent: dict[str, Any], refused: str) -> None:
    problems = check_request(sent)
    assert (refused in "; ".join(problems)) if refused else problems == []
    assert bool(problems) == bool(refused)
