"""Public bug reports about Bedrock's Converse, each as a small case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.adapters.bedrock_decode import ConverseDecoder, FrameReader
from app.schema.stream import Chunk
from tests.fault_server.bedrock import frame
from tests.llm.asking import shorts

HI = ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hi"}})
STOP = ("messageStop", {"stopReason": "end_turn"})


def decoded(*events: tuple[str, Any]) -> list[Chunk]:
    reader, decoder = FrameReader("the server"), ConverseDecoder("the server", "us-east-1")
    frames = b"".join(frame(name, json.dumps(payload).encode()) for name, payload in events)
    chunks = [chunk for name, payload in reader.feed(frames) for chunk in decoder.feed(payload, name)]
    return chunks + decoder.end(done=decoder.done)


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("end_turn", "F stop"),
        ("stop_sequence", "F stop"),
        ("max_tokens", "F max-tokens"),
        ("guardrail_intervened", "F error CONTENT_FILTER"),
        ("content_filtered", "F error CONTENT_FILTER"),
        ("malformed_model_output", "F error MALFORMED_RESPONSE"),
        ("malformed_tool_use", "F error INVALID_TOOL_CALL"),
        ("model_context_window_exceeded", "F error CONTEXT_WINDOW_EXCEEDED"),
        ("foo", "F error FOO"),
    ],
)
def test_b072_every_stop_reason(reason: str, end: str) -> None:
    """pydantic/pydantic-ai#5640"""
    assert shorts(decoded(HI, ("messageStop", {"stopReason": reason})))[-1] == end
    whole = {"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": reason}
    assert shorts(ConverseDecoder("x", "y").complete_body(whole))[-1] == end


def test_b073_a_start_without_a_message() -> None:
    """pydantic/pydantic-ai#5818"""
    start = ("messageStart", {"message": None, "role": None})
    assert shorts(decoded(start, HI, STOP)) == ["S0 text", "T0 Hi", "E0 Hi", "F stop"]
