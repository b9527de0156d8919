"""Events of the Responses API to chunks: every end, what is lost on the way, and items that other servers send."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.llm.adapters.responses_decode import ResponsesDecoder
from app.schema.errors import LLMError
from app.schema.stream import Chunk, Finish
from tests.fault_server import Reply, call, reply, usage
from tests.fault_server.record import Request
from tests.fault_server.responses import Responses, sealed
from tests.llm.asking import shorts

ORIGIN = "https://api.openai.com/v1"


def decoded(*events: Any, done: bool = True) -> list[Chunk]:
    decoder = ResponsesDecoder("the server", ORIGIN)
    chunks = [chunk for event in events for chunk in decoder.feed(event, event["type"])]
    return chunks + decoder.end(done=done)


def whole(**fields: Any) -> list[Chunk]:
    return ResponsesDecoder("the server", ORIGIN).complete_body({"object": "response", "model": "m", **fields})


def recorded(behaviour: Reply) -> list[Any]:
    """The fault server's events for this reply."""
    asked = {"model": "m", "input": [], "include": ["reasoning.encrypted_content"]}
    request = Request(1, 1, 0.0, "POST", "/v1/responses", {}, b"x" * 40, asked)
    return [json.loads(event.payload) for event in Responses().events(behaviour, request)]


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def finished(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def message(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts], **more}


COMPLETED = {"type": "response.completed", "response": {"status": "completed", "model": "m"}}
FULL = reply(
    "Hello",
    reasoning="hm",
    tool_calls=[call("bash", {"a": 1}, id="c1"), call("read", id="c2")],
    usage=usage(100, 20, cached=60, reasoning=7),
    stream_pieces=3,
)
FULL_CHUNKS = [
    "S0 reasoning", "R0 hm", "E0 hm",
    "S1 text", "T1 Hel", "T1 lo", "E1 Hello",
    "S2 tool-call", "C2 c1 bash ", 'C2 c1 bash {"a', 'C2 c1 bash ": ', "C2 c1 bash 1}", 'E2 c1 bash {"a": 1}',
    "S3 tool-call", "C3 c2 read ", "C3 c2 read {}", "E3 c2 read {}",
    "U 40 60 20 7", "F tool-calls",
]  # fmt: skip


def test_a_whole_stream() -> None:
    chunks = decoded(*recorded(FULL))
    assert shorts(chunks) == FULL_CHUNKS
    assert chunks[-1] == Finish(
        "tool-calls",
        model="m",
        replay_state={
            "responses": ORIGIN,
            "blocks": [
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "hm"}],
                    "encrypted_content": sealed("hm"),
                },
                {"phase": "commentary"},
                None,
                None,
            ],
        },
    )


@pytest.mark.parametrize("odd", ["changing_ids", "unknown_events"])
def test_what_changes_nothing(odd: str) -> None:
    assert shorts(decoded(*recorded(replace(FULL, odd=frozenset({odd}))))) == FULL_CHUNKS


def test_blocks_without_pieces() -> None:
    chunks = shorts(decoded(*recorded(replace(FULL, odd=frozenset({"no_deltas"})))))
    assert [chunk for chunk in chunks if chunk[0] in "EF"] == [chunk for chunk in FULL_CHUNKS if chunk[0] in "EF"]


@pytest.mark.parametrize("position", range(24))
def test_any_lost_event_but_the_last_is_no_loss(position: int) -> None:
    events = recorded(FULL)
    del events[position]
    ends = [chunk for chunk in shorts(decoded(*events)) if chunk[0] in "EUF"]
    assert sorted(ends) == sorted(chunk for chunk in FULL_CHUNKS if chunk[0] in "EUF")


def test_the_whole_item_wins_over_its_pieces() -> None:
    events = (
        added(0, type="function_call", call_id="c", name="bash", arguments=""),
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a": 2'},
        finished(0, type="function_call", call_id="c", name="bash", arguments='{"a": 1}'),
    )
    assert shorts(decoded(*events, COMPLETED))[-2:] == ['E0 c bash {"a": 1}', "F tool-calls"]


def test_items_that_only_the_final_response_holds() -> None:
    final = {"status": "completed", "model": "m", "output": [message("Hi")]}
    assert shorts(decoded({"type": "response.completed", "response": final})) == [
        "S0 text",
        "T0 Hi",
        "E0 Hi",
        "F stop",
    ]


def test_a_final_response_with_other_positions_doubles_nothing() -> None:
    final = {"status": "completed", "output": [message("Hi", id="other")]}
    events = (added(3, **message(id="m")), finished(3, **message("Hi", id="m")))
    chunks = decoded(*events, {"type": "response.completed", "response": final})
    assert shorts(chunks) == ["S0 text", "T0 Hi", "E0 Hi", "F stop"]


