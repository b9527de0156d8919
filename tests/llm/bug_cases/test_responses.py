"""Public bug reports about the Responses API, each as a small case."""

from __future__ import annotations

from typing import Any

import pytest

from app.schema.errors import LLMError
from tests.fault_server import events
from tests.fault_server.responses import Responses
from tests.llm.conftest import MakeLLM

WIRE: dict[str, Any] = {"server": {"dialect": Responses()}, "api_type": "openai_responses"}


async def test_b007_a_failure_after_the_200_is_no_empty_answer(make_llm: MakeLLM) -> None:
    """BerriAI/litellm#32475"""
    failed = {"status": "failed", "error": {"code": "server_error", "message": "boom"}, "output": []}
    script = [
        events({"type": "response.created", "response": {}}, {"type": "response.failed", "response": failed}),
    ] * 6
    llm, server = await make_llm(script, **WIRE)
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "SERVER"
    assert len(server.chats) == 6


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "OUTPUT_LIMIT"),
        ({"status": "failed"}, "SERVER"),
    ],
)
async def test_b027_an_end_that_is_no_success_is_no_result(answer: Any, code: str, make_llm: MakeLLM) -> None:
    """openai/openai-agents-python#4516"""
    kind = f"response.{answer['status']}"
    script = [events({"type": kind, "response": {"object": "response", "output": [], **answer}})] * 6
    llm, _ = await make_llm(script, **WIRE)
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == code


async def test_b028_no_tool_options_without_tools(make_llm: MakeLLM) -> None:
    """pydantic/pydantic-ai#4935"""
    answer = {"object": "response", "status": "completed", "output": []}
    answer["output"] = [{"type": "message", "content": [{"type": "output_text", "text": "fine"}]}]  # type: ignore[assignment]
    script = [events({"type": "response.completed", "response": answer})]
    llm, server = await make_llm(script, capabilities={"parallel_tools": False}, **WIRE)
    assert await llm.ask("hi") == "fine"
    assert server.chats[0].json.keys() & {"tools", "tool_choice", "parallel_tool_calls"} == set()
