"""Every fault of a provider as one row: what a client makes of it. Rows that other files prove are pointers to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from app.llm.transport import transport_error
from app.schema.errors import LLMError
from tests.fault_server import (
    Behaviour,
    cut_after,
    events,
    gzip_mismatch,
    huge_line,
    in_band_error,
    malformed_json,
    redirect,
    reply,
    status,
    web_page,
)
from tests.llm.conftest import MakeLLM

ROOT = Path(__file__).parents[2]
PAGE = "<html><head><title>Blocked</title></head><body>no</body></html>"


@dataclass(frozen=True)
class Row:
    """A first answer; then the server says "again". `code` None: the fault is got over, with `wait` if it is told.

    A first answer that has the text "fine" must be understood at once, any other be asked for again.
    """

    fault: Callable[[], Behaviour]
    code: str | None = None
    says: str = ""
    wait: float | None = None


def error(code: int, message: str, kind: str | None = None, **headers: str) -> Callable[[], Behaviour]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: status(code, {"error": {"message": message, "code": kind}}, headers=named)


def chunk(**fields: Any) -> dict[str, Any]:
    return {"id": "1", "object": "chat.completion.chunk", "model": "test-model", "choices": [], **fields}


def choice(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


STATUS = {
    "redirect": Row(lambda: redirect("http://127.0.0.2/x"), "ENDPOINT", "127.0.0.2"),
    "400 bad request": Row(error(400, "messages: bad"), "INVALID_REQUEST", "messages: bad"),
    "400 overflow": Row(error(400, "x", "context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED"),
    "400 without a body": Row(lambda: status(400, ""), "CONTEXT_WINDOW_EXCEEDED"),
    "401": Row(error(401, "bad key"), "AUTH", "api_key"),
    "402": Row(error(402, "pay"), "QUOTA"),
    "403 region": Row(error(403, "Country, region, or territory not supported"), "AUTH", "region"),
    "403 moderation": Row(error(403, "x requires moderation. Your input was flagged"), "CONTENT_FILTER"),
    "404 model": Row(error(404, "The model `x` does not exist", "model_not_found"), "UNKNOWN_MODEL", "models"),
    "404 endpoint": Row(lambda: web_page(404), "ENDPOINT", "base_url"),
    "405": Row(lambda: status(405, ""), "ENDPOINT", "base_url"),
    "415": Row(lambda: status(415, ""), "ENDPOINT", "base_url"),
    "407 of a proxy": Row(lambda: status(407, ""), "HTTP_407"),
    "408": Row(lambda: status(408, "")),
    "409": Row(error(409, "conversation locked")),
    "413 bytes": Row(error(413, "request_too_large"), "INVALID_REQUEST"),
    "413 without a body": Row(lambda: status(413, ""), "CONTEXT_WINDOW_EXCEEDED"),
    "422 list": Row(lambda: status(422, {"detail": [{"loc": ["body", "x"], "msg": "extra"}]}), "INVALID_REQUEST",
                    "body.x: extra"),
    "425 Retry-After seconds": Row(error(425, "early", retry_after="3"), wait=3),
    "429 Retry-After seconds": Row(error(429, "slow down", retry_after="2"), wait=2),
    "429 Retry-After decimals": Row(error(429, "slow down", retry_after="1.5"), wait=1.5),
    "429 Retry-After above the cap": Row(error(429, "slow down", retry_after="600"), "RATE_LIMIT", "wait 600 s"),
    "429 Retry-After negative": Row(error(429, "slow down", retry_after="-5")),
    "429 Retry-After no number": Row(error(429, "slow down", retry_after="NaN")),
    "429 HTTP date": Row(error(429, "slow down", retry_after="Thu, 20 Aug 2026 12:00:03 GMT",
                               date="Thu, 20 Aug 2026 12:00:01 GMT"), wait=2),
    "429 past HTTP date": Row(error(429, "slow down", retry_after="Thu, 20 Aug 2020 12:00:03 GMT")),
    "429 retry-after-ms": Row(error(429, "slow down", retry_after="9", retry_after_ms="250"), wait=0.25),
    "429 reset of a bucket": Row(error(429, "slow down", x_ratelimit_remaining_tokens="0",
                                       x_ratelimit_reset_tokens="76ms"), wait=0.076),
    "429 in words": Row(error(429, "Rate limit reached. Please try again in 350ms."), wait=0.35),
    "429 quota": Row(error(429, "You exceeded your current quota", "insufficient_quota"), "QUOTA"),
    "429 request above the minute": Row(error(429, "tokens per min (TPM): Limit 30000, Requested 40000."),
                                        "CONTEXT_WINDOW_EXCEEDED", "alone"),
    "429 CDN page": Row(lambda: status(429, PAGE)),
    "403 CDN page": Row(lambda: status(403, "<html>Too many requests</html>")),
    "500": Row(error(500, "boom")),
    "500 hides an overflow": Row(error(500, "no user query found in messages"), "CONTEXT_WINDOW_EXCEEDED"),
    "502": Row(lambda: web_page(502)),
    "503": Row(error(503, "busy")),
    "503 model is loading": Row(lambda: status(503, {"error": "loading", "estimated_time": 20.5}), wait=20.5),
    "504": Row(lambda: status(504, "")),
    "520": Row(lambda: web_page(520)),
    "527": Row(lambda: status(527, "")),
    "529": Row(error(529, "Overloaded", "overloaded_error")),
    "unknown 4xx": Row(error(418, "teapot"), "HTTP_418"),
    "unknown 5xx": Row(error(599, "?")),
    "unknown 2xx": Row(lambda: status(299, {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]})),
    "200 error object": Row(lambda: status(200, {"error": {"message": "bad key", "code": 401}}), "AUTH"),
    "200 base_resp": Row(lambda: status(200, {"base_resp": {"status_code": 1008, "status_msg": "x"}}), "QUOTA"),
    "200 object error": Row(lambda: status(200, {"object": "error", "message": "prompt is too long"}),
                            "CONTEXT_WINDOW_EXCEEDED"),
    "200 string error": Row(lambda: status(200, {"error": "Internal server error"})),
}  # fmt: skip

BODIES = {
    "HTML page": Row(lambda: web_page(200), "ENDPOINT"),
    "empty body": Row(lambda: status(200, b"")),
    "truncated JSON": Row(lambda: status(200, '{"choices": [{"mess')),
    "cut chunked body": Row(lambda: cut_after(bytes=60)),
    "trailing garbage": Row(lambda: status(200, '{"choices": []} {"x"'), None),
    "gzip mismatch": Row(gzip_mismatch, "MALFORMED_RESPONSE"),
    "content null, stop": Row(lambda: reply(None)),
    "content null, length": Row(lambda: reply(None, finish="length"), "OUTPUT_LIMIT"),
    "content null, filter": Row(lambda: reply(None, finish="content_filter"), "CONTENT_FILTER"),
    "content parts": Row(lambda: reply("fine", odd="content_parts")),
    "thinking apart": Row(lambda: reply("fine", reasoning="hm")),
    "think tags apart": Row(lambda: reply("<think>hm</think>fine")),
    "refusal field": Row(lambda: reply("", refusal="I will not"), "REFUSED"),
    "missing usage": Row(lambda: reply("fine", usage_at="absent")),
    "usage twice": Row(lambda: reply("fine", usage_at="twice")),
    "one line of 17 MiB": Row(lambda: huge_line(17 * 2**20), "MALFORMED_RESPONSE", "16 MiB"),
    "created null and unknown fields": Row(lambda: events(
        chunk(created=None, foo={"a": [1]}), choice("stop", content="fine", bar=7))),
    "content as a number": Row(lambda: events(choice("stop", content=7)), None),
    "lone surrogate": Row(lambda: events('{"choices":[{"index":0,"delta":{"content":"fine\\ud800"},'
                                         '"finish_reason":"stop"}]}')),
    "NaN in the payload": Row(lambda: events('{"x":NaN,"choices":[{"index":0,"delta":{"content":"fine"},'
                                             '"finish_reason":"stop"}]}')),
}  # fmt: skip

STREAMS = {
    "cut before content": Row(lambda: cut_after(events=1)),
    "cut after content": Row(lambda: cut_after(events=2)),
    "finish without [DONE]": Row(lambda: reply("fine", done=False)),
    "[DONE] without a finish inside a call": Row(lambda: cut_after(reply(
        tool_calls=[("bash", {"command": "ls"})]), events=2, clean=True)),
    "bytes after [DONE]": Row(lambda: reply("fine", tail=b"garbage")),
    "error object in the stream": Row(lambda: in_band_error(code=401, message="bad key"), "AUTH"),
    "error event in the stream": Row(lambda: in_band_error(
        '{"type":"overloaded_error","message":"Overloaded"}', event="error")),
    "keep-alive comments": Row(lambda: reply("fine", pings=3)),
    "empty data": Row(lambda: reply("fine", pings=1, ping="data:")),
    "keep-alive as data": Row(lambda: reply("fine", pings=1, ping="data: : keepalive")),
    "split at every byte": Row(lambda: reply("fine", split=1)),
    "CR": Row(lambda: reply("fine", line_end="\r")),
    "no blank line at the end": Row(lambda: reply("fine", last_blank=False)),
    "events labelled as JSON": Row(lambda: reply("fine", content_type="application/json")),
    "a document for a stream": Row(lambda: reply("fine", odd="full_json")),
    "choices empty": Row(lambda: reply("fine", odd="choices_empty")),
    "choices null": Row(lambda: reply("fine", odd="choices_null")),
    "choice without delta": Row(lambda: reply("fine", odd="delta_missing")),
    "role repeated": Row(lambda: reply("fine", odd="role_every")),
    "role missing": Row(lambda: reply("fine", odd="role_none")),
    "two choices": Row(lambda: reply("fine", odd="second_choice")),
    "finish twice": Row(lambda: events(choice("stop", content="fine"), choice("stop"))),
    "finish, then text": Row(lambda: events(choice("stop", content="fine"), choice(content=""))),
    "no JSON": Row(lambda: malformed_json(after=1), "MALFORMED_RESPONSE"),
}  # fmt: skip

FINISHES = {
    "length with text": Row(lambda: reply("fine", finish="length")),
    "length, thinking ate it": Row(lambda: reply("", reasoning="hm", finish="length"), "OUTPUT_LIMIT"),
    "content filter": Row(lambda: reply("par", finish="content_filter"), "CONTENT_FILTER"),
    "tool_calls without calls": Row(lambda: reply("", finish="tool_calls")),
    "model_context_window_exceeded": Row(lambda: reply("", finish="model_context_window_exceeded"),
                                         "CONTEXT_WINDOW_EXCEEDED"),
    "empty stop": Row(lambda: reply("")),
    "blank stop": Row(lambda: reply(" \n ")),
}  # fmt: skip

ROWS = {f"{part}: {name}": row for part, rows in (
    ("status", STATUS), ("body", BODIES), ("stream", STREAMS), ("finish", FINISHES)) for name, row in rows.items()}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_fault(row: Row, make_llm: MakeLLM, waits: list[float]) -> None:
    fault = row.fault()
    llm, server = await make_llm([fault, reply("again")], temperature=0.5)
    llm._tell_governor = lambda *_: None  # type: ignore[method-assign]  # it would wait on the real clock
    if row.code is None:
        at_once = "fine" in repr(fault)
        assert (await llm.ask("hi"))[:5] in (("fine", "fine\ud800") if at_once else ("again",))
        assert (len(server.chats), len(waits)) == ((1, 0) if at_once else (2, 1))
        if row.wait is not None:
            assert waits == [pytest.approx(row.wait)]
        return
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (caught.value.code, len(server.chats), waits) == (row.code, 1, [])
    assert row.says in f"{caught.value.message} {caught.value.hint}"
    assert "sk-test" not in f"{caught.value.message} {caught.value.hint}"


# ruff: noqa: E501
def test_a_host_that_is_not_found_is_named() -> None:
    key = ConnectionKey("no.such.host", 443, True, True, None, None, None)
    found = transport_error(aiohttp.ClientConnectorDNSError(key, OSError("unknown")), "https://no.such.host")
    assert (found.code, "no.such.host" in found.message, found.hint) == (
        "TRANSPORT",
        True,
        "check base_url and the network",
    )


async def test_loopback_is_reached_without_the_proxy(make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    llm, server = await make_llm([reply("fine")])
    assert (await llm.ask("hi"), len(server.chats)) == ("fine", 1)


LLM = "tests/llm/"
AGENTS = "tests/agents/"
ELSEWHERE = {
    "connection refused": f"{LLM}test_hazards.py::test_an_address_where_nobody_listens",
    "TLS": f"{LLM}test_transport.py::test_plain_http_behind_https_is_a_tls_error",
    "read and idle time-out": f"{LLM}test_hazards.py::test_failure",
    "total time-out": f"{LLM}test_transport.py::test_total_limit_ends_a_drip",
    "redirect": f"{LLM}test_transport.py::test_redirect_is_not_followed_and_names_the_new_place",
    "401 names no key": f"{LLM}test_chat_encode.py::test_z13_key_with_foreign_characters_is_refused_without_showing_it",
    "404 at Ollama": f"{LLM}test_ollama.py::test_without_consent_or_with_a_model_nobody_has_it_stays_missing",
    "429 resets in every form": f"{LLM}test_rate_headers.py::test_a_reset_in_any_form",
    "429 latest exhausted bucket": f"{LLM}test_failures.py::test_the_wait_of_the_exhausted_bucket",
    "429 RFC 3339": f"{LLM}test_failures.py::test_anthropic_buckets_are_dated",
    "quota asks another account": f"{LLM}test_fallback.py::test_the_next_model_answers",
    "page without markup": f"{LLM}test_failures.py::test_h12_page_is_not_quoted",
    "duplicate keys and NaN in arguments": "tests/tools/test_arguments.py::test_what_no_repair_may_decide_is_refused",
    "thinking with a signature": f"{LLM}test_anthropic.py::test_thinking_goes_back_byte_for_byte_to_the_model_that_thought",
    "redacted thinking": f"{LLM}test_anthropic.py::test_thinking_signed_and_redacted_text_calls_and_usage",
    "missing usage is estimated": f"{LLM}test_client_budget.py::test_defect_11_m16_missing_usage_is_estimated_and_marked",
    "cumulative usage": f"{LLM}test_chat_decode.py::test_t03_last_of_two_usages_wins",
    "long line in linear time": f"{LLM}test_sse.py::test_long_line_in_small_pieces_takes_linear_time",
    "cut before headers": f"{LLM}test_hazards.py::test_failure",
    "provisional text": f"{LLM}test_retry.py::test_y08_only_the_finished_attempt_becomes_the_answer",
    "pings for ever": f"{LLM}test_transport.py::test_keep_alives_without_end_are_a_timeout",
    "stall with an open socket": f"{LLM}test_hazards.py::test_failure",
    "every split": f"{LLM}test_every_split.py::test_every_split_gives_the_same_chunks",
    "Bedrock exception frame": f"{LLM}test_bedrock_decode.py::test_every_exception_inside_a_stream",
    "response.failed": f"{LLM}test_responses_decode.py::test_every_failure",
    "Gemini error array": f"{LLM}test_gemini.py::test_an_error_list_is_read",
    "slow consumer": f"{LLM}test_transport.py::test_w17_slow_consumer_causes_no_timeout",
    "consumer gone": f"{LLM}test_hazards.py::test_cancelling_frees_the_connection_within_half_a_second",
    "length inside arguments": f"{AGENTS}test_loop.py::test_m1_cut_reply_is_continued_once_and_then_works",
    "length with text goes on once": f"{AGENTS}test_loop.py::test_cut_text_is_joined_and_a_second_cut_is_delivered",
    "stop with calls": f"{LLM}test_chat_decode.py::test_t26_stop_with_calls_is_tool_calls",
    "pause_turn": f"{LLM}test_anthropic.py::test_a_server_that_pauses_for_ever_is_given_up",
    "malformed arguments": "tests/tools/test_arguments.py::test_what_cannot_be_read_names_the_position",
    "empty arguments": "tests/tools/test_arguments.py::test_M3_empty_and_null_are_no_arguments",
    "arguments as an object": f"{LLM}test_chat_decode.py::test_t13_arguments_as_an_object",
    "ids twice": f"{AGENTS}test_loop.py::test_m6_same_call_id_twice_is_made_unique_and_every_result_fits",
    "ids missing": f"{AGENTS}test_served.py::test_m6_54_calls_without_ids_and_with_the_same_id",
    "ids of Mistral": f"{LLM}test_call_ids.py::test_mistral_gets_nine_letters_or_digits",
    "ids too long": f"{LLM}test_call_ids.py::test_openai_gets_at_most_64_characters",
    "index missing, zero, jumping": f"{LLM}test_chat_decode.py::test_oddity",
    "interleaved": f"{LLM}test_chat_decode.py::test_t09_interleaved_calls",
    "name in pieces": f"{LLM}test_chat_decode.py::test_name_in_growing_prefixes",
    "unknown tool": f"{AGENTS}test_loop.py::test_m5_unknown_tool_names_the_nearest_and_runs_nothing",
    "illegal name": f"{LLM}bug_cases/test_tool_schema.py::test_b075_names_with_slashes_and_dots_become_legal_and_come_back",
    "many parallel calls": f"{AGENTS}test_loop.py::test_l05_results_stand_in_the_models_order",
    "approvals one by one": "tests/tools/test_toolbox.py::test_approvals_are_asked_one_at_a_time",
    "open call in the history": f"{LLM}test_history.py::test_h2_interrupted_call_is_answered_where_it_was_made",
    "result too big": f"{AGENTS}test_loop.py::test_h8_61_a_long_result_keeps_its_last_line_and_names_a_file",
    "result of any kind": "tests/tools/test_toolbox.py::test_B105_defect_71_every_value_gives_a_text",
    "image result without vision": f"{LLM}test_client.py::test_h10_defect_04_picture_for_a_blind_model_becomes_a_note_with_one_notice",
    "max_tokens or max_completion_tokens": f"{LLM}test_corrections.py::test_m18_refused_option_is_learned_and_announced_once",
    "temperature of thinking models": f"{LLM}test_client.py::test_temperature_of_a_thinking_model_is_left_out_with_a_notice",
    "stop": f"{LLM}test_call_ids.py::test_b063_a_refused_stop_is_left_out_once_for_all",
    "null for unset": f"{LLM}test_chat_encode.py::test_z05_what_is_not_set_is_not_sent",
    "no tool options without tools": f"{LLM}test_chat_encode.py::test_defect_14_tool_choice_needs_tools",
    "tool_choice required": f"{LLM}test_corrections.py::test_m19_defect_15_required_tool_choice_falls_back_to_words",
    "system role refused": f"{LLM}test_corrections.py::test_system_role_becomes_user_text",
    "images to text models": f"{LLM}test_corrections.py::test_blindness_is_learned_and_the_picture_becomes_a_note",
    "image too big": f"{LLM}test_images.py::test_a_large_picture_is_scaled_to_the_vendors_limit",
    "image of another type": f"{LLM}test_images.py::test_the_claimed_type_of_base64_is_not_believed",
    "tool schema refused": f"{LLM}bug_cases/test_tool_schema.py::test_b093_a_union_at_the_top_becomes_words",
    "schema loses its tool alone": f"{LLM}bug_cases/test_tool_schema.py::test_b083_a_schema_too_deep_loses_its_tool_alone",
    "too many tools": f"{LLM}test_call_ids.py::test_tools_above_the_accounts_number_are_left_out",
    "prompt cache marks": f"{LLM}test_anthropic.py::test_a_server_without_cache_marks_is_learned",
}  # fmt: skip


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_row_proved_elsewhere_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert re.search(rf"^\s*(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