def test_llama_cpp_gives_no_positions() -> None:
    events = (
        {"type": "response.output_item.added", "item": {"type": "reasoning", "id": "rs", "summary": []}},
        {"type": "response.reasoning_text.delta", "item_id": "rs", "delta": "hm"},
        {"type": "response.output_item.done", "item": {"type": "reasoning", "id": "rs", "summary": [], "content": [
            {"type": "reasoning_text", "text": "hm"}]}},
        {"type": "response.output_item.added", "item": {"type": "message", "id": "msg", "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg", "delta": "Hi"},
        {"type": "response.output_item.done", "item": message("Hi", id="msg")},
        {"type": "response.completed", "response": {"status": "completed", "output": [message("Hi", id="msg")]}},
    )  # fmt: skip
    assert shorts(decoded(*events)) == ["S0 reasoning", "R0 hm", "E0 hm", "S1 text", "T1 Hi", "E1 Hi", "F stop"]


def test_parts_of_a_summary_are_paragraphs() -> None:
    kind = "response.reasoning_summary_text.delta"
    pieces = [
        {"type": kind, "output_index": 0, "summary_index": index, "delta": text}
        for index, text in [(0, "One"), (0, "."), (1, "Two")]
    ]
    assert shorts(decoded(*pieces, finished(1, **message("x")), COMPLETED))[:4] == [
        "S0 reasoning",
        "R0 One",
        "R0 .",
        "R0 \n\n",
    ]


def test_sealed_thinking_without_a_word_is_kept() -> None:
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "E", "status": None, "content": None}
    chunks = decoded(finished(0, **item), finished(1, **message("Hi")), COMPLETED)
    assert shorts(chunks) == ["S0 reasoning", "E0 ", "S1 text", "T1 Hi", "E1 Hi", "F stop"]
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    kept = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "E"}
    assert finish.replay_state == {"responses": ORIGIN, "blocks": [kept, None]}


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"status": "completed", "output": [message("Hi")]}, "F stop"),
        ({"status": "completed", "output": [message("One", "Two")]}, "F stop"),
        ({"status": "completed", "output": []}, "F error EMPTY_RESPONSE"),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [message("Hi")]},
            "F max-tokens",
        ),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "F error CONTENT_FILTER"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, "F error STEERED"),
        ({"status": "incomplete", "output": [message("Hi")]}, "F error INCOMPLETE"),
        ({"status": "cancelled", "output": [message("Hi")]}, "F error CANCELLED"),
        (
            {"status": "completed", "output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No"}]}]},
            "F error REFUSED",
        ),
        ({"status": "completed", "output": [{"type": "web_search_call", "id": "ws"}, message("Hi")]}, "F stop"),
        ({"status": "completed", "output": None}, "F error EMPTY_RESPONSE"),
    ],
)
def test_every_end(fields: dict[str, Any], end: str) -> None:
    assert shorts(whole(**fields))[-1] == end


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "server_error", "message": "boom"}, "SERVER"),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, "RATE_LIMIT"),
        ({"code": "invalid_prompt", "message": "no"}, "INVALID_REQUEST"),
        ({"code": "image_content_policy_violation", "message": "no"}, "CONTENT_FILTER"),
        ({"code": "x", "message": "Your input exceeds the context window of this model."}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, "QUOTA"),
        (None, "SERVER"),
    ],
)
def test_every_failure(error: Any, code: str) -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": error}}
    with pytest.raises(LLMError) as caught:
        decoded(failed)
    assert caught.value.code == code
    if error is not None:
        with pytest.raises(LLMError) as caught:
            decoded({"type": "error", "sequence_number": 3, **error})
        assert caught.value.code == code


def test_refusal_pieces() -> None:
    pieces = [{"type": "response.refusal.delta", "delta": piece} for piece in ("I will ", "not.")]
    end = decoded(*pieces, {"type": "response.refusal.done", "refusal": "I will not."}, COMPLETED)[-1]
    assert isinstance(end, Finish)
    assert end.failure is not None
    assert (end.failure.code, end.failure.message) == ("REFUSED", "the model refused: I will not.")


def test_an_end_without_an_end_marker() -> None:
    begun = finished(0, **message("Hi"))
    with pytest.raises(LLMError) as caught:
        decoded(begun, done=False)
    assert caught.value.code == "STREAM_CLOSED"
    # A gateway that ends with [DONE] has said that it is through.
    assert decoded(begun, done=True)[-1] == Finish("stop", marked=False)


def test_json_that_is_no_response() -> None:
    with pytest.raises(LLMError) as caught:
        ResponsesDecoder("the server", ORIGIN).complete_body({"choices": []})
    assert caught.value.code == "ENDPOINT"
