"""What Google, Ollama and LM Studio say when they refuse, each beside the code it stands for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.failures import RefusedOption, classify, in_band

GOOGLE_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def google(code: int, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": "X", "details": list(details)}}


def wait(seconds: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": seconds}


def hit(quota_id: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota_id}]}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, google(400, "API key not valid. Please pass a valid API key."), "AUTH"),
        (
            429,
            google(429, GOOGLE_QUOTA, hit("RequestsPerMinutePerProjectPerModel-FreeTier"), wait("32s")),
            "RATE_LIMIT",
        ),
        (429, google(429, f"{GOOGLE_QUOTA}\nPlease retry in 32s.", hit("RequestsPerDayPerProjectPerModel")), "QUOTA"),
        (404, google(404, "models/gemini-x is not found for API version v1beta, or is not supported"), "UNKNOWN_MODEL"),
        (503, google(503, "The model is overloaded. Please try again later."), "SERVER"),
        (400, google(400, "Function calling is not enabled for models/gemma-3-4b-it"), "UNSUPPORTED_TOOLS"),
        (400, google(400, "Image input modality is not enabled for models/gemma-3-1b-it"), "UNSUPPORTED_CONTENT"),
        (400, {"error": "registry.ollama.ai/library/gemma:2b does not support tools"}, "UNSUPPORTED_TOOLS"),
        (404, {"error": "model 'qwen3:8b' not found"}, "UNKNOWN_MODEL"),
        (404, {"error": 'model "qwen3" not found, try pulling it first'}, "UNKNOWN_MODEL"),
        (500, {"error": "model requires more system memory (5.6 GiB) than is available (3.1 GiB)"}, "INVALID_REQUEST"),
        (500, {"error": "llama runner process has terminated: exit status 2"}, "SERVER"),
        (
            500,
            {"error": "error parsing tool call: raw='{\"a\":' err=unexpected end of JSON input"},
            "INVALID_TOOL_CALL",
        ),
        (400, {"error": "this model is missing data required for image input"}, "UNSUPPORTED_CONTENT"),
        (503, {"error": "server busy, please try again.  maximum pending requests exceeded"}, "SERVER"),
        (400, {"error": "No models loaded. Please load a model in the developer page."}, "UNKNOWN_MODEL"),
        (404, {"error": {"message": "Multiple models are loaded. Please specify a model."}}, "UNKNOWN_MODEL"),
        (404, {"error": {"message": 'Failed to load model "m". Error: stopped'}}, "INVALID_REQUEST"),
        (400, {"error": "The model has crashed without additional information. (Exit code: 6)"}, "SERVER"),
        (400, {"error": "Model unloaded."}, "SERVER"),
        (
            400,
            {"error": "However, the model is loaded with context length of only 9 tokens"},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
    ],
)
def test_refusals(status: int, body: Any, code: str) -> None:
    assert classify(status, json.dumps(body).encode()).code == code


def test_the_wait_that_google_names_stands_in_the_body() -> None:
    body = json.dumps([google(429, "Resource exhausted.", wait("7.5s"))], indent=2).encode()
    assert classify(429, body).failure.retry_after_s == 7.5
    assert classify(429, body, {"retry-after": "3"}).failure.retry_after_s == 3
    assert classify(429, json.dumps(google(429, "x", wait("0s"))).encode()).failure.retry_after_s is None


def test_a_model_that_does_not_fit_says_what_helps() -> None:
    found = classify(500, b'{"error": "model requires more system memory (5 GiB) than is available (3 GiB)"}')
    assert found.hint == "free memory at the server, or choose a smaller model"


def test_lm_studio_answers_a_wrong_path_with_200() -> None:
    found = in_band({"error": "Unexpected endpoint or method. (POST /chat/completions)"}, who="LM Studio")
    assert found is not None
    assert found.code == "ENDPOINT"
    assert found.hint.startswith("check base_url and api_type")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("The thinking budget 0 is invalid. Please choose a value between 128 and 32768.", "reasoning_effort"),
        ("Budget 0 is invalid. This model only works in thinking mode.", "reasoning_effort"),
        ("Thinking level MINIMAL is not supported for this model.", "reasoning_effort"),
        ('think value "high" is not supported for this model', "reasoning_effort"),
        ('"llama3.2" does not support thinking', "reasoning_effort"),
        ("Function calling with a response mime type: 'application/json' is unsupported", "response_format"),
        ("Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field.", "response_format"),
        ("Developer instruction is not enabled for models/gemma-3-4b-it", "system"),
        ("Invalid tool_choice type: 'object'. Supported string values: none, auto, required", "tool_choice"),
    ],
)
def test_options_that_are_refused(words: str, option: str) -> None:
    found = classify(400, json.dumps({"error": words}).encode())
    assert isinstance(found, RefusedOption)
    assert found.options == (option,)
