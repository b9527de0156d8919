"""The fault server speaks the real wire: the official SDK is its client here; its script and its recording."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.conftest import MakeServer
from tests.fault_server import (
    ODDITIES,
    Behaviour,
    FaultServer,
    Script,
    call,
    close_before_headers,
    cut_after,
    fault_server_thread,
    in_band_error,
    prefix_violations,
    reply,
    reset_before_headers,
    stall,
    status,
    usage,
)
from tests.fault_server.client import ASK, payloads, post

TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
TEXT = "你好, world 🙂"


@pytest.fixture
async def sdk(fault_server: MakeServer) -> AsyncIterator[Any]:
    """Starts a server for a script and gives the official client that talks to it."""
    clients: list[openai.AsyncOpenAI] = []

    async def start(script: Script, **options: Any) -> tuple[openai.AsyncOpenAI, FaultServer]:
        server = await fault_server(script, **options)
        clients.append(openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0))
        return clients[-1], server

    yield start
    for client in clients:
        await client.close()


async def ask(client: openai.AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=ASK, **options)


async def chunks(client: openai.AsyncOpenAI, seen: list[ChatCompletionChunk] | None = None, **options: Any):
    seen = [] if seen is None else seen
    async for chunk in await ask(client, stream=True, **options):
        seen.append(chunk)
    return seen


def text_of(seen: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices)


# -- the official SDK as the client -----------------------------------------------------------------------------------


async def test_plain_text(sdk: Any):
    client, server = await sdk([reply(TEXT, usage=usage(283, 10, cached=256, reasoning=4), model="other")])
    answer = await ask(client)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert (answer.model, answer.usage.total_tokens) == ("other", 293)
    assert answer.usage.prompt_tokens_details.cached_tokens == 256
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4
    server.assert_done()


async def test_streamed_text_and_what_is_recorded(sdk: Any):
    client, server = await sdk([reply(stream_pieces=("你好, ", "world 🙂")), reply("again")])
    seen = await chunks(client)
    assert [chunk.choices[0].delta.content for chunk in seen] == ["", "你好, ", "world 🙂", None]
    assert seen[-1].choices[0].finish_reason == "stop"
    assert [chunk.usage for chunk in seen] == [None] * 4
    await chunks(client)
    first, second = server.requests
    assert (first.method, first.path, first.number) == ("POST", "/v1/chat/completions", 1)
    assert first.headers["authorization"] == "Bearer x"
    assert json.loads(first.body) == first.json == {"model": "m", "messages": ASK, "stream": True}
    assert first.connection == second.connection, "keep-alive"
    assert (server.chats, server.disconnects) == (server.requests, 0)


@pytest.mark.parametrize(
    ("usage_at", "counts"),
    [
        ("auto", [None, None, None, 5]),
        ("absent", [None, None, None]),
        ("trailer", [None, None, None, 5]),
        ("finish", [None, None, 5]),
        ("twice", [None, None, 5, 5]),
        ("every", [5, 5, 5]),
    ],
)
async def test_usage_in_a_stream(sdk: Any, usage_at: Any, counts: list[int | None]):
    client, _ = await sdk([reply("Hello", usage=usage(3, 2), usage_at=usage_at)])
    seen = await chunks(client, stream_options={"include_usage": True})
    assert [chunk.usage and chunk.usage.total_tokens for chunk in seen] == counts
    assert len(seen[-1].choices) == (0 if len(counts) == 4 else 1)


async def test_tools_plain(sdk: Any):
    client, _ = await sdk([reply(tool_calls=[("bash", {"command": "ls"}), call("bash", "{bad", id="mine")])])
    choice = (await ask(client, tools=TOOLS)).choices[0]
    calls = [(each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls]
    assert calls == [("call_1_0", "bash", '{"command": "ls"}'), ("mine", "bash", "{bad")]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


async def test_interleaved_parallel_calls_add_up_in_the_sdk(sdk: Any):
    calls = [("bash", {"command": "ls -la /tmp"}), ("read", {"path": "a.txt"})]
    client, _ = await sdk([reply("Both.", tool_calls=calls, odd="interleave")])
    async with client.chat.completions.stream(model="m", messages=ASK, tools=TOOLS) as stream:
        indexes = [
            event.chunk.choices[0].delta.tool_calls[0].index
            async for event in stream
            if event.type == "chunk" and event.chunk.choices[0].delta.tool_calls
        ]
        message = (await stream.get_final_completion()).choices[0].message
    assert indexes[:6] == [0, 1, 0, 1, 0, 1]
    assert message.content == "Both."
    assert [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls] == calls


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning(sdk: Any, name: str):
    answer = reply("4", reasoning="two and two", reasoning_field=name)
    client, _ = await sdk([answer, answer])
    assert (await ask(client)).choices[0].message.model_extra[name] == "two and two"
    seen = [chunk.choices[0].delta for chunk in await chunks(client)]
    assert "".join((delta.model_extra or {}).get(name, "") for delta in seen) == "two and two"
    assert "".join(delta.content or "" for delta in seen) == "4"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (529, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_statuses(sdk: Any, code: int, error: type[openai.APIStatusError], stream: bool):
    client, server = await sdk([status(code, message="no luck", headers={"retry-after": "3"}), reply("ok")])
    with pytest.raises(error, match="no luck") as caught:
        await ask(client, stream=stream)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (code, "3")
    assert (await ask(client)).choices[0].message.content == "ok"
    server.assert_done()


async def test_a_cut_stream(sdk: Any):
    client, server = await sdk([cut_after(events=2), cut_after(events=2, reset=True), cut_after(events=2, clean=True)])
    for _ in range(2):
        seen: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIConnectionError):
            await chunks(client, seen)
        assert text_of(seen) == "Hel"
    assert text_of(await chunks(client)) == "Hel", "a clean end is invisible to HTTP"
    assert server.disconnects == 0, "it was the server that left"


@pytest.mark.parametrize("fault", [reset_before_headers(), close_before_headers()])
async def test_no_answer_at_all(sdk: Any, fault: Behaviour):
    client, _ = await sdk([fault])
    with pytest.raises(openai.APIConnectionError):
        await ask(client)


@pytest.mark.parametrize("event", [None, "error"])
async def test_an_in_band_error(sdk: Any, event: str | None):
    client, _ = await sdk([in_band_error(message="slow down", code=429, after=2, event=event)])
    seen: list[ChatCompletionChunk] = []
    with pytest.raises(openai.APIError, match="slow down") as caught:
        await chunks(client, seen)
    assert (text_of(seen), caught.value.body) == ("Hel", {"code": 429, "message": "slow down"})


@pytest.mark.parametrize("fault", [stall(), stall(events=1), stall(reply("x"), events=1, ping_s=0.01)])
async def test_a_stall_ends_when_the_client_leaves(sdk: Any, fault: Behaviour):
    client, server = await sdk([fault])
    waiting = asyncio.create_task(chunks(client))
    await server.until(lambda server: len(server.chats) == 1)
    await asyncio.sleep(0.03)
    assert (waiting.done(), server.disconnects) == (False, 0)
    waiting.cancel()
    await server.until(lambda server: server.disconnects == 1)
    server.assert_done()


async def test_models_and_other_routes(sdk: Any):
    client, server = await sdk([], models=["a", "b"])
    assert [model.id for model in (await client.models.list()).data] == ["a", "b"]
    server.routes["/props"] = {"n_ctx": 4096}
    server.routes["/api/tags"] = lambda request: status(503, message=request.method)
    async with aiohttp.ClientSession() as session:
        async with session.get(server.root + "/props") as answer:
            assert await answer.json() == {"n_ctx": 4096}
        async with session.get(server.root + "/api/tags") as answer:
            assert (answer.status, (await answer.json())["error"]["message"]) == (503, "GET")
        async with session.get(server.root + "/unknown") as answer:
            assert answer.status == 404
    assert (len(server.requests), server.chats) == (4, [])


# -- the script -------------------------------------------------------------------------------------------------------


async def test_a_script_that_is_too_short(sdk: Any):
    client, server = await sdk([reply("only")])
    await ask(client)
    with pytest.raises(openai.InternalServerError, match="EXHAUSTED"):
        await ask(client)
    assert server.exhausted
    with pytest.raises(AssertionError, match="more requests than behaviours"):
        server.assert_done()
    server.forgive()
    server.add(reply("more"))
    with pytest.raises(AssertionError, match="1 behaviours left, next: Reply"):
        server.assert_done()


async def test_a_script_that_is_a_function(sdk: Any):
    client, server = await sdk(lambda request: reply(f"number {request.number}"))
    assert [(await ask(client)).choices[0].message.content for _ in range(3)] == ["number 1", "number 2", "number 3"]
    server.assert_done()


async def test_a_failing_script_is_not_silent(sdk: Any):
    client, server = await sdk(lambda request: 1 // 0)
    with pytest.raises(openai.APIConnectionError):
        await ask(client)
    assert server.complaints() == [
        "the fault server itself failed: ZeroDivisionError('integer division or modulo by zero')"
    ]
    server.forgive()


async def test_a_refused_request_takes_no_behaviour(sdk: Any):
    client, server = await sdk([reply("ok")])
    with pytest.raises(openai.BadRequestError, match="an empty assistant message"):
        await client.chat.completions.create(model="m", messages=[*ASK, {"role": "assistant", "content": ""}])
    assert server.violations == [
        "request 1: messages[1]: an empty assistant message: neither content nor tool_calls",
    ]
    with pytest.raises(AssertionError, match="empty assistant"):
        server.assert_done()
    server.forgive()
    await ask(client)
    server.assert_done()


def test_misspelt_options_are_refused():
    with pytest.raises(ValueError, match="unknown oddities: index_nil"):
        reply("x", odd="index_nil")
    with pytest.raises(TypeError, match="splitt"):
        reply("x", splitt=1)
    with pytest.raises(ValueError, match="do not add up"):
        reply("xyz", stream_pieces=["x", "y"])


# -- oddities of the dialect ------------------------------------------------------------------------------------------

TWO_CALLS = [call("f", '{"a": 1}', id="a"), call("g", '{"b": 2}', id="b")]
FRAGMENTS: dict[str, list[tuple[Any, Any, Any]]] = {
    "": [(0, "a", "f"), (0, None, None), (1, "b", "g"), (1, None, None)],
    "index_zero": [(0, "a", "f"), (0, None, None), (0, "b", "g"), (0, None, None)],
    "index_missing": [(None, "a", "f"), (None, None, None), (None, "b", "g"), (None, None, None)],
    "index_first_only": [(0, "a", "f"), (None, None, None), (1, "b", "g"), (None, None, None)],
    "index_one_based": [(1, "a", "f"), (1, None, None), (2, "b", "g"), (2, None, None)],
    "index_string": [("0", "a", "f"), ("0", None, None), ("1", "b", "g"), ("1", None, None)],
    "id_every": [(0, "a", "f"), (0, "a", None), (1, "b", "g"), (1, "b", None)],
    "id_later": [(0, None, "f"), (0, "a", None), (1, None, "g"), (1, "b", None)],
    "id_none": [(0, None, "f"), (0, None, None), (1, None, "g"), (1, None, None)],
    "id_duplicate": [(0, "a", "f"), (0, None, None), (1, "a", "g"), (1, None, None)],
    "name_every": [(0, "a", "f"), (0, None, "f"), (1, "b", "g"), (1, None, "g")],
    "interleave": [(0, "a", "f"), (1, "b", "g"), (0, None, None), (1, None, None)],
    "index_first_only id_later": [(0, None, "f"), (None, "a", None), (1, None, "g"), (None, "b", None)],
}


async def deltas(fault_server: MakeServer, behaviour: Behaviour) -> list[dict[str, Any]]:
    server = await fault_server([behaviour], strict=False)
    chunks = [json.loads(payload) for payload in payloads(await post(server)) if payload != "[DONE]"]
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


@pytest.mark.parametrize("odd", FRAGMENTS)
async def test_tool_fragments(fault_server: MakeServer, odd: str):
    found = await deltas(fault_server, reply(tool_calls=TWO_CALLS, odd=odd))
    fragments = [delta["tool_calls"][0] for delta in found if "tool_calls" in delta]
    keys = [(each.get("index"), each.get("id"), each["function"].get("name")) for each in fragments]
    assert keys == FRAGMENTS[odd]
    assert sorted(each["function"]["arguments"] for each in fragments) == ["", "", '{"a": 1}', '{"b": 2}']


CHUNKS: dict[str, Any] = {
    "arguments_object": lambda found: (
        found[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    ),
    "function_call": lambda found: (
        found[1]["choices"][0]["delta"] == {"function_call": {"name": "f", "arguments": ""}}
        and found[-1]["choices"][0]["finish_reason"] == "function_call"
    ),
    "finish_stop": lambda found: found[-1]["choices"][0]["finish_reason"] == "stop",
    "finish_empty": lambda found: [each["choices"][0]["finish_reason"] for each in found][-2:] == ["", "tool_calls"],
    "role_only": lambda found: found[0]["choices"][0]["delta"] == {"role": "assistant"},
    "role_none": lambda found: "role" not in json.dumps(found),
    "role_every": lambda found: all("role" in each["choices"][0]["delta"] for each in found[:-1]),
    "choices_null": lambda found: found[0]["choices"] is None,
    "choices_empty": lambda found: found[0]["choices"] == [],
    "delta_missing": lambda found: found[0]["choices"] == [{"index": 0, "finish_reason": None}],
    "content_parts": lambda found: found[1]["choices"][0]["delta"]["content"] == [{"type": "text", "text": "Hi"}],
    "message": lambda found: len(found) == 1 and found[0]["choices"][0]["message"]["content"] == "Hi",
    "second_choice": lambda found: found[1]["choices"][1]["delta"] == {"content": "other"},
}


@pytest.mark.parametrize("odd", CHUNKS)
async def test_other_oddities(fault_server: MakeServer, odd: str):
    calls_only = odd in ("arguments_object", "function_call")
    behaviour = reply("" if calls_only else "Hi", tool_calls=[call("f", '{"a": 1}')], odd=odd)
    server = await fault_server([behaviour], strict=False)
    sent = payloads(await post(server))
    assert sent[-1] == "[DONE]"
    assert CHUNKS[odd]([json.loads(payload) for payload in sent[:-1]])


async def test_a_whole_document_to_a_streamed_request(fault_server: MakeServer):
    server = await fault_server([reply("Hi", odd="full_json")])
    assert json.loads(await post(server))["choices"][0]["message"]["content"] == "Hi"


def test_every_oddity_is_tested():
    elsewhere = {"no_deltas", "changing_ids", "unknown_events"}  # tests/llm/test_responses_decode.py
    assert {*" ".join(FRAGMENTS).split(), *CHUNKS, "full_json", *elsewhere} == ODDITIES.keys()


async def test_no_finish_reason_and_no_end_marker(fault_server: MakeServer):
    server = await fault_server([reply("Hi", finish=None, done=False), reply("Hi", finish="length")])
    first, second = payloads(await post(server)), payloads(await post(server))
    assert [json.loads(each)["choices"][0]["finish_reason"] for each in first] == [None, None]
    assert (json.loads(second[-2])["choices"][0]["finish_reason"], second[-1]) == ("length", "[DONE]")


# -- around the server ------------------------------------------------------------------------------------------------


def test_in_a_thread_and_over_keep_alive():
    with fault_server_thread([reply("from the thread")]) as server:
        body = json.dumps({"model": "m", "messages": ASK}).encode()
        with urllib.request.urlopen(server.url + "/chat/completions", data=body, timeout=5) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "from the thread"
        server.assert_done()


def test_by_hand(tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text('[["cut_after", {"clean": true, "events": 2, "of": ["reply", {"text": "Hello"}]}]]')
    command = [sys.executable, "-m", "tests.fault_server", "--script", str(script), "--model", "mine"]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(url + "/models", timeout=5) as answer:
                assert json.load(answer)["data"][0]["id"] == "mine"
            body = json.dumps({"model": "m", "messages": ASK, "stream": True}).encode()
            with urllib.request.urlopen(url + "/chat/completions", data=body, timeout=5) as answer:
                assert len(payloads(answer.read())) == 2
        finally:
            process.terminate()


async def test_prefixes(fault_server: MakeServer):
    async def recorded(*bodies: str, **options: int) -> list[str]:
        server = await fault_server(lambda _: reply("x"), strict=False)
        async with aiohttp.ClientSession() as session:
            for body in bodies:
                await session.post(server.url + "/chat/completions", data=body.encode())
        return prefix_violations(server.requests, **options)

    grows = ['{"tools":[1],"messages":[{"a":"你"}],"n":1}', '{"tools":[1],"messages":[{"a":"你"}, {"b":2}],"n":2}']
    assert await recorded(*grows) == []
    assert await recorded('{"messages":[{"a":1}]}', '{"messages":[{"a":1 }]}') == [
        'request 1 → 2: the prefix changes at byte 19: b\'{"messages":[{"a":1}\' became b\'{"messages":[{"a":1 }]}\''
    ]
    assert len(await recorded('{"messages":[1],"tools":[1]}', '{"messages":[1],"tools":[2]}')) == 1
    assert len(await recorded('{"messages":[1,2]}', '{"messages":[1]}')) == 1
    from_hint = ['{"messages":[1,"hint"]}', '{"messages":[1,2,3,"other"]}']
    assert len(await recorded(*from_hint)) == 1
    assert await recorded(*from_hint, tail_messages=1) == []
