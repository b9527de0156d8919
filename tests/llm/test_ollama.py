"""Ollama's own dialect: bodies, windows, thinking, and the download of a missing model after consent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.llm.adapters.http import Account
from app.llm.adapters.ollama import OllamaAdapter, OllamaDecoder
from app.llm.adapters.ollama_encode import SMALLEST_WINDOW
from app.llm.downloads import DownloadHooks, Progress
from app.llm.models import DEFAULTS, ModelFacts, facts_for
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.message import (
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelRequest
from app.schema.stream import Chunk
from tests.conftest import MakeServer
from tests.fault_server import reply, status
from tests.fault_server.ollama import Ollama, check_request
from tests.llm.asking import BASH, PNG, ask, chunks_of, shorts

LS = ToolCallBlock("c1", "bash", '{"command":"ls"}')


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport()
    yield made
    await made.close()


def adapter(transport: Transport, base_url: str = "http://x", facts: ModelFacts = DEFAULTS) -> OllamaAdapter:
    return OllamaAdapter(Account("ollama", "Ollama", base_url, local=True), transport, route="main", facts=facts)


def body(request: ModelRequest, facts: ModelFacts = DEFAULTS) -> dict[str, Any]:
    return json.loads(adapter(Transport(), facts=facts).encode(request))


def test_a_whole_request() -> None:
    thought = assistant_message((ReasoningBlock("hm"), TextBlock("Look."), LS), provider="main", model="m")
    picture = ImageBlock(PNG, "image/png", 1, 1)
    request = ask(
        user_message((TextBlock("What is this?"), picture)),
        thought,
        tool_result_message("c1", (TextBlock("done"), picture)),
        system="Be brief.",
        tools=(BASH,),
        max_tokens=100,
        temperature=0.5,
        stop=("END",),
        reasoning_effort="high",
    )
    sent = body(request)
    described = {"name": "bash", "description": "Run a command.", "parameters": BASH.parameters}
    assert sent == {
        "model": "test-model",
        "stream": True,
        "tools": [{"type": "function", "function": described}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is this?", "images": [PNG]},
            {
                "role": "assistant",
                "content": "Look.",
                "thinking": "hm",
                "tool_calls": [{"id": "c1", "function": {"name": "bash", "arguments": {"command": "ls"}}}],
            },
            {"role": "tool", "content": "done", "tool_name": "bash", "tool_call_id": "c1"},
            {"role": "user", "content": "Image of the tool result c1:", "images": [PNG]},
        ],
        "think": True,
        "options": {"num_ctx": SMALLEST_WINDOW, "num_predict": 100, "temperature": 0.5, "stop": ["END"]},
    }
    assert check_request(sent) == []


@pytest.mark.parametrize(
    ("model", "effort", "think"),
    [("qwen3:8b", "off", False), ("qwen3:8b", "low", True), ("gpt-oss:20b", "low", "low"), ("qwen3:8b", None, None)],
)
def test_thinking(model: str, effort: str | None, think: bool | str | None) -> None:
    assert body(ask(model=model, reasoning_effort=effort)).get("think") == think


def test_thinking_of_others_and_without_a_call_stays_home() -> None:
    foreign = assistant_message((ReasoningBlock("hm"), LS), provider="other", model="m")
    spoken = assistant_message((ReasoningBlock("hm"), TextBlock("Yes.")), provider="main", model="m")
    sent = body(ask("Hi", foreign, tool_result_message("c1", "ok"), spoken, "Go on"))
    assert not any("thinking" in message for message in sent["messages"])


def test_the_window_fits_the_prompt_grows_by_doubling_and_never_shrinks() -> None:
    speaks = adapter(Transport(), facts=facts_for("qwen3:8b"))

    def window(text: str) -> int:
        return json.loads(speaks.encode(ask(text, model="qwen3:8b")))["options"]["num_ctx"]

    assert [window("hi"), window("x" * 30_000), window("hi"), window("x" * 90_000)] == [8192, 16_384, 16_384, 32_768]
    assert window("x" * 9_000_000) == 131_072, "no more than the model has"


def test_the_users_window_is_taken_as_it_is() -> None:
    speaks = adapter(Transport())
    speaks.window = 12_000
    assert json.loads(speaks.encode(ask("x" * 100_000)))["options"]["num_ctx"] == 12_000


@pytest.mark.parametrize("given", ["30m", -1, None])
def test_how_long_the_model_stays_loaded(given: str | int | None) -> None:
    speaks = adapter(Transport())
    speaks.keep_alive = given
    sent = json.loads(speaks.encode(ask()))
    assert sent.get("keep_alive") == given
    assert ("keep_alive" in sent) is (given is not None)
    assert check_request(sent) == []


def test_a_schema_of_the_reply() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert body(ask(response_schema=schema))["format"] == schema


def decoded(*lines: Any) -> list[Chunk]:
    decoder = OllamaDecoder("Ollama")
    return [chunk for line in lines for chunk in decoder.feed(line)] + decoder.end(done=False)


def test_thinking_text_calls_and_usage() -> None:
    call = {"id": "c7", "function": {"name": "bash", "arguments": {"command": "ls"}}}
    lines = shorts(
        decoded(
            {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
            {"message": {"content": "Hel"}, "done": False},
            {"message": {"content": "lo"}, "done": False},
            {"message": {"content": "", "tool_calls": [call]}},
            {"message": {"content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 26, "eval_count": 9},
        )
    )
    assert [line for line in lines if line[0] in "EUF"] == [
        "E0 hm", "E1 Hello", 'E2 c7 bash {"command":"ls"}', "U 26 0 9 0", "F tool-calls",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"done": True, "done_reason": "length", "message": {"content": "x"}}, "F max-tokens"),
        ({"done": True, "done_reason": "load", "message": {"content": ""}}, "F error EMPTY_RESPONSE"),
        ({"done": True, "message": {"content": "old servers name no reason"}}, "F stop"),
    ],
)
def test_ends(last: dict[str, Any], expected: str) -> None:
    assert shorts(decoded(last))[-1] == expected


class Person:
    """Who is asked before a download, and sees its progress."""

    def __init__(self, *, agrees: bool) -> None:
        self.agrees = agrees
        self.asked: list[str] = []
        self.seen: list[Progress] = []

    async def consent(self, question: str) -> bool:
        self.asked.append(question)
        return self.agrees

    @property
    def hooks(self) -> DownloadHooks:
        return DownloadHooks(consent=self.consent, progress=self.seen.append)


async def test_a_missing_model_is_pulled_once_with_progress(fault_server: MakeServer, transport: Transport) -> None:
    wire = Ollama(missing=("qwen3:8b",))
    server = await fault_server([reply("Here I am."), reply("Again.")], dialect=wire)
    speaks, person = adapter(transport, server.root), Person(agrees=True)
    speaks.downloads = person.hooks
    lines = shorts(await chunks_of(speaks, ask(model="qwen3:8b")))
    assert "E0 Here I am." in lines
    assert wire.pulled == ["qwen3:8b"]
    assert person.asked == ["Ollama does not have qwen3:8b yet. Download it there now?"]
    assert [(step.done, step.total) for step in person.seen] == [(0, 100), (40, 100), (100, 100)]
    assert "E0 Again." in shorts(await chunks_of(speaks, ask(model="qwen3:8b")))
    assert len(person.asked) == 1


@pytest.mark.parametrize("agrees", [False, True])
async def test_without_consent_or_with_a_model_nobody_has_it_stays_missing(
    agrees: bool, fault_server: MakeServer, transport: Transport
) -> None:
    wire = Ollama(missing=("nosuch",))
    server = await fault_server([], dialect=wire)
    speaks, person = adapter(transport, server.root), Person(agrees=agrees)
    speaks.downloads = person.hooks
    if agrees:
        server.routes["/api/pull"] = lambda request: status(
            200, '{"error":"pull model manifest: file does not exist"}\n'
        )
    hints: list[str] = []
    for _ in range(2):
        with pytest.raises(LLMError) as caught:
            await chunks_of(speaks, ask(model="nosuch"))
        hints.append(caught.value.hint)
    assert hints[1] == "`ollama pull nosuch` downloads it, and so does a run with --yes"
    assert len(person.asked) == 1, "asked once, not at each try"
    assert wire.pulled == []


async def test_models(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([], dialect=Ollama(), models=("qwen3:8b", "llama3.2"))
    listed = await adapter(transport, server.root).list_models("main")
    assert [each.id for each in listed] == ["qwen3:8b", "llama3.2"]


async def test_refused_thinking_is_left_out(fault_server: MakeServer, transport: Transport) -> None:
    server = await fault_server([status(400, {"error": '"llama3.2" does not support thinking'})], dialect=Ollama())
    speaks = adapter(transport, server.root)
    request = ask(reasoning_effort="low")
    with pytest.raises(LLMError) as caught:
        await chunks_of(speaks, request)
    assert speaks.correct(caught.value, request)
    assert "think" not in json.loads(speaks.encode(request))
