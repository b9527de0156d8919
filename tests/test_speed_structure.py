"""What makes a step cheap, proved without a clock: what is loaded, how often things are done, what is kept open."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.agents.toolcall import ToolCallAgent
from app.config.settings import LLMSettings
from app.llm.adapters.chat_encode import ChatEncoder
from app.llm.pool import LLMPool
from app.tools.base import tool
from app.tools.toolbox import Toolbox
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, Reply, Request, call, fault_server_thread, reply

ROOT = Path(__file__).resolve().parent.parent
STEPS = 20
SLOW_TO_IMPORT = {"aiohttp", "anthropic", "boto3", "openai", "playwright", "pydantic", "rich", "tiktoken"}
VENDOR_SDKS = {"anthropic", "boto3", "openai"}

RUN = """
import asyncio, sys
from app.agents.toolcall import ToolCallAgent
from app.config.settings import LLMSettings
from app.llm.pool import LLMPool
from app.tools.base import tool
from app.tools.toolbox import Toolbox

@tool(effect="read")
async def note(n: int) -> str:
    "Keep a note."
    return f"kept {n}"

async def main():
    settings = LLMSettings(name="default", model="gpt-4o-mini", api_type="openai", base_url=sys.argv[1], api_key="k")
    pool = LLMPool({"default": settings})
    result = await ToolCallAgent("a", llm=pool.get(), toolbox=Toolbox(note)).run("take a note")
    assert result.answer == "done", result
    await pool.close()

asyncio.run(main())
"""


def _loaded(code: str, *arguments: str) -> set[str]:
    """The top-level modules in a fresh process after `code`."""
    listing = "\nimport json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    command = [sys.executable, "-c", code + listing, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def _script(request: Request) -> Reply:
    """`STEPS` calls, no two alike, then the answer."""
    done = sum(message["role"] == "tool" for message in request.json["messages"])
    return reply(tool_calls=[call("note", {"n": done})]) if done < STEPS else reply("done")


@tool(effect="read")
async def note(n: int) -> str:
    """Keep a note."""
    return f"kept {n}"


@pytest.fixture
async def server(fault_server: MakeServer) -> FaultServer:
    return await fault_server(_script)


@pytest.fixture
async def pool(server: FaultServer) -> AsyncIterator[LLMPool]:
    settings: dict[str, Any] = {"model": "gpt-4o-mini", "api_type": "openai", "base_url": server.url, "api_key": "k"}
    pool = LLMPool({"default": LLMSettings(name="default", **settings)})
    yield pool
    await pool.close()


async def _run(pool: LLMPool) -> None:
    agent = ToolCallAgent("noter", llm=pool.get(), toolbox=Toolbox(note), system="Be brief.", max_steps=2 * STEPS)
    result = await agent.run("Take notes.")
    assert (result.stop_reason, result.answer, result.steps) == ("answered", "done", STEPS + 1)


def test_the_command_line_loads_nothing_slow_before_it_knows_what_is_wanted():
    assert _loaded("import app.frontends.cli") & SLOW_TO_IMPORT == set()


@pytest.mark.parametrize(("usage_at", "counted_here"), [("auto", False), ("absent", True)])
def test_a_run_loads_no_vendor_sdk_and_a_tokenizer_only_to_count_by_itself(usage_at: str, counted_here: bool):
    script = [reply(tool_calls=[call("note", {"n": 1})], usage_at=usage_at), reply("done", usage_at=usage_at)]
    with fault_server_thread(script) as server:
        loaded = _loaded(RUN, server.url)
        server.assert_done()
    assert "aiohttp" in loaded
    assert loaded & VENDOR_SDKS == set()
    assert ("tiktoken" in loaded) is counted_here


async def test_a_message_is_encoded_once_in_its_life(pool: LLMPool, monkeypatch: pytest.MonkeyPatch):
    encoded: Counter[str] = Counter()
    encode = ChatEncoder._message

    def counted(self: ChatEncoder, message: Any) -> Any:
        encoded[message.id] += 1
        return encode(self, message)

    monkeypatch.setattr(ChatEncoder, "_message", counted)
    await _run(pool)
    assert set(encoded.values()) == {1}
    assert len(encoded) == 1 + 2 * STEPS  # the task, and for each step the call and its result


async def test_a_run_keeps_one_connection(pool: LLMPool, server: FaultServer):
    await _run(pool)
    assert [request.connection for request in server.chats] == [1] * (STEPS + 1)


async def test_agents_of_a_pool_share_one_session(pool: LLMPool, server: FaultServer, monkeypatch: pytest.MonkeyPatch):
    sessions: list[aiohttp.ClientSession] = []
    make = aiohttp.ClientSession.__init__

    def counted(self: aiohttp.ClientSession, *args: Any, **options: Any) -> None:
        sessions.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", counted)
    await asyncio.gather(*(_run(pool) for _ in range(4)))
    await _run(pool)
    assert len(sessions) == 1
    assert len(server.chats) == 5 * (STEPS + 1)
    assert {request.connection for request in server.chats} == {1, 2, 3, 4}


async def test_no_stream_is_left_behind_for_the_loop_to_close(pool: LLMPool, monkeypatch: pytest.MonkeyPatch):
    left: list[Any] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(hooks.firstiter, left.append)
    try:
        await _run(pool)
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert left == []
