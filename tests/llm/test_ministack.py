"""Bedrock as others emulate it: our adapter against `ministack`, behind which a chat-completions server thinks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.config.settings import LLMSettings
from app.llm.client import LLM
from app.llm.failures import classify
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.message import tool_result_message, user_message
from tests.fault_server import FaultServer, call, fault_server_thread, reply, usage
from tests.llm.asking import BASH, READ

pytest.importorskip("ministack")

SERVE = """
import asyncio, socket, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app
listener = socket.create_server(("127.0.0.1", 0))
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
print(listener.getsockname()[1], flush=True)
async def until_input_ends():
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(serve(app, config, shutdown_trigger=until_input_ends))
"""
"""On loopback alone, and only as long as its standard input is open."""


@pytest.fixture(scope="module")
def thinker() -> Iterator[FaultServer]:
    with fault_server_thread() as server:
        yield server


@pytest.fixture(scope="module")
def address(thinker: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("ministack")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {"MINISTACK_BEDROCK_PROXY_URL": thinker.root, "SERVICES": "bedrock-runtime", "IOT_MTLS_ENABLED": "0"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=env | {"TMPDIR": str(folder), "HOME": str(folder)},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@pytest.fixture
async def llm(address: str, thinker: FaultServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LLM]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    thinker.chats.clear()
    options = {"api_type": "bedrock", "model": "anthropic.claude-sonnet-4-20250514-v1:0", "base_url": address}
    pool = LLMPool({"main": LLMSettings(name="main", region="us-east-1", **options)})  # type: ignore[arg-type]
    yield pool.get("main")
    await pool.close()
    thinker.assert_done()


async def test_text_with_usage(llm: LLM, thinker: FaultServer) -> None:
    thinker.add(reply("Hello 日本", usage=usage(31, 7)))
    got = await llm.ask_tool("hi", system="be brief")
    assert (got.text, got.finish.reason, got.attempts) == ("Hello 日本", "stop", 1)
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.estimated) == (31, 7, False)
    assert [each["role"] for each in thinker.chats[0].json["messages"]] == ["system", "user"]


async def test_parallel_calls_and_the_turn_after_them(llm: LLM, thinker: FaultServer) -> None:
    calls = [call("bash", {"command": "ls"}, id="c1"), call("read", {"path": "a"}, id="c2")]
    thinker.add(reply("Both.", tool_calls=calls), reply("done"))
    asked = user_message("go")
    got = await llm.ask_tool([asked], tools=(BASH, READ), tool_choice="required")
    assert got.finish.reason == "tool-calls"
    made = got.message.tool_calls
    assert [(each.id, each.name, json.loads(each.arguments)) for each in made] == [
        ("c1", "bash", {"command": "ls"}),
        ("c2", "read", {"path": "a"}),
    ]
    results = [tool_result_message("c1", "one"), tool_result_message("c2", "two")]
    last = await llm.ask_tool([asked, got.message, *results], tools=(BASH, READ))
    assert last.text == "done"
    first, second = (request.json for request in thinker.chats)
    assert first["tool_choice"] == "required"
    sent = [each for each in second["messages"] if each["role"] == "tool"]
    assert [(each["tool_call_id"], each["content"]) for each in sent] == [("c1", "one"), ("c2", "two")]


async def test_a_call_that_does_not_parse_is_the_models_fault(llm: LLM, thinker: FaultServer) -> None:
    thinker.add(reply("", tool_calls=[call("bash", "{oops")]))
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "INVALID_TOOL_CALL"


async def test_the_whole_reply_where_streams_are_refused(llm: LLM, thinker: FaultServer) -> None:
    thinker.add(reply("", tool_calls=[call("bash", {"command": "ls"}, id="c1")]))
    adapter = llm._service.adapter("main")
    adapter.corrections.learn(_refused(), llm.settings.model, {"messages"})  # type: ignore[attr-defined]
    got = await llm.ask_tool("go", tools=(BASH,))
    assert [each.name for each in got.message.tool_calls] == ["bash"]


def _refused() -> LLMError:
    return classify(400, b'{"message": "This model doesn\'t support tool use in streaming mode."}')
