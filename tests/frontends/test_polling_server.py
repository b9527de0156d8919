"""The polling server as its clients see it, in front of a model of the fault server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from app.config.settings import LLMSettings, RetrySettings
from app.frontends.polling_server import PollingServer, main
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.event import EventRecord, TextStreamed
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, reply, stall, status
from tests.frontends.conftest import ROOT, hear_interrupts
from tests.llm.asking import BASH

Start = Callable[..., Awaitable[tuple[str, FaultServer]]]


@pytest.fixture
async def start(fault_server: MakeServer) -> AsyncIterator[Start]:
    """`url, provider = await start([reply("hi")], token="t")`."""
    runners: list[web.AppRunner] = []

    async def serve(script: Any = (), *, token: str = "") -> tuple[str, FaultServer]:
        provider = await fault_server(script)
        settings = LLMSettings(name="main", model="test-model", base_url=provider.url, api_key="sk-test")
        pool = LLMPool({"main": settings}, sleep=_no_wait)
        runner = web.AppRunner(PollingServer(pool, ["main"], default="main", token=token).application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}", provider

    yield serve
    for runner in runners:
        await runner.cleanup()


async def _no_wait(seconds: float) -> None:
    pass


@pytest.fixture
async def client(start: Start) -> AsyncIterator[Callable[[str], LLMPool]]:
    pools: list[LLMPool] = []

    def make(url: str, **more: Any) -> LLMPool:
        settings = LLMSettings(name="far", model="main", base_url=url, api_type="server", **more)
        pools.append(LLMPool({"far": settings}, sleep=_no_wait))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


async def test_our_client_and_our_server_carry_a_text(start: Start, client: Callable[[str], LLMPool]) -> None:
    url, provider = await start([reply("Hello, 日本!", stream_pieces=4, between_events_s=0.02)])
    events: list[EventRecord] = []
    answer = await client(url).get("far").ask("Say hello.", system="Be kind.", ctx=RunContext(sink=events.append))
    assert answer == "Hello, 日本!"
    shown = [record.event.text for record in events if isinstance(record.event, TextStreamed)]
    assert "".join(shown) == answer
    assert [(entry["role"], entry["content"]) for entry in provider.chats[0].json["messages"]] == [
        ("system", "Be kind."),
        ("user", "Say hello."),
    ]


async def test_tools_are_offered_in_words(start: Start, client: Callable[[str], LLMPool]) -> None:
    url, provider = await start([reply('{"name": "bash", "arguments": {"command": "ls"}}')])
    answer = await client(url).get("far").ask_tool("List the files.", tools=(BASH,))
    assert [(each.name, each.arguments) for each in answer.message.tool_calls] == [("bash", '{"command":"ls"}')]
    assert "tools" not in provider.chats[0].json
    assert "Run a command." in provider.chats[0].json["messages"][0]["content"]


async def test_a_failure_of_the_model_reaches_the_client(start: Start) -> None:
    url, _ = await start([status(401, message="bad key")])
    async with aiohttp.ClientSession() as session:
        await session.post(f"{url}/generate", json={"messages": [{"role": "user", "content": "hi"}]})
        while True:
            answer = await (await session.get(f"{url}/get_updated_sentence")).json()
            if answer.get("error") or answer.get("is_complete"):
                break
    assert "bad key" in answer["error"]
    assert "sk-test" not in answer["error"]


async def test_a_second_reply_is_refused_while_one_is_made(start: Start, client: Callable[[str], LLMPool]) -> None:
    url, _ = await start([stall(events=2)])
    hello = {"messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as session:
        assert (await session.post(f"{url}/generate", json=hello)).status == 202
        second = await session.post(f"{url}/generate", json=hello)
        assert (second.status, await second.json()) == (409, {"error": "Generation already in progress"})
    with pytest.raises(LLMError, match="busy") as caught:
        await client(url, retry=RetrySettings(max_retries=1)).get("far").ask("hi")
    assert caught.value.code == "RATE_LIMIT"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/setup", {"model": "other"}, "there is no model 'other'; known are: main"),
        ("/setup", {}, 'send {"model": name}'),
        ("/setup", [], "the body must be a JSON object"),
        ("/generate", {"messages": []}, "messages must be a list with at least one message"),
        ("/generate", {"messages": "hi"}, "messages must be a list with at least one message"),
        ("/generate", {"messages": [{"role": "user", "content": 7}]}, "messages.0.content must be a text"),
        ("/generate", {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role must be"),
    ],
)
async def test_bad_input_is_a_sentence(path: str, body: Any, words: str, start: Start) -> None:
    url, _ = await start()
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{url}{path}", json=body)
        assert answer.status == 400
        assert words in (await answer.json())["error"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Host": "evil.example"}, 403),
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
    ],
)
async def test_who_may_ask(headers: dict[str, str], expected: int, start: Start) -> None:
    url, _ = await start(token="secret")
    async with aiohttp.ClientSession() as session:
        assert (await session.get(f"{url}/health", headers=headers)).status == expected


def test_a_port_that_cannot_be_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--port", "65536"])
    assert caught.value.code == 2
    assert "argument --port: must be a number from 0 to 65535, not '65536'" in capsys.readouterr().err


def test_an_open_address_needs_a_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_SERVER_TOKEN", raising=False)
    assert main(["--host", "0.0.0.0"]) == 2
    assert "set --token" in capsys.readouterr().err


def test_the_program_serves_and_ends(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[llm]\nmodel = "scripted"\napi_type = "test"\n', encoding="utf-8")
    arguments = ["-m", "app.frontends.polling_server", "--config", str(config), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.search(r"serving \[default\] at http://127\.0\.0\.1:\d+", line), line
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
