"""One table of what goes wrong, run against every wire dialect through the fault server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from app.llm.transport import Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.message import ToolCallBlock
from app.schema.stream import BlockAssembler, Chunk, TextDelta, check_stream
from tests.conftest import MakeServer
from tests.fault_server import (
    Behaviour,
    FaultServer,
    Reply,
    call,
    close_before_headers,
    cut_after,
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
from tests.llm.asking import BASH, READ, ask, chunks_of, ids_of
from tests.llm.dialects import DIALECTS, DialectRow

FAST = Timeouts(connect_s=1, first_byte_s=0.15, idle_s=0.15)
TOO_LONG = "prompt is too long: 210000 tokens > 200000 maximum"
LONG = "The quick brown fox jumps over the lazy dog. "
ROWS = [pytest.param(row, id=row.name) for row in DIALECTS]


@dataclass(frozen=True)
class Hazard:
    """A fault and the code that must come of it."""

    name: str
    fault: Callable[[], Behaviour]
    code: str


def _long(**options: object) -> Reply:
    return reply(LONG, stream_pieces=9, **options)  # type: ignore[arg-type]


FAILURES = (
    Hazard("400", lambda: status(400, message="bad field"), "INVALID_REQUEST"),
    Hazard("401", lambda: status(401, message="bad key"), "AUTH"),
    Hazard("402", lambda: status(402, message="pay"), "QUOTA"),
    Hazard("403", lambda: status(403, message="not allowed"), "AUTH"),
    Hazard("404 of a model", lambda: status(404, message="the model test-model does not exist"), "UNKNOWN_MODEL"),
    Hazard("408", lambda: status(408, message="too slow"), "TIMEOUT"),
    Hazard("429", lambda: status(429, message="slow down"), "RATE_LIMIT"),
    Hazard("500", lambda: status(500, message="oops"), "SERVER"),
    Hazard("502 page", lambda: web_page(502, title="Bad gateway"), "SERVER"),
    Hazard("503", lambda: status(503, message="overloaded"), "SERVER"),
    Hazard("504 without a body", lambda: status(504, ""), "SERVER"),
    Hazard("529", lambda: status(529, message="overloaded"), "SERVER"),
    Hazard("overflow", lambda: status(400, message=TOO_LONG), "CONTEXT_WINDOW_EXCEEDED"),
    Hazard("redirect", lambda: redirect("http://127.0.0.2/elsewhere"), "ENDPOINT"),
    Hazard("sign-in page", web_page, "ENDPOINT"),
    Hazard("empty body", lambda: status(200, b""), "EMPTY_RESPONSE"),
    Hazard("reset before headers", reset_before_headers, "TRANSPORT"),
    Hazard("closed before headers", close_before_headers, "TRANSPORT"),
    Hazard("another protocol", lambda: raw(b"SSH-2.0-OpenSSH_9\r\n"), "TRANSPORT"),
    Hazard("cut in the middle", lambda: cut_after(_long(), events=3), "STREAM_CLOSED"),
    Hazard("ended in the middle", lambda: cut_after(_long(), events=3, clean=True), "STREAM_CLOSED"),
    Hazard("reset in the middle", lambda: cut_after(_long(), events=3, reset=True), "TRANSPORT"),
    Hazard("silence before headers", lambda: stall(), "TIMEOUT"),
    Hazard("silence in the middle", lambda: stall(_long(), events=3), "TIMEOUT"),
    Hazard("no JSON in the middle", lambda: malformed_json(after=2, of=_long()), "MALFORMED_RESPONSE"),
    Hazard("null", lambda: null_payload(), "MALFORMED_RESPONSE"),
    Hazard("wrong encoding", gzip_mismatch, "MALFORMED_RESPONSE"),
    Hazard("17 MiB in one event", lambda: huge_line(17 * 2**20), "MALFORMED_RESPONSE"),
    Hazard("limit in the stream", lambda: in_band_error(after=3, of=_long()), "RATE_LIMIT"),
    Hazard("fault in the stream", lambda: in_band_error(code=500, message="boom", after=3, of=_long()), "SERVER"),
)  # fmt: skip


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport()
    yield made
    await made.close()


def _cases(hazards: Iterable[tuple[str, object]]) -> list[ParameterSet]:
    """Every dialect with every hazard that its wire can express; what it cannot, its row names with the reason."""
    return [
        pytest.param(row, value, id=f"{name}-{row.name}")
        for name, value in hazards
        for row in DIALECTS
        if name not in dict(row.lacks)
    ]


def _rows(hazard: str) -> list[ParameterSet]:
    return [pytest.param(row, id=row.name) for row in DIALECTS if hazard not in dict(row.lacks)]


@pytest.mark.parametrize(("row", "hazard"), _cases((hazard.name, hazard) for hazard in FAILURES))
async def test_failure(row: DialectRow, hazard: Hazard, fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([hazard.fault()], dialect=row.wire())
    adapter = row.adapter(server, transport, FAST if hazard.code == "TIMEOUT" else Timeouts())
    seen: list[Chunk] = []
    started = time.monotonic()
    with pytest.raises(LLMError) as caught:
        assembler = BlockAssembler()
        for chunk in await chunks_of(adapter, ask(), seen):
            assembler.add(chunk)
        # A failure may come as the stream's own finish instead of an exception.
        failure = assembler.finish.failure
        assert failure is not None, f"a whole reply came of {hazard.name}"
        raise LLMError(failure.message, failure.code)
    assert caught.value.code == hazard.code
    assert "sk-test" not in str(caught.value)
    assert len(server.chats) == 1, "one request for one attempt"
    assert LONG.startswith("".join(chunk.text for chunk in seen if isinstance(chunk, TextDelta)))
    assert time.monotonic() - started < 3
    await adapter.close()


REPLIES: dict[str, Callable[[], Reply]] = {
    "text": lambda: reply("Hello"),
    "letter by letter": lambda: reply("Hello", stream_pieces=1),
    "byte by byte": lambda: reply("Hello", split=1),
    "every language": lambda: reply("日本語 émoji 👩‍👩‍👧 \u2028\x85 ''\"\\ </think>", stream_pieces=1),
    "no end marker": lambda: reply("Hello", done=False),
    "keep-alives": lambda: reply("Hello", pings=2),
    "CRLF": lambda: reply("Hello", line_end="\r\n"),
    "byte-order mark": lambda: reply("Hello", bom=True),
    "label of another type": lambda: reply("Hello", content_type="text/plain; charset=gbk"),
    "end by the connection": lambda: reply("Hello", transfer="close"),
    "whole document": lambda: reply("Hello", odd="full_json"),
}


@pytest.mark.parametrize(("row", "make"), _cases(REPLIES.items()))
async def test_text_arrives_whole(
    row: DialectRow, make: Callable[[], Reply], fault_server: MakeServer, transport: Transport
) -> None:
    sent = make()
    server = await fault_server([sent], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())
    chunks = await chunks_of(adapter, ask())
    assembler = _assembled(chunks)
    assert assembler.finish.reason == "stop"
    assert "".join(getattr(block, "text", "") for block in assembler.blocks()) == sent.text
    await adapter.close()


@pytest.mark.parametrize("row", _rows("calls"))
@pytest.mark.parametrize("pieces", [1, 7, 10_000])
async def test_calls_arrive_whole(row: DialectRow, pieces: int, fault_server: MakeServer, transport: Transport) -> None:
    arguments = {"command": "echo '{\"x\": [1, 2]}' && ls -l  # 日本語 👍"}
    asked = [call("bash", arguments), call("read", {}), call("bash", arguments)]
    answer = reply("Doing both.", tool_calls=asked, stream_pieces=pieces)
    server = await fault_server([answer], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())
    chunks = await chunks_of(adapter, ask(tools=(BASH, READ)))
    assembler = _assembled(chunks)
    calls = [block for block in assembler.blocks() if isinstance(block, ToolCallBlock)]
    assert [(each.name, _arguments(each)) for each in calls] == [("bash", arguments), ("read", {}), ("bash", arguments)]
    assert len(set(ids_of(chunks))) == 3
    assert assembler.finish.reason == "tool-calls"
    await adapter.close()


def test_every_exception_names_a_hazard() -> None:
    known = {hazard.name for hazard in FAILURES} | REPLIES.keys() | {"calls", "output limit"}
    assert {name for row in DIALECTS for name, _ in row.lacks} <= known


@pytest.mark.parametrize("row", _rows("output limit"))
async def test_output_limit(row: DialectRow, fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([reply("Once upon", finish="length")], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())
    assembler = _assembled(await chunks_of(adapter, ask(max_tokens=5)))
    assert (assembler.finish.reason, assembler.finish.failure) == ("max-tokens", None)
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_nothing_at_all_is_an_empty_reply(
    row: DialectRow, fault_server: MakeServer, transport: Transport
) -> None:
    server = await fault_server([reply("")], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())
    with pytest.raises(LLMError) as caught:
        failure = _assembled(await chunks_of(adapter, ask())).finish.failure
        assert failure is not None
        raise LLMError(failure.message, failure.code)
    assert caught.value.code == "EMPTY_RESPONSE"
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_cancelling_frees_the_connection_within_half_a_second(
    row: DialectRow, fault_server: MakeServer, transport: Transport
) -> None:
    server = await fault_server([stall(_long(), events=4)], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())

    async def read() -> None:
        async for _ in adapter.stream(ask()):
            pass

    task = asyncio.create_task(read())
    await server.until(lambda server: len(server.chats) == 1)
    await asyncio.sleep(0.02)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.until(lambda server: server.disconnects == 1)
    assert time.monotonic() - started < 0.5
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_a_stream_nobody_reads_sends_nothing(
    row: DialectRow, fault_server: MakeServer, transport: Transport
) -> None:
    server = await fault_server([], dialect=row.wire())
    adapter = row.adapter(server, transport, Timeouts())
    stream = check_stream(adapter.stream(ask()))
    await asyncio.sleep(0.01)
    assert server.requests == []
    await stream.aclose()  # type: ignore[attr-defined]
    await adapter.close()


@pytest.mark.parametrize("row", ROWS)
async def test_an_address_where_nobody_listens(row: DialectRow, fault_server: MakeServer, transport: Transport) -> None:
    async with FaultServer([], dialect=row.wire()) as server:
        pass
    adapter = row.adapter(server, transport, Timeouts(connect_s=1))
    with pytest.raises(LLMError) as caught:
        await chunks_of(adapter, ask())
    assert caught.value.code == "TRANSPORT"
    assert server.host in str(caught.value)
    assert caught.value.hint
    await adapter.close()


def _assembled(chunks: list[Chunk]) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


def _arguments(block: ToolCallBlock) -> object:
    return json.loads(block.arguments or "{}")
