"""The bytes of a stream, split at every position, give the same chunks; every dialect over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest

from app.llm.adapters.http import HTTPAdapter
from app.llm.transport import Response, Timeouts, Transport
from app.schema.stream import Chunk
from tests.fault_server import FaultServer, Reply, call, reply
from tests.fault_server.behaviours import Delivery
from tests.fault_server.record import Request
from tests.fault_server.render import Send, render
from tests.llm.asking import BASH, READ, ask, shorts
from tests.llm.dialects import DIALECTS, DialectRow

REPLIES: dict[str, Reply] = {
    "text": reply("Héllo 日本 👍\u2028!", stream_pieces=5),
    "thinking, text and calls": reply(
        "Ok 👍", reasoning="hm…", tool_calls=[call("bash", {"command": "é"}, id="a1"), call("read", {}, id="b2")]
    ),
    "CRLF and keep-alives": Reply("Hi", pieces=1, delivery=Delivery(line_end="\r\n", pings=1)),
}


class _Pieces:
    """A body that arrives in these pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.timeouts = Timeouts()
        self._pieces = iter(pieces)

    async def more(self) -> bytes:
        return next(self._pieces, b"")

    async def read(self) -> bytes:
        return b"".join(self._pieces)


async def _chunks(adapter: HTTPAdapter, *pieces: bytes) -> list[Chunk]:
    response = cast("Response", _Pieces(piece for piece in pieces if piece))
    return [chunk async for chunk in adapter.decode(response)]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in DIALECTS if row.own_framing])
@pytest.mark.parametrize("name", REPLIES)
async def test_every_split_gives_the_same_chunks(row: DialectRow, name: str) -> None:
    adapter = row.adapter(FaultServer([], dialect=row.wire()), Transport(), Timeouts())
    assert isinstance(adapter, HTTPAdapter)
    body = _recorded(row, REPLIES[name], adapter)
    assert len(body) > 100
    whole = shorts(await _chunks(adapter, body))
    assert whole[-1].startswith("F ")
    for position in range(1, len(body)):
        assert shorts(await _chunks(adapter, body[:position], body[position:])) == whole, position
    assert shorts(await _chunks(adapter, *(bytes([byte]) for byte in body))) == whole


def _recorded(row: DialectRow, behaviour: Reply, adapter: HTTPAdapter) -> bytes:
    """What the fault server would send as the body, without HTTP's own framing."""
    asked = ask(tools=(BASH, READ))
    sent = adapter.encode(asked)
    path = adapter.request_url(asked).partition("//")[2].partition("/")[2]
    request = Request(1, 1, 0.0, "POST", f"/{path}", {}, sent, json.loads(sent))
    pings = 0 if "keep-alives" in dict(row.lacks) else behaviour.delivery.pings
    plain = replace(behaviour, delivery=replace(behaviour.delivery, transfer="close", pings=pings))
    _head, *body = [step.data for step in render(plain, request, row.wire()) if isinstance(step, Send)]
    return b"".join(body)
