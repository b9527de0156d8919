"""Public bug reports about Gemini's own API, each as a small case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.adapters.gemini import GeminiAdapter
from app.llm.adapters.gemini_decode import read_usage
from app.llm.adapters.http import Account
from app.llm.failures import classify
from app.llm.history import prepare
from app.llm.models import DEFAULTS
from app.llm.transport import Transport
from app.schema.message import assistant_message, user_message
from app.schema.usage import Usage
from tests.fault_server.gemini import check_request
from tests.llm.asking import ask


@pytest.mark.parametrize("repaired", [True, False])
def test_b042_an_empty_turn_of_the_model_is_skipped(repaired: bool) -> None:
    """pydantic/pydantic-ai#3511: Gemini refuses a content without parts."""
    empty = assistant_message((), provider="main", model="m")
    messages = (user_message("hi"), empty, user_message("are you there?"))
    sent = ask(*(prepare(messages, images=True) if repaired else messages))
    account = Account("google", "Google Gemini", "http://x/v1beta", "k")
    body: dict[str, Any] = json.loads(GeminiAdapter(account, Transport(), route="main", facts=DEFAULTS).encode(sent))
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}, {"text": "are you there?"}]}]
    assert check_request(body) == []


def test_b051_thoughts_are_counted_beside_the_answer() -> None:
    """browser-use/browser-use#4075: with chat completions they are part of the output, with Gemini they are not."""
    counts: dict[str, Any] = {"promptTokenCount": 20, "candidatesTokenCount": 44, "thoughtsTokenCount": 256}
    assert read_usage(counts) == Usage(input_tokens=20, output_tokens=300, reasoning_tokens=256)


def test_b057_an_overflow_inside_a_text_of_json_is_found() -> None:
    """google-gemini/gemini-cli#5807: read as a server's error it was sent again and again."""
    words = "The input token count (1091639) exceeds the maximum number of tokens allowed (1048576)."
    inner = json.dumps({"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}, indent=1)
    body = json.dumps({"error": {"message": inner, "code": 400, "status": "Bad Request"}})
    assert classify(400, body.encode()).code == "CONTEXT_WINDOW_EXCEEDED"
