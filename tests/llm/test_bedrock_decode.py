"""Converse's frames and events to chunks: split at every byte, every stop reason, every exception."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.adapters.bedrock_decode import ConverseDecoder, FrameReader
from app.schema.errors import LLMError
from app.schema.stream import Chunk, Finish, UsageReport
from app.schema.usage import Usage
from tests.fault_server import Reply, call, reply, usage
from tests.fault_server.bedrock import SIGNATURE, Bedrock, frame
from tests.fault_server.record import Request
from tests.llm.asking import shorts

FULL = reply(
    "Héllo 👍",
    reasoning="hm",
    tool_calls=[call("bash", {"a": 1}, id="c1"), call("read", id="c2")],
    usage=usage(100, 20, cached=60),
    stream_pieces=3,
)
FULL_CHUNKS = [
    "S0 reasoning", "R0 hm", "E0 hm",
    "S1 text", "T1 Hél", "T1 lo ", "T1 👍", "E1 Héllo 👍",
    "S2 tool-call", "C2 c1 bash ", 'C2 c1 bash {"a', 'C2 c1 bash ": ', "C2 c1 bash 1}", 'E2 c1 bash {"a": 1}',
    "S3 tool-call", "C3 c2 read ", "C3 c2 read {}", "E3 c2 read {}",
    "U 40 60 20 0", "F tool-calls",
]  # fmt: skip
STATE = {
    "converse": "us-east-1",
    "blocks": [{"reasoningText": {"text": "hm", "signature": SIGNATURE}}, None, None, None],
}


def recorded(behaviour: Reply) -> list[tuple[str, Any]]:
    request = Request(1, 1, 0.0, "POST", "/model/m/converse-stream", {}, b"x" * 40, {})
    return [(event.name or "", json.loads(event.payload)) for event in Bedrock().events(behaviour, request)]


def body(events: list[tuple[str, Any]]) -> bytes:
    return b"".join(frame(name, json.dumps(payload, ensure_ascii=False).encode()) for name, payload in events)


def read(*pieces: bytes) -> list[Chunk]:
    reader, decoder = FrameReader("the server"), ConverseDecoder("the server", "us-east-1")
    chunks: list[Chunk] = []
    for piece in pieces:
        for name, payload in reader.feed(piece):
            chunks += decoder.feed(payload, name)
    assert list(reader.flush()) == []
    return chunks + decoder.end(done=decoder.done)


def decoded(*events: tuple[str, Any]) -> list[Chunk]:
    return read(body(list(events)))


def block(index: int, delta: dict[str, Any]) -> tuple[str, Any]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}


STOP = ("messageStop", {"stopReason": "end_turn"})
HI = block(0, {"text": "Hi"})


def test_a_whole_stream() -> None:
    chunks = decoded(*recorded(FULL))
    assert shorts(chunks) == FULL_CHUNKS
    assert chunks[-1] == Finish("tool-calls", replay_state=STATE)


def test_every_split_gives_the_same_chunks() -> None:
    whole = body(recorded(FULL))
    for position in range(1, len(whole), 3):
        assert shorts(read(whole[:position], whole[position:])) == FULL_CHUNKS, position
    assert shorts(read(*(bytes([byte]) for byte in whole))) == FULL_CHUNKS


def test_a_whole_reply() -> None:
    request = Request(1, 1, 0.0, "POST", "/model/m/converse", {}, b"x" * 40, {})
    chunks = ConverseDecoder("the server", "us-east-1").complete_body(Bedrock().document(FULL, request))
    assert [chunk for chunk in shorts(chunks) if chunk[0] in "EUF"] == [
        chunk for chunk in FULL_CHUNKS if chunk[0] in "EUF"
    ]
    assert chunks[-1] == Finish("tool-calls", replay_state=STATE)


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("throttlingException", "Too many tokens, please wait before trying again.", "RATE_LIMIT"),
        ("validationException", "Input is too long for requested model.", "CONTEXT_WINDOW_EXCEEDED"),
        ("validationException", "bad field", "INVALID_REQUEST"),
        ("internalServerException", "oops", "SERVER"),
        ("serviceUnavailableException", "busy", "SERVER"),
        ("modelStreamErrorException", "the model broke off", "SERVER"),
        ("modelTimeoutException", "slow", "TIMEOUT"),
        ("somethingNewException", "what", "SERVER"),
    ],
)
def test_every_exception_inside_a_stream(name: str, message: str, code: str) -> None:
    with pytest.raises(LLMError) as caught:
        decoded(HI, (name, {"message": message}))
    assert caught.value.code == code
    assert message in caught.value.message


def test_an_error_frame_of_the_transport() -> None:
    reader, decoder = FrameReader("the server"), ConverseDecoder("the server", "x")
    name, payload = reader._event(
        {":message-type": "error", ":error-code": "InternalError", ":error-message": "m"}, b""
    )
    with pytest.raises(LLMError) as caught:
        decoder.feed(payload, name)
    assert (caught.value.code, "m" in caught.value.message) == ("SERVER", True)


def test_unknown_events_are_passed_over() -> None:
    assert shorts(decoded(("weatherChanged", {"a": 1}), HI, STOP))[-1] == "F stop"


def test_redacted_and_signed_thinking_in_pieces() -> None:
    chunks = decoded(
        block(0, {"reasoningContent": {"redactedContent": "UkVE"}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        block(1, {"reasoningContent": {"text": "so"}}),
        block(1, {"reasoningContent": {"signature": "ab"}}),
        block(1, {"reasoningContent": {"signature": "cd"}}),
        block(2, {"text": "Hi"}),
        STOP,
    )
    assert shorts(chunks) == [
        "S0 reasoning", "E0 ", "S1 reasoning", "R1 so", "S2 text", "T2 Hi", "E1 so", "E2 Hi", "F stop",
    ]  # fmt: skip
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    assert finish.replay_state["blocks"] == [
        {"redactedContent": "UkVE"},
        {"reasoningText": {"text": "so", "signature": "abcd"}},
        None,
    ]


def test_no_stop_reason_is_a_broken_stream() -> None:
    with pytest.raises(LLMError) as caught:
        decoded(HI)
    assert caught.value.code == "STREAM_CLOSED"


@pytest.mark.parametrize("spoilt", [8, 20, -1])
def test_a_check_sum_that_does_not_fit(spoilt: int) -> None:
    whole = bytearray(body([HI, STOP]))
    whole[spoilt] ^= 1
    with pytest.raises(LLMError) as caught:
        read(bytes(whole))
    assert caught.value.code == "MALFORMED_RESPONSE"


def test_usage_is_disjoint() -> None:
    counts = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 20, "cacheWriteInputTokens": 15}
    chunks = decoded(HI, STOP, ("metadata", {"usage": counts}))
    assert chunks[-2] == UsageReport(Usage(10, 5, cache_read_tokens=20, cache_write_tokens=15))


def test_json_that_is_no_reply() -> None:
    with pytest.raises(LLMError) as caught:
        ConverseDecoder("x", "y").complete_body({"choices": []})
    assert caught.value.code == "ENDPOINT"
