"""What connections, headers and bodies can do to a model call, through real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.llm.transport import USER_AGENT, Timeouts
from app.schema.errors import LLMError
from app.schema.stream import Chunk, TextDelta
from tests.conftest import MakeServer
from tests.fault_server import (
    Behaviour,
    close_before_headers,
    cut_after,
    drip,
    events,
    gzip_mismatch,
    huge_line,
    in_band_error,
    malformed_json,
    null_payload,
    raw,
    redirect,
    reply,
    reset_before_headers,
    stall,
    status,
    web_page,
)
from tests.llm.asking import ask, chunks_of, shorts
from tests.llm.conftest import MakeAdapter

FAST = Timeouts(connect_s=1, first_byte_s=0.05, idle_s=0.05)


def texts(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)]


@pytest.mark.parametrize(
    ("fault", "code", "before"),
    [
        pytest.param(cut_after(events=2), "STREAM_CLOSED", ["Hel"], id="W08 closed after a delta"),
        pytest.param(cut_after(events=2, clean=True), "STREAM_CLOSED", ["Hel"], id="W08 ended after a delta"),
        pytest.param(reply("", finish=None, usage_at="absent", done=False), "STREAM_CLOSED", [], id="W08 no word"),
        pytest.param(cut_after(events=3, reset=True), "TRANSPORT", ["Hel", "lo"], id="W14 reset after two deltas"),
        pytest.param(cut_after(bytes=60), "STREAM_CLOSED", [], id="closed inside an event"),
        pytest.param(malformed_json(after=2), "MALFORMED_RESPONSE", ["Hel"], id="W11 no JSON"),
        pytest.param(null_payload(), "MALFORMED_RESPONSE", [], id="W12 null"),
        pytest.param(null_payload(payload="[]"), "MALFORMED_RESPONSE", [], id="W12 list"),
        pytest.param(in_band_error(after=2), "RATE_LIMIT", ["Hel"], id="T20 error in the stream"),
        pytest.param(
            in_band_error({"message": "Overloaded", "type": "overloaded_error"}, event="error"),
            "SERVER",
            ["Hel"],
            id="T21 error event",
        ),
        pytest.param(
            in_band_error({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
            "SERVER",
            ["Hel"],
            id="T21 vLLM error",
        ),
        pytest.param(in_band_error(after=9, ends=False), "RATE_LIMIT", ["Hel", "lo"], id="error after the finish"),
        pytest.param(reset_before_headers(), "TRANSPORT", [], id="reset before headers"),
        pytest.param(close_before_headers(), "TRANSPORT", [], id="closed before headers"),
        pytest.param(raw(b"SSH-2.0-OpenSSH_9\r\n"), "TRANSPORT", [], id="another protocol"),
        pytest.param(status(200, b""), "EMPTY_RESPONSE", [], id="W19 empty body"),
        pytest.param(status(200, b"\n \n"), "EMPTY_RESPONSE", [], id="W19 blank body"),
        pytest.param(status(204, b""), "EMPTY_RESPONSE", [], id="W19 no content"),
        pytest.param(web_page(), "ENDPOINT", [], id="defect 13 web page"),
        pytest.param(status(200, {"status": "ok"}), "ENDPOINT", [], id="defect 13 other JSON"),
        pytest.param(status(200, '{"choices": [{"mess'), "STREAM_CLOSED", [], id="half a document"),
        pytest.param(gzip_mismatch(), "MALFORMED_RESPONSE", [], id="gzip that is none"),
        pytest.param(huge_line(17 * 2**20), "MALFORMED_RESPONSE", [], id="17 MiB in one line"),
        pytest.param(stall(), "TIMEOUT", [], id="W15 silence before headers"),
        pytest.param(stall(events=2), "TIMEOUT", ["Hel"], id="W15 silence between events"),
    ],
)
async def test_fault(
    fault: Behaviour, code: str, before: list[str], fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([fault])
    adapter = make_adapter(server.url, timeouts=FAST if code == "TIMEOUT" else Timeouts())
    seen: list[Chunk] = []
    with pytest.raises(LLMError) as caught:
        await chunks_of(adapter, ask(), seen)
    assert (caught.value.code, texts(seen)) == (code, before)
    assert len(server.chats) == 1, "W24: one request for one attempt"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(reply("Hello", done=False), id="W09 finish without end marker"),
        pytest.param(reply("Hello", last_blank=False), id="W09 end marker without blank line"),
        pytest.param(reply("Hello", tail=b'data: {"choices": 7}\n\ngarbage'), id="W10 bytes after the end marker"),
        pytest.param(reply("Hello", content_type="application/json"), id="W20 events labelled as JSON"),
        pytest.param(reply("Hello", content_type="text/plain; charset=gbk"), id="events labelled as text"),
        pytest.param(reply("Hello", odd="full_json"), id="W21 a document for a stream"),
        pytest.param(reply("Hello", odd="full_json", content_type="text/event-stream"), id="document as stream"),
        pytest.param(reply("Hello", odd="message"), id="a whole message in an event"),
        pytest.param(reply("Hello", pings=3, fields=("id: 1", "retry: 5")), id="W06 comments and fields"),
        pytest.param(reply("Hello", pings=1, ping="data: : keep-alive"), id="keep-alive as data"),
        pytest.param(reply("Hello", pings=1, ping="data:"), id="empty data"),
        pytest.param(reply("Hello", line_end="\r\n", space=False), id="W02 CRLF without spaces"),
        pytest.param(reply("Hello", line_end="\r"), id="W02 CR"),
        pytest.param(reply("Hello", bom=True), id="W03 byte-order mark"),
        pytest.param(reply("Hello", bom=True, odd="full_json"), id="W03 byte-order mark before a document"),
        pytest.param(reply("Hello", multiline=True), id="W04 payload in many lines"),
        pytest.param(reply("Hello", transfer="close"), id="body ended by the connection"),
        pytest.param(drip(20_000, reply("Hello")), id="drip"),
    ],
)
async def test_understood(fault: Behaviour, fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([fault])
    lines = shorts(await chunks_of(make_adapter(server.url), ask()))
    assert "E0 Hello" in lines
    assert lines[-1] == "F stop"


@pytest.mark.parametrize("char", ["\u2028", "\x85", "\x0b"])
async def test_w07_line_separators_inside_a_text(
    char: str, fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([reply(f"a{char}b")])
    assert f"E0 a{char}b" in shorts(await chunks_of(make_adapter(server.url), ask()))


async def test_w11_quote_of_a_malformed_payload_is_short(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([malformed_json(payload="{" + "x" * 500)])
    with pytest.raises(LLMError) as caught:
        await chunks_of(make_adapter(server.url), ask())
    assert "x" * 119 in caught.value.message
    assert "x" * 120 not in caught.value.message


async def test_w13_refused_connection_names_the_address_and_keeps_its_cause(make_adapter: MakeAdapter) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(LLMError) as caught:
        await chunks_of(make_adapter(f"http://127.0.0.1:{port}/v1"), ask())
    error = caught.value
    assert (error.code, error.hint) == (
        "TRANSPORT",
        f"is a server running at http://127.0.0.1:{port}? check base_url",
    )
    assert f"127.0.0.1:{port}" in error.message
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("base_url", ["not an address", "ftp://127.0.0.1/x", "http://", "http://[::1"])
async def test_address_that_is_none(base_url: str, make_adapter: MakeAdapter) -> None:
    with pytest.raises(LLMError) as caught:
        await chunks_of(make_adapter(base_url), ask())
    assert caught.value.code == "TRANSPORT"


Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(play: Play) -> AsyncIterator[int]:
    """The port of a server that plays by hand what the fault server cannot: bytes before and beside HTTP."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await play(reader, writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_plain_http_behind_https_is_a_tls_error(make_adapter: MakeAdapter) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with served(play) as port:
        with pytest.raises(LLMError) as caught:
            await chunks_of(make_adapter(f"https://127.0.0.1:{port}/v1"), ask())
    assert (caught.value.code, caught.value.failure.status) == ("TLS", None)
    assert "SSL_CERT_FILE" in caught.value.hint


