"""The fault server speaks the real wire: the official SDK is its client here, and raw sockets where bytes matter."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
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
    ERROR_SHAPES,
    ODDITIES,
    Behaviour,
    FaultServer,
    Script,
    call,
    close_before_headers,
    cut_after,
    drip,
    error_body,
    events,
    fault_server_thread,
    gzip_mismatch,
    huge_line,
    in_band_error,
    malformed_json,
    null_payload,
    prefix_violations,
    raw,
    redirect,
    reply,
    reset_before_headers,
    stall,
    status,
    usage,
    web_page,
)

ASK: list[Any] = [{"role": "user", "content": "hi"}]
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


async def post(server: FaultServer, *, stream: bool = True, **body: Any) -> bytes:
    """The body bytes of an answer, by a client that does not interpret them."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            server.url + "/chat/completions", json={"model": "m", "messages": ASK, "stream": stream} | body
        ) as answer,
    ):
        return await answer.read()


async def converse(server: FaultServer, *, stream: bool = True) -> tuple[bytes, list[bytes]]:
    """Everything the server writes on one connection until it closes, and the reads in which it came."""
    reader, writer = await asyncio.open_connection(*server.host.split(":"))
    body = json.dumps({"model": "m", "messages": ASK, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    reads: list[bytes] = []
    try:
        while data := await reader.read(1 << 20):
            reads.append(data)
    finally:
        writer.close()
    return b"".join(reads), reads


def payloads(body: bytes) -> list[str]:
    """The `data:` payloads of a plainly framed stream."""
    return [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]


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
    with pytest.raises((openai.APITimeoutError, TimeoutError)):
        async with asyncio.timeout(0.1):
            await chunks(client)
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
    assert {*" ".join(FRAGMENTS).split(), *CHUNKS, "full_json"} == ODDITIES.keys()


async def test_no_finish_reason_and_no_end_marker(fault_server: MakeServer):
    server = await fault_server([reply("Hi", finish=None, done=False), reply("Hi", finish="length")])
    first, second = payloads(await post(server)), payloads(await post(server))
    assert [json.loads(each)["choices"][0]["finish_reason"] for each in first] == [None, None]
    assert (json.loads(second[-2])["choices"][0]["finish_reason"], second[-1]) == ("length", "[DONE]")


# -- bytes ------------------------------------------------------------------------------------------------------------

PLAIN = reply(stream_pieces=(TEXT,))


async def test_framing_of_events(fault_server: MakeServer):
    server = await fault_server([])

    async def framed(**delivery: Any) -> bytes:
        server.add(reply("Hi", finish=None, odd="role_none", **delivery))
        return (await post(server)).replace(b"chatcmpl-%d" % len(server.requests), b"chatcmpl-1")

    event = (await framed(done=False)).removesuffix(b"\n\n")
    assert event.startswith(b"data: {") and b"\n" not in event
    done = b"data: [DONE]"
    assert await framed() == event + b"\n\n" + done + b"\n\n"
    assert await framed(line_end="\r\n") == event + b"\r\n\r\n" + done + b"\r\n\r\n"
    assert await framed(line_end="\r") == event + b"\r\r" + done + b"\r\r"
    assert await framed(bom=True) == b"\xef\xbb\xbf" + event + b"\n\n" + done + b"\n\n"
    assert await framed(pings=2, done=False) == b": keep-alive\n\n" * 2 + event + b"\n\n"
    assert await framed(pings=1, ping="event: ping", done=False) == b"event: ping\n\n" + event + b"\n\n"
    assert await framed(fields=("id: 1", "retry: 5"), done=False) == b"id: 1\nretry: 5\n" + event + b"\n\n"
    assert await framed(last_blank=False) == event + b"\n\n" + done + b"\n"
    assert await framed(tail=b"junk") == event + b"\n\n" + done + b"\n\njunk"
    assert await framed(space=False, done=False) == event.replace(b"data: ", b"data:") + b"\n\n"
    lines = (await framed(multiline=True, done=False)).decode().splitlines()
    assert json.loads("".join(line.removeprefix("data: ") for line in lines))["choices"][0]["delta"] == {
        "content": "Hi"
    }
    assert len(lines) > 5


async def test_every_way_of_splitting_gives_the_same_bytes(fault_server: MakeServer):
    server = await fault_server([PLAIN])
    whole = await post(server)
    for split in (1, 7, (3, 50, len(whole) - 1)):
        server.add(reply(stream_pieces=(TEXT,), split=split))
        answer = (await post(server)).replace(b"chatcmpl-%d" % len(server.requests), b"chatcmpl-1")
        assert answer == whole


@pytest.mark.parametrize("transfer", ["chunked", "close"])
async def test_pieces_arrive_as_reads_of_their_own(fault_server: MakeServer, transfer: Any):
    body = b'data: {"a": 1}\n\ndata: {"b": 2}\n\n'
    server = await fault_server([])
    for split, wanted in [
        (1, [body[at : at + 1] for at in range(len(body))]),
        ((20, 3), [body[:3], body[3:20], body[20:]]),
    ]:
        server.add(events({"a": 1}, {"b": 2}, done=False, split=split, transfer=transfer))
        _, reads = await converse(server)
        if transfer == "chunked":
            wanted = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in wanted]
        head, _, first = reads[0].partition(b"\r\n\r\n")
        # The head and the first piece may share a read; of the end and the last piece the same is true.
        pieces = [*([first] if first else []), *reads[1:]]
        assert b"".join(pieces).removesuffix(b"0\r\n\r\n") == b"".join(wanted)
        assert pieces[1 : len(wanted) - 1] == wanted[1:-1]
        assert head.startswith(b"HTTP/1.1 200 OK")


async def test_cuts_count_body_bytes(fault_server: MakeServer):
    server = await fault_server(
        [cut_after(PLAIN, bytes=100), cut_after(reply("x" * 500), bytes=30), cut_after(reply("x"))]
    )
    answer, _ = await converse(server)
    assert answer.partition(b"\r\n\r\n")[2].startswith(b"64\r\ndata: {") and answer.endswith(b"\r\n")
    assert len(answer.partition(b"\r\n\r\n")[2]) == len("64\r\n") + 100 + len("\r\n")
    answer, _ = await converse(server, stream=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert len(body) == 30
    assert int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) > 500
    answer, _ = await converse(server)
    assert answer.partition(b"\r\n\r\n")[2] != b"", "without a place nothing is cut but the end"


async def test_resets_are_resets(fault_server: MakeServer):
    server = await fault_server([reset_before_headers(), close_before_headers(), raw(b"SSH-2.0\r\n", then="close")])
    with pytest.raises(ConnectionResetError):
        await converse(server)
    assert (await converse(server))[0] == b""
    assert (await converse(server))[0] == b"SSH-2.0\r\n"


async def test_wrong_payloads(fault_server: MakeServer):
    server = await fault_server(
        [malformed_json(), malformed_json(after=2), null_payload(payload="[]"), malformed_json()]
    )
    assert await post(server) == b"data: {oops\n\n"
    assert payloads(await post(server))[1:] == [payloads(await deltas_of_hel())[1], "{oops"]
    assert await post(server) == b"data: []\n\n"
    assert await post(server, stream=False) == b"{oops"


async def deltas_of_hel() -> bytes:
    async with FaultServer([status(404), cut_after(events=2, clean=True)]) as server:
        await post(server)
        return await post(server)


async def test_an_error_in_the_middle_need_not_end_the_stream(fault_server: MakeServer):
    server = await fault_server(
        [in_band_error({"error": "x"}, after=1, ends=False, done=True), in_band_error({"error": "x"})]
    )
    sent = payloads(await post(server))
    assert (len(sent), sent[1], sent[-1]) == (6, '{"error": "x"}', "[DONE]")
    assert await post(server, stream=False) == b'{"error": "x"}'


async def test_documents_of_other_kinds(fault_server: MakeServer):
    script = [
        web_page(),
        redirect("http://127.0.0.1:9/v1"),
        gzip_mismatch(),
        reply("x", content_type="application/json"),
    ]
    server = await fault_server(script)
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def headers() -> tuple[int, Any, bytes]:
            body = {"model": "m", "messages": ASK, "stream": True}
            async with session.post(f"{server.url}/chat/completions", json=body, allow_redirects=False) as answer:
                return answer.status, answer.headers, await answer.read()

        code, head, body = await headers()
        assert (code, head["content-type"]) == (200, "text/html; charset=utf-8")
        assert body.startswith(b"<!DOCTYPE html>")
        code, head, _ = await headers()
        assert (code, head["location"]) == (307, "http://127.0.0.1:9/v1")
        code, head, body = await headers()
        assert head["content-encoding"] == "gzip"
        with pytest.raises(gzip.BadGzipFile):
            gzip.decompress(body)
        code, head, body = await headers()
        assert (head["content-type"], body[:7]) == ("application/json", b"data: {")


async def test_times(fault_server: MakeServer):
    server = await fault_server(
        [reply("Hi", before_headers_s=0.03), reply("Hi", between_events_s=0.01), drip(20_000, reply("Hi"))]
    )
    for at_least in (0.03, 0.03, 0.02):
        started = time.monotonic()
        await post(server)
        assert at_least <= time.monotonic() - started < 1


async def test_a_huge_line(fault_server: MakeServer):
    server = await fault_server([huge_line(2_000_000)])
    assert max(len(line) for line in (await post(server)).splitlines()) > 2_000_000


async def test_chunked_requests_and_continue(fault_server: MakeServer):
    server = await fault_server([reply("Hi")])
    body = json.dumps({"model": "m", "messages": ASK}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body[:10]
        yield body[10:]

    async with aiohttp.ClientSession() as session:
        url = server.url + "/chat/completions"
        async with session.post(url, data=pieces(), expect100=True) as answer:
            assert answer.status == 200
    assert server.requests[0].body == body


def test_error_bodies_carry_their_message():
    for shape in ERROR_SHAPES.keys() - {"empty", "null"}:
        assert "no luck" in str(error_body(shape, "no luck", 500))
    assert error_body("empty", "no luck") == ""


async def test_error_bodies_travel_in_their_own_type(fault_server: MakeServer):
    server = await fault_server(
        [status(500, error_body("gemini_list", "no", 500)), status(502, error_body("html", "no", 502))]
    )
    assert json.loads(await post(server))[0]["error"]["message"] == "no"
    assert (await post(server)).startswith(b"<html>")


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
    async def recorded(*bodies: str) -> list[str]:
        server = await fault_server(lambda _: reply("x"), strict=False)
        async with aiohttp.ClientSession() as session:
            for body in bodies:
                await session.post(server.url + "/chat/completions", data=body.encode())
        return prefix_violations(server.requests)

    grows = ['{"tools":[1],"messages":[{"a":"你"}],"n":1}', '{"tools":[1],"messages":[{"a":"你"}, {"b":2}],"n":2}']
    assert await recorded(*grows) == []
    assert await recorded('{"messages":[{"a":1}]}', '{"messages":[{"a":1 }]}') == [
        'request 1 → 2: the prefix changes at byte 19: b\'{"messages":[{"a":1}\' became b\'{"messages":[{"a":1 }]}\''
    ]
    assert len(await recorded('{"messages":[1],"tools":[1]}', '{"messages":[1],"tools":[2]}')) == 1
    assert len(await recorded('{"messages":[1,2]}', '{"messages":[1]}')) == 1
    from_hint = ['{"messages":[1,"hint"]}', '{"messages":[1,2,3,"other"]}']
    assert len(await recorded(*from_hint)) == 1
