"""Statuses, bodies and wordings of real providers to codes: tables in, tables out."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.failures import (
    HINTS,
    REQUEST_ID_HEADERS,
    RefusedOption,
    classify,
    classify_code,
    in_band,
    is_overflow,
    is_silent_overflow,
)
from app.llm.rate_headers import retry_after_s
from app.schema.errors import CODES, LLMError
from app.schema.stream import FinishReason
from app.schema.usage import Usage
from tests.fault_server import ERROR_SHAPES, error_body

NOW = datetime(2026, 8, 20, 12, 0, 0, tzinfo=UTC)


def found(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> LLMError:
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return classify(status, data, headers, who="Acme", now=NOW)


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        pytest.param(401, openai("Insufficient Balance"), "AUTH", id="H01"),
        pytest.param(402, openai("Insufficient Balance"), "QUOTA", id="H02"),
        pytest.param(402, b"", "QUOTA", id="H03"),
        pytest.param(429, openai("Rate limit reached for requests"), "RATE_LIMIT", id="H04"),
        pytest.param(429, openai("no more", "insufficient_quota"), "QUOTA", id="H05"),
        pytest.param(400, openai("maximum context length is 131072 tokens"), "CONTEXT_WINDOW_EXCEEDED", id="H06"),
        pytest.param(400, openai("temperature exceeds maximum allowed value"), "INVALID_REQUEST", id="H07 temperature"),
        pytest.param(400, openai("context window size must be positive"), "INVALID_REQUEST", id="H07 window"),
        pytest.param(500, openai("boom"), "SERVER", id="H08 500"),
        pytest.param(502, b"", "SERVER", id="H08 502"),
        pytest.param(503, openai("overloaded"), "SERVER", id="H08 503"),
        pytest.param(529, openai("Overloaded"), "SERVER", id="H08 529"),
        pytest.param(404, openai("nothing here"), "HTTP_404", id="H09 404"),
        pytest.param(418, b"I am a teapot", "HTTP_418", id="H09 418"),
        pytest.param(408, b"", "TIMEOUT", id="H10 408"),
        pytest.param(422, openai("bad field"), "INVALID_REQUEST", id="H10 422"),
        pytest.param(413, openai("request_too_large"), "INVALID_REQUEST", id="H11 bytes"),
        pytest.param(413, openai("prompt is too long"), "CONTEXT_WINDOW_EXCEEDED", id="H11 tokens"),
        pytest.param(500, "<html><body>Oops</body></html>", "SERVER", id="H12"),
        pytest.param(
            429,
            openai(
                "This request would exceed your rate limit of 30,000 input tokens per minute."
                " Please reduce the prompt length"
            ),
            "RATE_LIMIT",
            id="H15",
        ),
        pytest.param(429, openai("Resource has been exhausted (e.g. check quota)."), "RATE_LIMIT", id="H17"),
        pytest.param(400, openai("上下文长度超过模型限制"), "CONTEXT_WINDOW_EXCEEDED", id="H18 overflow"),
        pytest.param(403, openai("账户余额不足"), "QUOTA", id="H18 quota"),
        pytest.param(403, openai("Country, region, or territory not supported"), "AUTH", id="region"),
        pytest.param(403, "<html>Too many requests</html>", "RATE_LIMIT", id="CDN"),
        pytest.param(404, openai("The model `gpt-9` does not exist", "model_not_found"), "UNKNOWN_MODEL", id="model"),
        pytest.param(404, {"error": "model 'x' not found, try pulling it first"}, "UNKNOWN_MODEL", id="Ollama"),
        pytest.param(400, openai("模型 x 不存在"), "UNKNOWN_MODEL", id="Chinese model"),
        pytest.param(404, "404 page not found", "ENDPOINT", id="no such path, text"),
        pytest.param(404, "<html><h1>Not Found</h1></html>", "ENDPOINT", id="no such path, page"),
        pytest.param(404, {"detail": "Not Found"}, "ENDPOINT", id="no such path, FastAPI"),
        pytest.param(404, b"", "ENDPOINT", id="no such path, silent"),
        pytest.param(405, {"detail": "Method Not Allowed"}, "ENDPOINT", id="405"),
        pytest.param(415, b"", "ENDPOINT", id="415"),
        pytest.param(
            500, openai("The model produced output that does not match the expected peg-native format"),
            "INVALID_TOOL_CALL", id="llama.cpp call",
        ),
        pytest.param(400, openai("Failed to call a function", "tool_use_failed"), "INVALID_TOOL_CALL", id="Groq call"),
        pytest.param(404, openai("No endpoints found that support image input"), "UNSUPPORTED_CONTENT", id="blind"),
        pytest.param(500, openai("image input is not supported - hint: mmproj"), "UNSUPPORTED_CONTENT", id="no mmproj"),
        pytest.param(400, openai("x", "context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED", id="overflow code"),
        pytest.param(503, openai("the request exceeds the available context size"), "SERVER", id="503 is no overflow"),
    ],
)  # fmt: skip
def test_status_and_words(status: int, body: Any, code: str) -> None:
    error = found(status, body)
    assert (error.code, error.failure.status) == (code, status)
    assert str(status) in error.message


OVERFLOWS = {
    "OpenAI": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9100 tokens."
    " Please reduce the length of the messages.",
    "OpenAI with output": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"
    " (8000 in the messages, 1000 in the completion).",
    "OpenAI responses": "Your input exceeds the context window of this model.",
    "Azure": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens."
    " Please reduce the length of the messages.",
    "Anthropic": "prompt is too long: 233153 tokens > 200000 maximum",
    "Anthropic with output": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease"
    " input length or `max_tokens` and try again",
    "Bedrock": "Input is too long for requested model.",
    "Bedrock tokens": "too many input tokens",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Groq": "Please reduce the length of the messages or completion.",
    "OpenRouter": "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
    "Mistral": "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 and 200",
    "TGI inputs": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "vLLM": "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your"
    " prompt contains at least 262145 input tokens, for a total of at least 262145 tokens.",
    "vLLM gateway": "You passed 99073 input tokens and requested 32000 output tokens. However, the model's context"
    " length is only 131072 tokens, resulting in a maximum input length of 99072 tokens.",
    "SGLang": "The input (200000 tokens) is longer than the model's context length (131072 tokens).",
    "vLLM model length": "The prompt is longer than the maximum model length of 4096",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "llama.cpp counts": "request (9000 tokens) exceeds the available context size (8192 tokens)",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length",
    "Ollama": "no user query found in messages",
    "Ollama prompt": "prompt too long; exceeded max context length by 3 tokens",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Moonshot": "Your request exceeded model token limit: 262144 (requested: 300000)",
    "Perplexity": "The total length of all messages is too long.",
    "Copilot": "prompt token count of 140000 exceeds the limit of 128000",
    "a gateway": "The prompt is too long: 267657, model maximum context length: 262143",
    "SiliconFlow": "length of prompt_tokens must be less than max_seq_len (8192)",
    "DashScope": "Range of input length should be [1, 30720]",
    "multimodal": "Total tokens of image and text exceed max message tokens",
    "token limit": "token limit exceeded",
    "configured": "prompt has 9000 tokens, but the configured context size is 8192",
    "Chinese": "输入内容过长",
    "Chinese window": "超出最大上下文长度",
    "Chinese prompt": "提示词超过模型最大长度限制",
    "Cerebras": "",
}  # fmt: skip


@pytest.mark.parametrize("words", OVERFLOWS.values(), ids=OVERFLOWS)
@pytest.mark.parametrize("status", [400, 413])
def test_h14_overflow_wordings(words: str, status: int) -> None:
    error = found(status, openai(words) if words else b"")
    assert error.code == "CONTEXT_WINDOW_EXCEEDED"
    assert HINTS["CONTEXT_WINDOW_EXCEEDED"] in error.hint


@pytest.mark.parametrize(
    "words",
    [
        "ThrottlingException: Too many tokens, please wait before trying again.",
        "Rate limit reached: tokens per minute (TPM): Limit 6000, Used 5000, Requested 2000, please reduce",
        "Too many requests: maximum context length is 10 tokens",
    ],
)
@pytest.mark.parametrize("status", [400, 413, 429])
def test_throttling_is_never_overflow(words: str, status: int) -> None:
    assert not is_overflow(words)
    assert found(status, openai(words)).code == "RATE_LIMIT"


@pytest.mark.parametrize(
    "words",
    [
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
        "Request too large on tokens per minute (TPM): Limit 6000, Requested 6,001, please reduce your message size",
    ],
)
@pytest.mark.parametrize("status", [400, 413, 429])
def test_a_request_above_the_limit_of_a_minute_is_not_sent_again_unchanged(words: str, status: int) -> None:
    assert not is_overflow(words)
    error = found(status, openai(words))
    assert (error.code, "alone" in error.hint) == ("CONTEXT_WINDOW_EXCEEDED", True)


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: 99999. This model supports at most 4096 completion tokens",
        "messages: at least one message is required",
        "Invalid value for 'content': expected a string, got null",
        "tool names must be shorter than 64 characters",
        "prompt_cache_key is too long",
    ],
)
def test_other_bad_requests_are_no_overflow(words: str) -> None:
    assert found(400, openai(words)).code == "INVALID_REQUEST"


QUOTAS = {
    "DeepSeek": "Insufficient Balance",
    "OpenAI": "You exceeded your current quota, please check your plan and billing details.",
    "Anthropic": "Your credit balance is too low to access the Anthropic API.",
    "Anthropic limit": "You have reached your specified API usage limits. You will regain access on 2026-09-01",
    "OpenRouter": "This request requires more credits, or fewer max_tokens.",
    "OpenRouter payment": "Payment Required",
    "OpenRouter key": "Key limit exceeded (total limit). Manage it using the settings page",
    "OpenAI billing": "billing_hard_limit_reached",
    "Moonshot": "exceeded_current_quota_error",
    "Moonshot words": "You exceeded your current token quota: 0, please check your account balance",
    "one-api": "insufficient_user_quota",
    "DashScope": "Arrearage",
    "quota": "quota exceeded",
    "usage": "usage limit reached",
    "credits": "credits exhausted",
    "out": "out of credits",
    "Chinese balance": "余额不足",
    "Chinese limit": "您的额度不足，请充值",
    "Chinese debt": "账户欠费",
    "Chinese quota": "配额已用完",
}


@pytest.mark.parametrize("words", QUOTAS.values(), ids=QUOTAS)
@pytest.mark.parametrize("status", [400, 402, 403, 429])
def test_h16_quota_wordings(words: str, status: int) -> None:
    assert found(status, openai(words)).code == "QUOTA"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Rate limit reached for requests", "RATE_LIMIT"),
        ("You exceeded your current quota. Quota exceeded for metric: x. Please retry in 38.06s.", "RATE_LIMIT"),
        ("Quota exceeded for quota metric 'requests per minute'", "RATE_LIMIT"),
        ("请求过于频繁，请稍后再试", "RATE_LIMIT"),
        ("rate_limit_exceeded: You exceeded your current quota, please check your plan and billing details", "QUOTA"),
    ],
)  # fmt: skip
def test_throttling_and_quota_are_told_apart(words: str, code: str) -> None:
    assert found(429, openai(words)).code == code


@pytest.mark.parametrize("shape", ERROR_SHAPES)
def test_h13_shapes_of_error_bodies(shape: str) -> None:
    error = found(400, error_body(shape, "prompt is too long", 400))
    if shape == "null":
        assert (error.code, error.message) == ("CONTEXT_WINDOW_EXCEEDED", "Acme answered HTTP 400")
        return
    assert error.code == "CONTEXT_WINDOW_EXCEEDED"
    if shape not in ("html", "empty"):
        assert "prompt is too long" in error.message
        assert '{"' not in error.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "x"}, "x"),
        ({"object": "error", "message": "x"}, "x"),
        ({"message": "x"}, "x"),
        ({"code": 20015, "message": "x"}, "x"),
        ({"code": 1, "msg": "x"}, "x"),
        ({"detail": [{"loc": ["body", "messages", 0], "msg": "x"}]}, "body.messages.0: x"),
        ({"errors": [{"message": "x"}, "y"]}, "x; y"),
        ({"base_resp": {"status_code": 1008, "status_msg": "x"}}, "x"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": "x"}}}, "Provider returned error (x)"),
        ([{"error": {"message": "x"}}], "x"),
        ({"error": {"message": {"message": "x"}}}, "x"),
        ("plain  words\n here", "plain words here"),
        ('"quoted"', '"quoted"'),
    ],
)
def test_h13_message_of_a_body(body: Any, message: str) -> None:
    assert found(418, body).message == f"Acme answered 418: {message}"


def test_h12_page_is_not_quoted() -> None:
    page = "<html><head><style>b{}</style><script>alert(1)</script></head><body>Bad gateway</body></html>"
    assert found(502, page).message == "Acme answered HTTP 502 with a web page"


def test_long_words_are_cut() -> None:
    assert len(found(400, openai("x" * 100_000)).message) < 1100


# -- waiting and request ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        (" 2", 2.0),
        ("0", None),
        ("-1", None),
        ("1.5", 1.5),
        ("abc", None),
        ("", None),
        ("inf", None),
        ("nan", None),
        ("Thu, 20 Aug 2026 12:00:03 GMT", 3.0),
        ("Thu, 20 Aug 2026 11:59:00 GMT", None),
        ("Thu, 20 Aug 2026 12:00:03", 3.0),
        ("9" * 400, None),
        ("9" * 5000, None),
        ("٣", None),
        ("²", None),
        ("1e3", None),
        ("5 minutes", None),
    ],
)
def test_h21_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": value}, now=NOW) == seconds


def test_h21_milliseconds_are_preferred_and_the_servers_clock_counts() -> None:
    assert retry_after_s({"retry-after": "9", "retry-after-ms": "250"}) == 0.25
    assert retry_after_s({"retry-after": "9", "retry-after-ms": "soon"}) == 9
    dated = {"retry-after": "Thu, 20 Aug 2026 12:00:03 GMT", "date": "Thu, 20 Aug 2026 12:00:01 GMT"}
    assert retry_after_s(dated) == 2.0


@given(
    st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,9} [A-Z][a-z]{2} \d{1,9} \d+:\d+:\d+ [A-Z+-]*\d*", fullmatch=True)
)
def test_h21_any_retry_after_gives_a_positive_wait_or_none(value: str) -> None:
    wait = retry_after_s({"retry-after": value, "retry-after-ms": value, "date": value})
    assert wait is None or wait > 0


WAITS = {
    "OpenAI, seconds": ("Rate limit reached for gpt-5. Please try again in 20s.", 20.0),
    "OpenAI, minutes": ("Please try again in 6m0s. Visit …", 360.0),
    "OpenAI, milliseconds": ("Please try again in 350ms.", 0.35),
    "Groq": ("tokens per day (TPD): Limit 100000, Used 99000, Requested 1500. Please try again in 7m12.5s.", 432.5),
    "Azure": ("Rate limit is exceeded. Please retry after 20 seconds.", 20.0),
    "Moonshot": ("max RPM: 3, please try again after 1 second", 1.0),
    "Gemini": ("Quota exceeded for metric x, limit: 2. Please retry in 38.06s.", 38.06),
    "GitHub": ("Rate limit of 50 per 86400s exceeded. Please wait 40000 seconds before retrying.", 40000.0),
    "in words": ("try again in 2 minutes 5 sec", 125.0),
    "Chinese": ("请求过于频繁，请 30 秒后再试", 30.0),
    "nothing told": ("please try again later", None),
    "in 0s": ("try again in 0s", None),
    "a count": ("try again in 3 new conversations", None),
}  # fmt: skip


@pytest.mark.parametrize(("words", "seconds"), WAITS.values(), ids=WAITS)
def test_the_wait_that_stands_in_the_words(words: str, seconds: float | None) -> None:
    assert found(429, openai(words)).failure.retry_after_s == seconds
    assert found(429, openai(words), {"retry-after": "7"}).failure.retry_after_s == 7


def test_a_model_that_is_being_loaded_names_its_time() -> None:
    error = found(503, {"error": "Model x is currently loading", "estimated_time": 20.5})
    assert (error.code, error.failure.retry_after_s) == ("SERVER", 20.5)


BUCKETS = {
    "the exhausted one": ({"remaining-requests": "5", "reset-requests": "6m0s", "remaining-tokens": "0",
                           "reset-tokens": "7.66s"}, 7.66),
    "the later of two": ({"remaining-requests": "0", "reset-requests": "76ms", "remaining-tokens": "0",
                          "reset-tokens": "2s"}, 2.0),
    "none": ({"remaining-requests": "5", "reset-requests": "6m0s"}, None),
    "remainders untold": ({"reset-requests": "6m0s"}, 360.0),
    "epoch seconds": ({"remaining": "0", "reset": str(int(NOW.timestamp()) + 30)}, 30.0),
    "epoch milliseconds": ({"remaining": "0", "reset": str((int(NOW.timestamp()) + 30) * 1000)}, 30.0),
    "unreadable": ({"remaining-requests": "0", "reset-requests": "soon"}, None),
    "negative": ({"remaining-requests": "0", "reset-requests": "-3"}, None),
    "no number": ({"remaining-requests": "0", "reset-requests": "nan"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("told", "seconds"), BUCKETS.values(), ids=BUCKETS)
def test_the_wait_of_the_exhausted_bucket(told: dict[str, str], seconds: float | None) -> None:
    headers = {f"x-ratelimit-{name}": value for name, value in told.items()}
    assert found(429, b"", headers).failure.retry_after_s == (seconds and pytest.approx(seconds))
    assert found(500, b"", headers).failure.retry_after_s is None, "no refusal for the rate"


def test_anthropic_buckets_are_dated() -> None:
    headers = {
        "date": "Thu, 20 Aug 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2026-08-20T12:09:00Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-08-20T12:00:12Z",
    }
    assert classify(429, b"", headers).failure.retry_after_s == 12


@pytest.mark.parametrize("header", REQUEST_ID_HEADERS)
def test_h22_every_vendors_request_id(header: str) -> None:
    assert found(500, b"", {header: "r1", "cf-ray": "r1"}).failure.request_id == "r1"


def test_h22_a_request_id_in_the_body() -> None:
    assert found(500, {"type": "error", "error": {"message": "x"}, "request_id": "req_1"}).failure.request_id == "req_1"
    assert found(500, {"request_id": 7}).failure.request_id is None


def test_h22_first_request_id_that_says_something() -> None:
    headers = {"x-request-id": "", "x-deepseek-request-id": "d1"}
    assert found(500, b"", headers).failure.request_id == "d1"
    assert found(500, b"").failure.request_id is None


# -- inside a reply ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, "RATE_LIMIT"),
        ({"error": {"code": "503", "message": "busy"}}, "SERVER"),
        ({"error": {"message": "Internal server error"}}, "SERVER"),
        ({"error": {"message": "upstream connect timeout"}}, "SERVER"),
        ({"error": {"message": "Invalid API key"}}, "AUTH"),
        ({"error": {"message": "too many requests"}}, "RATE_LIMIT"),
        ({"error": {"message": "prompt is too long", "code": "invalid"}}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"error": {}, "object": "error", "message": "x", "code": 40303}, "INVALID_REQUEST"),
        ({"error": True}, "INVALID_REQUEST"),
        ({"error": {"code": 10**30, "message": "x"}}, "INVALID_REQUEST"),
    ],
)
def test_t21_errors_with_status_200(payload: Any, code: str) -> None:
    error = in_band(payload, who="Acme")
    assert error is not None
    assert error.code == code
    assert error.message.startswith("Acme ")


@pytest.mark.parametrize(
    "payload", [{}, {"error": None}, {"error": {}}, {"base_resp": {"status_code": 0}}, {"object": "chat"}]
)
def test_replies_without_an_error(payload: Any) -> None:
    assert in_band(payload, who="Acme") is None


@pytest.mark.parametrize(
    ("finish", "usage", "overflow"),
    [
        pytest.param("stop", Usage(90_000, 500, 50_000), True, id="H19"),
        pytest.param("stop", Usage(90_000, 500, 30_000), False, id="H19 fits"),
        pytest.param("max-tokens", Usage(127_500, 0), True, id="H20"),
        pytest.param("max-tokens", Usage(127_500, 1), False, id="H20 some output"),
        pytest.param("max-tokens", Usage(100_000, 0), False, id="H20 room left"),
        pytest.param("tool-calls", Usage(200_000, 9), False, id="calls are a reply"),
    ],
)
def test_silent_overflow(finish: FinishReason, usage: Usage, overflow: bool) -> None:
    assert is_silent_overflow(finish, usage, 128_000) is overflow


def test_refused_options_are_named_likeliest_first() -> None:
    error = found(
        400, openai("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    )
    assert isinstance(error, RefusedOption)
    assert error.options[0] == "max_tokens"
    assert not isinstance(found(500, openai("temperature is not supported")), RefusedOption)


# -- anything ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "code", "base_resp", "metadata", "raw", "errors", "loc"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.integers(-10, 1000), st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_reply_gives_an_error_with_a_known_code(status: int, body: bytes) -> None:
    error = classify(status, body)
    assert error.code in CODES or error.code == f"HTTP_{status}"
    assert error.message


@given(st.dictionaries(st.sampled_from(["error", "object", "message", "base_resp", "code"]), JSON))
def test_any_payload_is_an_error_or_none(payload: dict[str, Any]) -> None:
    error = in_band(payload, who="Acme")
    assert error is None or error.message


@pytest.mark.parametrize("body", [b"[" * 70_000, b'{"a":' * 70_000, b"<" * 70_000, b"\xff" * 70_000, b" " * 200_000])
def test_hostile_bodies_are_read_in_time(body: bytes) -> None:
    started = time.perf_counter()
    assert classify(400, body).code in ("INVALID_REQUEST", "CONTEXT_WINDOW_EXCEEDED")
    assert time.perf_counter() - started < 1


def test_classify_code_needs_no_body() -> None:
    assert classify_code(429, "") == "RATE_LIMIT"
