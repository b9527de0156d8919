"""How each vendor words its refusals, one row a refusal, beside the code it stands for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.llm.failures import classify, in_band


def _e(message: str, code: Any = None, kind: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": kind}}


WORDINGS: dict[str, tuple[int, Any, str]] = {
    "Zhipu, debt": (429, _e("您的账户已欠费，请充值后重试", "1113"), "QUOTA"),
    "Zhipu, concurrency": (429, _e("您当前使用该API的并发数过高，请降低并发", "1302"), "RATE_LIMIT"),
    "Zhipu, frequency": (429, _e("您当前使用该API的频率过高，请降低频率", "1303"), "RATE_LIMIT"),
    "Zhipu, day": (429, _e("该API已达今日调用次数限额", "1304"), "QUOTA"),
    "Zhipu, busy": (429, _e("当前API请求过多，请稍后重试", "1305"), "RATE_LIMIT"),
    "Zhipu, model": (400, _e("模型不存在，请检查模型代码。", "1211"), "UNKNOWN_MODEL"),
    "Zhipu, too long": (400, _e("Prompt 超长", "1261"), "CONTEXT_WINDOW_EXCEEDED"),
    "Zhipu, filter": (400, _e("系统检测到输入或生成内容可能包含不安全或敏感内容", "1301"), "CONTENT_FILTER"),
    "DashScope, rate": (429, {"code": "Throttling.RateQuota", "message": "Requests rate limit exceeded"}, "RATE_LIMIT"),
    "DashScope, allocation": (429, {"code": "Throttling.AllocationQuota", "message": "Allocated quota exceeded"},
                              "RATE_LIMIT"),
    "DashScope, free tier": (403, {"code": "AllocationQuota.FreeTierOnly",
                                   "message": "The free tier of the model has been exhausted."}, "QUOTA"),
    "DashScope, debt": (400, {"code": "Arrearage", "message": "Access denied, account not in good standing"}, "QUOTA"),
    "DashScope, filter": (400, _e("Input data may contain inappropriate content.", "data_inspection_failed"),
                          "CONTENT_FILTER"),
    "DashScope, length": (400, _e("Range of input length should be [1, 129024]"), "CONTEXT_WINDOW_EXCEEDED"),
    "Moonshot, RPM": (429, _e("max RPM: 3, please try again after 1 seconds", "rate_limit_reached_error"),
                      "RATE_LIMIT"),
    "Moonshot, concurrency": (429, _e("max organization concurrency: 3"), "RATE_LIMIT"),
    "Moonshot, busy": (429, _e("The engine is currently overloaded", "engine_overloaded_error"), "RATE_LIMIT"),
    "Moonshot, debt": (429, _e("Your account is suspended, please check your plan and billing details"), "QUOTA"),
    "Moonshot, filter": (400, _e("The request was rejected because it was considered high risk", "content_filter"),
                         "CONTENT_FILTER"),
    "SiliconFlow, balance": (403, {"code": 30001, "message": "Sorry, your account balance is insufficient"}, "QUOTA"),
    "SiliconFlow, TPM": (429, {"message": "Request was rejected due to rate limiting. Details: TPM limit reached."},
                         "RATE_LIMIT"),
    "SiliconFlow, model": (400, {"code": 20012, "message": "Model does not exist. Please check it carefully."},
                           "UNKNOWN_MODEL"),
    "SiliconFlow, busy": (503, {"code": 50501, "message": "Model service overloaded."}, "SERVER"),
    "DeepSeek, balance": (402, _e("Insufficient Balance"), "QUOTA"),
    "DeepSeek, filter": (400, _e("Content Exists Risk"), "CONTENT_FILTER"),
    "Volcengine, debt": (403, _e("your account has an overdue balance", "AccountOverdueError"), "QUOTA"),
    "Volcengine, TPM": (429, _e("TPM limit of this endpoint", "RateLimitExceeded.EndpointTPMExceeded"), "RATE_LIMIT"),
    "Volcengine, set limit": (429, _e("Your account has reached the set inference limit", "SetLimitExceeded"), "QUOTA"),
    "Volcengine, model": (404, _e("Your account has not activated the model doubao", "ModelNotOpen"), "UNKNOWN_MODEL"),
    "Volcengine, filter": (400, _e("x", "InputTextSensitiveContentDetected"), "CONTENT_FILTER"),
    "Tencent, used up": (400, _e("资源包余量已用尽", "FailedOperation.FreeResourcePackExhausted"), "QUOTA"),
    "Tencent, debt": (400, _e("x", "FailedOperation.ServiceStopArrears"), "QUOTA"),
    "Tencent, rate": (400, _e("请求的次数超过了频率限制", "RequestLimitExceeded"), "RATE_LIMIT"),
    "iFlytek, second": (429, {"code": 11202, "message": "秒级流控超限"}, "RATE_LIMIT"),
    "iFlytek, day": (429, {"code": 11201, "message": "日流控超限"}, "QUOTA"),
    "iFlytek, length": (400, {"code": 10907, "message": "token数量超过上限"}, "CONTEXT_WINDOW_EXCEEDED"),
    "Baidu, RPM": (429, _e("Rate limit reached for RPM", "rpm_rate_limit_exceeded"), "RATE_LIMIT"),
    "ModelScope, day": (429, _e("You have exceeded today's quota for model x"), "QUOTA"),
    "OpenAI, money": (429, _e("You exceeded your current quota, please check your plan and billing details.",
                              "insufficient_quota"), "QUOTA"),
    "OpenAI, policy": (400, _e("Your request was rejected", "content_policy_violation"), "CONTENT_FILTER"),
    "Azure, filter": (400, _e("The response was filtered due to the prompt triggering Azure OpenAI's content management"
                              " policy.", "content_filter"), "CONTENT_FILTER"),
    "Azure, rate": (429, _e("Requests have exceeded call rate limit of your tier. Please retry after 6 seconds."),
                    "RATE_LIMIT"),
    "Anthropic, busy": (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
                        "SERVER"),
    "Anthropic, credit": (400, _e("Your credit balance is too low to access the Anthropic API."), "QUOTA"),
    "Google, minute": (429, _e("Quota exceeded for x/generate_content_requests_per_minute_per_project"), "RATE_LIMIT"),
    "Bedrock, throttle": (429, {"message": "Too many tokens, please wait before trying again."}, "RATE_LIMIT"),
    "xAI, credits": (403, {"code": "denied", "error": "Your newly created team doesn't have any credits yet"}, "QUOTA"),
    "xAI, spending": (429, {"error": "Your team has either used all available credits or reached its monthly spending"
                            " limit."}, "QUOTA"),
    "Mistral, rate": (429, {"message": "Requests rate limit exceeded"}, "RATE_LIMIT"),
    "Mistral, capacity": (429, {"message": "Service tier capacity exceeded for this model."}, "RATE_LIMIT"),
    "Cohere, minute": (429, {"message": "limited to 20 API calls / minute"}, "RATE_LIMIT"),
    "Cohere, month": (429, {"message": "You are using a Trial key, which is limited to 1000 API calls / month."},
                      "QUOTA"),
    "Groq, day": (429, _e("Rate limit reached on tokens per day (TPD): Limit 100000, Used 99000, Requested 1500. Please"
                          " try again in 7m12s."), "RATE_LIMIT"),
    "Together, credit": (402, _e("Credit limit exceeded"), "QUOTA"),
    "Fireworks, suspended": (412, {"error": "Account x is suspended, possibly due to reaching the spending limit"},
                             "QUOTA"),
    "Perplexity, length": (400, _e("The total length of all messages is too long."), "CONTEXT_WINDOW_EXCEEDED"),
    "OpenRouter, moderation": (403, _e("anthropic/x requires moderation. Your input was flagged"), "CONTENT_FILTER"),
    "OpenRouter, money": (402, _e("This request requires more credits, or fewer max_tokens."), "QUOTA"),
    "Hugging Face, loading": (503, {"error": "Model x is currently loading", "estimated_time": 3.5}, "SERVER"),
    "Hugging Face, credits": (402, {"error": "You have exceeded your monthly included credits"}, "QUOTA"),
    "NVIDIA, credits": (402, {"detail": "Cloud credits expired"}, "QUOTA"),
    "Cerebras, tokens": (429, {"message": "Tokens per minute limit exceeded", "code": "token_quota_exceeded"},
                         "RATE_LIMIT"),
    "GitHub, day": (429, _e("Rate limit of 50 per 86400s exceeded. Please wait 40000 seconds before retrying."),
                    "RATE_LIMIT"),
    "vLLM, tools": (400, {"object": "error", "message": '"auto" tool choice requires --enable-auto-tool-choice'},
                    "UNSUPPORTED_TOOLS"),
    "CDN, 520": (520, "<html>Web server is returning an unknown error</html>", "SERVER"),
    "CDN, 524": (524, "<html>A timeout occurred</html>", "SERVER"),
    "CDN, 527": (527, b"", "SERVER"),
    "conflict": (409, {"detail": "conversation locked"}, "SERVER"),
    "too early": (425, b"", "SERVER"),
    "nginx, bytes": (413, "<html><h1>413 Request Entity Too Large</h1></html>", "INVALID_REQUEST"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "code"), WORDINGS.values(), ids=WORDINGS)
def test_a_refusal(status: int, body: Any, code: str) -> None:
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    assert classify(status, data).code == code


def test_at_least_25_vendors_are_known() -> None:
    assert len({name.partition(",")[0] for name in WORDINGS}) >= 25


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [
        (1002, "rate limit", "RATE_LIMIT"),
        (1004, "not authorized", "AUTH"),
        (1008, "insufficient balance", "QUOTA"),
        (1013, "unknown", "SERVER"),
        (1026, "input new_sensitive", "CONTENT_FILTER"),
        (1039, "token limit", "RATE_LIMIT"),
        (2013, "invalid params, context window exceeds limit", "CONTEXT_WINDOW_EXCEEDED"),
        (2049, "invalid api key", "AUTH"),
        (2056, "usage limit exceeded", "QUOTA"),
    ],
)
def test_minimax_says_it_in_a_number_with_status_200(number: int, words: str, code: str) -> None:
    error = in_band({"base_resp": {"status_code": number, "status_msg": words}, "choices": None}, who="MiniMax")
    assert error is not None
    assert error.code == code


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [
        (17, "Open api daily request limit reached", "QUOTA"),
        (18, "Open api qps request limit reached", "RATE_LIMIT"),
        (110, "Access token invalid or no longer valid", "AUTH"),
        (336007, "the input is too long: prompt too long", "CONTEXT_WINDOW_EXCEEDED"),
        (336100, "try again", "SERVER"),
        (336501, "Rpm rate limit exceeded", "RATE_LIMIT"),
    ],
)
def test_baidu_says_it_in_a_number_with_status_200(number: int, words: str, code: str) -> None:
    error = in_band({"error_code": number, "error_msg": words}, who="Baidu")
    assert error is not None
    assert error.code == code
