"""The fault server's Ollama dialect, proved by Ollama's own client."""

from __future__ import annotations

import pytest
from ollama import AsyncClient, ResponseError

from tests.conftest import MakeServer
from tests.fault_server import call, in_band_error, reply, status, usage
from tests.fault_server.ollama import Ollama
from tests.llm.asking import BASH

TOOL = {"type": "function", "function": {"name": BASH.name, "description": "x", "parameters": dict(BASH.parameters)}}
OPTIONS = {"num_ctx": 8192}
HELLO = {"role": "user", "content": "hi"}


async def test_text_thinking_calls_and_counts(fault_server: MakeServer) -> None:
    answer = reply(
        "Hello there", reasoning="hm", tool_calls=[call("bash", {"command": "ls"}, id="c1")], usage=usage(100, 12)
    )
    server = await fault_server([answer, answer], dialect=Ollama())
    client = AsyncClient(host=server.root)
    stream = await client.chat(model="qwen3:8b", messages=[HELLO], tools=[TOOL], options=OPTIONS, stream=True)
    parts = [part async for part in stream]
    assert "".join(part.message.content or "" for part in parts) == "Hello there"
    assert "".join(part.message.thinking or "" for part in parts) == "hm"
    calls = [each.function for part in parts for each in part.message.tool_calls or ()]
    assert [(each.name, dict(each.arguments)) for each in calls] == [("bash", {"command": "ls"})]
    last = parts[-1]
    assert (last.done, last.done_reason, last.prompt_eval_count, last.eval_count) == (True, "stop", 100, 12)
    whole = await client.chat(model="qwen3:8b", messages=[HELLO], options=OPTIONS)
    assert (whole.message.content, whole.message.thinking, whole.eval_count) == ("Hello there", "hm", 12)
    await client.close()


async def test_errors(fault_server: MakeServer) -> None:
    server = await fault_server(
        [
            status(400, message="m does not support tools"),
            in_band_error(code=500, message="llama runner stopped", after=1),
        ],
        dialect=Ollama(),
    )
    client = AsyncClient(host=server.root)
    with pytest.raises(ResponseError) as caught:
        await client.chat(model="m", messages=[HELLO], options=OPTIONS)
    assert (caught.value.status_code, caught.value.error) == (400, "m does not support tools")
    with pytest.raises(ResponseError, match="an error was encountered while running the model: llama runner stopped"):
        async for _ in await client.chat(model="m", messages=[HELLO], options=OPTIONS, stream=True):
            pass
    await client.close()


async def test_a_missing_model_and_its_download(fault_server: MakeServer) -> None:
    wire = Ollama(missing=("qwen3:8b",))
    server = await fault_server([reply("ok")], dialect=wire, models=("qwen3:8b",))
    client = AsyncClient(host=server.root)
    with pytest.raises(ResponseError) as caught:
        await client.chat(model="qwen3:8b", messages=[HELLO], options=OPTIONS)
    assert (caught.value.status_code, caught.value.error) == (404, "model 'qwen3:8b' not found")
    steps = [(step.status, step.completed) async for step in await client.pull("qwen3:8b", stream=True)]
    assert steps[0] == ("pulling manifest", None)
    assert steps[-2:] == [("pulling 1", 100), ("success", None)]
    assert (await client.chat(model="qwen3:8b", messages=[HELLO], options=OPTIONS)).message.content == "ok"
    assert [each.model for each in (await client.list()).models] == ["qwen3:8b"]
    await client.close()
