"""The fault server speaks Converse: boto3's own client reads it; and what its request check refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tests.conftest import MakeServer
from tests.fault_server import FaultServer, Script, call, in_band_error, reply, status, usage
from tests.fault_server.bedrock import SIGNATURE, Bedrock, model_of
from tests.fault_server.bedrock_check import check_request
from tests.llm.asking import PNG

MODEL = "anthropic.claude-sonnet-4-20250514-v1:0"
TEXT = "你好, world 🙂"
HI = {"role": "user", "content": [{"text": "hi"}]}
TOOL = {"toolSpec": {"name": "bash", "inputSchema": {"json": {"type": "object"}}}}
ASK: dict[str, Any] = {"modelId": MODEL, "messages": [HI], "toolConfig": {"tools": [TOOL]}}
Start = Callable[[Script], Awaitable[tuple[Any, FaultServer]]]


@pytest.fixture
async def sdk(fault_server: MakeServer) -> AsyncIterator[Start]:
    clients: list[Any] = []

    async def start(script: Script) -> tuple[Any, FaultServer]:
        server = await fault_server(script, dialect=Bedrock())
        clients.append(await asyncio.to_thread(_client, server.root))
        return clients[-1], server

    yield start
    for client in clients:
        client.close()


def _client(address: str) -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=address,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )


def _streamed(client: Any) -> list[dict[str, Any]]:
    with contextlib.closing(client.converse_stream(**ASK)["stream"]) as stream:
        return list(stream)


async def test_boto3_reads_whole_replies_and_errors(sdk: Start) -> None:
    counts = usage(100, 20, cached=60)
    answer = reply(TEXT, tool_calls=[call("bash", {"a": 1}, id="c1")], reasoning="hm", usage=counts)
    client, server = await sdk([answer, status(429, message="slow down"), status(400, message="bad")])
    got = await asyncio.to_thread(lambda: client.converse(**ASK))
    thought, text, made = got["output"]["message"]["content"]
    assert thought["reasoningContent"]["reasoningText"] == {"text": "hm", "signature": SIGNATURE}
    assert text == {"text": TEXT}
    assert made["toolUse"] == {"toolUseId": "c1", "name": "bash", "input": {"a": 1}}
    assert got["stopReason"] == "tool_use"
    assert (got["usage"]["inputTokens"], got["usage"]["cacheReadInputTokens"]) == (40, 60)
    assert model_of(server.chats[0]) == MODEL
    for name in ("ThrottlingException", "ValidationException"):
        with pytest.raises(ClientError) as caught:
            await asyncio.to_thread(lambda: client.converse(**ASK))
        assert caught.value.response["Error"]["Code"] == name


async def test_boto3_reads_streams_and_the_exceptions_in_them(sdk: Start) -> None:
    answer = reply(TEXT, tool_calls=[call("bash", {"a": 1}, id="c1")], reasoning="hm", stream_pieces=4)
    client, _ = await sdk([answer, in_band_error(code=429, message="slow down", after=2)])
    got = await asyncio.to_thread(_streamed, client)
    deltas = [event["contentBlockDelta"]["delta"] for event in got if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == TEXT
    assert "".join(delta.get("toolUse", {}).get("input", "") for delta in deltas) == '{"a": 1}'
    assert deltas[1] == {"reasoningContent": {"signature": SIGNATURE}}
    assert got[-2] == {"messageStop": {"stopReason": "tool_use"}}
    assert got[-1]["metadata"]["usage"]["outputTokens"] > 0
    with pytest.raises(EventStreamError, match="slow down"):
        await asyncio.to_thread(_streamed, client)


def body(*turns: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"messages": [HI, *turns], **options}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


TOOLS = {"tools": [TOOL]}
USE = {"toolUse": {"toolUseId": "c", "name": "bash", "input": {}}}
CALLED = {"role": "assistant", "content": [USE]}
RESULT = {"toolResult": {"toolUseId": "c", "content": [{"text": "ok"}]}}
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}
POINT = {"cachePoint": {"type": "default"}}


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (body(CALLED, user(RESULT, {"text": "go on"}, POINT), toolConfig=TOOLS), ""),
        (body(CALLED, user(RESULT)), "The toolConfig field must be defined"),
        (body(CALLED, user({"text": "x"}), toolConfig=TOOLS), "Expected toolResult blocks for the Ids: ['c']"),
        (body(CALLED, toolConfig=TOOLS), "Expected toolResult blocks for the Ids: ['c']"),
        (body(CALLED, user({"text": "x"}, RESULT), toolConfig=TOOLS), "toolResult blocks must come first"),
        (body(user({"text": "x"})), "must alternate between user and assistant roles"),
        ({"messages": [{"role": "assistant", "content": [{"text": "x"}]}]}, "must start with a user message"),
        ({"messages": [user({"text": " "})]}, "The text field in the ContentBlock object is blank."),
        ({"messages": [user()]}, "content is empty"),
        ({"messages": []}, "messages: a non-empty list of objects is wanted"),
        ({"messages": [user({"image": {"format": "jpeg", "source": {"bytes": PNG}}})]}, "the bytes are image/png"),
        ({"messages": [user({"image": {"format": "png", "source": {"bytes": "?"}}})]}, "broken base64"),
        (body({"role": "assistant", "content": [THOUGHT]}), "followed by what it led to"),
        (body(toolConfig={"tools": []}), "at least one tool is wanted"),
        (body(toolConfig={"tools": [TOOL, TOOL]}), "bash is offered 2 times"),
        (body(toolConfig=TOOLS | {"toolChoice": {"none": {}}}), "toolConfig.toolChoice: unknown"),
        (body(inferenceConfig={"temperature": 1.5}), "a value between 0 and 1 is wanted"),
        (body(model="m"), "unknown key model"),
    ],
)
def test_what_converse_refuses(sent: dict[str, Any], refused: str) -> None:
    problems = check_request(sent)
    assert (refused in "; ".join(problems)) if refused else problems == []
    assert bool(problems) == bool(refused)
