"""Public bug reports about the chat-completions wire: what decoder and classifier make of the same bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.adapters.chat_decode import ChatDecoder, read_usage
from app.llm.failures import classify, in_band
from app.schema.errors import RETRIED_CODES, LLMError
from app.schema.stream import Chunk
from tests.llm.asking import calls_of, shorts


def decode(*wire: Any, done: bool = True) -> list[Chunk]:
    decoder = ChatDecoder("the server")
    chunks = [chunk for payload in wire for chunk in decoder.feed(payload)]
    return chunks + decoder.end(done=done)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def piece(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    call = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return delta(tool_calls=[call])


def test_b001_whole_calls_with_one_index_are_three() -> None:
    """BerriAI/litellm#7621"""
    cities = ["San Francisco", "Tokyo", "Paris"]
    wire = [piece(0, f"call_{city}", "weather", json.dumps({"location": city})) for city in cities]
    assert calls_of(decode(*wire, delta("tool_calls"))) == [("weather", {"location": city}) for city in cities]


def test_b004_interleaved_calls_keep_ids_and_names() -> None:
    """BerriAI/litellm#39796"""
    openers = [piece(index, f"c{index}", f"f{index}", "") for index in range(3)]
    rest = [piece(index, None, None, part) for part in ('{"a":', "1}") for index in range(3)]
    assert calls_of(decode(*openers, *rest, delta("tool_calls"))) == [(f"f{index}", {"a": 1}) for index in range(3)]


def test_b006_an_end_without_a_reason_is_no_answer() -> None:
    """BerriAI/litellm#40260"""
    with pytest.raises(LLMError) as caught:
        decode(delta(content="half an ans"), done=False)
    assert caught.value.code == "STREAM_CLOSED"
    assert shorts(decode(delta(content="half"), delta("stop"), done=False))[-1] == "F stop"


@pytest.mark.parametrize("odd", [{"choices": None}, {"choices": []}, {}, {"choices": [{"index": 0}]}])
def test_b010_b015_events_without_a_delta_are_skipped(odd: Any) -> None:
    """pydantic/pydantic-ai#5170, microsoft/autogen#6465"""
    chunks = decode(odd, delta(content="hello "), odd, delta(content="world"), delta("stop"))
    assert "E0 hello world" in shorts(chunks)


def test_b022_thinking_that_is_an_object_is_left_out() -> None:
    """pydantic/pydantic-ai#5155"""
    odd = {"reasoningContent": {"reasoningText": {"text": "", "signature": "CoAI"}}}
    assert shorts(decode(delta("stop", content="response", reasoning_content=odd)))[:2] == ["S0 text", "T0 response"]


def test_b049_b051_usage_is_the_last_word_and_holds_its_thinking() -> None:
    """langchain-ai/langchain#31351, browser-use/browser-use#4075"""
    counts = [{"choices": [], "usage": {"prompt_tokens": 35, "completion_tokens": count}} for count in (0, 1, 2)]
    assert "U 35 0 2 0" in shorts(decode(delta(content="x"), *counts, delta("stop")))
    details = {"completion_tokens_details": {"reasoning_tokens": 256}}
    usage = read_usage({"prompt_tokens": 20, "completion_tokens": 300, **details})
    assert (usage.output_tokens, usage.reasoning_tokens) == (300, 256)


INNER = '{"error": {"code": 400, "message": "The input token count (1091639) exceeds the maximum number of tokens'
OVERFLOW = {
    "b054": {"message": "The input (70000 tokens) is longer than the model's context length (65536 tokens)."},
    "b055": {"message": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178."},
    "b057": {"message": INNER + ' allowed (1048576).", "status": "INVALID_ARGUMENT"}}', "code": 400},
    "b058": {"message": "x", "type": "invalid_request_error", "code": "context_length_exceeded"},
}


@pytest.mark.parametrize("error", OVERFLOW.values(), ids=OVERFLOW)
def test_b054_b055_b057_b058_overflow_is_told(error: Any) -> None:
    """BerriAI/litellm#10793, BerriAI/litellm#15968, google-gemini/gemini-cli#5807, anomalyco/opencode#17746"""
    assert classify(400, json.dumps({"error": error}).encode()).code == "CONTEXT_WINDOW_EXCEEDED"
    assert "CONTEXT_WINDOW_EXCEEDED" not in RETRIED_CODES


def test_b039_a_call_the_model_got_wrong_is_its_own_kind() -> None:
    """pydantic/pydantic-ai#4354"""
    error = {"message": "Failed to call a function", "type": "invalid_request_error", "code": "tool_use_failed"}
    assert classify(400, json.dumps({"error": error}).encode()).code == "INVALID_TOOL_CALL"


def test_b066_an_error_with_status_200_is_an_error() -> None:
    """runpod-workers/worker-vllm#57"""
    said = {"code": 404, "message": "The model `x` does not exist.", "object": "error", "type": "NotFoundError"}
    error = in_band(said, who="the server")
    assert error is not None
    assert error.code == "UNKNOWN_MODEL"


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [(1008, "insufficient balance", "QUOTA"), (1002, "rate limit", "RATE_LIMIT"), (1004, "unauthorized", "AUTH")],
)
def test_b067_minimax_says_it_in_base_resp(code: int, words: str, expected: str) -> None:
    """QwenLM/qwen-code#8322"""
    error = in_band({"choices": None, "base_resp": {"status_code": code, "status_msg": words}}, who="MiniMax")
    assert error is not None
    assert error.code == expected
    assert in_band({"choices": None, "base_resp": {"status_code": 0, "status_msg": ""}}, who="MiniMax") is None