async def test_w16_comments_keep_a_slow_reply_alive(make_adapter: MakeAdapter) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for _ in range(11):
            writer.write(b": ping\n\n")
            await writer.drain()
            await asyncio.sleep(0.03)
        writer.write(b'data: {"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\n')

    async with served(play) as port:
        adapter = make_adapter(f"http://127.0.0.1:{port}/v1", timeouts=Timeouts(idle_s=0.1))
        assert "E0 Hello" in shorts(await chunks_of(adapter, ask()))


async def test_keep_alives_without_end_are_a_timeout(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([stall(events=2, ping_s=0.005)])
    timeouts = Timeouts(idle_s=0.02)
    with pytest.raises(LLMError, match=r"only keep-alives for 0\.1 s") as caught:
        await chunks_of(make_adapter(server.url, timeouts=timeouts), ask())
    assert caught.value.code == "TIMEOUT"


async def test_total_limit_ends_a_drip(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([drip(200)])
    timeouts = Timeouts(total_s=0.08)
    with pytest.raises(LLMError, match=r"did not finish within 0\.08 s") as caught:
        await chunks_of(make_adapter(server.url, timeouts=timeouts), ask())
    assert caught.value.code == "TIMEOUT"
    await server.until(lambda it: it.disconnects == 1)


async def test_w17_slow_consumer_causes_no_timeout(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([reply("Hello", stream_pieces=1, pings=1)])
    seen: list[Any] = []
    async for chunk in make_adapter(server.url, timeouts=Timeouts(idle_s=0.01)).stream(ask()):
        seen.append(chunk)
        if len(seen) < 4:
            await asyncio.sleep(0.03)
    assert shorts(seen)[-1] == "F stop"


@pytest.mark.parametrize("fault", [stall(), stall(events=2)], ids=["before headers", "inside the stream"])
async def test_w18_cancel_closes_the_socket_at_once(
    fault: Behaviour, fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([fault])
    work = asyncio.create_task(chunks_of(make_adapter(server.url), ask()))
    await server.until(lambda it: len(it.chats) == 1)
    await asyncio.sleep(0.01)
    started = time.perf_counter()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await server.until(lambda it: it.disconnects == 1)
    assert time.perf_counter() - started < 0.5


async def test_leaving_the_stream_closes_the_socket(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([stall(events=2)])
    stream = make_adapter(server.url).stream(ask())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await server.until(lambda it: it.disconnects == 1)


async def test_connection_serves_the_next_request(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server(lambda request: reply("Hello", split=7))
    adapter = make_adapter(server.url)
    for _ in range(5):
        await chunks_of(adapter, ask())
    assert {request.connection for request in server.chats} == {1}


async def test_connection_that_the_server_closed_meanwhile_is_replaced(
    fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([reply("one"), close_before_headers(), reply("two")])
    adapter = make_adapter(server.url)
    await chunks_of(adapter, ask())
    assert "E0 two" in shorts(await chunks_of(adapter, ask()))
    assert len(server.chats) == 3


async def test_redirect_is_not_followed_and_names_the_new_place(
    fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    other = await fault_server([])
    server = await fault_server([redirect(f"{other.url}/chat/completions")])
    with pytest.raises(LLMError) as caught:
        await chunks_of(make_adapter(server.url), ask())
    assert caught.value.code == "ENDPOINT"
    assert other.root in caught.value.message
    assert other.requests == [], "the key would have leaked"


async def test_w22_headers(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([reply("Hello")])
    mine = {"User-Agent": "evil", "AUTHORIZATION": "Bearer other", "Content-Type": "text/plain", "X-Title": "ok"}
    await chunks_of(make_adapter(server.url, headers=mine), ask())
    headers = server.chats[0].headers
    assert headers["user-agent"] == USER_AGENT
    assert USER_AGENT.startswith("dragoman/")
    assert (headers["authorization"], headers["content-type"]) == ("Bearer sk-test", "application/json")
    assert headers["x-title"] == "ok"


async def test_lone_surrogates_are_sent_as_replacement_characters(
    fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([reply("Hello")])
    await chunks_of(make_adapter(server.url), ask("a\ud83d b 🙂"))
    assert server.chats[0].json["messages"][0]["content"] == "a\ufffd b 🙂"


async def test_models_are_listed(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([], models=("a", "b", "a"))
    assert [model.id for model in await make_adapter(server.url).list_models("main")] == ["a", "b"]
    server.routes["/v1/models"] = {"hello": "world"}
    with pytest.raises(LLMError) as caught:
        await make_adapter(server.url).list_models("main")
    assert caught.value.code == "ENDPOINT"


async def test_events_may_be_anything_after_the_finish(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    late = {"choices": [], "x_extra": {"cost": 1}}
    server = await fault_server([events({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, late)])
    assert shorts(await chunks_of(make_adapter(server.url), ask()))[-1] == "F stop"


@pytest.mark.parametrize("variable", ["", "http://"])
async def test_a_proxy_may_be_named_without_its_scheme(
    variable: str, monkeypatch: pytest.MonkeyPatch, make_adapter: MakeAdapter
) -> None:
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"{variable}127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setenv("http_proxy", f"{variable}127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(LLMError) as caught:
            await chunks_of(make_adapter("http://model.invalid/v1"), ask())
    assert caught.value.message == "the proxy on the way to http://model.invalid failed"
    assert caught.value.hint == "check HTTPS_PROXY and NO_PROXY"
