"""A real small model in a real child process: what the wire gives, and that the child never outlives its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.llm.downloads import consent_given
from app.llm.embedded.catalog import MODELS
from app.llm.embedded.fetch import ensure_model
from app.llm.embedded.server import EmbeddedServer
from app.llm.textcalls import read_schema_reply, schema_for
from app.schema.request import ToolSpec

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.real_model

ROW = MODELS["smollm2-135m"]
CACHE = Path("~/.cache/dragoman-tests").expanduser()
"""One folder for all runs of this user, so that the 98 MB come once."""
HELLO = [{"role": "user", "content": "Say hello."}]


async def model_file() -> Path:
    return await ensure_model(ROW, CACHE, consent=consent_given, progress=lambda _: None)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedServer]:
    path = await model_file()
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path))
    server = EmbeddedServer(path, ROW, context=2048)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[aiohttp.ClientSession]:
    # The server closes a connection after a stream although it announces keep-alive.
    connector = aiohttp.TCPConnector(force_close=True)
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
        yield client


async def chat(client: aiohttp.ClientSession, server: EmbeddedServer, **body: Any) -> dict[str, Any]:
    body = {"model": ROW.name, "messages": HELLO, "temperature": 0, "max_tokens": 16, **body}
    async with client.post(f"{server.base_url}/chat/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def events(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        await asyncio.sleep(0.02)


async def test_text_stream_schema_and_key_of_one_server(server: EmbeddedServer, client: aiohttp.ClientSession) -> None:
    """One server for all of them: loading the model is what takes the time."""
    plain = await chat(client, server)
    assert plain["choices"][0]["message"]["content"].strip()
    assert plain["usage"]["completion_tokens"] <= 16

    body = {
        "model": ROW.name,
        "messages": HELLO,
        "temperature": 0,
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client.post(f"{server.base_url}/chat/completions", json=body) as reply:
        chunks = [chunk async for chunk in events(reply)]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == plain["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]

    size = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"]}
    pick = ToolSpec("pick", "Pick a size.", size)
    schema = schema_for((pick,), allow_text=False)
    response_format = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
    reply_text = (await chat(client, server, response_format=response_format, max_tokens=64))["choices"][0]["message"]
    (call,) = read_schema_reply(reply_text["content"], [pick])
    assert json.loads(call.arguments)["size"] in ("small", "large")

    stranger = {"Authorization": "Bearer wrong"}
    async with client.get(f"{server.base_url}/models", headers=stranger) as refused:
        assert refused.status == 401
    assert await server.start() == server.base_url


async def test_a_request_that_is_cancelled_frees_the_server(
    server: EmbeddedServer, client: aiohttp.ClientSession
) -> None:
    endless = {"model": ROW.name, "messages": HELLO, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    async with client.post(f"{server.base_url}/chat/completions", json=endless) as reply:
        async for _ in events(reply):
            break
        reply.close()
    began = time.monotonic()
    await chat(client, server, max_tokens=1)
    assert time.monotonic() - began < 8, "the only slot was still busy with a reply that nobody reads"


async def test_a_child_that_died_is_replaced_and_closing_ends_it(server: EmbeddedServer) -> None:
    process = server._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert not server.alive
    await server.start()
    assert server.alive and server._process is not None
    pid = server._process.pid
    await server.close()
    assert not is_running(pid)
    assert not server.alive


PARENT = """
import asyncio, sys
from pathlib import Path
from app.llm.embedded.catalog import MODELS
from app.llm.embedded.server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]), MODELS["smollm2-135m"], context=512)
    await server.start()
    print(server._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(await model_file()),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "DRAGOMAN_HOME": str(tmp_path)},
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    await parent.wait()
    await wait_until_gone(child)
