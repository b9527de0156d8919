"""What the fault server writes, byte by byte: framing, splits, cuts, times, documents of every kind."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.conftest import MakeServer

from . import (
    ERROR_SHAPES,
    FaultServer,
    close_before_headers,
    cut_after,
    drip,
    error_body,
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
    status,
    web_page,
)
from .client import ASK, converse, payloads, post

TEXT = "你好, world 🙂"
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
