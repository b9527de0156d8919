"""Public bug reports about Ollama, each as a small case."""

from __future__ import annotations

from typing import Any

import pytest

from app.schema.errors import LLMError
from app.schema.event import EventRecord
from app.schema.run import RunContext
from tests.fault_server import events as wire_events
from tests.fault_server import reply, status, usage
from tests.fault_server.ollama import Ollama
from tests.llm.asking import BASH, codes
from tests.llm.conftest import MakeLLM

WIRE: dict[str, Any] = {"server": {"dialect": Ollama()}, "api_type": "ollama"}


def lines(*cities: str, reason: str) -> Any:
    said = [{"function": {"name": "bash", "arguments": {"command": city}}} for city in cities]
    shell = {"role": "assistant", "content": ""}
    calls = [{"message": shell | {"tool_calls": [each]}, "done": False} for each in said]
    return wire_events(*calls, {"message": shell, "done": True, "done_reason": reason})


@pytest.mark.parametrize("cities", [("Paris",), ("Paris", "Rome")])
@pytest.mark.parametrize(("reason", "finish"), [("stop", "tool-calls"), ("length", "max-tokens")])
async def test_b003_calls_with_an_object_and_the_reason_stop(
    cities: tuple[str, ...], reason: str, finish: str, make_llm: MakeLLM
) -> None:
    """BerriAI/litellm#37792: the arguments broke, two calls became one, or the turn was taken for an answer."""
    llm, _ = await make_llm([lines(*cities, reason=reason)], **WIRE)
    got = await llm.ask_tool("weather?", tools=(BASH,))
    whole = cities if reason == "stop" else ()  # a reply that was cut calls nothing
    assert [(made.name, made.arguments) for made in got.message.tool_calls] == [
        ("bash", f'{{"command":"{city}"}}') for city in whole
    ]
    assert len({made.id for made in got.message.tool_calls}) == len(whole)
    assert got.finish.reason == finish


async def test_b069_a_prompt_that_was_cut_until_no_question_is_left(make_llm: MakeLLM) -> None:
    """ollama/ollama#18107: the server drops the user's turn and answers 500; more tries would say the same."""
    llm, server = await make_llm([status(500, {"error": "no user query found in messages"})], **WIRE)
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "CONTEXT_WINDOW_EXCEEDED"
    assert len(server.chats) == 1


@pytest.mark.parametrize("wire", [WIRE, {}], ids=["its own API", "chat completions"])
async def test_b070_a_prompt_that_was_cut_in_silence_is_told_once(
    wire: dict[str, Any], make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    """ollama/ollama#3839: the only sign is the small count, which is no measure for later estimates."""
    llm, _ = await make_llm([reply("ok", usage=usage(2051, 3))] * 2, **wire)
    long = "some words of a task " * 3150
    estimate = llm.counter.text(long)
    assert 15_000 < estimate < 16_000
    for _ in range(2):
        assert await llm.ask(long, ctx=ctx) == "ok"
    assert codes(events).count("PROMPT_CUT") == 1
    assert llm.counter.ratio == 1


async def test_b070_a_count_that_is_near_is_no_cut(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, _ = await make_llm([reply("ok", usage=usage(9000, 3))], **WIRE)
    assert llm.counter.text("warm")
    await llm.ask("some words of a task " * 3150, ctx=ctx)
    assert "PROMPT_CUT" not in codes(events)
    assert llm.counter.ratio < 1
