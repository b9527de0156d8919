"""Accounts at AWS: region, address, credentials, signature, and what people are told when one of them is missing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from app.config.settings import LLMSettings
from app.llm.adapters.aws import AWSAccess
from app.llm.adapters.bedrock import BedrockAdapter
from app.llm.adapters.corrections import SAID
from app.llm.pool import LLMPool
from app.schema.errors import ConfigError, DragomanError, LLMError
from app.schema.event import EventRecord
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import Behaviour, FaultServer, Request, call, reply, stall, status
from tests.fault_server.bedrock import Bedrock, model_of
from tests.llm.asking import BASH, ask, chunks_of, shorts
from tests.llm.conftest import MakeLLM

MODEL = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalr/secret", "AWS_SESSION_TOKEN": "token"}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that knows nothing of AWS."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def access(*, base_url: str = "", region: str = "", bearer: bool = False) -> AWSAccess:
    return AWSAccess(base_url=base_url, region=region, bearer=bearer)


@pytest.mark.parametrize(
    ("options", "env", "region", "runtime"),
    [
        ({"region": "eu-west-1"}, {"AWS_REGION": "us-west-2"}, "eu-west-1", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ({}, {"AWS_REGION": "us-west-2"}, "us-west-2", "https://bedrock-runtime.us-west-2.amazonaws.com"),
        ({}, {"AWS_DEFAULT_REGION": "us-east-2"}, "us-east-2", "https://bedrock-runtime.us-east-2.amazonaws.com"),
        ({"region": "cn-north-1"}, {}, "cn-north-1", "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"),
        ({"base_url": "https://bedrock-runtime.ap-south-1.amazonaws.com/"}, {}, "ap-south-1",
         "https://bedrock-runtime.ap-south-1.amazonaws.com"),
        ({"base_url": "https://bedrock.us-west-2.amazonaws.com"}, {"AWS_REGION": "eu-west-1"}, "us-west-2",
         "https://bedrock-runtime.us-west-2.amazonaws.com"),
        ({"base_url": "https://vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com"}, {}, "eu-west-1",
         "https://vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com"),
        ({"base_url": "https://gate.example.org/aws"}, {}, "us-east-1", "https://gate.example.org/aws"),
    ],
)  # fmt: skip
async def test_region_and_address(
    options: Any, env: dict[str, str], region: str, runtime: str, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    account = access(**options)
    await account.open()
    assert (account.region, account.runtime) == (region, runtime)
    if runtime.startswith("https://bedrock-runtime"):
        assert account.catalogue == runtime.replace("bedrock-runtime", "bedrock")


async def test_the_region_of_a_profile(keys: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "AWS_CONFIG_FILE").write_text("[profile work]\nregion = sa-east-1\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    account = access()
    await account.open()
    assert account.region == "sa-east-1"


@pytest.mark.parametrize(
    ("options", "env", "kind", "says", "advises"),
    [
        ({"bearer": True}, {}, ConfigError, "no AWS region is set", "set region under [llm], or the variable AWS_REG"),
        ({"region": "us-east-1"}, {}, LLMError, "no AWS credentials were found", "AWS_BEARER_TOKEN_BEDROCK"),
        ({}, {"AWS_PROFILE": "nobody"}, LLMError, "nobody", "AWS_PROFILE"),
        ({"region": "us east"}, KEYS, ConfigError, "us east", "set region under [llm]"),
    ],
)  # fmt: skip
async def test_what_is_missing_is_named(
    options: Any,
    env: dict[str, str],
    kind: type[DragomanError],
    says: str,
    advises: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind) as caught:
        await access(**options).open()
    assert says in str(caught.value)
    assert advises in caught.value.hint
    assert caught.value.code in ("CONFIG", "MISSING_CREDENTIAL")


async def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(ConfigError) as caught:
        await access(region="us-east-1").open()
    assert caught.value.hint == "pip install 'dragoman[bedrock]'"


def settings(server: FaultServer, **more: Any) -> LLMSettings:
    options = {"name": "main", "api_type": "aws", "model": MODEL, "base_url": server.root, "region": "us-east-1"}
    return LLMSettings(**{**options, **more})


async def test_the_signature_is_the_one_botocore_makes_of_what_arrived(fault_server: MakeServer, keys: None) -> None:
    server = await fault_server([reply("Hi")], dialect=Bedrock())
    pool = LLMPool({"main": settings(server, headers={"X-Team": "research"})})
    assert await pool.get("main").ask("hi 日本") == "Hi"
    await pool.close()
    (request,) = server.chats
    assert model_of(request) == MODEL
    assert ":" not in request.path, "as boto3 writes it"
    sent = request.headers
    assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert (sent["x-amz-security-token"], sent["x-team"]) == ("token", "research")
    signer = SigV4Auth(Credentials("AKIDEXAMPLE", "wJalr/secret", "token"), "bedrock", "us-east-1")
    signed = sent["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-security-token", "content-type"} <= set(signed)
    again = AWSRequest("POST", f"{server.root}{request.path}", {name: sent[name] for name in signed}, request.body)
    again.context["timestamp"] = sent["x-amz-date"]
    text = signer.string_to_sign(again, signer.canonical_request(again))
    assert sent["authorization"].endswith(f"Signature={signer.signature(text, again)}")


async def test_an_api_key_is_a_bearer_token(fault_server: MakeServer) -> None:
    server = await fault_server([reply("Hi")], dialect=Bedrock())
    pool = LLMPool({"main": settings(server, api_key="bedrock-api-key-abc")})
    assert await pool.get("main").ask("hi") == "Hi"
    await pool.close()
    assert server.chats[0].headers["authorization"] == "Bearer bedrock-api-key-abc"


async def test_openmanus_stand_in_for_a_key_is_none(fault_server: MakeServer, keys: None) -> None:
    server = await fault_server([reply("Hi")], dialect=Bedrock())
    pool = LLMPool({"main": settings(server, api_key="bear")})
    assert await pool.get("main").ask("hi") == "Hi"
    await pool.close()
    assert server.chats[0].headers["authorization"].startswith("AWS4-HMAC-SHA256")


async def test_models_are_listed(fault_server: MakeServer, keys: None) -> None:
    server = await fault_server([], dialect=Bedrock(), models=["anthropic.claude-x"])
    pool = LLMPool({"main": settings(server)})
    pool.get("main")
    listed = await pool.service.list_models("main")
    assert [(info.id, info.name) for info in listed] == [("anthropic.claude-x", "Anthropic.Claude-X")]
    assert "AWS4-HMAC-SHA256" in server.requests[0].headers["authorization"]
    await pool.close()


@pytest.mark.parametrize(
    ("code", "message", "expected", "advice"),
    [
        (400, "Invocation of model ID anthropic.x with on-demand throughput isn’t supported. Retry your request with"
         " the ID or ARN of an inference profile that contains this model.", "UNKNOWN_MODEL", "an inference profile"),
        (400, "The provided model identifier is invalid.", "UNKNOWN_MODEL", "check `model` and region"),
        (404, "Could not resolve the foundation model from the provided identifier.", "UNKNOWN_MODEL", "check `model`"),
        (403, "You don't have access to the model with the specified model ID.", "AUTH", "Bedrock console"),
        (403, "User: arn:aws:iam::1:user/x is not authorized to perform: bedrock:InvokeModel", "AUTH", "InvokeModel"),
        (403, "The security token included in the request is invalid.", "AUTH", "wrong or out of date"),
        (403, "The security token included in the request is expired", "AUTH", "wrong or out of date"),
        (403, "The request signature we calculated does not match the signature you provided.", "AUTH", "wrong"),
        (429, "Too many tokens, please wait before trying again.", "RATE_LIMIT", ""),
        (400, "Input is too long for requested model.", "CONTEXT_WINDOW_EXCEEDED", ""),
        (424, "The model failed", "SERVER", ""),
    ],
)  # fmt: skip
async def test_what_the_service_says(
    code: int, message: str, expected: str, advice: str, fault_server: MakeServer, keys: None
) -> None:
    server = await fault_server([status(code, message=message)], dialect=Bedrock())
    pool = LLMPool({"main": settings(server)})
    pool.get("main")
    with pytest.raises(LLMError) as caught:
        await chunks_of(pool.service.adapter("main"), ask(model=MODEL))
    await pool.close()
    assert caught.value.code == expected
    assert advice in caught.value.hint
    assert "secret" not in str(caught.value)


async def test_a_model_that_cannot_stream_with_tools_answers_whole(make_llm: MakeLLM, keys: None) -> None:
    refusal = status(400, message="This model doesn't support tool use in streaming mode.")
    answers = [refusal, reply("", tool_calls=[call("bash", {"command": "ls"}, id="c1")]), reply("again")]
    llm, server = await make_llm(
        answers, server={"dialect": Bedrock()}, api_type="aws", api_key="", region="us-east-1", model="meta.llama3-1"
    )
    pool_root = server.root
    assert pool_root in llm.settings.base_url
    got = await llm.ask_tool("list", tools=(BASH,))
    assert [made.name for made in got.message.tool_calls] == ["bash"]
    assert await llm.ask("more") == "again"
    assert [request.path.rpartition("/")[2] for request in server.chats] == ["converse-stream", "converse", "converse"]


@pytest.mark.parametrize(
    ("code", "words", "member", "told"),
    [
        (400, "This model doesn't support system messages. Try again without a system message.", "system", "system"),
        (400, "`temperature` is deprecated for this model.", "inferenceConfig", "temperature"),
        (400, "This model doesn't support the toolConfig.toolChoice.any field.", "toolChoice", "tool_choice"),
        (403, "You invoked an unsupported model or your request did not allow prompt caching.", "cachePoint", "cache"),
    ],
)  # fmt: skip
async def test_refused_options_are_left_out_and_said_once(
    code: int,
    words: str,
    member: str,
    told: str,
    make_llm: MakeLLM,
    keys: None,
    ctx: RunContext,
    events: list[EventRecord],
) -> None:
    def answer(request: Request) -> Behaviour:
        return status(code, message=words) if f'"{member}"'.encode() in request.body else reply("fine")

    aws: Any = {"api_type": "aws", "api_key": "", "region": "us-east-1", "model": MODEL, "temperature": 0.5}
    llm, server = await make_llm(answer, server={"dialect": Bedrock()}, **aws)
    for _ in range(2):
        got = await llm.ask_tool("hi", system="be brief", tools=(BASH,), tool_choice="required", ctx=ctx)
        assert got.text == "fine"
    assert len(server.chats) == 3
    (said,) = [record.event.message for record in events if getattr(record.event, "code", "") == "OPTION_DROPPED"]
    assert said == f"{MODEL}: {SAID[told]}"


async def test_thinking_is_marked_with_its_model(fault_server: MakeServer, keys: None) -> None:
    server = await fault_server([reply("Hi", reasoning="hm")], dialect=Bedrock())
    pool = LLMPool({"main": settings(server)})
    pool.get("main")
    adapter = pool.service.adapter("main")
    assert isinstance(adapter, BedrockAdapter)
    chunks = await chunks_of(adapter, ask(model=MODEL))
    await pool.close()
    assert shorts(chunks)[-1] == "F stop"
    state: Any = chunks[-1].replay_state  # type: ignore[union-attr]
    assert (state["model"], state["converse"]) == (MODEL, server.root)


async def test_defect_42_requests_run_side_by_side_and_are_cancelled_at_once(
    fault_server: MakeServer, keys: None
) -> None:
    server = await fault_server(lambda _: stall(), dialect=Bedrock())
    pool = LLMPool({"main": settings(server)})
    asked = [asyncio.create_task(pool.get("main").ask("hi")) for _ in range(3)]
    await server.until(lambda server: len(server.chats) == 3)
    for task in asked:
        task.cancel()
    await server.until(lambda server: server.disconnects == 3, timeout_s=0.5)
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*asked, return_exceptions=True))
    await pool.close()
