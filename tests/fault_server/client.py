"""A client for the server's own tests that interprets nothing: it asks and gives back the bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from .server import FaultServer

ASK: list[Any] = [{"role": "user", "content": "hi"}]


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
